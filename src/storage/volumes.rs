//! The policy for volumes: the directories of the host that a caller may mount.
//!
//! A volume lies below one of the configured roots after all symbolic links are resolved. It does not overlap paths
//! that give control of the host: the engine's socket and the service's own directories. A caller cannot probe for
//! paths outside the roots: every path that does not provably stay inside them gets the same response.
//!
//! The check applies to an open directory, at the path that the kernel reports for it, never to a path that is looked
//! up again.

use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;
use sandboxd_actors::domain::host_path::{HostPath, InvalidHostPath};

use crate::storage::file_system::{FileSystem, Links, OpenError, Unavailable};

/// The rules for volumes.
#[derive(Debug, Clone)]
pub struct VolumePolicy {
    file_system: FileSystem,
    roots: Vec<PathBuf>,
    /// Whether a root itself is accepted.
    roots_allowed: bool,
    reserved: Vec<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot use the volume root {path}: {error}")]
pub struct InvalidVolumeRoot {
    pub path: PathBuf,
    pub error: OpenError,
}

/// Why a path is not accepted. The message completes "`volume_host_path` …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VolumeRefused {
    #[error("must be an absolute path, got {0:?}")]
    NotAbsolute(String),
    #[error("must lie below one of the configured roots")]
    OutsideRoots,
    #[error("must lie below one of the configured roots, and is a root itself")]
    IsRoot,
    #[error("must not contain, or lie within, a directory that the service or its engine uses itself")]
    Reserved,
    #[error("does not exist")]
    Missing,
    #[error("is not a directory")]
    NotADirectory,
    #[error("cannot be opened: {0}")]
    Unusable(String),
    #[error("cannot be reached now; try again later: {0}")]
    Unavailable(Unavailable),
    #[error(transparent)]
    Unmountable(#[from] InvalidHostPath),
}

impl VolumePolicy {
    /// Creates a policy. Without roots, every path is refused. Reserved paths need not exist.
    pub async fn new(
        file_system: FileSystem,
        roots: impl IntoIterator<Item = PathBuf>,
        reserved: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Self, InvalidVolumeRoot> {
        let mut canonical = Vec::new();
        for path in roots {
            match file_system.open(&path, Links::Follow).await {
                Ok(root) => canonical.push(root.path),
                Err(error) => return Err(InvalidVolumeRoot { path, error }),
            }
        }
        // Reserves also the path as written: a later change of a link must not release the configured path.
        let reserved = reserved.into_iter().flat_map(|path| [resolve_existing(&path), path]).collect();
        Ok(Self { file_system, roots: canonical, roots_allowed: false, reserved })
    }

    /// Accepts also the roots themselves.
    pub fn with_roots_allowed(self) -> Self {
        Self { roots_allowed: true, ..self }
    }

    /// Returns the canonical path of the directory at `text`.
    pub async fn resolve(&self, text: &str) -> Result<HostPath, VolumeRefused> {
        let path = Path::new(text);
        if !path.is_absolute() {
            return Err(VolumeRefused::NotAbsolute(text.to_owned()));
        }
        let directory = self.file_system.open(path, Links::Follow).await.map_err(|error| self.explain(error))?;
        self.check(&directory.path)?;
        Ok(HostPath::from_canonical(&directory.path)?)
    }

    fn check(&self, canonical: &Path) -> Result<(), VolumeRefused> {
        if !self.roots.iter().any(|root| canonical.starts_with(root)) {
            return Err(VolumeRefused::OutsideRoots);
        }
        if self.reserved.iter().any(|path| canonical.starts_with(path) || path.starts_with(canonical)) {
            return Err(VolumeRefused::Reserved);
        }
        if !self.roots_allowed && self.roots.iter().any(|root| root == canonical) {
            return Err(VolumeRefused::IsRoot);
        }
        Ok(())
    }

    /// Returns the reason that the caller may see. Only for a path inside the roots, the reason is that it does not
    /// exist or does not answer.
    fn explain(&self, error: OpenError) -> VolumeRefused {
        match error {
            OpenError::Unavailable { mount, why } => {
                let concerns_roots = |root: &PathBuf| mount.starts_with(root) || root.starts_with(&mount);
                let concerned = self.roots.iter().any(concerns_roots);
                if concerned { VolumeRefused::Unavailable(why) } else { VolumeRefused::OutsideRoots }
            }
            OpenError::Failed { path, errno } => match (self.check(&path), errno) {
                (Err(refused), _) => refused,
                (Ok(()), Errno::NOENT) => VolumeRefused::Missing,
                (Ok(()), Errno::NOTDIR) => VolumeRefused::NotADirectory,
                // The target of a link loop is unknown, so it counts as outside.
                (Ok(()), Errno::LOOP) => VolumeRefused::OutsideRoots,
                (Ok(()), errno) => VolumeRefused::Unusable(io::Error::from(errno).to_string()),
            },
        }
    }
}

/// Resolves the path as far as it exists.
pub(crate) fn resolve_existing(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => {
                resolved.pop();
            }
            part => resolved.push(part),
        }
        resolved = resolved.canonicalize().unwrap_or(resolved);
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// ```text
    /// roots/a/inner/  roots/a/file  roots/own/state/  roots/out -> ../outside  roots/dangling -> ../nowhere
    /// outside/secret  spelling -> roots
    /// ```
    struct Host {
        place: tempfile::TempDir,
        policy: VolumePolicy,
    }

    fn file_system(place: &Path) -> FileSystem {
        FileSystem::new(&place.join("state"), &place.join("chats")).unwrap()
    }

