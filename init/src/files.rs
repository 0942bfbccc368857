//! Files, as this process and the sandbox's own programs see them: no path leads out of the sandbox.
//!
//! Nothing here waits: what is no regular file is not opened for reading, whoever is at its other end.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions, ReadDir};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use sandbox_init::codec::Bytes;
use sandbox_init::wire::{Entry, Event, Facts, FileKind, Kind};

use crate::channel::{Channel, Filled};

/// Told at once of a directory: so many bytes of names and targets, and one entry more.
const BATCH: usize = 64 * 1024;

/// What an entry takes beside those.
const ENTRY: usize = 64;

const PERMISSIONS: u32 = 0o7777;

pub(crate) fn path(bytes: &Bytes) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(&bytes.0))
}

pub(crate) fn facts(at: &Bytes) -> io::Result<Facts> {
    described(path(at), &fs::symlink_metadata(path(at))?)
}

fn described(at: &Path, metadata: &Metadata) -> io::Result<Facts> {
    let kind = match metadata.file_type() {
        kind if kind.is_file() => FileKind::File {},
        kind if kind.is_dir() => FileKind::Directory {},
        kind if kind.is_symlink() => FileKind::Link {},
        _ => FileKind::Other {},
    };
    let target = match kind {
        FileKind::Link {} => Some(Bytes(fs::read_link(at)?.into_os_string().into_vec())),
        _ => None,
    };
    Ok(Facts {
        kind,
        size: metadata.len(),
        mode: metadata.mode() & PERMISSIONS,
        user: metadata.uid(),
        group: metadata.gid(),
        modified: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
        target,
    })
}

/// Its device and number there, by which two names are known to mean one directory.
pub(crate) fn identity(at: &Bytes) -> io::Result<(u64, u64)> {
    fs::metadata(path(at)).map(|metadata| (metadata.dev(), metadata.ino()))
}

pub(crate) fn make_directory(at: &Bytes, mode: Option<u32>, parents: bool) -> io::Result<()> {
    DirBuilder::new().recursive(parents).mode(mode.unwrap_or(0o755) & PERMISSIONS).create(path(at))
}

pub(crate) fn make_link(at: &Bytes, target: &Bytes) -> io::Result<()> {
    std::os::unix::fs::symlink(path(target), path(at))
}

pub(crate) fn rename(from: &Bytes, to: &Bytes) -> io::Result<()> {
    fs::rename(path(from), path(to))
}

pub(crate) fn remove(at: &Bytes, recursive: bool) -> io::Result<()> {
    let at = path(at);
    match (fs::symlink_metadata(at)?.is_dir(), recursive) {
        (true, true) => fs::remove_dir_all(at),
        (true, false) => fs::remove_dir(at),
        (false, _) => fs::remove_file(at),
    }
}

/// A file on its way to the service.
#[derive(Debug)]
pub(crate) struct Reading {
    file: File,
    left: u64,
}

impl Reading {
    pub(crate) fn open(at: &Bytes, offset: u64, length: u64) -> io::Result<(Facts, Self)> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path(at))?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        if offset > 0 {
            file.seek(SeekFrom::Start(offset))?;
        }
        Ok((described(path(at), &metadata)?, Self { file, left: length }))
    }

    /// Whether there is more.
    pub(crate) fn advance(&mut self, channel: &mut Channel) -> io::Result<bool> {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX);
        if room == 0 {
            return Ok(false);
        }
        match channel.fill(Kind::Data, &self.file, room)? {
            Filled::Some(length) => self.left -= length as u64,
            Filled::End => self.left = 0,
            Filled::Dry => {}
        }
        Ok(self.left > 0)
    }
}

/// A directory on its way to the service.
#[derive(Debug)]
pub(crate) struct Listing {
    entries: ReadDir,
}

impl Listing {
    pub(crate) fn open(at: &Bytes) -> io::Result<Self> {
        Ok(Self { entries: fs::read_dir(path(at))? })
    }

    pub(crate) fn advance(&mut self, channel: &mut Channel) -> io::Result<bool> {
        let (mut entries, mut size) = (Vec::new(), 0);
        let mut more = true;
        while size < BATCH {
            let Some(entry) = self.entries.next().transpose()? else {
                more = false;
                break;
            };
            let described = entry.metadata().and_then(|metadata| described(&entry.path(), &metadata));
            match described {
                Ok(facts) => {
                    let name = Bytes(entry.file_name().into_vec());
                    size += ENTRY + name.0.len() + facts.target.as_ref().map_or(0, |target| target.0.len());
                    entries.push(Entry { name, facts });
                }
                // Gone since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        channel.send(Kind::Event, &Event::Entries { entries });
        Ok(more)
    }
}

/// A file on its way from the service: beside its place until it is complete.
#[derive(Debug)]
pub(crate) struct Writing {
    file: File,
    target: PathBuf,
    /// Absent once it is in its place.
    draft: Option<PathBuf>,
}

impl Writing {
    pub(crate) fn open(at: &Bytes, mode: Option<u32>, parents: bool) -> io::Result<Self> {
        let target = through_links(path(at))?;
        let name = target.file_name().ok_or(Errno::INVAL)?;
        let directory = target.parent().ok_or(Errno::INVAL)?;
        if parents && !directory.as_os_str().is_empty() {
            fs::create_dir_all(directory)?;
        }
        let mode = match (mode, fs::metadata(&target)) {
            (_, Ok(there)) if there.is_dir() => return Err(Errno::ISDIR.into()),
            (Some(mode), _) => mode & PERMISSIONS,
            (None, Ok(there)) => there.mode() & PERMISSIONS,
            (None, Err(_)) => 0o644,
        };
        let mut unique = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut unique)?;
        let mut hidden = std::ffi::OsString::from(".");
        // A name has at most 255 bytes; the draft's may need to be shorter than its own.
        hidden.push(std::ffi::OsStr::from_bytes(&name.as_bytes()[..name.len().min(200)]));
        hidden.push(format!(".{:016x}", u64::from_le_bytes(unique)));
        let draft = directory.join(hidden);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        let writing = Self { file, target, draft: Some(draft) };
        // Not by the mask, which is the sandbox's and not the caller's.
        writing.file.set_permissions(Permissions::from_mode(mode))?;
        Ok(writing)
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    pub(crate) fn finish(&mut self) -> io::Result<()> {
        if let Some(draft) = &self.draft {
            fs::rename(draft, &self.target)?;
            self.draft = None;
        }
        Ok(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(draft) = &self.draft {
            let _ = fs::remove_file(draft);
        }
    }
}

/// Where a write through symbolic links goes, as far as they lead somewhere.
fn through_links(at: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(at) {
        Ok(metadata) if metadata.is_symlink() => match fs::canonicalize(at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(at.to_owned()),
            resolved => resolved,
        },
        _ => Ok(at.to_owned()),
    }
}
