//! The location of a mounted directory in its file system, from the kernel's mount table: without access to the file
//! system.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::storage::file_system::Directory;

/// A location in a file system, independent of mounts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Location {
    device: Vec<u8>,
    path: PathBuf,
}

/// Returns the location of an open directory.
pub(super) fn of_directory(directory: &Directory) -> io::Result<Location> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.handle.as_raw_fd()))?;
    let id = facts.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim).unwrap_or_default();
    let table = fs::read("/proc/self/mountinfo")?;
    let mount = mounts(&table).find(|mount| mount.id == id.as_bytes());
    let mount = mount.ok_or_else(|| io::Error::other("the mount of the directory is not in /proc/self/mountinfo"))?;
    let below = directory.path.strip_prefix(&mount.point).map_err(io::Error::other)?;
    // `join` with an empty path would append a slash.
    let path = if below.as_os_str().is_empty() { mount.root } else { mount.root.join(below) };
    Ok(Location { device: mount.device, path })
}

/// Returns the location of the directory that a process sees at the path, if that is a mount point.
pub(super) fn of_process(process: i32, path: &str) -> io::Result<Option<Location>> {
    let table = fs::read(format!("/proc/{process}/mountinfo"))?;
    // The last of several mounts at one path is visible.
    let mount = mounts(&table).filter(|mount| mount.point == Path::new(path)).last();
    Ok(mount.map(|mount| Location { device: mount.device, path: mount.root }))
}

struct Mount {
    id: Vec<u8>,
    device: Vec<u8>,
    root: PathBuf,
    point: PathBuf,
}

fn mounts(table: &[u8]) -> impl Iterator<Item = Mount> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = fields.next()?.to_owned();
        let device = fields.nth(1)?.to_owned();
        Some(Mount { id, device, root: unescape(fields.next()?), point: unescape(fields.next()?) })
    })
}

/// Decodes a field: the table writes spaces and backslashes as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_read_with_its_blanks() {
        let table = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n30 22 0:40 /a\\040b /c\\134d rw - fuse x rw\n";
        let read: Vec<_> = mounts(table).map(|mount| (mount.device, mount.root, mount.point)).collect();
        let of = |device: &str, root: &str, point: &str| (device.as_bytes().to_vec(), root.into(), point.into());
        assert_eq!(read, [of("254:0", "/", "/"), of("0:40", "/a b", "/c\\d")]);
    }

    #[tokio::test]
    async fn a_directory_is_at_the_same_place_for_its_own_process() {
        let files = crate::storage::file_system::FileSystem::new(Path::new("/none"), Path::new("/none")).unwrap();
        let proc = files.open_source(Path::new("/proc")).await.unwrap();
        let own = std::process::id() as i32;
        assert_eq!(of_process(own, "/proc").unwrap(), Some(of_directory(&proc).unwrap()));
        let deeper = files.open_source(Path::new("/proc/sys")).await.unwrap();
        assert_eq!(of_directory(&deeper).unwrap().path, Path::new("/sys"));
        assert_eq!(of_process(own, "/proc/none").unwrap(), None);
    }
}
