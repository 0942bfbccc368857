//! What SQLite and the system say, in the words of the journal's port.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use rusqlite::ErrorCode;
use sandboxd_actors::journal::JournalError;

use super::beside;

pub(super) fn of_sqlite(file: &Path, error: &rusqlite::Error) -> JournalError {
    let (name, message) = (file.display().to_string(), error.to_string());
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => JournalError::Full { file: name, message },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            JournalError::Busy { file: name, holder: "another program".into() }
        }
        // The statements are fixed; where one makes no sense, the tables are not those that were made.
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown) => {
            JournalError::Corrupt { file: name, message }
        }
        Some(ErrorCode::ConstraintViolation) => JournalError::Defect { message: format!("{name}: {message}") },
        Some(_) => match out_of_space(file) {
            Some(why) => JournalError::Full { file: name, message: why.to_string() },
            None => JournalError::Io { file: name, message },
        },
        // A value that could be read, but not understood.
        None => JournalError::Corrupt { file: name, message },
    }
}

pub(super) fn of_io(file: &Path, error: &io::Error) -> JournalError {
    let (file, message) = (file.display().to_string(), error.to_string());
    if is_out_of_space(error) { JournalError::Full { file, message } } else { JournalError::Io { file, message } }
}

pub(super) fn corrupt(file: &Path, message: impl Into<String>) -> JournalError {
    JournalError::Corrupt { file: file.display().to_string(), message: message.into() }
}

/// SQLite takes only `ENOSPC` for a full disk and calls a quota an I/O error. Whether it was one shows a write of ours.
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
