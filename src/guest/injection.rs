//! Brings directories of the host into a container that runs already.
//!
//! A copy of the mount is made out here, and attached in there: by a thread that enters the container's mount namespace
//! for this alone, and ends. Nothing is ever mounted on the host, so nothing of it can be left there, and the container's
//! mounts need not be shared with anybody.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, StatVfsMountFlags, fstat, fstatvfs, openat2, stat};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};
use sandboxd_actors::domain::container::Mount;

use super::capabilities::{self, Capability};
use super::source::{Source, mount_of};
use crate::storage::file_system::{FileSystem, Unavailable};

/// What it takes to mount, to enter the root of another process, and to look at one that lets nobody look at it.
const NEEDED: [Capability; 3] = [capabilities::SYS_ADMIN, capabilities::SYS_CHROOT, capabilities::SYS_PTRACE];

#[derive(Debug, thiserror::Error)]
pub(super) enum MountError {
    #[error("{source_path} cannot be mounted at {target}: {step}: {error}")]
    Step { source_path: String, target: String, step: &'static str, error: io::Error },
    #[error("the sandbox's first process cannot be reached: {0}")]
    Process(io::Error),
    #[error("the host's mounts cannot be reached: {0}")]
    Host(io::Error),
    #[error("the engine gives sandboxes users of their own, to whom the host's files would be nobody's")]
    OtherUsers,
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// Why nothing can be mounted into containers, if nothing can.
pub(super) fn is_possible() -> Result<(), String> {
    if let Some(name) = capabilities::missing(&NEEDED) {
        return Err(format!("to mount directories into a running sandbox, the service needs {name}"));
    }
    match open_tree(CWD, "/", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("this kernel cannot mount directories into a running sandbox: open_tree: {error}")),
    }
}

/// The process in whose namespace is mounted, if that can be done at all.
pub(super) fn reach(process: Pid) -> Result<OwnedFd, MountError> {
    let inside = pidfd_open(process, PidfdFlags::empty()).map_err(|error| MountError::Process(error.into()))?;
    let theirs = namespace(process, "user").map_err(MountError::Process)?;
    let ours = namespace(getpid(), "user").map_err(MountError::Host)?;
    if theirs == ours { Ok(inside) } else { Err(MountError::OtherUsers) }
}

/// Mounts each, with all that is mounted below it, at its target in the namespace of the process.
pub(super) async fn mount_into(files: &FileSystem, process: Pid, sources: Vec<Source>) -> Result<(), MountError> {
    let inside = reach(process)?;
    let mount = mount_of(&sources);
    files.on_thread(&mount, move || copy_and_attach(&inside, &sources)).await?
}

/// On a thread of its own, which is in another namespace afterwards.
fn copy_and_attach(inside: &OwnedFd, sources: &[Source]) -> Result<(), MountError> {
    let failed = |error: rustix::io::Errno| MountError::Host(error.into());
    leave_shared_root().map_err(failed)?;
    let mut copies =
        sources.iter().map(|source| copy(&source.mount, &source.directory.handle)).collect::<Result<Vec<_>, _>>()?;
    if is_read_only(&copies)? {
        copies = writable(sources, &copies)?;
    }
    move_into_thread_name_spaces(inside.as_fd(), ThreadNameSpaceType::MOUNT)
        .map_err(|error| MountError::Process(error.into()))?;
    for (copy, Source { mount, .. }) in copies.iter().zip(sources) {
        let target = mount.target.as_str();
        move_mount(copy, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|error| step(mount, "move_mount", error))?;
        // What is not there would be written into the container's own layer, and lost.
        let there = stat(target).map_err(|error| step(mount, "stat", error))?;
        let meant = identity(copy).map_err(|error| step(mount, "fstat", error))?;
        if (there.st_dev, there.st_ino) != meant {
            return Err(step(mount, "another directory is there", rustix::io::Errno::STALE));
        }
    }
    Ok(())
}

/// A copy of the mount with all that is mounted below it, attached to nothing. Of the directory that is held open: another
/// may be at its path by now.
fn copy(mount: &Mount, held: &OwnedFd) -> Result<OwnedFd, MountError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(held, "", flags).map_err(|error| step(mount, "open_tree", error))
}

fn is_read_only(copies: &[OwnedFd]) -> Result<bool, MountError> {
    for copy in copies {
        let mounted = fstatvfs(copy).map_err(|error| MountError::Host(error.into()))?;
        if mounted.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A service manager may show the service a host on which it can write to little (`ProtectSystem=strict`). The sandbox gets
/// the same directories as the host itself has them.
fn writable(sources: &[Source], shown: &[OwnedFd]) -> Result<Vec<OwnedFd>, MountError> {
    let failed = |error: rustix::io::Errno| MountError::Host(error.into());
    let host = pidfd_open(Pid::INIT, PidfdFlags::empty()).map_err(failed)?;
    move_into_thread_name_spaces(host.as_fd(), ThreadNameSpaceType::MOUNT).map_err(failed)?;
    let again = |Source { mount, .. }: &Source| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let there = openat2(CWD, mount.source.as_str(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        copy(mount, &there.map_err(|error| step(mount, "openat2", error))?)
    };
    let copies = sources.iter().map(again).collect::<Result<Vec<_>, _>>()?;
    for ((copy, shown), Source { mount, .. }) in copies.iter().zip(shown).zip(sources) {
        if identity(copy).map_err(failed)? != identity(shown).map_err(failed)? {
            return Err(step(mount, "the host has another directory there", rustix::io::Errno::STALE));
        }
    }
    Ok(copies)
}

fn identity(directory: &OwnedFd) -> rustix::io::Result<(u64, u64)> {
    fstat(directory).map(|directory| (directory.st_dev, directory.st_ino))
}

fn namespace(process: Pid, kind: &str) -> io::Result<u64> {
    fs::metadata(format!("/proc/{}/ns/{kind}", process.as_raw_nonzero())).map(|namespace| namespace.ino())
}

/// A thread whose working directory and root are also those of others may not enter another mount namespace.
#[allow(unsafe_code)]
fn leave_shared_root() -> rustix::io::Result<()> {
    // SAFETY: only this thread's view of the file system ceases to be shared. Descriptors stay as they are, and the
    // thread does nothing else before it ends.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }
}

fn step(mount: &Mount, step: &'static str, error: rustix::io::Errno) -> MountError {
    let (source_path, target) = (mount.source.to_string(), mount.target.clone());
    MountError::Step { source_path, target, step, error: error.into() }
}
