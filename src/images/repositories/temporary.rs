//! Directories that last as long as they are needed, and no longer than the next start of the service.

use std::io;
use std::path::{Path, PathBuf};

use sandboxd_actors::ports::repositories::Held;
use uuid::Uuid;

/// A name that nothing has yet. What is there in the end is removed.
#[derive(Debug)]
pub(super) struct Temporary(PathBuf);

/// Ends the name of a repository, which has none in it.
const MARK: char = '.';
const KINDS: [&str; 2] = ["checkout-", "access-"];

impl Temporary {
    pub(super) fn named(directory: &Path, name: &str, kind: &'static str) -> Self {
        Self(directory.join(format!("{name}{MARK}{kind}-{}", Uuid::new_v4().simple())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Held for Temporary {}

impl Drop for Temporary {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.0);
        // A checkout may be large, and others wait for this thread.
        std::thread::spawn(move || {
            if let Err(error) = std::fs::remove_dir_all(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "a temporary directory is not removed");
            }
        });
    }
}

/// Removes what a service that was killed could not.
pub(super) fn clear(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let kind = name.to_str().and_then(|name| name.split_once(MARK)).map(|(_, kind)| kind);
        if kind.is_some_and(|kind| KINDS.iter().any(|temporary| kind.starts_with(temporary))) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
