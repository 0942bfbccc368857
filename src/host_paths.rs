//! Which directories of the host a caller may have mounted as its volume.
//!
//! A volume lies below one of the configured roots, wherever symbolic links may lead, and has nothing in common with
//! the paths that would hand the host over: the engine's socket and the service's own directories. A caller learns
//! nothing about what exists outside the roots: every path that does not provably stay inside them gets the same answer.

use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use sandboxd_actors::host_path::{HostPath, InvalidHostPath};

#[derive(Debug, Clone)]
pub struct VolumePolicy {
    roots: Vec<PathBuf>,
    reserved: Vec<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
#[error("the volume root {path} cannot be used: {error}")]
pub struct InvalidVolumeRoot {
    pub path: PathBuf,
    pub error: io::Error,
}

/// Why a path is not accepted. The message completes "`volume_host_path` …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VolumeRefused {
    #[error("must be an absolute path, got {0:?}")]
    NotAbsolute(String),
    #[error("must lie below one of the configured roots")]
    OutsideRoots,
    #[error("must not contain, or lie within, a directory that the service or its engine uses itself")]
    Reserved,
    #[error("does not exist")]
    Missing,
    #[error("is not a directory")]
    NotADirectory,
    #[error(transparent)]
    Unmountable(#[from] InvalidHostPath),
}

impl VolumePolicy {
    /// Without roots, every path is refused. Reserved paths need not exist.
    pub fn new(
        roots: impl IntoIterator<Item = PathBuf>,
        reserved: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Self, InvalidVolumeRoot> {
        let root = |path: PathBuf| match path.canonicalize() {
            Ok(canonical) if canonical.is_dir() => Ok(canonical),
            Ok(_) => Err(InvalidVolumeRoot { path, error: io::ErrorKind::NotADirectory.into() }),
            Err(error) => Err(InvalidVolumeRoot { path, error }),
        };
        let roots = roots.into_iter().map(root).collect::<Result<_, _>>()?;
        // As it was written too: a link that is changed later must not open what it was meant to close.
        let reserved = reserved.into_iter().flat_map(|path| [resolve_existing(&path), path]).collect();
        Ok(Self { roots, reserved })
    }

    /// The directory that `text` means now. On the path of every create, so the usual case, a path that is canonical
    /// already, costs no more than to open it.
    pub fn resolve(&self, text: &str) -> Result<HostPath, VolumeRefused> {
        let path = Path::new(text);
        if !path.is_absolute() {
            return Err(VolumeRefused::NotAbsolute(text.to_owned()));
        }
        if let Ok(plain) = HostPath::from_canonical(path)
            && is_directory_without_links(path)
        {
            self.check(path)?;
            return Ok(plain);
        }
        match path.canonicalize() {
            Ok(canonical) if canonical.is_dir() => {
                self.check(&canonical)?;
                Ok(HostPath::from_canonical(&canonical)?)
            }
            _ => Err(self.explain(path)),
        }
    }

    fn check(&self, canonical: &Path) -> Result<(), VolumeRefused> {
        if !self.roots.iter().any(|root| canonical.starts_with(root)) {
            return Err(VolumeRefused::OutsideRoots);
        }
        if self.reserved.iter().any(|path| canonical.starts_with(path) || path.starts_with(canonical)) {
            return Err(VolumeRefused::Reserved);
        }
        Ok(())
    }

    /// Why there is no directory at `path`, as far as the caller may know: only of what is known to lie inside the roots
    /// is it told that it does not exist, or is something else.
    fn explain(&self, path: &Path) -> VolumeRefused {
        let (existing, missing) = split_at_missing(path);
        if let Err(refused) = self.check(&existing.join(&missing)) {
            return refused;
        }
        match missing.components().next() {
            // A link that leads nowhere might lead anywhere.
            Some(name) if existing.join(name).is_symlink() => VolumeRefused::OutsideRoots,
            Some(_) if existing.is_dir() => VolumeRefused::Missing,
            _ => VolumeRefused::NotADirectory,
        }
    }
}

/// Whether the kernel reaches a directory without following a link. A kernel that cannot tell (before 5.6) says no.
fn is_directory_without_links(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).is_ok()
}

/// The longest beginning of `path` that exists, resolved, and the rest.
fn split_at_missing(path: &Path) -> (PathBuf, PathBuf) {
    let mut existing = PathBuf::from("/");
    let mut rest = path.components();
    while let Some(part) = rest.clone().next() {
        match existing.join(part).canonicalize() {
            Ok(longer) => existing = longer,
            Err(_) => break,
        }
        rest.next();
    }
    (existing, rest.as_path().to_owned())
}

/// Resolved as far as it exists.
fn resolve_existing(path: &Path) -> PathBuf {
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

    impl Host {
        fn new() -> Self {
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
            let policy =
                VolumePolicy::new([at("spelling")], [at("spelling/own/state"), at("roots/later/socket")]).unwrap();
            Self { place, policy }
        }

        fn path(&self, name: &str) -> String {
            self.place.path().canonicalize().unwrap().join(name).to_str().unwrap().to_owned()
        }

        fn resolve(&self, name: &str) -> Result<String, VolumeRefused> {
            self.policy.resolve(&self.path(name)).map(|path| path.to_string())
        }
    }

    #[test]
    fn every_spelling_of_a_volume_resolves_to_the_same_path() {
        let host = Host::new();
        for spelling in ["roots/a", "roots/a/", "roots//a/.", "spelling/a", "roots/again", "roots/own/../a"] {
            assert_eq!(host.resolve(spelling), Ok(host.path("roots/a")), "{spelling}");
        }
        assert_eq!(host.resolve("roots/again/inner"), Ok(host.path("roots/a/inner")));
    }

    #[test]
    fn what_is_outside_is_refused_alike_whether_or_not_it_exists() {
        let host = Host::new();
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
            assert_eq!(host.resolve(outside), Err(VolumeRefused::OutsideRoots), "{outside}");
        }
        assert_eq!(host.policy.resolve("/"), Err(VolumeRefused::OutsideRoots));
        assert_eq!(host.policy.resolve("/etc"), Err(VolumeRefused::OutsideRoots));
    }

