//! Canonical paths on the host.

use std::fmt;
use std::path::{Component, Path};
use std::sync::Arc;

/// An absolute path without `.`, `..` or doubled slashes. Its symbolic links are resolved, so two spellings of one
/// directory compare equal.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPath(Arc<str>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHostPath {
    #[error("must be an absolute path, got {0:?}")]
    NotAbsolute(String),
    #[error("must not contain '.' or '..', got {0:?}")]
    NotNormal(String),
    #[error("must be valid UTF-8")]
    NotUtf8,
    #[error("must not contain ':' or control characters, got {0:?}")]
    Unmountable(String),
}

impl HostPath {
    /// Creates a host path from a path whose symbolic links are resolved.
    pub fn from_canonical(path: &Path) -> Result<Self, InvalidHostPath> {
        let text = path.to_str().ok_or(InvalidHostPath::NotUtf8)?;
        if !path.is_absolute() {
            return Err(InvalidHostPath::NotAbsolute(text.to_owned()));
        }
        let normal = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        // `components` drops an inner "." and doubled slashes silently; only a normal text survives the round trip.
        if !normal || path.components().collect::<std::path::PathBuf>().as_os_str() != path.as_os_str() {
            return Err(InvalidHostPath::NotNormal(text.to_owned()));
        }
        // Engines write binds as "source:target:mode".
        if text.chars().any(|c| c == ':' || c.is_control()) {
            return Err(InvalidHostPath::Unmountable(text.to_owned()));
        }
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn as_path(&self) -> &Path {
        Path::new(&*self.0)
    }

    /// Whether this is `root` itself or lies below it.
    pub fn is_within(&self, root: &HostPath) -> bool {
        self.as_path().starts_with(root.as_path())
    }
}

impl fmt::Display for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostPath({:?})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_paths_are_accepted() {
        for bad in ["", "a", "./a", "/a/../b", "/a/./b", "/a//b", "/a/", "/a:b", "/a\nb"] {
            assert!(HostPath::from_canonical(Path::new(bad)).is_err(), "{bad:?}");
        }
        for good in ["/", "/a", "/a b/c.d"] {
            assert!(HostPath::from_canonical(Path::new(good)).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn within_compares_whole_components() {
        let path = |text| HostPath::from_canonical(Path::new(text)).unwrap();
        assert!(path("/data/a").is_within(&path("/data")));
        assert!(path("/data").is_within(&path("/data")));
        assert!(!path("/database").is_within(&path("/data")));
    }
}
