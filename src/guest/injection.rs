//! Mounts directories of the host into a running container.
//!
//! The service copies the mount, and a thread that enters the container's mount namespace for this alone attaches the
//! copy there, and ends. The service never mounts on the host, so no mount can be left there, and the container's
//! mounts need not be shared.

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

/// The capabilities to mount, to enter the root of another process, and to inspect an undumpable process.
const NEEDED: [Capability; 3] = [capabilities::SYS_ADMIN, capabilities::SYS_CHROOT, capabilities::SYS_PTRACE];

#[derive(Debug, thiserror::Error)]
pub(super) enum MountError {
    #[error("cannot mount {source_path} at {target}: {step}: {error}")]
    Step { source_path: String, target: String, step: &'static str, error: io::Error },
    #[error("cannot open the sandbox's first process: {0}")]
    Process(io::Error),
    #[error("cannot open the host's mounts: {0}")]
    Host(io::Error),
    #[error("the engine maps sandboxes to other user ids (userns-remap), in which the host's files have no owner")]
    OtherUsers,
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// Checks that the service can mount into containers. Returns the reason if it cannot.
pub(super) fn is_possible() -> Result<(), String> {
    if let Some(name) = capabilities::missing(&NEEDED) {
        return Err(format!("to mount directories into a running sandbox, the service needs {name}"));
    }
    match open_tree(CWD, "/", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("this kernel cannot mount directories into a running sandbox: open_tree: {error}")),
    }
}

/// Opens the process whose namespace is mounted into, if the service can mount there.
pub(super) fn reach(process: Pid) -> Result<OwnedFd, MountError> {
    let target_process = pidfd_open(process, PidfdFlags::empty()).map_err(|error| MountError::Process(error.into()))?;
    let theirs = namespace(process, "user").map_err(MountError::Process)?;
    let ours = namespace(getpid(), "user").map_err(MountError::Host)?;
    if theirs == ours { Ok(target_process) } else { Err(MountError::OtherUsers) }
}

/// Mounts the sources, with their submounts, at their targets in the namespace of the process.
pub(super) async fn mount_into(files: &FileSystem, process: Pid, sources: Vec<Source>) -> Result<(), MountError> {
    let target_process = reach(process)?;
    let mount = mount_of(&sources);
    files.on_thread(&mount, move || copy_and_attach(&target_process, &sources)).await?
}

/// Copies and attaches the mounts. Needs its own thread, which is in another namespace afterwards.
fn copy_and_attach(target_process: &OwnedFd, sources: &[Source]) -> Result<(), MountError> {
    let failed = |error: rustix::io::Errno| MountError::Host(error.into());
    unshare_root().map_err(failed)?;
    let mut copies =
        sources.iter().map(|source| copy(&source.mount, &source.directory.handle)).collect::<Result<Vec<_>, _>>()?;
    if is_read_only(&copies)? {
        copies = writable(sources, &copies)?;
    }
    move_into_thread_name_spaces(target_process.as_fd(), ThreadNameSpaceType::MOUNT)
        .map_err(|error| MountError::Process(error.into()))?;
    for (copy, Source { mount, .. }) in copies.iter().zip(sources) {
        let target = mount.target.as_str();
        move_mount(copy, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|error| step(mount, "move_mount", error))?;
        // Files of a missing mount would be written into the container's own layer, and lost.
        let there = stat(target).map_err(|error| step(mount, "stat", error))?;
        let expected = identity(copy).map_err(|error| step(mount, "fstat", error))?;
        if (there.st_dev, there.st_ino) != expected {
            return Err(step(mount, "another directory is there", rustix::io::Errno::STALE));
        }
    }
    Ok(())
}

/// Copies the mount of the open directory with its submounts, attached to no tree. Another directory may be at the path
/// by now.
fn copy(mount: &Mount, open: &OwnedFd) -> Result<OwnedFd, MountError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(open, "", flags).map_err(|error| step(mount, "open_tree", error))
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

/// Returns copies of the host's own mounts. A service manager may give the service a read-only view of the host
/// (`ProtectSystem=strict`).
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

/// Unshares the working directory and root of this thread, without which it may not enter another mount namespace.
#[allow(unsafe_code)]
fn unshare_root() -> rustix::io::Result<()> {
    // SAFETY: only this thread's view of the file system is unshared. Descriptors stay as they are, and the thread does
    // only this work before it ends.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }
}

fn step(mount: &Mount, step: &'static str, error: rustix::io::Errno) -> MountError {
    let (source_path, target) = (mount.source.to_string(), mount.target.clone());
    MountError::Step { source_path, target, step, error: error.into() }
}