    #[test]
    fn inside_the_roots_the_reason_is_told() {
        let host = Host::new();
        assert_eq!(host.resolve("roots/none/deeper"), Err(VolumeRefused::Missing));
        assert_eq!(host.resolve("roots/a/file"), Err(VolumeRefused::NotADirectory));
        assert_eq!(host.resolve("roots/a/file/x"), Err(VolumeRefused::NotADirectory));
        assert!(matches!(host.resolve("roots/a:b"), Err(VolumeRefused::Unmountable(_))));
        assert_eq!(host.policy.resolve("a"), Err(VolumeRefused::NotAbsolute("a".into())));
        assert!(host.policy.resolve("").is_err() && host.policy.resolve("/a\0b").is_err());
    }

    #[test]
    fn reserved_paths_are_refused_with_all_below_and_all_above_them() {
        let host = Host::new();
        fs::create_dir_all(host.path("roots/own/state/deep")).unwrap();
        for reserved in ["roots", "roots/own", "roots/own/state", "roots/own/state/deep", "roots/own/state/none"] {
            assert_eq!(host.resolve(reserved), Err(VolumeRefused::Reserved), "{reserved}");
        }
        fs::create_dir_all(host.path("roots/later/socket")).unwrap();
        assert_eq!(host.resolve("roots/later"), Err(VolumeRefused::Reserved));
        fs::create_dir_all(host.path("roots/own/other")).unwrap();
        assert!(host.resolve("roots/own/other").is_ok());
    }

    #[test]
    fn without_roots_nothing_is_accepted() {
        let policy = VolumePolicy::new([], []).unwrap();
        assert_eq!(policy.resolve("/tmp"), Err(VolumeRefused::OutsideRoots));
        assert_eq!(policy.resolve("/none"), Err(VolumeRefused::OutsideRoots));
    }

    #[test]
    fn a_root_must_be_a_directory() {
        let host = Host::new();
        for bad in ["roots/none", "roots/a/file"] {
            let error = VolumePolicy::new([PathBuf::from(host.path(bad))], []).unwrap_err();
            assert!(error.to_string().contains(bad), "{error}");
        }
    }
}
