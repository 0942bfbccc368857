//! Files of the guest. Init and the sandbox's programs see the same tree, so no path leads out of the sandbox.
//!
//! No operation here blocks: only regular files are opened for reading, because the other end of a pipe or a device may
//! not answer.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, open, readlinkat, statat};
use rustix::io::Errno;
use sandbox_init::codec::Bytes;
use sandbox_init::own_process;
use sandbox_init::wire::{Entry, Event, Facts, FileKind, Kind};

use crate::stream_socket::{Filled, StreamSocket};

/// The size of an encoded entry without its name and link target.
const ENTRY: usize = 64;

const PERMISSIONS: u32 = 0o7777;

pub(crate) fn path(bytes: &Bytes) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(&bytes.0))
}

pub(crate) fn facts(at: &Bytes) -> io::Result<Facts> {
    let file = open(path(at), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    own_process::refuse(&file)?;
    Ok(described(&fstat(&file)?, || readlinkat(&file, "", Vec::new()))?)
}

/// Describes a file. `target` reads the target of a symbolic link.
fn described(stat: &Stat, target: impl FnOnce() -> rustix::io::Result<CString>) -> rustix::io::Result<Facts> {
    let (kind, target) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => (FileKind::File {}, None),
        FileType::Directory => (FileKind::Directory {}, None),
        FileType::Symlink => (FileKind::Link {}, Some(Bytes(target()?.into_bytes()))),
        _ => (FileKind::Other {}, None),
    };
    Ok(Facts {
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & PERMISSIONS,
        user: stat.st_uid,
        group: stat.st_gid,
        modified: stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64),
        target,
    })
}

/// Returns the device and inode, which identify a directory under any name.
pub(crate) fn identity(at: &Bytes) -> io::Result<(u64, u64)> {
    fs::metadata(path(at)).map(|metadata| (metadata.dev(), metadata.ino()))
}

pub(crate) fn make_directory(at: &Bytes, mode: Option<u32>, parents: bool) -> io::Result<()> {
    own_process::refuse_in_parent(path(at))?;
    DirBuilder::new().recursive(parents).mode(mode.unwrap_or(0o755) & PERMISSIONS).create(path(at))
}

pub(crate) fn make_link(at: &Bytes, target: &Bytes) -> io::Result<()> {
    own_process::refuse_in_parent(path(at))?;
    std::os::unix::fs::symlink(path(target), path(at))
}

pub(crate) fn remove(at: &Bytes, recursive: bool) -> io::Result<()> {
    let at = path(at);
    own_process::refuse_in_parent(at)?;
    match (fs::symlink_metadata(at)?.is_dir(), recursive) {
        (true, true) => fs::remove_dir_all(at),
        (true, false) => fs::remove_dir(at),
        (false, _) => fs::remove_file(at),
    }
}

/// A file that is read by the service.
#[derive(Debug)]
pub(crate) struct Reading {
    file: File,
    left: u64,
}

impl Reading {
    pub(crate) fn open(at: &Bytes, offset: u64, length: u64) -> io::Result<(Facts, Self)> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path(at))?;
        own_process::refuse(&file)?;
        let stat = fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(io::Error::other("not a regular file")),
        }
        if offset > 0 {
            file.seek(SeekFrom::Start(offset))?;
        }
        Ok((described(&stat, || Err(Errno::INVAL))?, Self { file, left: length }))
    }

    /// Sends the next bytes. Returns whether more remain.
    pub(crate) fn advance(&mut self, channel: &mut StreamSocket) -> io::Result<bool> {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX);
        if room == 0 {
            return Ok(false);
        }
        match channel.fill(Kind::Data, &self.file, room)? {
            Filled::Some(length) => self.left -= length as u64,
            Filled::End => self.left = 0,
            Filled::WouldBlock => {}
        }
        Ok(self.left > 0)
    }
}

/// A directory that is listed for the service.
#[derive(Debug)]
pub(crate) struct Listing {
    directory: Dir,
}

impl Listing {
    pub(crate) fn open(at: &Bytes) -> io::Result<Self> {
        let directory = open(path(at), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        own_process::refuse(&directory)?;
        Ok(Self { directory: Dir::new(directory)? })
    }

    pub(crate) fn advance(&mut self, channel: &mut StreamSocket) -> io::Result<bool> {
        let (mut entries, mut size) = (Vec::new(), 0);
        let mut more = true;
        while size < channel.chunk() {
            let Some(entry) = self.directory.next().transpose()? else {
                more = false;
                break;
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let directory = self.directory.fd()?;
            let described = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
                .and_then(|stat| described(&stat, || readlinkat(directory, name, Vec::new())));
            match described {
                Ok(facts) => {
                    let name = Bytes(name.to_bytes().to_vec());
                    size += ENTRY + name.0.len() + facts.target.as_ref().map_or(0, |target| target.0.len());
                    entries.push(Entry { name, facts });
                }
                // The entry was removed meanwhile.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        channel.send(Kind::Event, &Event::Entries { entries });
        Ok(more)
    }
}

/// A file that is written by the service, under a hidden name until it is complete.
#[derive(Debug)]
pub(crate) struct Writing {
    file: File,
    target: PathBuf,
    /// Absent once the draft is renamed.
    draft: Option<PathBuf>,
}

impl Writing {
    pub(crate) fn open(at: &Bytes, mode: Option<u32>, parents: bool) -> io::Result<Self> {
        let target = resolve_links(path(at))?;
        own_process::refuse_in_parent(&target)?;
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
        // A name has at most 255 bytes, so the draft's name may need to be shorter than the target's.
        hidden.push(std::ffi::OsStr::from_bytes(&name.as_bytes()[..name.len().min(200)]));
        hidden.push(format!(".{:016x}", u64::from_le_bytes(unique)));
        let draft = directory.join(hidden);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        let writing = Self { file, target, draft: Some(draft) };
        // The umask belongs to the sandbox and must not restrict the caller's mode.
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

/// Returns the target of a write through symbolic links, as far as it exists.
fn resolve_links(at: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(at) {
        Ok(metadata) if metadata.is_symlink() => match fs::canonicalize(at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(at.to_owned()),
            resolved => resolved,
        },
        _ => Ok(at.to_owned()),
    }
}
