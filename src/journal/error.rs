//! Maps errors of SQLite and of the operating system to the journal's errors.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use rusqlite::ErrorCode;
use sandboxd_actors::journal::JournalError;

use super::beside;

pub(super) fn from_sqlite(file: &Path, error: &rusqlite::Error) -> JournalError {
    let (name, message) = (file.display().to_string(), error.to_string());
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => JournalError::Full { file: name, message },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            JournalError::Busy { file: name, holder: "another program".into() }
        }
        // The statements are fixed, so an invalid statement means that the tables were changed.
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown) => {
            JournalError::Corrupt { file: name, message }
        }
        Some(ErrorCode::ConstraintViolation) => JournalError::Defect { message: format!("{name}: {message}") },
        Some(_) => match out_of_space(file) {
            Some(why) => JournalError::Full { file: name, message: why.to_string() },
            None => JournalError::Io { file: name, message },
        },
        // A value that cannot be parsed.
        None => JournalError::Corrupt { file: name, message },
    }
}

pub(super) fn from_io(file: &Path, error: &io::Error) -> JournalError {
    let (file, message) = (file.display().to_string(), error.to_string());
    if is_out_of_space(error) { JournalError::Full { file, message } } else { JournalError::Io { file, message } }
}

pub(super) fn corrupt(file: &Path, message: impl Into<String>) -> JournalError {
    JournalError::Corrupt { file: file.display().to_string(), message: message.into() }
}

/// Writes a probe file to detect an exceeded quota. SQLite maps only `ENOSPC` to a full disk, and a quota to an I/O
/// error.
fn out_of_space(file: &Path) -> Option<io::Error> {
    let probe = beside(file, ".probe");
    let tried = File::create(&probe).and_then(|mut probe| {
        probe.write_all(&[0; 16 * 1024])?;
        probe.sync_all()
    });
    let _ = fs::remove_file(&probe);
    tried.err().filter(is_out_of_space)
}

fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
