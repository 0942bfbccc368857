//! A directory on its way into an archive.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, open, openat, readlinkat, statat};
use rustix::io::Errno;

use super::{Totals, TreeError};
use crate::own_process;
use crate::tar::{END, Entry, Kind, padding};

/// How deep directories may lie in each other: each takes a descriptor while it is read.
const DEEPEST: usize = 256;

const OUTERMOST: &[u8] = b"./";

#[derive(Debug)]
pub struct Packing {
    /// From the outermost to the one that is being read.
    pub(super) open: Vec<Level>,
    file: Option<Content>,
    totals: Totals,
}

#[derive(Debug)]
pub(super) struct Level {
    directory: Dir,
    /// With a slash at its end.
    name: Vec<u8>,
}

/// A file whose header is written already.
#[derive(Debug)]
struct Content {
    file: File,
    name: Vec<u8>,
    left: u64,
    padding: usize,
}

impl Packing {
    /// What is in this directory, after the directory itself; all names begin with `./`, which is its own.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(path, flags, Mode::empty())?;
        own_process::refuse(&directory)?;
        let directory = Dir::new(directory)?;
        Ok(Self { open: vec![Level { directory, name: OUTERMOST.to_vec() }], file: None, totals: Totals::default() })
    }

    /// How many directories are open.
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// Appends what comes next, about `room` bytes at most. `Some`: that was all of it.
    pub fn advance(&mut self, out: &mut Vec<u8>, room: usize) -> Result<Option<Totals>, TreeError> {
        if self.totals == Totals::default() {
            self.begin(out)?;
        }
        if let Some(content) = &mut self.file {
            if content.advance(out, room)? {
                self.file = None;
            }
            return Ok(None);
        }
        let Some(level) = self.open.last_mut() else {
            out.extend_from_slice(&END);
            return Ok(Some(self.totals));
        };
        match level.directory.next() {
            None => {
                self.open.pop();
            }
            Some(Err(error)) => return Err(TreeError::at(&level.name, error)),
            Some(Ok(entry)) => {
                let name = entry.file_name();
                if !matches!(name.to_bytes(), b"." | b"..") {
                    let path = [&level.name, name.to_bytes()].concat();
                    self.add(name, &path, out).map_err(|error| TreeError::at(&path, error))?;
                }
            }
        }
        Ok(None)
    }

    fn begin(&mut self, out: &mut Vec<u8>) -> Result<(), TreeError> {
        let stat = self.open[0].directory.stat().map_err(|error| TreeError::at(b"", error))?;
        described(OUTERMOST, Kind::Directory, 0, &stat).put(out);
        self.totals.entries = 1;
        Ok(())
    }

    /// What was removed since the directory was read is left out, and what was exchanged is not followed.
    fn add(&mut self, name: &std::ffi::CStr, path: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let Some(level) = self.open.last() else { return Ok(()) };
        let parent = level.directory.fd()?;
        let look = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            look => look?,
        };
        let opened = |flags| match openat(parent, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Some((fstat(&fd)?, fd))),
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => Ok(None),
            Err(error) => Err(error),
        };
        match FileType::from_raw_mode(look.st_mode) {
            FileType::Directory => match opened(OFlags::RDONLY | OFlags::DIRECTORY)? {
                Some((_, directory)) if own_process::refuse(&directory).is_err() => self.totals.skipped += 1,
                Some((stat, directory)) => self.descend(path, &stat, directory, out)?,
                None => self.totals.skipped += 1,
            },
            FileType::RegularFile => match opened(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)? {
                // A single file of this process may be mounted anywhere.
                Some((_, file)) if own_process::refuse(&file).is_err() => self.totals.skipped += 1,
                Some((stat, file)) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                    self.copy(path, &stat, file, out);
                }
                _ => self.totals.skipped += 1,
            },
            FileType::Symlink => match readlinkat(parent, name, Vec::new()) {
                Ok(target) => {
                    described(path, Kind::Link { target: target.into_bytes() }, 0, &look).put(out);
                    self.totals.entries += 1;
                }
                Err(Errno::NOENT | Errno::INVAL) => self.totals.skipped += 1,
                Err(error) => return Err(error.into()),
            },
            _ => self.totals.skipped += 1,
        }
        Ok(())
    }

    fn descend(&mut self, path: &[u8], stat: &Stat, directory: OwnedFd, out: &mut Vec<u8>) -> io::Result<()> {
        if self.open.len() >= DEEPEST {
            return Err(io::Error::other(format!("it lies deeper than {DEEPEST} directories")));
        }
        let name = [path, b"/"].concat();
        described(&name, Kind::Directory, 0, stat).put(out);
        self.open.push(Level { directory: Dir::new(directory)?, name });
        self.totals.entries += 1;
        Ok(())
    }

    fn copy(&mut self, path: &[u8], stat: &Stat, file: OwnedFd, out: &mut Vec<u8>) {
        let size = stat.st_size as u64;
        described(path, Kind::File, size, stat).put(out);
        self.file = Some(Content { file: file.into(), name: path.to_vec(), left: size, padding: padding(size) });
        self.totals.entries += 1;
        self.totals.bytes += size;
    }
}

impl Content {
    /// Whether that was all of it. The header has promised so much: what has become shorter since ends with zeros, and
    /// what has become longer is cut.
    fn advance(&mut self, out: &mut Vec<u8>, room: usize) -> Result<bool, TreeError> {
        let start = out.len();
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(room);
        out.resize(start + most, 0);
        let mut filled = 0;
        while filled < most {
            match self.file.read(&mut out[start + filled..]) {
                Ok(0) => break,
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TreeError::at(&self.name, error)),
            }
        }
        self.left -= most as u64;
        if self.left == 0 {
            out.resize(out.len() + self.padding, 0);
        }
        Ok(self.left == 0)
    }
}

fn described(name: &[u8], kind: Kind, size: u64, stat: &Stat) -> Entry {
    Entry {
        name: name.to_vec(),
        kind,
        size,
        mode: stat.st_mode & 0o7777,
        user: stat.st_uid,
        group: stat.st_gid,
        modified: stat.st_mtime,
    }
}
