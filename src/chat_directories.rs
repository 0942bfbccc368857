//! The chats' directories: one per chat below a common root, made when the chat first gets a sandbox, and never removed
//! by it.
//!
//! Who may write to one follows a single rule. Where the profile names the user inside and the service may give files
//! away, the directory belongs to that user and is closed to everybody else. Otherwise it cannot be known who will
//! write (the image says who it runs as, and even its root has no capability to write elsewhere), so the directory
//! itself is open, and the root is what keeps the host's other users out. The root must therefore be closed to them.
//!
//! A sandbox sees the inside of its directory, never the root: it cannot put a link in the place of either. Content is
//! left alone; only the directory itself changes hands when the user inside changes.

use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use rustix::fs::{CWD, Mode, OFlags, Stat};
use rustix::process::{Gid, Uid};
use sandboxd_actors::directories::{ChatDirectories, DirectoryError};
use sandboxd_actors::host_path::{HostPath, InvalidHostPath};
use sandboxd_actors::ids::ChatId;
use sandboxd_actors::profile::User;

const OPEN_TO_OTHERS: u32 = 0o007;

#[derive(Debug, Clone)]
pub struct DirectoriesOnDisk {
    root: HostPath,
}

#[derive(Debug, thiserror::Error)]
pub enum InvalidRoot {
    #[error("the chats' root {path} cannot be used: {error}")]
    Unusable { path: PathBuf, error: io::Error },
    #[error("the chats' root {path} is not a directory")]
    NotADirectory { path: PathBuf },
    #[error("the chats' root {path} is open to every user of this host (mode {mode:04o}): chmod o-rwx")]
    OpenToOthers { path: PathBuf, mode: u32 },
    #[error("the chats' root {path} cannot be mounted from: it {error}")]
    Unmountable { path: PathBuf, error: InvalidHostPath },
}

impl DirectoriesOnDisk {
    /// Makes the root if it is missing, and checks it. Symbolic links on the way to it are the operator's own.
    pub fn open(root: &Path) -> Result<Self, InvalidRoot> {
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
        Ok(Self { root })
    }

    pub fn root(&self) -> &HostPath {
        &self.root
    }
}

#[async_trait]
impl ChatDirectories for DirectoriesOnDisk {
    async fn prepare(&self, chat: ChatId, user: Option<User>) -> Result<HostPath, DirectoryError> {
        let root = self.root.clone();
        let path = root.as_path().join(chat.to_string());
        let failed = |message: String| DirectoryError { path: path.display().to_string(), message };
        let work = tokio::task::spawn_blocking(move || prepare(&root, &chat.to_string(), user));
        match work.await {
            Ok(Ok(())) => HostPath::from_canonical(&path).map_err(|error| failed(error.to_string())),
            Ok(Err(errno)) => Err(failed(io::Error::from(errno).to_string())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

/// Through descriptors, so that what is checked is what is changed.
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
        let directories = DirectoriesOnDisk::open(&place.path().join("a/chats")).unwrap();
        (place, directories)
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
        for open in [0o755, 0o701, 0o777] {
            std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(open)).unwrap();
            let error = DirectoriesOnDisk::open(place.path()).unwrap_err();
            assert!(matches!(error, InvalidRoot::OpenToOthers { .. }), "{error}");
        }
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
        DirectoriesOnDisk::open(place.path()).unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(DirectoriesOnDisk::open(&file), Err(InvalidRoot::NotADirectory { .. })));
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
    async fn whoever_runs_inside_can_write() {
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
        // Another profile, another user.
        let path = directories.prepare(other, Some(User { uid: 5252, gid: 5253 })).await.unwrap();
        let found = path.as_path().metadata().unwrap();
        assert!(found.uid() == 5252 || mode(path.as_path()) == 0o777);
    }

    #[tokio::test]
    async fn nothing_but_a_directory_is_taken_for_one() {
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
