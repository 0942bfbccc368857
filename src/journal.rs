//! The journal on SQLite.
//!
//! - **Acknowledged is on disk.** Every commit syncs the write-ahead log (`synchronous = FULL`). `NORMAL` syncs only at
//!   checkpoints, and a power cut would lose acknowledged writes. Group commit makes it affordable: one sync for all
//!   waiting callers.
//! - **One owner.** A lock file excludes a second service and names the owner. `locking_mode = EXCLUSIVE` excludes
//!   other programs and avoids the shared-memory file.
//! - **Refused, never repaired or reset.** A file that is damaged, newer or of another instance is not changed.
//!   [`SqliteJournal::set_aside`] renames it to make room for a new one.
//! - **Created atomically.** A new journal is created under another name and then renamed, so that an empty or partial
//!   file is always damage.

mod aside;
mod claims;
mod error;
mod lock;
mod open;
mod rows;
mod schema;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, Row, TransactionBehavior};
use sandboxd_actors::domain::ids::{ChatId, InstanceName, SessionId};
use sandboxd_actors::domain::sandbox::Sandbox;
use sandboxd_actors::journal::{Contents, Entry, EventPage, Journal, JournalError, LifecycleEvent};

use lock::Lock;

/// The suffixes of the database file and of SQLite's files beside it.
const PARTS: [&str; 4] = ["", "-wal", "-shm", "-journal"];

/// A journal in an SQLite file.
#[derive(Debug)]
pub struct SqliteJournal {
    connection: Connection,
    file: PathBuf,
    instance: InstanceName,
    keep_events: u64,
    event_range: EventRange,
    /// Dropped after the connection, so that the file is closed before another process may open it.
    _lock: Lock,
}

/// The numbers of the events in the file: `from` to `last`, empty if `last` is less than `from`.
#[derive(Debug, Clone, Copy)]
struct EventRange {
    from: u64,
    last: u64,
}

impl EventRange {
    fn count(self) -> u64 {
        (self.last + 1).saturating_sub(self.from)
    }
}

impl SqliteJournal {
    /// Opens this instance's journal, or creates it. The journal keeps the last `keep_events` events, and up to an
    /// eighth more.
    pub fn open(file: &Path, instance: &InstanceName, keep_events: u64) -> Result<Self, JournalError> {
        let lock = Lock::acquire(file)?;
        let connection = open::open(file, instance)?;
        let event_range = connection.query_row(
            "SELECT (SELECT min(sequence) FROM events), (SELECT max(sequence) FROM events), first_event FROM journal",
            [],
            read_event_range,
        );
        Ok(Self {
            event_range: event_range.map_err(|error| error::from_sqlite(file, &error))?,
            connection,
            file: file.to_owned(),
            instance: instance.clone(),
            // The last event determines the next number.
            keep_events: keep_events.max(1),
            _lock: lock,
        })
    }

