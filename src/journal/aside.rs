//! Makes room for a new journal without deleting the old one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use chrono::Utc;

use super::{PARTS, beside};

/// The main file goes first: should the rest not follow, a log without its journal is seen as damage, while a journal
/// without its log would pass for whole and be older than what was promised.
pub(super) fn rename(journal: &Path) -> io::Result<Option<PathBuf>> {
    let aside = beside(journal, &format!(".aside-{}", Utc::now().format("%Y%m%dT%H%M%S%.3fZ")));
    let mut renamed = false;
    for part in PARTS {
        let (from, to) = (beside(journal, part), beside(&aside, part));
        if !from.try_exists()? {
            continue;
        }
        if to.try_exists()? {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} is there already", to.display())));
        }
        fs::rename(from, to)?;
        renamed = true;
    }
    sync_directory(journal)?;
    Ok(renamed.then_some(aside))
}

/// A rename is on disk once its directory is.
pub(super) fn sync_directory(file: &Path) -> io::Result<()> {
    match file.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => File::open(directory)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}
