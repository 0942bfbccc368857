//! Sets a journal aside to make room for a new one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use chrono::Utc;

use super::{PARTS, beside};

/// Renames the main file first: after an interruption, a log without its journal is detected as damage, while a journal
/// without its log would look valid and lack acknowledged writes.
pub(super) fn rename(journal: &Path) -> io::Result<Option<PathBuf>> {
    let aside = beside(journal, &format!(".aside-{}", Utc::now().format("%Y%m%dT%H%M%S%.3fZ")));
    let mut renamed = false;
    for part in PARTS {
        let (from, to) = (beside(journal, part), beside(&aside, part));
        if !from.try_exists()? {
            continue;
        }
        if to.try_exists()? {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} already exists", to.display())));
        }
        fs::rename(from, to)?;
        renamed = true;
    }
    sync_directory(journal)?;
    Ok(renamed.then_some(aside))
}

/// A rename is durable once its directory is synced.
pub(super) fn sync_directory(file: &Path) -> io::Result<()> {
    match file.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => File::open(directory)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}
