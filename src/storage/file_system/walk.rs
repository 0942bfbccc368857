//! From a path to an open directory, mount by mount.
//!
//! The kernel would follow a path through any number of file systems within one call, and the call would hang in whichever
//! does not answer. Here each call stays within one: the kernel is told to stop before a mount point, and the walk goes on
//! in the lane of the file system that is mounted there.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::OpenError;

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

/// Steps of one walk; a path can be 4096 bytes long.
const MOST_STEPS: usize = 4096;

/// What becomes of symbolic links on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    Follow,
    /// A path with a link in it is not opened.
    Refuse,
}

/// A directory that is held open: another directory may take its path, and never its place here.
#[derive(Debug)]
pub struct Directory {
    pub handle: OwnedFd,
    /// Where the kernel says that it is.
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

    /// Where the file system is mounted that it lies in.
    pub(crate) fn mount_point(&self) -> &Path {
        &self.mount
    }
}

#[derive(Debug)]
pub(super) struct Walk {
    links: Links,
    /// The directory that was reached, open except at the start, and its path, which has no links.
    reached: Option<OwnedFd>,
    path: PathBuf,
    /// Where the file system is mounted in which the next step is.
    mount: PathBuf,
    /// The next name is that of a mount point, into which this walk may go.
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

    /// Where the file system is mounted in which the next step is.
    pub(super) fn mount(&self) -> &Path {
        &self.mount
    }

    /// Goes on to the directory, or to the next mount point.
    pub(super) fn advance(mut self) -> Result<Progress, OpenError> {
        loop {
            let step = self.step();
            match step {
                Ok(Step::On) => {}
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
            // From the top again: the directory above may be in another file system.
            self.rest.pop_front();
            self.path.pop();
            self.restart();
            return Ok(Step::On);
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
        // Of anything but a link, there is no target to read.
        match rustix::fs::readlinkat(&opened, "", Vec::new()) {
            Ok(target) => self.follow(reached, Path::new(&OsString::from_vec(target.into_bytes())))?,
            Err(Errno::NOENT | Errno::INVAL) => {
                self.rest.pop_front();
                self.path.push(name);
                self.reached = Some(opened);
            }
            Err(error) => return Err(error),
        }
        Ok(Step::On)
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
    On,
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