    impl Host {
        async fn new() -> Self {
            let place = tempfile::tempdir().unwrap();
            let at = |name: &str| place.path().canonicalize().unwrap().join(name);
            for directory in ["roots/a/inner", "roots/own/state", "roots/a:b", "outside/secret"] {
                fs::create_dir_all(at(directory)).unwrap();
            }
            fs::write(at("roots/a/file"), "").unwrap();
            fs::write(at("outside/file"), "").unwrap();
            symlink(at("roots"), at("spelling")).unwrap();
            symlink("../outside", at("roots/out")).unwrap();
            symlink("../nowhere", at("roots/dangling")).unwrap();
            symlink(at("outside/file"), at("roots/to-file")).unwrap();
            symlink(at("roots/a"), at("roots/again")).unwrap();
            let reserved = [at("spelling/own/state"), at("roots/later/socket")];
            let policy = VolumePolicy::new(file_system(place.path()), [at("spelling")], reserved).await.unwrap();
            Self { place, policy }
        }

        fn path(&self, name: &str) -> String {
            self.place.path().canonicalize().unwrap().join(name).to_str().unwrap().to_owned()
        }

        async fn resolve(&self, name: &str) -> Result<String, VolumeRefused> {
            self.policy.resolve(&self.path(name)).await.map(|path| path.to_string())
        }
    }

    #[tokio::test]
    async fn every_spelling_of_a_volume_resolves_to_the_same_path() {
        let host = Host::new().await;
        for spelling in ["roots/a", "roots/a/", "roots//a/.", "spelling/a", "roots/again", "roots/own/../a"] {
            assert_eq!(host.resolve(spelling).await, Ok(host.path("roots/a")), "{spelling}");
        }
        assert_eq!(host.resolve("roots/again/inner").await, Ok(host.path("roots/a/inner")));
    }

    #[tokio::test]
    async fn paths_outside_the_roots_are_refused_alike_whether_or_not_they_exist() {
        let host = Host::new().await;
        for outside in [
            "outside",
            "outside/secret",
            "outside/file",
            "outside/none",
            "none",
            "roots/../outside/secret",
            "rootsy",
            "roots/out",
            "roots/out/secret",
            "roots/out/file",
            "roots/out/none",
            "roots/dangling",
            "roots/dangling/x",
            "roots/to-file",
            "roots/to-file/x",
        ] {
            assert_eq!(host.resolve(outside).await, Err(VolumeRefused::OutsideRoots), "{outside}");
        }
        assert_eq!(host.policy.resolve("/").await, Err(VolumeRefused::OutsideRoots));
        assert_eq!(host.policy.resolve("/etc").await, Err(VolumeRefused::OutsideRoots));
    }

    #[tokio::test]
    async fn inside_the_roots_the_reason_is_reported() {
        let host = Host::new().await;
        assert_eq!(host.resolve("roots/none/deeper").await, Err(VolumeRefused::Missing));
        assert_eq!(host.resolve("roots/a/file").await, Err(VolumeRefused::NotADirectory));
        assert_eq!(host.resolve("roots/a/file/x").await, Err(VolumeRefused::NotADirectory));
        assert!(matches!(host.resolve("roots/a:b").await, Err(VolumeRefused::Unmountable(_))));
        assert_eq!(host.policy.resolve("a").await, Err(VolumeRefused::NotAbsolute("a".into())));
        assert!(host.policy.resolve("").await.is_err() && host.policy.resolve("/a\0b").await.is_err());
    }

    #[tokio::test]
    async fn reserved_paths_are_refused_with_all_below_and_all_above_them() {
        let host = Host::new().await;
        fs::create_dir_all(host.path("roots/own/state/deep")).unwrap();
        for reserved in ["roots", "roots/own", "roots/own/state", "roots/own/state/deep", "roots/own/state/none"] {
            assert_eq!(host.resolve(reserved).await, Err(VolumeRefused::Reserved), "{reserved}");
        }
        fs::create_dir_all(host.path("roots/later/socket")).unwrap();
        assert_eq!(host.resolve("roots/later").await, Err(VolumeRefused::Reserved));
        fs::create_dir_all(host.path("roots/own/other")).unwrap();
        assert!(host.resolve("roots/own/other").await.is_ok());
    }

    #[tokio::test]
    async fn without_roots_every_path_is_refused() {
        let policy = VolumePolicy::new(file_system(Path::new("/none")), [], []).await.unwrap();
        assert_eq!(policy.resolve("/tmp").await, Err(VolumeRefused::OutsideRoots));
        assert_eq!(policy.resolve("/none").await, Err(VolumeRefused::OutsideRoots));
    }

    #[tokio::test]
    async fn a_root_must_be_a_directory() {
        let host = Host::new().await;
        for bad in ["roots/none", "roots/a/file"] {
            let error = VolumePolicy::new(file_system(host.place.path()), [PathBuf::from(host.path(bad))], [])
                .await
                .unwrap_err();
            assert!(error.to_string().contains(bad), "{error}");
        }
    }

    #[tokio::test]
    async fn a_root_itself_is_no_volume() {
        let host = Host::new().await;
        let roots = ["roots/a", "roots/a/inner"].map(|name| PathBuf::from(host.path(name)));
        let policy = VolumePolicy::new(file_system(host.place.path()), roots, []).await.unwrap();
        for root in ["roots/a", "roots/a/inner", "roots/again", "spelling/a/inner/.."] {
            assert_eq!(policy.resolve(&host.path(root)).await, Err(VolumeRefused::IsRoot), "{root}");
        }
        let policy = policy.with_roots_allowed();
        assert!(policy.resolve(&host.path("roots/again")).await.is_ok());
    }
}
