//! Opens a journal that is whole, ours and not too new; makes one where there is none.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use chrono::Utc;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use sandboxd_actors::domain::ids::InstanceName;
use sandboxd_actors::journal::JournalError;

use super::schema::{self, APPLICATION_ID, MIGRATIONS};
use super::{PARTS, aside, beside, error};

/// A journal up to this size is checked page by page, which takes less than a second. A larger one would delay the
/// start for too long; what is wrong with it shows when it is read.
const CHECKED_SIZE: u64 = 256 << 20;

/// Only another program could be in the way, and not for long.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn open(file: &Path, instance: &InstanceName) -> Result<Connection, JournalError> {
    let mut connection = match open_verified(file, instance)? {
        Some(connection) => connection,
        None => {
            create(file, instance)?;
            connect(file).map_err(|why| error::of_sqlite(file, &why))?
        }
    };
    let sqlite = |why: rusqlite::Error| error::of_sqlite(file, &why);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(sqlite)?;
    connection.pragma_update(None, "synchronous", "FULL").map_err(sqlite)?;
    // The environment of a claim may hold secrets, which go from the file with their sandbox.
    connection.pragma_update(None, "secure_delete", true).map_err(sqlite)?;
    schema::migrate(&mut connection, MIGRATIONS).map_err(sqlite)?;
    Ok(connection)
}

/// Opens a journal of this instance that is whole, as it is; `None` where there is none. A connection that is closed
/// without further settings has changed nothing.
pub(super) fn open_verified(file: &Path, instance: &InstanceName) -> Result<Option<Connection>, JournalError> {
    let has_log = beside(file, "-wal").exists();
    let size = match fs::metadata(file) {
        Ok(found) => found.len(),
        Err(why) if why.kind() == ErrorKind::NotFound => {
            if has_log {
                return Err(error::corrupt(file, "its log is there, but not the journal itself"));
            }
            return Ok(None);
        }
        Err(why) => return Err(error::of_io(file, &why)),
    };
    let sqlite = |why: rusqlite::Error| error::of_sqlite(file, &why);
    let connection = connect(file).map_err(sqlite)?;
    // As long as it may yet be refused, nothing is written: not even its log into the journal when it is closed.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, has_log).map_err(sqlite)?;
    verify(&connection, file, instance, size, has_log)?;
    Ok(Some(connection))
}

fn verify(
    connection: &Connection,
    file: &Path,
    instance: &InstanceName,
    size: u64,
    has_log: bool,
) -> Result<(), JournalError> {
    let sqlite = |why: rusqlite::Error| error::of_sqlite(file, &why);
    let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(sqlite)?;
    if application != APPLICATION_ID {
        return Err(error::corrupt(file, "it is empty, or no journal of this service"));
    }
    let (found, known) = (schema::version(connection).map_err(sqlite)?, schema::latest(MIGRATIONS));
    if found > known {
        return Err(JournalError::Newer { file: file.display().to_string(), found, known });
    }
    let page_size: u32 = connection.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(sqlite)?;
    // SQLite would take what is missing for zeros. Only a log can still bring it.
    if !has_log && !size.is_multiple_of(u64::from(page_size)) {
        return Err(error::corrupt(file, "its last page is cut off"));
    }
    if size <= CHECKED_SIZE {
        let finding: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(sqlite)?;
        if finding != "ok" {
            return Err(error::corrupt(file, finding.lines().collect::<Vec<_>>().join(" ")));
        }
    } else {
        tracing::warn!(file = %file.display(), size, "the journal is too large to be checked before it is used");
    }
    let owner: String = connection.query_row("SELECT instance FROM journal", [], |row| row.get(0)).map_err(sqlite)?;
    if owner != instance.as_str() {
        let (file, wanted) = (file.display().to_string(), instance.to_string());
        return Err(JournalError::OtherInstance { file, found: owner, wanted });
    }
    Ok(())
}

fn create(file: &Path, instance: &InstanceName) -> Result<(), JournalError> {
    let unfinished = beside(file, ".new");
    let io = |why: io::Error| error::of_io(file, &why);
    for part in PARTS {
        // From a start that did not get far. It never was a journal.
        match fs::remove_file(beside(&unfinished, part)) {
            Err(why) if why.kind() != ErrorKind::NotFound => return Err(io(why)),
            _ => {}
        }
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).map_err(io)?;
    fill(&unfinished, instance).map_err(|why| error::of_sqlite(file, &why))?;
    made.sync_all().and_then(|()| fs::rename(&unfinished, file)).and_then(|()| aside::sync_directory(file)).map_err(io)
}

fn fill(file: &Path, instance: &InstanceName) -> rusqlite::Result<()> {
    let mut connection = connect(file)?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    schema::migrate(&mut connection, MIGRATIONS)?;
    // Where numbers start grows with every journal. A cursor of one that was set aside is thus seen to be before all
    // that is kept here, and never taken for one of these.
    let first_event = Utc::now().timestamp_millis().max(1);
    connection.execute(
        "INSERT INTO journal (one, instance, rebuilt, first_event) VALUES (1, ?1, 0, ?2)",
        (instance.as_str(), first_event),
    )?;
    // Remembered in the file.
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.close().map_err(|(_, why)| why)
}

fn connect(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Before anything is read, so that there never is a shared-memory file.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    Ok(connection)
}
