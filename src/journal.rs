//! The journal on SQLite.
//!
//! - **Acknowledged is on disk.** The write-ahead log is synced with every commit (`synchronous = FULL`); the usual
//!   `NORMAL` syncs at checkpoints alone, and a power cut would take back what callers were told. Group commit makes
//!   it affordable: one sync for all who wait.
//! - **One owner.** A lock file keeps a second service out and lets it say who is in; `locking_mode = EXCLUSIVE` keeps
//!   out any other program, and with it the shared-memory file.
//! - **Refused, never repaired or reset.** A file that is damaged, newer or another instance's is left as it is, to the
//!   byte. [`SqliteJournal::set_aside`] makes room for a new one and deletes nothing.
//! - **It appears whole.** A new journal is made under another name and then renamed, so that an empty or half-made
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

/// What SQLite puts beside its file, and the file itself.
const PARTS: [&str; 4] = ["", "-wal", "-shm", "-journal"];

#[derive(Debug)]
pub struct SqliteJournal {
    connection: Connection,
    file: PathBuf,
    instance: InstanceName,
    keep_events: u64,
    kept: OpenJournal,
    /// After the connection, so that the file is closed before somebody else may open it.
    _lock: Lock,
}

/// The numbers of the events in the file: all from `from` to `last`, and none if `last` is before `from`.
#[derive(Debug, Clone, Copy)]
struct OpenJournal {
    from: u64,
    last: u64,
}

impl OpenJournal {
    fn count(self) -> u64 {
        (self.last + 1).saturating_sub(self.from)
    }
}

impl SqliteJournal {
    /// Opens this instance's journal, or makes one where there is none. The last `keep_events` events are kept, and up
    /// to an eighth more.
    pub fn open(file: &Path, instance: &InstanceName, keep_events: u64) -> Result<Self, JournalError> {
        let lock = Lock::acquire(file)?;
        let connection = open::open(file, instance)?;
        let kept = connection.query_row(
            "SELECT (SELECT min(sequence) FROM events), (SELECT max(sequence) FROM events), first_event FROM journal",
            [],
            kept,
        );
        Ok(Self {
            kept: kept.map_err(|error| error::of_sqlite(file, &error))?,
            connection,
            file: file.to_owned(),
            instance: instance.clone(),
            // The last one tells where the numbers go on.
            keep_events: keep_events.max(1),
            _lock: lock,
        })
    }

