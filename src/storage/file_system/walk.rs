//! Opens a directory by its path, mount by mount.
//!
//! One system call can follow a path through several file systems, and hangs in the first that does not answer. Here
//! each call stays within one file system: the kernel stops before a mount point, and the walk continues in the lane of
//! the file system that is mounted there.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::OpenError;

/// The kernel's limit of followed links.
const MOST_LINKS: usize = 40;

/// The maximum of steps in one walk; a path can be 4096 bytes long.
const MOST_STEPS: usize = 4096;

/// How a walk treats symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    Follow,
    /// A path that contains a link is not opened.
    Refuse,
}

/// An open directory. The handle stays on this directory even if another one takes its path.
#[derive(Debug)]
pub struct Directory {
    pub handle: OwnedFd,
    /// The path as the kernel reports it.
    pub path: PathBuf,
    pub device: u64,
    pub inode: u64,
    pub(super) mount: PathBuf,
}

impl Directory {
    pub(super) fn of(handle: OwnedFd, mount: PathBuf) -> rustix::io::Result<Self> {
        let stat = rustix::fs::fstat(&handle)?;
        if !FileType::from_raw_mode(stat.st_mode).is_dir() {
            return Err(Errno::NOTDIR);
        }
        if stat.st_nlink == 0 {
            return Err(Errno::NOENT);
        }
        let path = rustix::fs::readlinkat(CWD, format!("/proc/self/fd/{}", handle.as_raw_fd()), Vec::new())?;
        let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
        Ok(Self { handle, path, device: stat.st_dev, inode: stat.st_ino, mount })
    }

    /// Returns the mount point of the directory's file system.
    pub(crate) fn mount_point(&self) -> &Path {
        &self.mount
    }
}

/// A walk along a path.
#[derive(Debug)]
pub(super) struct Walk {
    links: Links,
    /// The directory that was reached; `None` at the start.
    reached: Option<OwnedFd>,
    /// The path of that directory, without links.
    path: PathBuf,
    /// The mount point of the next step's file system.
    mount: PathBuf,
    /// The next name is a mount point that the walk may enter.
    crosses: bool,
    rest: VecDeque<OsString>,
    followed: usize,
    steps: usize,
}

#[derive(Debug)]
pub(super) enum Progress {
    Arrived(Directory),
    /// The rest lies in another file system: see [`Walk::mount`].
    Crosses(Box<Walk>),
}

impl Walk {
    pub(super) fn new(path: &Path, links: Links) -> Self {
        Self {
            links,
            reached: None,
            path: PathBuf::from("/"),
            mount: PathBuf::from("/"),
            crosses: false,
            rest: names(path).collect(),
            followed: 0,
            steps: 0,
        }
    }

    /// Returns the mount point of the next step's file system.
    pub(super) fn mount(&self) -> &Path {
        &self.mount
    }

    /// Continues to the directory, or to the next mount point.
    pub(super) fn advance(mut self) -> Result<Progress, OpenError> {
        loop {
            let step = self.step();
            match step {
                Ok(Step::Next) => {}
                Ok(Step::Arrived(directory)) => return Ok(Progress::Arrived(directory)),
                Ok(Step::Crosses) => return Ok(Progress::Crosses(Box::new(self))),
                Err(errno) => {
                    let path = self.rest.into_iter().fold(self.path, |path, name| path.join(name));
                    return Err(OpenError::Failed { path, errno });
                }
            }
        }
    }

    fn step(&mut self) -> rustix::io::Result<Step> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(Errno::NAMETOOLONG);
        }
        let reached = match self.reached.take() {
            Some(reached) => reached,
            None => rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?,
        };
        let Some(name) = self.rest.front().cloned() else {
            return Directory::of(reached, self.mount.clone()).map(Step::Arrived);
        };
        if name == ".." {
            // Restarts from the root: the parent may be in another file system.
            self.rest.pop_front();
            self.path.pop();
            self.restart();
            return Ok(Step::Next);
        }
        let within = if self.crosses { ResolveFlags::empty() } else { ResolveFlags::NO_XDEV };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match rustix::fs::openat2(&reached, &name, flags, Mode::empty(), within) {
            Err(Errno::XDEV) => {
                self.mount = self.path.join(&name);
                self.crosses = true;
                self.reached = Some(reached);
                return Ok(Step::Crosses);
            }
            opened => opened?,
        };
        self.crosses = false;
        // Only a link has a target.
        match rustix::fs::readlinkat(&opened, "", Vec::new()) {
            Ok(target) => self.follow(reached, Path::new(&OsString::from_vec(target.into_bytes())))?,
            Err(Errno::NOENT | Errno::INVAL) => {
                self.rest.pop_front();
                self.path.push(name);
                self.reached = Some(opened);
            }
            Err(error) => return Err(error),
        }
        Ok(Step::Next)
    }

    fn follow(&mut self, from: OwnedFd, target: &Path) -> rustix::io::Result<()> {
        self.followed += 1;
        if self.links == Links::Refuse || self.followed > MOST_LINKS {
            return Err(Errno::LOOP);
        }
        self.rest.pop_front();
        for name in names(target).collect::<Vec<_>>().into_iter().rev() {
            self.rest.push_front(name);
        }
        if target.is_absolute() {
            self.path = PathBuf::from("/");
            self.reached = None;
            self.mount = PathBuf::from("/");
        } else {
            self.reached = Some(from);
        }
        Ok(())
    }

    fn restart(&mut self) {
        for name in names(&self.path).collect::<Vec<_>>().into_iter().rev() {
            self.rest.push_front(name);
        }
        self.path = PathBuf::from("/");
        self.mount = PathBuf::from("/");
    }
}

enum Step {
    Next,
    Arrived(Directory),
    Crosses,
}

fn names(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    })
}
