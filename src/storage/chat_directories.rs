//! Chat directories: one per chat below a common root, created with the chat's first sandbox. A directory outlives its
//! sandboxes; [`removal`] removes it on request.
//!
//! Write access follows one rule. If the profile sets the guest's user and the service may change owners, the directory
//! belongs to that user and is closed to others. Otherwise the writing user is unknown: the image sets it, and even the
//! guest's root has no capability to write elsewhere. Then the directory itself is open, and the root keeps out the
//! host's other users. The root must therefore be closed to them.
//!
//! A sandbox sees only the inside of its directory, so it cannot replace the directory or the root by a link. When the
//! guest's user changes, only the directory itself gets a new owner, not its content.

mod removal;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW};
use rustix::process::{Gid, Uid};
use sandboxd_actors::domain::host_path::{HostPath, InvalidHostPath};
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::profile::User;
use sandboxd_actors::ports::chat_directories::{ChatDirectories, DirectoryError};
use sandboxd_actors::ports::clock::Timestamp;

use crate::storage::file_system::{FileSystem, Own};

const OPEN_TO_OTHERS: u32 = 0o007;

/// The chat directories below one root.
#[derive(Debug, Clone)]
pub struct DirectoriesOnDisk {
    file_system: FileSystem,
    root: HostPath,
}

/// Why the root of the chat directories cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRoot {
    #[error("cannot use chats.root {path}: {error}")]
    Unusable { path: PathBuf, error: io::Error },
    #[error("chats.root {path} is not a directory")]
    NotADirectory { path: PathBuf },
    #[error("chats.root {path} is open to every user of this host (mode {mode:04o}); run chmod o-rwx on it")]
    OpenToOthers { path: PathBuf, mode: u32 },
    #[error("chats.root {path} cannot be a mount source: it {error}")]
    Unmountable { path: PathBuf, error: InvalidHostPath },
}

impl DirectoriesOnDisk {
    /// Creates the root if it is missing, and checks it. Symbolic links in its path are the operator's.
    pub fn open(root: &Path, file_system: FileSystem) -> Result<Self, InvalidRoot> {
        let path = || root.to_owned();
        let unusable = |error| InvalidRoot::Unusable { path: path(), error };
        if !root.try_exists().map_err(unusable)? {
            make_private(root).map_err(unusable)?;
        }
        let canonical = root.canonicalize().map_err(unusable)?;
        let stat = rustix::fs::stat(&canonical).map_err(|error| unusable(error.into()))?;
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            return Err(InvalidRoot::NotADirectory { path: path() });
        }
        if stat.st_mode & OPEN_TO_OTHERS != 0 {
            return Err(InvalidRoot::OpenToOthers { path: path(), mode: stat.st_mode & 0o7777 });
        }
        let root =
            HostPath::from_canonical(&canonical).map_err(|error| InvalidRoot::Unmountable { path: path(), error })?;
        Ok(Self { file_system, root })
    }

    pub fn root(&self) -> &HostPath {
        &self.root
    }

    /// Runs a call in the root on a worker thread.
    async fn work<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&OwnedFd) -> rustix::io::Result<T> + Send + 'static,
    ) -> Result<T, DirectoryError> {
        let root = self.root.clone();
        let path = root.as_path().join(name).display().to_string();
        let work = move || removal::open_root(root.as_path()).and_then(|root| work(&root));
        match self.file_system.own(Own::Chats, work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(errno)) => Err(DirectoryError::of_io(path, &errno.into())),
            Err(error) => Err(DirectoryError::new(path, error)),
        }
    }

    /// Finishes a removal. Returns whether the directory existed.
    async fn finish_removal(&self, name: &str) -> Result<bool, DirectoryError> {
        let mut began = false;
        loop {
            let removed = name.to_owned();
            match self.work(name, move |root| removal::remove_part(root, &removed)).await? {
                removal::Progress::Absent => return Ok(began),
                removal::Progress::Done => return Ok(true),
                removal::Progress::More => began = true,
            }
        }
    }
}

