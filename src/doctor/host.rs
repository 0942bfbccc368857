//! Reads the facts about this host. It changes no state.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use rustix::process::{Resource, getegid, geteuid, getrlimit};

use super::findings::{Callers, Directory, Place, User};
use crate::server::access::Allowed;
use crate::server::accounts::Accounts;
use crate::server::entry::SocketAccess;

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

/// The minimum space for the directory and the record of a new sandbox.
const MIN_SPACE: u64 = 64 << 10;

/// Checks that a file system accepts new files.
pub(super) fn has_space(path: &Path) -> Result<(), String> {
    let on = statvfs(path).map_err(|error| error.to_string())?;
    let free = on.f_bavail.saturating_mul(on.f_frsize);
    if on.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err("its file system is mounted read-only".to_owned());
    }
    if free < MIN_SPACE {
        return Err(format!("its disk is full: {free} bytes are free"));
    }
    // Some file systems report no file count.
    if on.f_files > 0 && on.f_favail == 0 {
        return Err("its disk is full: no more files can be created".to_owned());
    }
    Ok(())
}

pub(super) fn descriptor_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

pub(super) fn callers(socket: &Path, allowed: &Allowed) -> Callers {
    let is_closed = |directory: &&Path| {
        std::fs::metadata(directory).is_ok_and(|directory| directory.permissions().mode() & 0o001 == 0)
    };
    let parents: Vec<_> = socket.ancestors().skip(1).collect();
    let access = SocketAccess::of(socket).ok();
    Callers {
        socket: socket.to_owned(),
        named: allowed.users.len() + allowed.groups.len() + allowed.read_only_groups.len(),
        access,
        excluded: access.map(|access| access.excluded_callers(allowed, &mut Accounts::of_host())).unwrap_or_default(),
        closed_directory: parents.into_iter().rev().find(is_closed).map(Path::to_owned),
    }
}

pub(super) fn open_ports() -> Vec<u16> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let mut ports: Vec<u16> = tables.iter().flat_map(|table| listening(table)).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Returns the listening ports of a kernel table, except those on loopback. An address is hexadecimal, each group of
/// four bytes in the host's byte order.
fn listening(table: &str) -> impl Iterator<Item = u16> {
    const LISTEN: &str = "0A";
    const LOOPBACK_V6: &str = "00000000000000000000000001000000";
    let is_loopback = |address: &str| address == LOOPBACK_V6 || address.len() == 8 && address.ends_with("7F");
    table.lines().skip(1).filter_map(move |line| {
        let mut columns = line.split_whitespace().skip(1);
        let (address, port) = columns.next()?.split_once(':')?;
        let is_open = columns.nth(1)? == LISTEN && !is_loopback(address);
        is_open.then(|| u16::from_str_radix(port, 16).ok()).flatten()
    })
}

pub(super) fn user() -> User {
    User { uid: geteuid().as_raw(), gid: getegid().as_raw() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_open_if_it_listens_beyond_loopback() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:1538 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2
   2: 020200C0:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3
   3: 00000000:01BB 0100000A:9999 01 00000000:00000000 00:00000000 00000000     0        0 4
   4: 00000000000000000000000000000000:24F8 00000000000000000000000000000000:0000 0A 0 0 0 0 0 5
   5: 00000000000000000000000001000000:24F9 00000000000000000000000000000000:0000 0A 0 0 0 0 0 6
";
        assert_eq!(listening(table).collect::<Vec<_>>(), [22, 80, 9464]);
    }
}
