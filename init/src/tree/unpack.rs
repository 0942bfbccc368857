//! Unpacking of an archive into a directory.

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

/// The mode bits taken from an archive: without set-user-id and set-group-id.
const PERMISSIONS: u32 = 0o1777;

/// The mode bits that are needed to add an entry to a directory.
const OWNER_ACCESS: u32 = 0o700;

/// The most directories whose mode is set only at the end, because it would prevent adding their entries.
const MAX_READ_ONLY: usize = 4096;

#[derive(Debug)]
pub struct Unpacking {
    target: OwnedFd,
    reader: Reader,
    /// The directory of the last entry, most often also that of the next one.
    last: Option<(Vec<u8>, OwnedFd)>,
    file: Option<Writing>,
    read_only: Vec<(Vec<u8>, u32)>,
    totals: Totals,
}

/// A file that is not complete.
#[derive(Debug)]
struct Writing {
    file: File,
    entry: Entry,
}

impl Unpacking {
    /// Opens the target directory. With `parents`, it and its parents are created if they are missing.
    pub fn open(path: &Path, parents: bool) -> io::Result<Self> {
        if parents {
            std::fs::create_dir_all(path)?;
        }
        let target = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        own_process::refuse(&target)?;
        let (reader, totals) = Default::default();
        Ok(Self { target, reader, last: None, file: None, read_only: Vec::new(), totals })
    }

    /// Unpacks the next bytes of the archive.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<(), TreeError> {
        loop {
            let item = self.reader.next(&mut bytes).map_err(|error| self.archive_error(error))?;
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

    /// Ends the archive.
    pub fn finish(&mut self) -> Result<Totals, TreeError> {
        self.reader.finish().map_err(|error| self.archive_error(error))?;
        for (name, mode) in std::mem::take(&mut self.read_only).into_iter().rev() {
            let changed = self.parent(&name).and_then(|(parent, last)| Ok(chmod(parent, last, mode)?));
            changed.map_err(|error| TreeError::at(&name, error))?;
        }
        Ok(self.totals)
    }

    /// Names the incomplete entry, if there is one, in an error of the archive.
    fn archive_error(&self, error: crate::tar::TarError) -> TreeError {
        let entry = self.file.as_ref().map_or(&b""[..], |writing| &writing.entry.name);
        TreeError::at(entry, io::Error::other(error))
    }

    fn begin(&mut self, entry: Entry) -> io::Result<()> {
        let name = checked_name(&entry.name)?;
        if name.is_empty() {
            // The target directory itself exists and is not changed.
            self.totals.entries += 1;
            return Ok(());
        }
        match &entry.kind {
            Kind::Directory => self.make_directory(&name, entry.mode & PERMISSIONS)?,
            Kind::File => {
                let (parent, last) = self.parent(&name)?;
                remove(parent, last)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat(parent, last, flags, Mode::RUSR | Mode::WUSR)?;
                self.file = Some(Writing { file: file.into(), entry });
            }
            Kind::Link { target } => {
                let (parent, last) = self.parent(&name)?;
                remove(parent, last)?;
                symlinkat(target.as_slice(), parent, last)?;
            }
            Kind::Same { name: other } => {
                let other = checked_name(other)?;
                let (from, known) = self.parent(&other)?;
                let from = from.try_clone_to_owned()?;
                let (parent, last) = self.parent(&name)?;
                remove(parent, last)?;
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

    /// Creates a directory. An existing one is not changed.
    fn make_directory(&mut self, name: &[u8], mode: u32) -> io::Result<()> {
        let (parent, last) = self.parent(name)?;
        match mkdirat(parent, last, Mode::from_raw_mode(OWNER_ACCESS)) {
            Err(Errno::EXIST) => open_directory(parent, last).map(drop),
            Err(error) => Err(error.into()),
            Ok(()) if mode & OWNER_ACCESS == OWNER_ACCESS => Ok(chmod(parent, last, mode)?),
            Ok(()) if self.read_only.len() < MAX_READ_ONLY => {
                self.read_only.push((name.to_vec(), mode));
                Ok(())
            }
            Ok(()) => Err(io::Error::other(format!(
                "the archive has more than {MAX_READ_ONLY} directories without write permission"
            ))),
        }
    }

    /// Returns the parent directory of an entry and the entry's name in it. Creates parents that the archive does not
    /// contain.
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
                at = Some(enter(parent, part)?);
            }
            self.last = at.map(|fd| (above.to_vec(), fd));
        }
        let fd = self.last.as_ref().map_or(self.target.as_fd(), |(_, fd)| fd.as_fd());
        Ok((fd, last))
    }
}

impl Drop for Unpacking {
    /// Removes an incomplete file.
    fn drop(&mut self) {
        if let Some(Writing { entry, .. }) = self.file.take()
            && let Ok(name) = checked_name(&entry.name)
            && let Ok((parent, last)) = self.parent(&name)
        {
            let _ = unlinkat(parent, last, AtFlags::empty());
        }
    }
}

fn enter(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => open_directory(parent, name),
        // A directory without write permission may still contain one with it.
        Err(error) => open_directory(parent, name).map_err(|_| error.into()),
    }
}

fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

/// Removes an existing entry. It is not overwritten, so that a process that has it open sees no partial content.
fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn chmod(parent: BorrowedFd<'_>, name: &[u8], mode: u32) -> rustix::io::Result<()> {
    // `fchmodat` cannot refuse to follow a link, so the directory is opened first.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fchmod(openat(parent, name, flags, Mode::empty())?, Mode::from_raw_mode(mode))
}

fn complete(file: &File, entry: &Entry) -> io::Result<()> {
    fchmod(file, Mode::from_raw_mode(entry.mode & PERMISSIONS))?;
    let time = Timespec { tv_sec: entry.modified, tv_nsec: 0 };
    Ok(futimens(file, &Timestamps { last_access: time, last_modification: time })?)
}
