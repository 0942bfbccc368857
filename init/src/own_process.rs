//! Keeps this process's own directory of a proc file system out of reach of every path.
//!
//! A process may always read its own memory and environment there, and init reads files on behalf of others. The check
//! looks at the opened descriptor, never at the path: links, `..`, the roots of other processes, second proc file
//! systems and bind mounts of their parts all end at the same directory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, open, openat, readlink, statat,
};
use rustix::io::Errno;

/// The inode number of the root directory of a proc file system.
const ROOT_INODE: u64 = 1;

/// The greatest depth of a directory in a proc file system.
const MAX_DEPTH: usize = 64;

const OPEN_PATH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Returns an error for a file or directory of a proc file system that belongs to this process, and for one whose owner
/// cannot be determined.
pub fn refuse(opened: impl AsFd) -> rustix::io::Result<()> {
    let opened = opened.as_fd();
    if !is_in_proc(opened)? {
        return Ok(());
    }
    let stat = fstat(opened)?;
    let mut at = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => openat(opened, ".", OPEN_PATH, Mode::empty())?,
        _ => directory_of(opened, &stat)?,
    };
    let mut ancestors = Vec::new();
    for _ in 0..MAX_DEPTH {
        // A bind mount of a part of a proc file system does not show which process it belongs to.
        if !is_in_proc(&at)? {
            break;
        }
        let stat = fstat(&at)?;
        ancestors.push(identity(&stat));
        if stat.st_ino == ROOT_INODE && is_link(statat(&at, "self", AtFlags::SYMLINK_NOFOLLOW)) {
            return match statat(&at, "self", AtFlags::empty()) {
                Ok(own) if ancestors.contains(&identity(&own)) => Err(Errno::ACCESS),
                // This process does not exist in the process namespace of that file system.
                Ok(_) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error),
            };
        }
        at = openat(&at, "..", OPEN_PATH, Mode::empty())?;
    }
    Err(Errno::ACCESS)
}

/// Does the same for a path that is to be created, moved or removed. The caller handles a missing directory.
pub fn refuse_in_parent(path: &Path) -> rustix::io::Result<()> {
    match path.parent().map(|parent| open(parent, OPEN_PATH, Mode::empty())) {
        Some(Ok(directory)) => refuse(directory),
        _ => Ok(()),
    }
}

fn is_in_proc(opened: impl AsFd) -> rustix::io::Result<bool> {
    Ok(fstatfs(opened)?.f_type == PROC_SUPER_MAGIC)
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn is_link(look: rustix::io::Result<Stat>) -> bool {
    look.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// Opens the directory of an opened file. The kernel names the directory, and the entry there must be the same file.
fn directory_of(opened: impl AsFd, stat: &Stat) -> rustix::io::Result<OwnedFd> {
    let path = readlink(format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd()), Vec::new())?;
    let path = path.to_bytes();
    let slash = path.iter().rposition(|byte| *byte == b'/').ok_or(Errno::ACCESS)?;
    let directory = open(&path[..slash.max(1)], OPEN_PATH, Mode::empty()).map_err(|_| Errno::ACCESS)?;
    match statat(&directory, &path[slash + 1..], AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) if identity(&there) == identity(stat) => Ok(directory),
        _ => Err(Errno::ACCESS),
    }
}

/// Overwrites the value of an environment variable where the kernel shows it to other processes, as in
/// `/proc/PID/environ`. Call this before the process is made undumpable, while it may still write to its own memory.
pub fn wipe_variable(name: &str) -> io::Result<()> {
    let environment = fs::read("/proc/self/environ")?;
    let mut at = 0;
    for variable in environment.split(|byte| *byte == 0) {
        let value = variable.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        if let Some(value) = value {
            let memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
            let start = environment_start()? + (at + variable.len() - value.len()) as u64;
            memory.write_all_at(&vec![b'0'; value.len()], start)?;
        }
        at += variable.len() + 1;
    }
    Ok(())
}

/// Returns the address of this process's environment.
fn environment_start() -> io::Result<u64> {
    /// The index of `env_start` in `/proc/PID/stat`, counted after the name.
    const FIELD: usize = 47;
    let stat = io::read_to_string(File::open("/proc/self/stat")?)?;
    let field = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(FIELD)?.parse().ok());
    field.ok_or_else(|| io::Error::other("/proc/self/stat has no address of the environment"))
}