#[async_trait]
impl ChatDirectories for DirectoriesOnDisk {
    async fn prepare(&self, chat: ChatId, user: Option<User>) -> Result<HostPath, DirectoryError> {
        let root = self.root.clone();
        let path = root.as_path().join(chat.to_string());
        let failed = |message: String| DirectoryError::new(path.display(), message);
        let work = move || prepare(&root, &chat.to_string(), user);
        match self.file_system.own(Own::Chats, work).await {
            Ok(Ok(())) => HostPath::from_canonical(&path).map_err(|error| failed(error.to_string())),
            Ok(Err(errno)) => Err(DirectoryError::of_io(path.display(), &errno.into())),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    async fn remove(&self, chat: ChatId) -> Result<bool, DirectoryError> {
        let (chat, removed) = (chat.to_string(), removal::removed_name(&chat.to_string()));
        // An interrupted removal may have left a directory of the target name, which must be removed first.
        let resumed = self.finish_removal(&removed).await?;
        let name = chat.clone();
        if !self.work(&chat, move |root| removal::rename_for_removal(root, &name)).await? {
            return Ok(resumed);
        }
        self.finish_removal(&removed).await?;
        Ok(true)
    }

    async fn finish_removals(&self) -> Result<(), DirectoryError> {
        for name in self.work("", removal::all_names).await?.into_iter().filter(|name| removal::is_removed_name(name)) {
            if let Err(error) = self.finish_removal(&name).await {
                tracing::warn!(%error, "chat directory not removed");
            }
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<ChatId>, DirectoryError> {
        let names = self.work("", removal::all_names).await?;
        // Only the canonical form of an id is the name of a chat directory.
        let chat = |name: String| name.parse::<ChatId>().ok().filter(|chat| chat.to_string() == name);
        Ok(names.into_iter().filter_map(chat).collect())
    }

    async fn changed_at(&self, chat: ChatId) -> Result<Option<Timestamp>, DirectoryError> {
        let (place, name) = (chat.to_string(), chat.to_string());
        let stat = self.work(&place, move |root| match rustix::fs::statat(root, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(rustix::io::Errno::NOENT) => Ok(None),
            stat => stat.map(Some),
        });
        let time = |stat: Stat| Timestamp::from_timestamp(stat.st_mtime, 0).unwrap_or(Timestamp::MAX_UTC);
        Ok(stat.await?.map(time))
    }

    async fn mark_used(&self, chat: ChatId) -> Result<(), DirectoryError> {
        let (place, name) = (chat.to_string(), chat.to_string());
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let marked = self.work(&place, move |root| {
            match rustix::fs::utimensat(root, &name, &times, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
                Err(error) => Err(error),
            }
        });
        marked.await
    }
}

/// Uses descriptors, so that the checked directory is the one that is changed.
fn prepare(root: &HostPath, name: &str, user: Option<User>) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, root.as_path(), flags, Mode::empty())?;
    match rustix::fs::mkdirat(&root, name, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let directory = rustix::fs::openat(&root, name, flags, Mode::empty())?;
    if is_writable_for(user, &rustix::fs::fstat(&directory)?) {
        return Ok(());
    }
    let Some(User { uid, gid }) = user else {
        return rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o777));
    };
    match rustix::fs::fchown(&directory, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))) {
        Ok(()) => rustix::fs::fchmod(&directory, Mode::RWXU),
        Err(rustix::io::Errno::PERM) => rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o777)),
        Err(error) => Err(error),
    }
}

fn is_writable_for(user: Option<User>, directory: &Stat) -> bool {
    let owned = user.is_some_and(|user| user.uid == directory.st_uid && directory.st_mode & 0o700 == 0o700);
    owned || directory.st_mode & OPEN_TO_OTHERS == OPEN_TO_OTHERS
}

