//! Keeps this process to itself: no path leads into its own directory of a proc file system.
//!
//! A process may always read its own memory and environment there, and init reads on behalf of others. The opened
//! descriptor is judged, never the name that led to it: links, `..`, roots of other processes, second proc file systems and
//! parts of one that are mounted elsewhere all end at the same directory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, open, openat, readlink, statat,
};
use rustix::io::Errno;

/// The number of a proc file system's topmost directory.
const TOPMOST: u64 = 1;

/// No directory of a proc file system lies deeper.
const DEEPEST: usize = 64;

const LOOK: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Refuses a file or directory that belongs to this process in a proc file system, and every one there of which that
/// cannot be known.
pub fn refuse(opened: impl AsFd) -> rustix::io::Result<()> {
    let opened = opened.as_fd();
    if !is_in_proc(opened)? {
        return Ok(());
    }
    let stat = fstat(opened)?;
    let mut at = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => openat(opened, ".", LOOK, Mode::empty())?,
        _ => directory_of(opened, &stat)?,
    };
    let mut way = Vec::new();
    for _ in 0..DEEPEST {
        // A part of a proc file system that is mounted elsewhere does not show whose it is.
        if !is_in_proc(&at)? {
            break;
        }
        let stat = fstat(&at)?;
        way.push(identity(&stat));
        if stat.st_ino == TOPMOST && is_link(statat(&at, "self", AtFlags::SYMLINK_NOFOLLOW)) {
            return match statat(&at, "self", AtFlags::empty()) {
                Ok(own) if way.contains(&identity(&own)) => Err(Errno::ACCESS),
                // It is the file system of another process namespace, in which this process does not exist.
                Ok(_) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error),
            };
        }
        at = openat(&at, "..", LOOK, Mode::empty())?;
    }
    Err(Errno::ACCESS)
}

/// The same for what is to be made, moved or removed at this path. A directory that is not there is the caller's to find.
pub fn refuse_in_parent(path: &Path) -> rustix::io::Result<()> {
    match path.parent().map(|parent| open(parent, LOOK, Mode::empty())) {
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

/// The directory that an opened file is in: the kernel says where, and it has to be the very same file.
fn directory_of(opened: impl AsFd, stat: &Stat) -> rustix::io::Result<OwnedFd> {
    let path = readlink(format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd()), Vec::new())?;
    let path = path.to_bytes();
    let slash = path.iter().rposition(|byte| *byte == b'/').ok_or(Errno::ACCESS)?;
    let directory = open(&path[..slash.max(1)], LOOK, Mode::empty()).map_err(|_| Errno::ACCESS)?;
    match statat(&directory, &path[slash + 1..], AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) if identity(&there) == identity(stat) => Ok(directory),
        _ => Err(Errno::ACCESS),
    }
}

/// Overwrites the value of an environment variable where the kernel shows it to others, as in `/proc/PID/environ`. To be
/// called before the process is made undumpable, while it is still allowed to write to itself.
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

/// Where in memory this process got its environment.
fn environment_start() -> io::Result<u64> {
    /// Of `/proc/PID/stat`, counted behind the name.
    const FIELD: usize = 47;
    let stat = io::read_to_string(File::open("/proc/self/stat")?)?;
    let field = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(FIELD)?.parse().ok());
    field.ok_or_else(|| io::Error::other("the kernel does not say where the environment is"))
}
