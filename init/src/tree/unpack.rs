//! An archive on its way into a directory.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, Mode, OFlags, Timespec, Timestamps, fchmod, futimens, linkat, mkdirat, open, openat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::{Totals, TreeError, checked_name};
use crate::own_process;
use crate::tar::{Entry, Item, Kind, Reader};

/// No archive makes a program run as somebody else.
const PERMISSIONS: u32 = 0o1777;

/// What a directory needs for anything to be put into it.
const OPEN: u32 = 0o700;

/// Directories that get their permissions in the end, as nothing could be put into them otherwise.
const MOST_CLOSED: usize = 4096;

#[derive(Debug)]
pub struct Unpacking {
    target: OwnedFd,
    reader: Reader,
    /// The directory of the last entry: most often that of the next one, too.
    last: Option<(Vec<u8>, OwnedFd)>,
    file: Option<Writing>,
    closed: Vec<(Vec<u8>, u32)>,
    totals: Totals,
}

/// A file that is not complete yet.
#[derive(Debug)]
struct Writing {
    file: File,
    entry: Entry,
}

impl Unpacking {
    /// Into this directory. With `parents` it is made if it is not there, and so are those above it.
    pub fn open(path: &Path, parents: bool) -> io::Result<Self> {
        if parents {
            std::fs::create_dir_all(path)?;
        }
        let target = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        own_process::refuse(&target)?;
        let (reader, totals) = Default::default();
        Ok(Self { target, reader, last: None, file: None, closed: Vec::new(), totals })
    }

    /// The next bytes of the archive.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<(), TreeError> {
        loop {
            let item = self.reader.next(&mut bytes).map_err(|error| self.of_archive(error))?;
            match item {
                None => return Ok(()),
                Some(Item::Entry(entry)) => {
                    let name = entry.name.clone();
                    if let Err(error) = self.begin(entry) {
                        return Err(TreeError::at(&name, error));
                    }
                }
                Some(Item::Data(data)) => {
                    if let Some(Writing { file, entry }) = &mut self.file {
                        file.write_all(data).map_err(|error| TreeError::at(&entry.name, error))?;
                        self.totals.bytes += data.len() as u64;
                    }
                }
                Some(Item::EndOfEntry) => {
                    if let Some(Writing { file, entry }) = self.file.take() {
                        complete(&file, &entry).map_err(|error| TreeError::at(&entry.name, error))?;
                    }
                }
            }
        }
    }

    /// Nothing more comes.
    pub fn finish(&mut self) -> Result<Totals, TreeError> {
        self.reader.finish().map_err(|error| self.of_archive(error))?;
        for (name, mode) in std::mem::take(&mut self.closed).into_iter().rev() {
            let closed = self.parent(&name).and_then(|(parent, last)| Ok(chmod(parent, last, mode)?));
            closed.map_err(|error| TreeError::at(&name, error))?;
        }
        Ok(self.totals)
    }

    /// Of the entry that is not complete, if there is one.
    fn of_archive(&self, error: crate::tar::TarError) -> TreeError {
        let entry = self.file.as_ref().map_or(&b""[..], |writing| &writing.entry.name);
        TreeError::at(entry, io::Error::other(error))
    }

    fn begin(&mut self, entry: Entry) -> io::Result<()> {
        let name = checked_name(&entry.name)?;
        if name.is_empty() {
            // The directory itself, which is there and stays as it is.
            self.totals.entries += 1;
            return Ok(());
        }
        match &entry.kind {
            Kind::Directory => self.make_directory(&name, entry.mode & PERMISSIONS)?,
            Kind::File => {
                let (parent, last) = self.parent(&name)?;
                clear(parent, last)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat(parent, last, flags, Mode::RUSR | Mode::WUSR)?;
                self.file = Some(Writing { file: file.into(), entry });
            }
            Kind::Link { target } => {
                let (parent, last) = self.parent(&name)?;
                clear(parent, last)?;
                symlinkat(target.as_slice(), parent, last)?;
            }
            Kind::Same { name: other } => {
                let other = checked_name(other)?;
                let (from, known) = self.parent(&other)?;
                let from = from.try_clone_to_owned()?;
                let (parent, last) = self.parent(&name)?;
                clear(parent, last)?;
                linkat(&from, known, parent, last, AtFlags::empty())?;
            }
            Kind::Other => {
                self.totals.skipped += 1;
                return Ok(());
            }
        }
        self.totals.entries += 1;
        Ok(())
    }

    /// One that is there already stays as it is.
    fn make_directory(&mut self, name: &[u8], mode: u32) -> io::Result<()> {
        let (parent, last) = self.parent(name)?;
        match mkdirat(parent, last, Mode::from_raw_mode(OPEN)) {
            Err(Errno::EXIST) => directory(parent, last).map(drop),
            Err(error) => Err(error.into()),
            Ok(()) if mode & OPEN == OPEN => Ok(chmod(parent, last, mode)?),
            Ok(()) if self.closed.len() < MOST_CLOSED => {
                self.closed.push((name.to_vec(), mode));
                Ok(())
            }
            Ok(()) => Err(io::Error::other("it is one of too many directories that are not to be written to")),
        }
    }

    /// The directory that this belongs into, and its name there. Directories that the archive does not have are made.
    fn parent<'a>(&mut self, name: &'a [u8]) -> io::Result<(BorrowedFd<'_>, &'a [u8])> {
        let slash = name.iter().rposition(|byte| *byte == b'/');
        let (above, last) = slash.map_or((&b""[..], name), |slash| (&name[..slash], &name[slash + 1..]));
        if above.is_empty() {
            return Ok((self.target.as_fd(), last));
        }
        if self.last.as_ref().is_none_or(|(known, _)| known != above) {
            let mut at = None;
            for part in above.split(|byte| *byte == b'/') {
                let parent = at.as_ref().map_or(self.target.as_fd(), OwnedFd::as_fd);
                at = Some(entered(parent, part)?);
            }
            self.last = at.map(|fd| (above.to_vec(), fd));
        }
        let fd = self.last.as_ref().map_or(self.target.as_fd(), |(_, fd)| fd.as_fd());
        Ok((fd, last))
    }
}

impl Drop for Unpacking {
    /// What is not complete is not left behind.
    fn drop(&mut self) {
        if let Some(Writing { entry, .. }) = self.file.take()
            && let Ok(name) = checked_name(&entry.name)
            && let Ok((parent, last)) = self.parent(&name)
        {
            let _ = unlinkat(parent, last, AtFlags::empty());
        }
    }
}

fn entered(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => directory(parent, name),
        // A directory that cannot be written to may still hold one that can.
        Err(error) => directory(parent, name).map_err(|_| error.into()),
    }
}

fn directory(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

/// Nothing is written over, so that nobody who has it open sees a part.
fn clear(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn chmod(parent: BorrowedFd<'_>, name: &[u8], mode: u32) -> rustix::io::Result<()> {
    // Made by us, just now; the system cannot be told not to follow a link here, so it is opened first.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fchmod(openat(parent, name, flags, Mode::empty())?, Mode::from_raw_mode(mode))
}

fn complete(file: &File, entry: &Entry) -> io::Result<()> {
    fchmod(file, Mode::from_raw_mode(entry.mode & PERMISSIONS))?;
    let time = Timespec { tv_sec: entry.modified, tv_nsec: 0 };
    Ok(futimens(file, &Timestamps { last_access: time, last_modification: time })?)
}
