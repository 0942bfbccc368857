//! Removes a chat directory with its content.
//!
//! A sandbox wrote the content, which may have links and directories of any depth: links are removed, never followed,
//! and depth costs neither stack nor descriptors. The directory is renamed first, to a name that no chat has. The next
//! create then makes a new directory, and an interrupted removal is found by its name.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

const PREFIX: &str = ".removed-";

/// The maximum of entries that one call removes, so that it ends long before the deadline of a file system call.
const BATCH: usize = 1000;

pub(super) fn open_root(root: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(CWD, root, DIRECTORY, Mode::empty())
}

/// Returns the name of a chat directory during its removal.
pub(super) fn removed_name(chat: &str) -> String {
    format!("{PREFIX}{chat}")
}

/// Returns all names in the root: of chats, and of unfinished removals.
pub(super) fn all_names(root: &OwnedFd) -> rustix::io::Result<Vec<String>> {
    let names = names(root, usize::MAX)?;
    Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

pub(super) fn is_removed_name(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Renames the chat's directory for its removal. Returns whether it existed.
pub(super) fn rename_for_removal(root: &OwnedFd, chat: &str) -> rustix::io::Result<bool> {
    match rustix::fs::renameat(root, chat, root, removed_name(chat)) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The progress of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The directory did not exist.
    Absent,
    More,
    Done,
}

/// Removes up to [`BATCH`] entries of a directory, and the directory itself once it is empty.
pub(super) fn remove_part(root: &OwnedFd, name: &str) -> rustix::io::Result<Progress> {
    let top = match rustix::fs::openat(root, name, DIRECTORY, Mode::empty()) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(Progress::Absent),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return rustix::fs::unlinkat(root, name, AtFlags::empty()).map(|()| Progress::Done);
        }
        Err(error) => return Err(error),
    };
    let mut left = BATCH;
    while left > 0 {
        let names = names(&top, left)?;
        if names.is_empty() {
            return match rustix::fs::unlinkat(root, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => Ok(Progress::Done),
                Err(error) => Err(error),
            };
        }
        for name in names {
            left = left.saturating_sub(1);
            if !remove_entry(&top, &name)? {
                left = empty_directory(&top, &name, left)?;
            }
        }
    }
    Ok(Progress::More)
}

/// Removes the entries of a directory, and the directory itself once it is empty. A non-empty directory in it is moved
/// to the top, which keeps the depth at two.
fn empty_directory(top: &OwnedFd, name: &CStr, mut left: usize) -> rustix::io::Result<usize> {
    let directory = match rustix::fs::openat(top, name, DIRECTORY, Mode::empty()) {
        // A concurrent removal of the same directory was faster.
        Err(Errno::NOENT) => return Ok(left),
        directory => directory?,
    };
    for inner in names(&directory, left.max(1))? {
        left = left.saturating_sub(1);
        if !remove_entry(&directory, &inner)? {
            match rustix::fs::renameat(&directory, &inner, top, uuid::Uuid::new_v4().to_string()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
    }
    match rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR) {
        // The next round continues with a non-empty directory.
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(left),
        Err(error) => Err(error),
    }
}

/// Returns `false` for a directory that is not empty.
fn remove_entry(directory: &OwnedFd, name: &CStr) -> rustix::io::Result<bool> {
    let failed = match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        Err(error @ (Errno::ISDIR | Errno::PERM)) => error,
        Err(error) => return Err(error),
    };
    match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(Errno::NOTDIR) => Err(failed),
        Err(error) => Err(error),
    }
}

/// Returns at most `most` names in a directory.
fn names(directory: &OwnedFd, most: usize) -> rustix::io::Result<Vec<CString>> {
    let entries = Dir::read_from(directory)?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    names.filter(|name| !matches!(name.as_deref().map(CStr::to_bytes), Ok(b"." | b".."))).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Returns a root with one chat directory.
    fn fresh() -> (tempfile::TempDir, OwnedFd) {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("chat")).unwrap();
        let root = open_root(place.path()).unwrap();
        (place, root)
    }

    fn remove(root: &OwnedFd) -> usize {
        assert!(rename_for_removal(root, "chat").unwrap());
        (1..).find(|_| remove_part(root, &removed_name("chat")).unwrap() == Progress::Done).unwrap()
    }

    #[test]
    fn a_directory_is_removed_without_following_its_links() {
        let (place, root) = fresh();
        let outside = place.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        let chat = place.path().join("chat");
        fs::create_dir_all(chat.join("a/b")).unwrap();
        fs::write(chat.join("a/b/file"), "").unwrap();
        for link in ["link", "a/link", "a/b/link"] {
            symlink(&outside, chat.join(link)).unwrap();
        }
        remove(&root);
        assert!(outside.join("kept").exists());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        assert!(!rename_for_removal(&root, "chat").unwrap());
        assert_eq!(remove_part(&root, &removed_name("chat")), Ok(Progress::Absent));
    }

    #[test]
    fn depth_and_width_cost_neither_stack_nor_descriptors() {
        let (place, root) = fresh();
        let mut directory = rustix::fs::openat(&root, "chat", DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&directory, "e", Mode::RWXU).unwrap();
            directory = rustix::fs::openat(&directory, "d", DIRECTORY, Mode::empty()).unwrap();
        }
        for n in 0..2 * BATCH {
            fs::write(place.path().join("chat").join(n.to_string()), "").unwrap();
        }
        let parts = remove(&root);
        assert!(parts > 2, "it takes several calls: {parts}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_removed_and_not_followed() {
        let (place, root) = fresh();
        let outside = place.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::remove_dir(place.path().join("chat")).unwrap();
        symlink(&outside, place.path().join("chat")).unwrap();
        remove(&root);
        assert!(outside.exists());
    }
}