    /// Renames a journal with all its parts and returns the new name, or `None` if no journal exists. Without `force`,
    /// only a damaged journal or one of a newer version is renamed.
    pub fn set_aside(file: &Path, instance: &InstanceName, force: bool) -> Result<Option<PathBuf>, NotSetAside> {
        let _lock = Lock::acquire(file)?;
        if !force {
            match read_all(file, instance) {
                Ok(None) | Err(JournalError::Corrupt { .. } | JournalError::Newer { .. }) => {}
                Ok(Some(sandboxes)) => return Err(NotSetAside::Healthy { file: file.to_owned(), sandboxes }),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(aside::rename(file).map_err(|error| error::from_io(file, &error))?)
    }

    fn contents(&self) -> rusqlite::Result<Contents> {
        let instance = &self.instance;
        let mut all = self.connection.prepare("SELECT * FROM sandboxes")?;
        let sandboxes = all.query_map([], |row| rows::read_sandbox(row, instance))?.collect::<Result<_, _>>()?;
        let (rebuilt, claims_in_files): (bool, bool) =
            self.connection.query_row("SELECT rebuilt, claims_in_files FROM journal", [], |row| row.try_into())?;
        let claims = claims::all(&self.connection)?;
        Ok(Contents { sandboxes, claims, claims_in_files, last_event: self.event_range.last, fresh: !rebuilt })
    }

    fn write(&mut self, entries: &[Entry]) -> rusqlite::Result<()> {
        let mut range = self.event_range;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for entry in entries {
            match entry {
                Entry::Save(sandbox) => {
                    rows::save_sandbox(&transaction, sandbox)?;
                    claims::remove_superseded(&transaction, sandbox.chat, sandbox.session)?;
                }
                Entry::Remove { chat, session } => {
                    rows::remove_sandbox(&transaction, *chat, *session)?;
                    claims::remove(&transaction, *chat, *session)?;
                }
                Entry::Claim(claim) => claims::save(&transaction, claim)?,
                Entry::ClaimsImported => drop(transaction.execute("UPDATE journal SET claims_in_files = 0", [])?),
                Entry::Activity { chat, session, at } => rows::save_activity(&transaction, *chat, *session, *at)?,
                Entry::Event(event) => {
                    rows::add_event(&transaction, event)?;
                    range.last = event.sequence;
                }
                Entry::Rebuilt => drop(transaction.execute("UPDATE journal SET rebuilt = 1", [])?),
                Entry::Probe => drop(transaction.execute("UPDATE journal SET rebuilt = rebuilt", [])?),
            }
        }
        // Pruning in batches: removing many events costs little more than removing one.
        if range.count() > self.keep_events + self.keep_events / 8 {
            range.from = range.last - self.keep_events + 1;
            rows::prune_events(&transaction, range.from)?;
        }
        transaction.commit()?;
        self.event_range = range;
        Ok(())
    }

    fn page(&self, after: u64, chat: Option<ChatId>, limit: usize) -> rusqlite::Result<EventPage> {
        let events = rows::read_events(&self.connection, after, chat, limit)?;
        Ok(EventPage { events, kept_from: self.event_range.from, last: self.event_range.last })
    }

    fn convert_error<T>(&self, result: rusqlite::Result<T>) -> Result<T, JournalError> {
        result.map_err(|error| error::from_sqlite(&self.file, &error))
    }
}

impl Journal for SqliteJournal {
    fn load(&mut self) -> Result<Contents, JournalError> {
        self.convert_error(self.contents())
    }

    fn sandbox(&mut self, chat: ChatId) -> Result<Option<Sandbox>, JournalError> {
        self.convert_error(rows::find_sandbox(&self.connection, &self.instance, chat))
    }

    fn sessions(&mut self) -> Result<Vec<SessionId>, JournalError> {
        self.convert_error(rows::sessions(&self.connection))
    }

    fn commit(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        let written = self.write(entries);
        self.convert_error(written)
    }

    fn events(&mut self, after: u64, chat: Option<ChatId>, limit: usize) -> Result<EventPage, JournalError> {
        self.convert_error(self.page(after, chat, limit))
    }

    fn last_events(&mut self, chat: ChatId, limit: usize) -> Result<Vec<LifecycleEvent>, JournalError> {
        self.convert_error(rows::last_events(&self.connection, chat, limit))
    }
}

fn read_event_range(row: &Row<'_>) -> rusqlite::Result<EventRange> {
    let first_ever: i64 = row.get(2)?;
    let first = row.get::<_, Option<i64>>(0)?.unwrap_or(first_ever);
    let last = row.get::<_, Option<i64>>(1)?.unwrap_or(first_ever - 1);
    Ok(EventRange { from: first.unsigned_abs(), last: last.unsigned_abs() })
}

/// Reads a whole journal without changing it. Returns the number of its sandboxes, or `None` if no journal exists. Rows
/// of an older version can be read only after a migration, so they are not checked.
fn read_all(file: &Path, instance: &InstanceName) -> Result<Option<usize>, JournalError> {
    let Some(connection) = open::open_verified(file, instance)? else { return Ok(None) };
    let read = || {
        if schema::version(&connection)? < schema::latest(schema::MIGRATIONS) {
            let count = |row: &Row<'_>| row.get::<_, isize>(0).map(isize::unsigned_abs);
            return connection.query_row("SELECT count(*) FROM sandboxes", [], count);
        }
        let mut all = connection.prepare("SELECT * FROM sandboxes")?;
        let sandboxes: Vec<Sandbox> =
            all.query_map([], |row| rows::read_sandbox(row, instance))?.collect::<Result<_, _>>()?;
        rows::read_events(&connection, 0, None, usize::MAX)?;
        Ok(sandboxes.len())
    };
    read().map(Some).map_err(|error| error::from_sqlite(file, &error))
}

/// Why a journal was not set aside.
#[derive(Debug, thiserror::Error)]
pub enum NotSetAside {
    #[error(
        "the journal {} is healthy and has {sandboxes} sandboxes; --rebuild-journal would lose their renewals, leases \
         and events; start without it, or add --force to set the journal aside anyway",
        file.display()
    )]
    Healthy { file: PathBuf, sandboxes: usize },
    #[error(transparent)]
    Unusable(#[from] JournalError),
}

/// Appends a suffix: `journal.db` and `-wal` give `journal.db-wal`.
fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(suffix);
    name.into()
}
