//! Opens a journal after verifying it, or creates a new one.

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
/// start for too long; its damage shows when it is read.
const CHECKED_SIZE: u64 = 256 << 20;

/// Only another program, such as a backup, can hold the file, and only briefly.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn open(file: &Path, instance: &InstanceName) -> Result<Connection, JournalError> {
    let mut connection = match open_verified(file, instance)? {
        Some(connection) => connection,
        None => {
            create(file, instance)?;
            connect(file).map_err(|why| error::from_sqlite(file, &why))?
        }
    };
    let sqlite = |why: rusqlite::Error| error::from_sqlite(file, &why);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(sqlite)?;
    connection.pragma_update(None, "synchronous", "FULL").map_err(sqlite)?;
    // The environment of a claim may hold secrets, which must leave the file with their sandbox.
    connection.pragma_update(None, "secure_delete", true).map_err(sqlite)?;
    schema::migrate(&mut connection, MIGRATIONS).map_err(sqlite)?;
    Ok(connection)
}

/// Opens and verifies a journal of this instance; `None` if no journal exists. Opening and closing the connection does
/// not change the file.
pub(super) fn open_verified(file: &Path, instance: &InstanceName) -> Result<Option<Connection>, JournalError> {
    let has_log = beside(file, "-wal").exists();
    let size = match fs::metadata(file) {
        Ok(found) => found.len(),
        Err(why) if why.kind() == ErrorKind::NotFound => {
            if has_log {
                return Err(error::corrupt(file, "its log exists, but the journal itself is missing"));
            }
            return Ok(None);
        }
        Err(why) => return Err(error::from_io(file, &why)),
    };
    let sqlite = |why: rusqlite::Error| error::from_sqlite(file, &why);
    let connection = connect(file).map_err(sqlite)?;
    // A journal that may be refused must not change, so closing it must not checkpoint its log.
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
    let sqlite = |why: rusqlite::Error| error::from_sqlite(file, &why);
    let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(sqlite)?;
    if application != APPLICATION_ID {
        return Err(error::corrupt(file, "it is empty, or not a journal of this service"));
    }
    let (found, known) = (schema::version(connection).map_err(sqlite)?, schema::latest(MIGRATIONS));
    if found > known {
        return Err(JournalError::Newer { file: file.display().to_string(), found, known });
    }
    let page_size: u32 = connection.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(sqlite)?;
    // SQLite reads the missing bytes of a page as zeros. Only a log may still contain them.
    if !has_log && !size.is_multiple_of(u64::from(page_size)) {
        return Err(error::corrupt(file, "its last page is truncated"));
    }
    if size <= CHECKED_SIZE {
        let finding: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(sqlite)?;
        if finding != "ok" {
            return Err(error::corrupt(file, finding.lines().collect::<Vec<_>>().join(" ")));
        }
    } else {
        tracing::warn!(file = %file.display(), size, "journal too large; skipping the integrity check");
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
    let io = |why: io::Error| error::from_io(file, &why);
    for part in PARTS {
        // A leftover of an interrupted creation, which never was a journal.
        match fs::remove_file(beside(&unfinished, part)) {
            Err(why) if why.kind() != ErrorKind::NotFound => return Err(io(why)),
            _ => {}
        }
    }
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).map_err(io)?;
    fill(&unfinished, instance).map_err(|why| error::from_sqlite(file, &why))?;
    created
        .sync_all()
        .and_then(|()| fs::rename(&unfinished, file))
        .and_then(|()| aside::sync_directory(file))
        .map_err(io)
}

fn fill(file: &Path, instance: &InstanceName) -> rusqlite::Result<()> {
    let mut connection = connect(file)?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    schema::migrate(&mut connection, MIGRATIONS)?;
    // The first number grows with every journal, so a cursor of a journal that was set aside is before all events of
    // this one and shows as a gap.
    let first_event = Utc::now().timestamp_millis().max(1);
    connection.execute(
        "INSERT INTO journal (one, instance, rebuilt, first_event) VALUES (1, ?1, 0, ?2)",
        (instance.as_str(), first_event),
    )?;
    // SQLite stores this mode in the file.
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.close().map_err(|(_, why)| why)
}

fn connect(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Set before the first read, so that SQLite creates no shared-memory file.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    Ok(connection)
}
