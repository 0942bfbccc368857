//! The removal of a chat's directory with all that is in it.
//!
//! Its content is a sandbox's, which may have made links, and directories of any depth: links are removed, never followed,
//! and depth costs neither stack nor descriptors. The directory is renamed first, to a name that no chat has. A create that
//! comes next makes a new one, whatever is left of the old, and a removal that was interrupted is known by its name.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

const PREFIX: &str = ".removed-";

/// How many entries one call removes at most, so that it ends long before the deadline of a call to the file system.
const BATCH: usize = 1000;

pub(super) fn open_root(root: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(CWD, root, DIRECTORY, Mode::empty())
}

/// The name of a chat's directory while it is being removed.
pub(super) fn removed_name(chat: &str) -> String {
    format!("{PREFIX}{chat}")
}

/// Returns all names in the root: of chats, and of directories that are being removed, or were when the service ended.
pub(super) fn all_names(root: &OwnedFd) -> rustix::io::Result<Vec<String>> {
    let names = names(root, usize::MAX)?;
    Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

pub(super) fn is_removed_name(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Takes the directory away from its chat. Returns whether there was one.
pub(super) fn take_away(root: &OwnedFd, chat: &str) -> rustix::io::Result<bool> {
    match rustix::fs::renameat(root, chat, root, removed_name(chat)) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// How far a removal has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// There was nothing of that name.
    Absent,
    More,
    Done,
}

/// Removes a part of the directory of this name, or all that is left of it.
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
                left = empty(&top, &name, left)?;
            }
        }
    }
    Ok(Progress::More)
}

/// Removes what is in a directory, and the directory itself if nothing was left in it. A directory in it that is not empty
/// is moved to the top, which keeps the depth at two.
fn empty(top: &OwnedFd, name: &CStr, mut left: usize) -> rustix::io::Result<usize> {
    let directory = match rustix::fs::openat(top, name, DIRECTORY, Mode::empty()) {
        // Another removal of the same directory was faster.
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
        // The next round goes on with it.
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

/// The first so many names in a directory.
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

    /// A root with a chat's directory in it.
    fn fresh() -> (tempfile::TempDir, OwnedFd) {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("chat")).unwrap();
        let root = open_root(place.path()).unwrap();
        (place, root)
    }

    fn remove(root: &OwnedFd) -> usize {
        assert!(take_away(root, "chat").unwrap());
        (1..).find(|_| remove_part(root, &removed_name("chat")).unwrap() == Progress::Done).unwrap()
    }

    #[test]
    fn a_directory_is_removed_with_its_links_and_nothing_that_they_lead_to() {
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
        assert!(!take_away(&root, "chat").unwrap());
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
    fn whatever_has_the_name_of_the_directory_is_removed_as_what_it_is() {
        let (place, root) = fresh();
        let outside = place.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::remove_dir(place.path().join("chat")).unwrap();
        symlink(&outside, place.path().join("chat")).unwrap();
        remove(&root);
        assert!(outside.exists());
    }
}
