//! Ensures one service per instance and engine on a host. Two services with the same instance name would each treat the
//! other's sandboxes as unknown containers.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use sandboxd_actors::domain::ids::InstanceName;

/// The directory of lock files: writable for all users, and emptied at boot.
pub const LOCKS: &str = "/run/lock";

#[derive(Debug, thiserror::Error)]
pub enum InstanceLockError {
    #[error("another service runs as instance {instance} on {engine}; set a different instance.name")]
    Taken { instance: InstanceName, engine: String },
    #[error("instance.name: cannot lock {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// The lock of an instance. It is held until drop or the end of the process.
#[derive(Debug)]
pub struct InstanceLock(#[expect(dead_code, reason = "the lock lives as long as the file is open")] File);

impl InstanceLock {
    pub fn acquire(instance: &InstanceName, engine: &str) -> Result<Self, InstanceLockError> {
        Self::acquire_in(Path::new(LOCKS), instance, engine)
    }

    pub(crate) fn acquire_in(
        directory: &Path,
        instance: &InstanceName,
        engine: &str,
    ) -> Result<Self, InstanceLockError> {
        let engine = canonical(engine);
        let engine_word: String = engine.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = directory.join(format!("sandboxd-{instance}@{engine_word}.lock"));
        let failed = |source| InstanceLockError::Io { path: path.clone(), source };
        // Links are not followed, because every user may create one in this directory.
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(InstanceLockError::Taken { instance: instance.clone(), engine }),
            Err(errno) => Err(failed(errno.into())),
        }
    }
}

/// Returns the engine's host with a canonical path. `/var/run` is `/run` on most hosts, so one engine has several
/// paths.
fn canonical(engine: &str) -> String {
    let path = engine.strip_prefix("unix://").and_then(|path| Path::new(path).canonicalize().ok());
    path.map_or_else(|| engine.to_owned(), |path| format!("unix://{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_taken_once_per_engine_and_free_again_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let lock =
            |instance: &str, engine| InstanceLock::acquire_in(directory.path(), &instance.parse().unwrap(), engine);
        let held = lock("a", "unix:///one").unwrap();
        assert!(matches!(lock("a", "unix:///one"), Err(InstanceLockError::Taken { .. })));
        assert!(lock("a", "unix:///two").is_ok());
        assert!(lock("b", "unix:///one").is_ok());
        drop(held);
        assert!(lock("a", "unix:///one").is_ok());
    }

    #[test]
    fn an_engine_is_the_same_by_every_path() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, link) = (directory.path().join("docker.sock"), directory.path().join("link.sock"));
        std::fs::write(&socket, "").unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        let lock = |path: &Path| {
            let engine = format!("unix://{}", path.display());
            InstanceLock::acquire_in(directory.path(), &"a".parse().unwrap(), &engine)
        };
        let _held = lock(&socket).unwrap();
        assert!(matches!(lock(&link), Err(InstanceLockError::Taken { .. })));
    }
}
