//! The tables, version by version.

use rusqlite::{Connection, TransactionBehavior};

/// Marks an SQLite file as a journal: "sbxj".
pub(super) const APPLICATION_ID: i32 = 0x7362_786a;

/// The n-th migration takes a journal from version n to the next. A released migration never changes. New words for a
/// status or a reason need a version, too, even an empty one: an older program then reports a newer file instead of a
/// damaged one.
pub(super) const MIGRATIONS: &[&str] = &[FIRST, LEASES, SNAPSHOTS, WORKSPACES, OPTIONAL_VOLUMES, CLAIMS];

/// Words, ids and times are stored as in the protocol, readable with a plain `sqlite3`. The name of a container is not
/// stored, because it follows from the instance and the chat.
const FIRST: &str = "
    CREATE TABLE journal (
        one         INTEGER PRIMARY KEY CHECK (one = 1),
        instance    TEXT    NOT NULL,
        rebuilt     INTEGER NOT NULL CHECK (rebuilt IN (0, 1)),
        first_event INTEGER NOT NULL CHECK (first_event > 0)
    ) STRICT;

    CREATE TABLE sandboxes (
        chat             TEXT NOT NULL PRIMARY KEY,
        session          TEXT NOT NULL,
        agent            TEXT NOT NULL,
        volume           TEXT NOT NULL,
        profile          TEXT NOT NULL,
        image            TEXT NOT NULL,
        container        TEXT,
        ip               TEXT,
        port             INTEGER,
        status           TEXT NOT NULL,
        reason           TEXT NOT NULL,
        message          TEXT,
        created_at       TEXT NOT NULL,
        started_at       TEXT,
        last_activity_at TEXT NOT NULL,
        expires_at       TEXT NOT NULL,
        idle_timeout     TEXT NOT NULL,
        held_until       TEXT,
        CHECK ((ip IS NULL) = (port IS NULL))
    ) STRICT;

    CREATE TABLE events (
        sequence    INTEGER PRIMARY KEY,
        at          TEXT NOT NULL,
        chat        TEXT NOT NULL,
        session     TEXT NOT NULL,
        agent       TEXT NOT NULL,
        container   TEXT,
        from_status TEXT,
        to_status   TEXT,
        reason      TEXT NOT NULL,
        message     TEXT
    ) STRICT;
    CREATE INDEX events_by_chat ON events (chat);
";

/// One lease per line: its id and its end.
const LEASES: &str = "ALTER TABLE sandboxes ADD COLUMN leases TEXT NOT NULL DEFAULT ''";

/// The snapshot that a sandbox was restored from; with the reasons `snapshotted` and `snapshot_failed`.
const SNAPSHOTS: &str = "ALTER TABLE sandboxes ADD COLUMN snapshot TEXT";

/// The workspace of the chat; unknown for older sandboxes.
const WORKSPACES: &str = "ALTER TABLE sandboxes ADD COLUMN workspace TEXT";

/// A sandbox may have no volume. SQLite cannot lift NOT NULL from a column, so the column is replaced.
const OPTIONAL_VOLUMES: &str = "
    ALTER TABLE sandboxes RENAME COLUMN volume TO required_volume;
    ALTER TABLE sandboxes ADD COLUMN volume TEXT;
    UPDATE sandboxes SET volume = required_volume;
    ALTER TABLE sandboxes DROP COLUMN required_volume;
";

/// Claims of slots; maps are JSON. Claims of an older journal are files: see `claims_in_files`.
const CLAIMS: &str = "
    CREATE TABLE claims (
        chat        TEXT NOT NULL PRIMARY KEY,
        session     TEXT NOT NULL,
        slot        TEXT NOT NULL,
        container   TEXT NOT NULL,
        labels      TEXT NOT NULL,
        environment TEXT NOT NULL,
        mounts      TEXT NOT NULL
    ) STRICT;
    ALTER TABLE journal ADD COLUMN claims_in_files INTEGER NOT NULL DEFAULT 0;
    UPDATE journal SET claims_in_files = 1;
";

/// Returns the version after these migrations.
pub(super) fn latest(migrations: &[&str]) -> i32 {
    i32::try_from(migrations.len()).expect("there are few versions")
}

pub(super) fn version(connection: &Connection) -> rusqlite::Result<i32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Migrates a journal to the latest version in one transaction.
pub(super) fn migrate(connection: &mut Connection, migrations: &[&str]) -> rusqlite::Result<()> {
    let found = usize::try_from(version(connection)?).unwrap_or(0);
    if found >= migrations.len() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for step in &migrations[found..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", latest(migrations))?;
    transaction.commit()
}
