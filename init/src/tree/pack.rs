//! Packing of a directory into an archive.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, open, openat, readlinkat, statat};
use rustix::io::Errno;

use super::{Totals, TreeError};
use crate::own_process;
use crate::tar::{END, Entry, Kind, padding};

/// The greatest depth of directories: each takes a descriptor while it is read.
const MAX_DEPTH: usize = 256;

const ROOT_NAME: &[u8] = b"./";

#[derive(Debug)]
pub struct Packing {
    /// The open directories, from the outermost to the one that is read.
    pub(super) open: Vec<Level>,
    file: Option<Content>,
    totals: Totals,
}

#[derive(Debug)]
pub(super) struct Level {
    directory: Dir,
    /// Ends with a slash.
    name: Vec<u8>,
}

/// The content of a file whose header is written.
#[derive(Debug)]
struct Content {
    file: File,
    name: Vec<u8>,
    left: u64,
    padding: usize,
}

impl Packing {
    /// Opens a directory. The archive starts with the directory itself, named `./`, which is the prefix of all names.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(path, flags, Mode::empty())?;
        own_process::refuse(&directory)?;
        let directory = Dir::new(directory)?;
        Ok(Self { open: vec![Level { directory, name: ROOT_NAME.to_vec() }], file: None, totals: Totals::default() })
    }

    /// Returns the number of open directories.
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// Appends the next part of the archive, about `room` bytes at most. `Some`: the archive is complete.
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
        entry_of(ROOT_NAME, Kind::Directory, 0, &stat).put(out);
        self.totals.entries = 1;
        Ok(())
    }

    /// Adds one entry. An entry that was removed meanwhile is left out, and a link that replaced it is not followed.
    fn add(&mut self, name: &std::ffi::CStr, path: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let Some(level) = self.open.last() else { return Ok(()) };
        let parent = level.directory.fd()?;
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            stat => stat?,
        };
        let opened = |flags| match openat(parent, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Some((fstat(&fd)?, fd))),
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => Ok(None),
            Err(error) => Err(error),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => match opened(OFlags::RDONLY | OFlags::DIRECTORY)? {
                Some((_, directory)) if own_process::refuse(&directory).is_err() => self.totals.skipped += 1,
                Some((stat, directory)) => self.descend(path, &stat, directory, out)?,
                None => self.totals.skipped += 1,
            },
            FileType::RegularFile => match opened(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)? {
                // A single file of this process may be bind-mounted anywhere.
                Some((_, file)) if own_process::refuse(&file).is_err() => self.totals.skipped += 1,
                Some((stat, file)) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                    self.copy(path, &stat, file, out);
                }
                _ => self.totals.skipped += 1,
            },
            FileType::Symlink => match readlinkat(parent, name, Vec::new()) {
                Ok(target) => {
                    entry_of(path, Kind::Link { target: target.into_bytes() }, 0, &stat).put(out);
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
        if self.open.len() >= MAX_DEPTH {
            return Err(io::Error::other(format!("it is more than {MAX_DEPTH} directories deep")));
        }
        let name = [path, b"/"].concat();
        entry_of(&name, Kind::Directory, 0, stat).put(out);
        self.open.push(Level { directory: Dir::new(directory)?, name });
        self.totals.entries += 1;
        Ok(())
    }

    fn copy(&mut self, path: &[u8], stat: &Stat, file: OwnedFd, out: &mut Vec<u8>) {
        let size = stat.st_size as u64;
        entry_of(path, Kind::File, size, stat).put(out);
        self.file = Some(Content { file: file.into(), name: path.to_vec(), left: size, padding: padding(size) });
        self.totals.entries += 1;
        self.totals.bytes += size;
    }
}

impl Content {
    /// Appends content, and returns whether the file is complete. The header has fixed the length: a file that has
    /// shrunk is filled with zeros, and one that has grown is cut.
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

fn entry_of(name: &[u8], kind: Kind, size: u64, stat: &Stat) -> Entry {
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
