//! The move of a file or directory with the rules of `mv`: into an existing directory, and by a copy to another file
//! system.
//!
//! A copy takes bounded steps. It goes through descriptors, one name at a time, and follows no link. The copy has a
//! hidden name beside its target and is renamed at the end. The source is removed only after that.

use std::ffi::{CStr, CString, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chownat, fchmod, fchown, fstat,
    futimens, mkdirat, open, openat, readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use sandbox_init::codec::Bytes;
use sandbox_init::own_process;

use crate::files::path;

/// The greatest depth of directories: each takes descriptors while it is copied.
const MAX_DEPTH: usize = 256;

/// Bytes copied in one step.
const STEP_BYTES: usize = 128 << 10;

/// Entries removed in one step.
const STEP_REMOVALS: usize = 64;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const PARENT: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Moves with a rename where that is possible. Otherwise returns the copy that must be made.
pub(crate) fn begin(from: &Bytes, to: &Bytes) -> io::Result<Option<Moving>> {
    let (from, mut to) = (path(from), path(to).to_owned());
    if fs::metadata(&to).is_ok_and(|there| there.is_dir()) {
        to.push(from.file_name().ok_or(Errno::INVAL)?);
    }
    own_process::refuse_in_parent(from)?;
    own_process::refuse_in_parent(&to)?;
    match renameat(CWD, from, CWD, &to) {
        Err(Errno::XDEV) => Moving::copying(from, &to).map(Some),
        renamed => renamed.map(|()| None).map_err(Into::into),
    }
}

#[derive(Debug)]
pub(crate) struct Moving {
    source: Place,
    target: Place,
    draft: Draft,
    /// The open directories, from the outermost to the one that is copied.
    open: Vec<Level>,
    file: Option<Copying>,
    removal: Removal,
    stage: Stage,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Begin,
    Copy,
    Remove,
}

/// A name in a directory.
#[derive(Debug)]
struct Place {
    parent: OwnedFd,
    name: CString,
}

impl Place {
    fn of(at: &Path) -> io::Result<Self> {
        let name = at.file_name().ok_or(Errno::INVAL)?;
        let parent = at.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
        Ok(Self { parent: open(parent, PARENT, Mode::empty())?, name })
    }
}

/// The incomplete copy. Dropping it removes the copy.
#[derive(Debug)]
struct Draft {
    parent: OwnedFd,
    name: Option<CString>,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let mut removal = Removal::default();
            while removal.step(self.parent.as_fd(), name).is_ok_and(|more| more) {}
        }
    }
}

/// A directory that is copied, and its copy.
#[derive(Debug)]
struct Level {
    source: Dir,
    copy: OwnedFd,
    stat: Stat,
}

/// A file that is copied, and its copy.
#[derive(Debug)]
struct Copying {
    source: File,
    copy: File,
    stat: Stat,
}

impl Moving {
    fn copying(from: &Path, to: &Path) -> io::Result<Self> {
        let (source, target) = (Place::of(from)?, Place::of(to)?);
        let draft = Draft { parent: target.parent.try_clone()?, name: Some(hidden(&target.name)?) };
        Ok(Self {
            source,
            target,
            draft,
            open: Vec::new(),
            file: None,
            removal: Removal::default(),
            stage: Stage::Begin,
        })
    }

