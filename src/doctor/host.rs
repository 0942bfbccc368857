//! The look at this host: only looks, whoever asks.

use std::path::Path;

use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use rustix::process::{Resource, getegid, geteuid, getrlimit};

use super::findings::{Directory, Place, User, VolumeRoot};

pub(super) fn directory(key: &'static str, path: &Path) -> Directory {
    let place = statvfs(path).map_err(|error| error.to_string()).map(|on| {
        let bytes = |blocks: u64| blocks.saturating_mul(on.f_frsize);
        Place {
            writable: access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
            executable: !on.f_flag.contains(StatVfsMountFlags::NOEXEC),
            total_bytes: bytes(on.f_blocks),
            free_bytes: bytes(on.f_bavail),
        }
    });
    Directory { key, path: path.to_owned(), place }
}

pub(super) fn volume_root(path: &Path) -> VolumeRoot {
    VolumeRoot { path: path.to_owned(), is_there: path.is_dir() }
}

pub(super) fn descriptor_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

pub(super) fn user() -> User {
    User { uid: geteuid().as_raw(), gid: getegid().as_raw() }
}
