//! Excludes a second service from a journal.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sandboxd_actors::journal::JournalError;

use super::{beside, error};

/// A lock on a journal, held until it is dropped. The kernel releases it with its process. The lock is on a separate
/// file, because closing any other handle on the journal would release SQLite's locks. The lock file stays: removing it
/// would let two processes lock two files of one name.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    pub(super) fn acquire(journal: &Path) -> Result<Self, JournalError> {
        let path = beside(journal, ".lock");
        let unusable = |why| error::from_io(&path, &why);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(JournalError::Busy { file: journal.display().to_string(), holder: holder(file) });
            }
            Err(TryLockError::Error(why)) => return Err(unusable(why)),
        }
        // The pid is only for the message above, so a failed write must not prevent the start.
        let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }
}

fn holder(mut file: File) -> String {
    let mut text = String::new();
    let read = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse::<u32>().ok());
    read.map_or_else(|| "another process".into(), |pid| format!("process {pid}"))
}
