//! Where in which file system a mounted directory lies, as the kernel lists it: without touching the file system.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::storage::file_system::Directory;

/// A place in a file system, whichever mounts show it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    device: Vec<u8>,
    path: PathBuf,
}

/// Of a directory that is held open.
pub(super) fn of_directory(directory: &Directory) -> io::Result<Place> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.handle.as_raw_fd()))?;
    let id = facts.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim).unwrap_or_default();
    let table = fs::read("/proc/self/mountinfo")?;
    let mount = mounts(&table).find(|mount| mount.id == id.as_bytes());
    let mount = mount.ok_or_else(|| io::Error::other("its mount is not listed"))?;
    let below = directory.path.strip_prefix(&mount.point).map_err(io::Error::other)?;
    // Joined with nothing, a path would end in a slash.
    let path = if below.as_os_str().is_empty() { mount.root } else { mount.root.join(below) };
    Ok(Place { device: mount.device, path })
}

/// Of the directory that a process sees at the path, if that is a mount point.
pub(super) fn of_process(process: i32, path: &str) -> io::Result<Option<Place>> {
    let table = fs::read(format!("/proc/{process}/mountinfo"))?;
    // Of several that are mounted at one path, the last one is seen.
    let mount = mounts(&table).filter(|mount| mount.point == Path::new(path)).last();
    Ok(mount.map(|mount| Place { device: mount.device, path: mount.root }))
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
        Some(Mount { id, device, root: unescaped(fields.next()?), point: unescaped(fields.next()?) })
    })
}

/// The table writes blanks and backslashes as three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
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
