//! A directory of the host that is mounted into a sandbox. It is held open from its check to its mount.

use std::path::PathBuf;

use sandboxd_actors::domain::container::Mount;

use crate::storage::file_system::Directory;

#[derive(Debug)]
pub(super) struct Source {
    pub(super) mount: Mount,
    pub(super) directory: Directory,
}

/// Returns the mount point in whose lane all sources are mounted: that of a caller's volume rather than the host's
/// root.
pub(super) fn mount_of(sources: &[Source]) -> PathBuf {
    let points = sources.iter().map(|source| source.directory.mount_point());
    points.max_by_key(|point| point.as_os_str().len()).map_or_else(|| PathBuf::from("/"), ToOwned::to_owned)
}
