//! Keeps a second service away from a journal.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sandboxd_actors::journal::JournalError;

use super::{beside, error};

/// Held until it is dropped; the kernel drops it with its process, however that ends. The lock is on a file of its own,
/// because SQLite's locks on the journal would be lost as soon as any other handle on it is closed. The lock file stays:
/// deleting it would let two processes hold two files of one name.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    pub(super) fn acquire(journal: &Path) -> Result<Self, JournalError> {
        let path = beside(journal, ".lock");
        let unusable = |why| error::of_io(&path, &why);
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
        // Only for the message above; a full disk is no reason not to start.
        let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }
}

fn holder(mut file: File) -> String {
    let mut text = String::new();
    let read = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse::<u32>().ok());
    read.map_or_else(|| "another process".into(), |pid| format!("process {pid}"))
}