    /// Takes the next step. Returns whether there is more to do.
    pub(crate) fn advance(&mut self) -> io::Result<bool> {
        match self.stage {
            Stage::Begin => {
                let Some(name) = self.draft.name.clone() else { return Ok(false) };
                let (from, to) = (self.source.parent.try_clone()?, self.draft.parent.try_clone()?);
                self.stage = Stage::Copy;
                self.copy(from.as_fd(), &self.source.name.clone(), to.as_fd(), &name)?;
                Ok(true)
            }
            Stage::Copy => {
                if self.continue_copy()? {
                    return Ok(true);
                }
                let Some(name) = &self.draft.name else { return Ok(false) };
                renameat(&self.draft.parent, name, &self.target.parent, &self.target.name)?;
                self.draft.name = None;
                self.stage = Stage::Remove;
                Ok(true)
            }
            Stage::Remove => {
                for _ in 0..STEP_REMOVALS {
                    if !self.removal.step(self.source.parent.as_fd(), &self.source.name)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Returns whether there is more to copy.
    fn continue_copy(&mut self) -> io::Result<bool> {
        if let Some(file) = &mut self.file {
            if file.advance()? {
                self.file = None;
            }
            return Ok(true);
        }
        let Some(level) = self.open.last_mut() else { return Ok(false) };
        match level.source.next() {
            Some(entry) => {
                let name = entry?.file_name().to_owned();
                if !is_dots(&name) {
                    let (from, to) = (level.source.fd()?.try_clone_to_owned()?, level.copy.try_clone()?);
                    self.copy(from.as_fd(), &name, to.as_fd(), &name)?;
                }
            }
            None => {
                if let Some(Level { copy, stat, .. }) = self.open.pop() {
                    complete(copy.as_fd(), &stat)?;
                }
            }
        }
        Ok(true)
    }

    fn copy(&mut self, from: BorrowedFd<'_>, name: &CStr, to: BorrowedFd<'_>, copy_name: &CStr) -> io::Result<()> {
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                if self.open.len() >= MAX_DEPTH {
                    return Err(io::Error::other(format!("it is more than {MAX_DEPTH} directories deep")));
                }
                let source = openat(from, name, DIRECTORY, Mode::empty())?;
                own_process::refuse(&source)?;
                mkdirat(to, copy_name, Mode::RWXU)?;
                let copy = openat(to, copy_name, DIRECTORY, Mode::empty())?;
                let stat = fstat(&source)?;
                self.open.push(Level { source: Dir::new(source)?, copy, stat });
            }
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let source = openat(from, name, flags, Mode::empty())?;
                own_process::refuse(&source)?;
                let stat = fstat(&source)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(unmovable());
                }
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let copy = openat(to, copy_name, flags, Mode::RUSR | Mode::WUSR)?;
                self.file = Some(Copying { source: source.into(), copy: copy.into(), stat });
            }
            FileType::Symlink => {
                symlinkat(readlinkat(from, name, Vec::new())?, to, copy_name)?;
                let (user, group) = owner(&stat);
                // Only root can change the owner of a file.
                let _ = chownat(to, copy_name, user, group, AtFlags::SYMLINK_NOFOLLOW);
            }
            _ => return Err(unmovable()),
        }
        Ok(())
    }
}

impl Copying {
    /// Copies the next bytes. Returns whether the file is complete.
    fn advance(&mut self) -> io::Result<bool> {
        let mut step = Vec::with_capacity(STEP_BYTES);
        Read::by_ref(&mut self.source).take(STEP_BYTES as u64).read_to_end(&mut step)?;
        self.copy.write_all(&step)?;
        if step.is_empty() {
            complete(self.copy.as_fd(), &self.stat)?;
        }
        Ok(step.is_empty())
    }
}

/// Gives a copy the owner, the mode and the times of its source.
fn complete(copy: BorrowedFd<'_>, stat: &Stat) -> io::Result<()> {
    let (user, group) = owner(stat);
    // A file whose owner could not be set must not run programs as another user or group.
    let mode_bits = if fchown(copy, user, group).is_ok() { 0o7777 } else { 0o1777 };
    fchmod(copy, Mode::from_raw_mode(stat.st_mode & mode_bits))?;
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    Ok(futimens(
        copy,
        &Timestamps {
            last_access: time(stat.st_atime, stat.st_atime_nsec as _),
            last_modification: time(stat.st_mtime, stat.st_mtime_nsec as _),
        },
    )?)
}

fn owner(stat: &Stat) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))
}

/// The removal of a file or of a directory tree.
#[derive(Debug, Default)]
struct Removal {
    open: Vec<(Dir, CString)>,
}

impl Removal {
    /// Returns whether there is more to remove.
    fn step(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
        let Some((directory, _)) = self.open.last_mut() else { return self.remove(parent, name) };
        match directory.next() {
            Some(entry) => {
                let inner = entry?.file_name().to_owned();
                if !is_dots(&inner) {
                    let directory = directory.fd()?.try_clone_to_owned()?;
                    self.remove(directory.as_fd(), &inner)?;
                }
                Ok(true)
            }
            None => {
                let Some((directory, name)) = self.open.pop() else { return Ok(false) };
                drop(directory);
                match self.open.last() {
                    Some((above, _)) => unlinkat(above.fd()?, &name, AtFlags::REMOVEDIR)?,
                    None => unlinkat(parent, &name, AtFlags::REMOVEDIR)?,
                }
                Ok(!self.open.is_empty())
            }
        }
    }

    /// Returns whether it is a directory, whose content must be removed first.
    fn remove(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(false),
            stat => stat?,
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            unlinkat(parent, name, AtFlags::empty())?;
            return Ok(false);
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(io::Error::other(format!("it is more than {MAX_DEPTH} directories deep")));
        }
        self.open.push((Dir::new(openat(parent, name, DIRECTORY, Mode::empty())?)?, name.to_owned()));
        Ok(true)
    }
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