    /// Renames a journal that is not to be used any more, with all its parts, and says what to. Nothing happens if
    /// there is none. Without `force`, only a journal is set aside that is damaged or that a newer version has written.
    pub fn set_aside(file: &Path, instance: &InstanceName, force: bool) -> Result<Option<PathBuf>, NotSetAside> {
        let _lock = Lock::acquire(file)?;
        if !force {
            match read_all(file, instance) {
                Ok(None) | Err(JournalError::Corrupt { .. } | JournalError::Newer { .. }) => {}
                Ok(Some(sandboxes)) => return Err(NotSetAside::Healthy { file: file.to_owned(), sandboxes }),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(aside::rename(file).map_err(|error| error::of_io(file, &error))?)
    }

    fn contents(&self) -> rusqlite::Result<Contents> {
        let instance = &self.instance;
        let mut all = self.connection.prepare("SELECT * FROM sandboxes")?;
        let sandboxes = all.query_map([], |row| rows::read_sandbox(row, instance))?.collect::<Result<_, _>>()?;
        let (rebuilt, claims_in_files): (bool, bool) =
            self.connection.query_row("SELECT rebuilt, claims_in_files FROM journal", [], |row| row.try_into())?;
        let claims = claims::all(&self.connection)?;
        Ok(Contents { sandboxes, claims, claims_in_files, last_event: self.kept.last, fresh: !rebuilt })
    }

    fn write(&mut self, entries: &[Entry]) -> rusqlite::Result<()> {
        let mut kept = self.kept;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for entry in entries {
            match entry {
                Entry::Save(sandbox) => {
                    rows::save_sandbox(&transaction, sandbox)?;
                    claims::supersede(&transaction, sandbox.chat, sandbox.session)?;
                }
                Entry::Forget { chat, session } => {
                    rows::forget_sandbox(&transaction, *chat, *session)?;
                    claims::forget(&transaction, *chat, *session)?;
                }
                Entry::Claim(claim) => claims::save(&transaction, claim)?,
                Entry::ClaimsImported => drop(transaction.execute("UPDATE journal SET claims_in_files = 0", [])?),
                Entry::Activity { chat, session, at } => rows::note_activity(&transaction, *chat, *session, *at)?,
                Entry::Event(event) => {
                    rows::add_event(&transaction, event)?;
                    kept.last = event.sequence;
                }
                Entry::Rebuilt => drop(transaction.execute("UPDATE journal SET rebuilt = 1", [])?),
                Entry::Probe => drop(transaction.execute("UPDATE journal SET rebuilt = rebuilt", [])?),
            }
        }
        // Not with every commit: to delete many at once costs little more than to delete one.
        if kept.count() > self.keep_events + self.keep_events / 8 {
            kept.from = kept.last - self.keep_events + 1;
            rows::prune_events(&transaction, kept.from)?;
        }
        transaction.commit()?;
        self.kept = kept;
        Ok(())
    }

    fn page(&self, after: u64, chat: Option<ChatId>, limit: usize) -> rusqlite::Result<EventPage> {
        let events = rows::read_events(&self.connection, after, chat, limit)?;
        Ok(EventPage { events, kept_from: self.kept.from, last: self.kept.last })
    }

    fn explained<T>(&self, result: rusqlite::Result<T>) -> Result<T, JournalError> {
        result.map_err(|error| error::of_sqlite(&self.file, &error))
    }
}

impl Journal for SqliteJournal {
    fn load(&mut self) -> Result<Contents, JournalError> {
        self.explained(self.contents())
    }

    fn sandbox(&mut self, chat: ChatId) -> Result<Option<Sandbox>, JournalError> {
        self.explained(rows::find_sandbox(&self.connection, &self.instance, chat))
    }

    fn sessions(&mut self) -> Result<Vec<SessionId>, JournalError> {
        self.explained(rows::sessions(&self.connection))
    }

    fn commit(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        let written = self.write(entries);
        self.explained(written)
    }

    fn events(&mut self, after: u64, chat: Option<ChatId>, limit: usize) -> Result<EventPage, JournalError> {
        self.explained(self.page(after, chat, limit))
    }

    fn last_events(&mut self, chat: ChatId, limit: usize) -> Result<Vec<LifecycleEvent>, JournalError> {
        self.explained(rows::last_events(&self.connection, chat, limit))
    }
}

fn kept(row: &Row<'_>) -> rusqlite::Result<OpenJournal> {
    let first_ever: i64 = row.get(2)?;
    let first = row.get::<_, Option<i64>>(0)?.unwrap_or(first_ever);
    let last = row.get::<_, Option<i64>>(1)?.unwrap_or(first_ever - 1);
    Ok(OpenJournal { from: first.unsigned_abs(), last: last.unsigned_abs() })
}

/// Reads a journal from end to end without a change to it; returns how many sandboxes it has, or `None` where there is no
/// journal. Rows of an older version are migrated before they can be read, so they are taken for whole.
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
    read().map(Some).map_err(|error| error::of_sqlite(file, &error))
}

/// Why a journal stays where it is.
#[derive(Debug, thiserror::Error)]
pub enum NotSetAside {
    #[error(
        "the journal {} is healthy and knows {sandboxes} sandboxes; --rebuild-journal would forget their renewals, leases \
         and events. Start without it, or add --force to set the journal aside all the same",
        file.display()
    )]
    Healthy { file: PathBuf, sandboxes: usize },
    #[error(transparent)]
    Unusable(#[from] JournalError),
}

/// `journal.db` and `-wal` make `journal.db-wal`.
fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(suffix);
    name.into()
}