fn make_private(root: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    if let Some(parent) = root.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::DirBuilder::new().mode(0o700).create(root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn chat() -> ChatId {
        "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().unwrap()
    }

    fn fresh() -> (tempfile::TempDir, DirectoriesOnDisk) {
        let place = tempfile::tempdir().unwrap();
        let directories = open(&place.path().join("a/chats")).unwrap();
        (place, directories)
    }

    fn open(root: &Path) -> Result<DirectoriesOnDisk, InvalidRoot> {
        let file_system = FileSystem::new(&root.join("state"), root).unwrap();
        DirectoriesOnDisk::open(root, file_system)
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[tokio::test]
    async fn the_root_is_made_and_closed_to_others() {
        let (place, directories) = fresh();
        assert_eq!(mode(&place.path().join("a/chats")), 0o700);
        assert!(directories.root().as_str().ends_with("/a/chats"));
    }

    #[tokio::test]
    async fn a_root_open_to_others_is_refused() {
        let place = tempfile::tempdir().unwrap();
        for mode in [0o755, 0o701, 0o777] {
            std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let error = open(place.path()).unwrap_err();
            assert!(matches!(error, InvalidRoot::OpenToOthers { .. }), "{error}");
        }
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
        open(place.path()).unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(open(&file), Err(InvalidRoot::NotADirectory { .. })));
    }

    #[tokio::test]
    async fn a_directory_is_made_once_and_kept_with_its_content() {
        let (_place, directories) = fresh();
        let path = directories.prepare(chat(), None).await.unwrap();
        assert_eq!(path.as_path(), directories.root().as_path().join(chat().to_string()));
        std::fs::write(path.as_path().join("history.md"), "kept").unwrap();
        assert_eq!(directories.prepare(chat(), None).await.unwrap(), path);
        assert_eq!(std::fs::read_to_string(path.as_path().join("history.md")).unwrap(), "kept");
    }

    #[tokio::test]
    async fn a_removal_is_idempotent_and_finishes_one_that_was_interrupted() {
        let (_place, directories) = fresh();
        let path = directories.prepare(chat(), None).await.unwrap();
        std::fs::create_dir_all(path.as_path().join("a/b/c")).unwrap();
        std::fs::write(path.as_path().join("a/b/file"), "gone").unwrap();
        assert_eq!(directories.remove(chat()).await, Ok(true));
        assert!(!path.as_path().exists());
        assert_eq!(directories.remove(chat()).await, Ok(false));

        let left = directories.root().as_path().join(removal::removed_name(&chat().to_string()));
        std::fs::create_dir_all(left.join("half")).unwrap();
        directories.finish_removals().await.unwrap();
        assert!(!left.exists());
        std::fs::create_dir_all(left.join("half")).unwrap();
        directories.prepare(chat(), None).await.unwrap();
        assert_eq!(directories.remove(chat()).await, Ok(true));
        assert_eq!(std::fs::read_dir(directories.root().as_path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn chats_with_a_directory_are_listed_with_its_last_change() {
        let (_place, directories) = fresh();
        assert_eq!(directories.changed_at(chat()).await, Ok(None));
        let path = directories.prepare(chat(), None).await.unwrap();
        for other in ["lost+found", ".removed-x", "67E55044-10B1-426F-9247-BB680E5FE0C9"] {
            std::fs::create_dir(directories.root().as_path().join(other)).unwrap();
        }
        assert_eq!(directories.list().await, Ok(vec![chat()]));
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
        std::fs::File::open(path.as_path()).unwrap().set_modified(old).unwrap();
        assert_eq!(directories.changed_at(chat()).await, Ok(Timestamp::from_timestamp(1000, 0)));
        directories.mark_used(chat()).await.unwrap();
        let marked = directories.changed_at(chat()).await.unwrap().unwrap();
        assert!((chrono::Utc::now() - marked).num_seconds() < 60, "{marked}");
    }

    #[tokio::test]
    async fn the_guests_user_can_write() {
        let (_place, directories) = fresh();
        let path = directories.prepare(chat(), None).await.unwrap();
        assert_eq!(mode(path.as_path()), 0o777);

        let other = ChatId::new(uuid::Uuid::new_v4());
        let user = User { uid: 4242, gid: 4243 };
        let path = directories.prepare(other, Some(user)).await.unwrap();
        let found = path.as_path().metadata().unwrap();
        if rustix::process::geteuid().is_root() {
            assert_eq!((found.uid(), found.gid(), mode(path.as_path())), (4242, 4243, 0o700));
        } else {
            assert_eq!(mode(path.as_path()), 0o777);
        }
        // Another profile sets another user.
        let path = directories.prepare(other, Some(User { uid: 5252, gid: 5253 })).await.unwrap();
        let found = path.as_path().metadata().unwrap();
        assert!(found.uid() == 5252 || mode(path.as_path()) == 0o777);
    }

    #[tokio::test]
    async fn a_link_or_a_file_is_not_used_as_a_directory() {
        let (place, directories) = fresh();
        let outside = place.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        let before = mode(&outside);
        let path = directories.root().as_path().join(chat().to_string());

        symlink(&outside, &path).unwrap();
        let error = directories.prepare(chat(), None).await.unwrap_err();
        assert!(error.to_string().contains(&chat().to_string()), "{error}");
        assert_eq!(mode(&outside), before);

        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(directories.prepare(chat(), None).await.is_err());
    }

    #[tokio::test]
    async fn a_root_that_became_a_link_is_not_followed() {
        let (place, directories) = fresh();
        let outside = place.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::remove_dir(directories.root().as_path()).unwrap();
        symlink(&outside, directories.root().as_path()).unwrap();
        assert!(directories.prepare(chat(), None).await.is_err());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }
}