fn unmovable() -> io::Error {
    io::Error::other("a socket, pipe or device cannot be moved to another file system")
}

/// Returns a hidden name for a copy. A name has at most 255 bytes.
fn hidden(name: &CStr) -> io::Result<CString> {
    let mut unique = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut unique)?;
    let name = name.to_bytes();
    let mut hidden = OsString::from(".");
    hidden.push(std::ffi::OsStr::from_bytes(&name[..name.len().min(200)]));
    hidden.push(format!(".{:016x}", u64::from_le_bytes(unique)));
    CString::new(hidden.as_bytes()).map_err(|_| Errno::INVAL.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    fn move_by_copy(from: &Path, to: &Path) -> io::Result<()> {
        let mut moving = Moving::copying(from, to)?;
        while moving.advance()? {}
        Ok(())
    }

    fn names(at: &Path) -> Vec<PathBuf> {
        let mut names: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name().into()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_tree_is_copied_with_its_links_modes_and_times_and_then_removed() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        let outside = place.path().join("outside");
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        let content = vec![7; 3 * STEP_BYTES + 1];
        fs::write(from.join("a/b/file"), &content).unwrap();
        fs::set_permissions(from.join("a/b/file"), PermissionsExt::from_mode(0o640)).unwrap();
        symlink(&outside, from.join("a/link")).unwrap();
        fs::set_permissions(from.join("a"), PermissionsExt::from_mode(0o555)).unwrap();
        let before = fs::metadata(from.join("a/b/file")).unwrap();

        move_by_copy(&from, &to).unwrap();
        assert!(!from.exists());
        assert_eq!(fs::read(to.join("a/b/file")).unwrap(), content);
        let after = fs::metadata(to.join("a/b/file")).unwrap();
        assert_eq!(
            (after.mode(), after.mtime(), after.mtime_nsec()),
            (before.mode(), before.mtime(), before.mtime_nsec())
        );
        assert_eq!(fs::metadata(to.join("a")).unwrap().mode() & 0o777, 0o555);
        assert_eq!(fs::read_link(to.join("a/link")).unwrap(), outside);
        assert!(outside.join("kept").exists());
        assert_eq!(names(place.path()), [PathBuf::from("outside"), PathBuf::from("to")]);
    }

    #[test]
    fn a_failed_copy_leaves_the_source_and_removes_the_draft() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::write(from.join("file"), "kept").unwrap();
        let _socket = UnixListener::bind(from.join("socket")).unwrap();
        move_by_copy(&from, &to).unwrap_err();
        assert_eq!(fs::read_to_string(from.join("file")).unwrap(), "kept");
        assert_eq!(names(place.path()), [PathBuf::from("from")]);

        fs::remove_file(from.join("socket")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(to.join("in the way"), "").unwrap();
        let error = move_by_copy(&from, &to).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::DirectoryNotEmpty);
        assert_eq!(names(place.path()), [PathBuf::from("from"), PathBuf::from("to")]);
    }

    #[test]
    fn a_cancelled_copy_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        fs::create_dir_all(from.join("a")).unwrap();
        fs::write(from.join("a/file"), vec![1; 4 * STEP_BYTES]).unwrap();
        let mut moving = Moving::copying(&from, &to).unwrap();
        for _ in 0..6 {
            assert!(moving.advance().unwrap());
        }
        assert_eq!(names(place.path()).len(), 2, "the copy is beside its place");
        drop(moving);
        assert_eq!(names(place.path()), [PathBuf::from("from")]);
    }

    #[test]
    fn a_move_to_an_existing_directory_goes_into_it() {
        let place = tempfile::tempdir().unwrap();
        let bytes = |name: &str| Bytes(place.path().join(name).as_os_str().as_bytes().to_vec());
        for directory in ["from", "into", "into/from"] {
            fs::create_dir(place.path().join(directory)).unwrap();
        }
        fs::write(place.path().join("from/file"), "").unwrap();
        fs::write(place.path().join("file"), "new").unwrap();
        fs::write(place.path().join("into/file"), "old").unwrap();
        symlink("into", place.path().join("link")).unwrap();
        assert!(begin(&bytes("from"), &bytes("into")).unwrap().is_none());
        assert!(begin(&bytes("file"), &bytes("link")).unwrap().is_none());
        assert_eq!(names(&place.path().join("into")), [PathBuf::from("file"), PathBuf::from("from")]);
        assert_eq!(fs::read_to_string(place.path().join("into/file")).unwrap(), "new");
        assert!(place.path().join("into/from/file").exists());
    }
}
