//! Temporary directories. The next start of the service removes leftovers.

use std::io;
use std::path::{Path, PathBuf};

use sandboxd_actors::ports::repositories::CheckoutGuard;
use uuid::Uuid;

/// A unique path. Dropping it removes the directory there.
#[derive(Debug)]
pub(super) struct Temporary(PathBuf);

/// Ends the name of a repository, which contains no dot.
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

impl CheckoutGuard for Temporary {}

impl Drop for Temporary {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.0);
        // The removal of a large checkout must not block the runtime's thread.
        std::thread::spawn(move || {
            if let Err(error) = std::fs::remove_dir_all(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "temporary directory not removed");
            }
        });
    }
}

/// Removes the temporary directories of a service that was killed.
pub(super) fn remove_leftovers(directory: &Path) -> io::Result<()> {
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
