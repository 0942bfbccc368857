//! Tests of the journal.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{ContainerId, ContainerName, SessionId, SlotId};
use sandboxd_actors::domain::sandbox::{Reason, Sandbox, Status};
use sandboxd_actors::journal::{Change, LifecycleEvent};
use sandboxd_actors::pool::claims::Claim;
use sandboxd_actors::ports::clock::Timestamp;
use tempfile::TempDir;

use super::*;

mod damage;
mod ownership;
mod round_trip;
mod versions;

/// A directory for a journal.
struct Place {
    directory: TempDir,
    file: PathBuf,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("journal.db");
        Self { directory, file }
    }

    fn open(&self) -> Result<SqliteJournal, JournalError> {
        SqliteJournal::open(&self.file, &instance(), 1000)
    }

    fn opened(&self) -> SqliteJournal {
        self.open().unwrap()
    }

    /// Returns the content of every file except the lock, which changes with every attempt to open.
    fn bytes(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let files = fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let others = files.filter(|path| path.extension().is_none_or(|extension| extension != "lock"));
        others.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }
}

fn instance() -> InstanceName {
    "default".parse().unwrap()
}

fn chat(n: u128) -> ChatId {
    ChatId::new(uuid::Uuid::from_u128(n))
}

/// Returns a claim with the session of the sandbox.
fn claim(sandbox: &Sandbox) -> Claim {
    Claim {
        slot: SlotId::random(),
        session: sandbox.session,
        chat: sandbox.chat,
        container: ContainerId::new("container"),
        labels: BTreeMap::from([("label".to_owned(), "value".to_owned())]),
        environment: Environment::default().with("NAME", "value"),
        mounts: BTreeMap::new(),
    }
}

fn session(n: u128) -> SessionId {
    uuid::Uuid::from_u128(n).to_string().parse().unwrap()
}

fn moment(seconds: i64) -> Timestamp {
    Timestamp::from_timestamp(seconds, 0).unwrap()
}

fn sandbox(chat_number: u128, session_number: u128) -> Sandbox {
    Sandbox {
        session: session(session_number),
        chat: chat(chat_number),
        agent: "agent".parse().unwrap(),
        workspace: None,
        volume: Some(HostPath::from_canonical(Path::new("/data")).unwrap()),
        profile: "default".parse().unwrap(),
        image: "image".into(),
        snapshot: None,
        container_name: ContainerName::of(&instance(), chat(chat_number)),
        container: Some(ContainerId::new("0123456789abcdef")),
        endpoint: None,
        status: Status::Running,
        reason: Reason::Ready,
        message: None,
        created_at: moment(0),
        started_at: None,
        last_activity_at: moment(0),
        expires_at: moment(300),
        idle_timeout: Duration::from_secs(7200),
        held_until: None,
        held_by: Vec::new(),
        durable_leases: Vec::new(),
    }
}

fn save(chat: u128) -> Entry {
    Entry::Save(Box::new(sandbox(chat, 0)))
}

fn event(sequence: u64, chat_number: u128) -> Entry {
    let change = Change {
        at: moment(1),
        chat: chat(chat_number),
        session: session(0),
        agent: "agent".parse().unwrap(),
        container: None,
        from: None,
        to: Some(Status::Creating),
        reason: Reason::Requested,
        message: None,
    };
    Entry::Event(Box::new(LifecycleEvent { sequence, change }))
}

/// Writes `count` events and returns the number of the first.
fn record(journal: &mut SqliteJournal, count: u64) -> u64 {
    let first = journal.event_range.last + 1;
    let entries: Vec<_> = (first..first + count).map(|sequence| event(sequence, u128::from(sequence % 2))).collect();
    journal.commit(&entries).unwrap();
    first
}

fn numbers(page: &EventPage) -> Vec<u64> {
    page.events.iter().map(|event| event.sequence).collect()
}

/// Returns the sandboxes, sorted by chat.
fn sandboxes(journal: &mut SqliteJournal) -> Vec<Sandbox> {
    let mut sandboxes = journal.load().unwrap().sandboxes;
    sandboxes.sort_by_key(|sandbox| sandbox.chat);
    sandboxes
}

#[test]
fn a_new_session_takes_the_place_of_the_one_before() {
    let place = Place::new();
    let mut journal = place.opened();
    journal.commit(&[Entry::Save(Box::new(sandbox(1, 1))), Entry::Save(Box::new(sandbox(2, 1)))]).unwrap();
    journal.commit(&[Entry::Save(Box::new(sandbox(1, 2)))]).unwrap();
    assert_eq!(sandboxes(&mut journal), [sandbox(1, 2), sandbox(2, 1)]);
}

#[test]
fn a_stale_session_is_neither_removed_nor_active() {
    let place = Place::new();
    let mut journal = place.opened();
    let stale = session(1);
    journal.commit(&[Entry::Save(Box::new(sandbox(1, 2)))]).unwrap();
    journal.commit(&[Entry::Remove { chat: chat(1), session: stale }]).unwrap();
    journal.commit(&[Entry::Activity { chat: chat(1), session: stale, at: moment(9) }]).unwrap();
    journal.commit(&[Entry::Activity { chat: chat(2), session: stale, at: moment(9) }]).unwrap();
    assert_eq!(sandboxes(&mut journal), [sandbox(1, 2)]);

    journal.commit(&[Entry::Activity { chat: chat(1), session: session(2), at: moment(9) }]).unwrap();
    assert_eq!(sandboxes(&mut journal), [Sandbox { last_activity_at: moment(9), ..sandbox(1, 2) }]);
    journal.commit(&[Entry::Remove { chat: chat(1), session: session(2) }]).unwrap();
    assert_eq!(sandboxes(&mut journal), []);
}

#[test]
fn a_failed_commit_is_rolled_back() {
    let place = Place::new();
    let mut journal = place.opened();
    let first = record(&mut journal, 1);
    // A duplicate number is refused.
    let error = journal.commit(&[save(1), event(first + 1, 1), event(first, 1)]).unwrap_err();
    assert!(matches!(error, JournalError::Defect { .. }), "{error}");
    assert_eq!(sandboxes(&mut journal), []);
    assert_eq!(numbers(&journal.events(0, None, 10).unwrap()), [first]);
    assert_eq!(record(&mut journal, 1), first + 1);
}

#[test]
fn a_journal_is_fresh_until_it_is_said_to_be_rebuilt() {
    let place = Place::new();
    assert!(place.opened().load().unwrap().fresh);
    place.opened().commit(&[save(1)]).unwrap();
    assert!(place.opened().load().unwrap().fresh, "a crash during the rebuild must not orphan containers");
    place.opened().commit(&[save(2), Entry::Rebuilt]).unwrap();
    assert!(!place.opened().load().unwrap().fresh);
}

#[test]
fn events_are_read_in_pages_of_one_chat_or_of_all() {
    let place = Place::new();
    let mut journal = place.opened();
    let first = record(&mut journal, 10);
    let page = journal.events(0, None, 4).unwrap();
    assert_eq!((numbers(&page), page.kept_from, page.last), ((first..first + 4).collect(), first, first + 9));
    let page = journal.events(first + 7, None, 4).unwrap();
    assert_eq!(numbers(&page), [first + 8, first + 9]);
    let even = journal.events(first, Some(chat(0)), 100).unwrap();
    assert!(even.events.len() >= 4 && even.events.iter().all(|event| event.change.chat == chat(0)));
    assert_eq!(even.last, first + 9, "a watcher of one chat goes on from there, not from its last event");
    assert!(journal.events(u64::MAX, None, 1).unwrap().has_gap(u64::MAX));
}

#[test]
fn the_last_events_of_a_chat_are_read_newest_first() {
    let place = Place::new();
    let mut journal = place.opened();
    let first = journal.load().unwrap().last_event + 1;
    let entries: Vec<_> = (0..6).map(|n| event(first + n, u128::from(n % 2))).collect();
    journal.commit(&entries).unwrap();
    let numbers = |events: Vec<LifecycleEvent>| events.iter().map(|event| event.sequence - first).collect::<Vec<_>>();
    assert_eq!(numbers(journal.last_events(chat(1), 2).unwrap()), [5, 3]);
    assert_eq!(numbers(journal.last_events(chat(0), 10).unwrap()), [4, 2, 0]);
    assert_eq!(numbers(journal.last_events(chat(7), 10).unwrap()), Vec::<u64>::new());
}

#[test]
fn old_events_are_pruned_now_and_then_and_the_gap_shows() {
    let place = Place::new();
    let mut journal = SqliteJournal::open(&place.file, &instance(), 80).unwrap();
    let first = record(&mut journal, 90);
    let page = journal.events(first, None, 1000).unwrap();
    assert_eq!((page.kept_from, page.has_gap(first)), (first, false), "not before there are an eighth too many");

    record(&mut journal, 1);
    let page = journal.events(first, None, 1000).unwrap();
    assert_eq!(numbers(&page), (first + 11..first + 91).collect::<Vec<_>>());
    assert!(page.has_gap(first) && page.has_gap(first + 9) && !page.has_gap(first + 10));

    drop(journal);
    let mut journal = SqliteJournal::open(&place.file, &instance(), 1).unwrap();
    assert_eq!(journal.events(0, None, 1).unwrap().kept_from, first + 11);
    assert_eq!(record(&mut journal, 1), first + 91);
    assert_eq!(numbers(&journal.events(0, None, 1000).unwrap()), [first + 91]);
}

#[test]
fn a_cursor_of_a_journal_that_was_set_aside_is_a_gap() {
    let place = Place::new();
    let cursor = {
        let mut journal = place.opened();
        record(&mut journal, 3) + 2
    };
    // The first number is the current time.
    while chrono::Utc::now().timestamp_millis().unsigned_abs() <= cursor + 1 {
        std::thread::yield_now();
    }
    SqliteJournal::set_aside(&place.file, &instance(), true).unwrap();
    let mut journal = place.opened();
    record(&mut journal, 1000);
    assert!(journal.events(cursor, None, 1).unwrap().has_gap(cursor));
}

#[test]
fn a_full_file_is_an_error_that_heals() {
    let place = Place::new();
    let mut journal = place.opened();
    let pages: i64 = journal.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    let limit = |journal: &SqliteJournal, pages: i64| {
        journal.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
    };
    limit(&journal, pages + 2);
    let many: Vec<_> = (0..1000).map(save).collect();
    let error = journal.commit(&many).unwrap_err();
    assert!(matches!(error, JournalError::Full { .. }) && error.is_temporary(), "{error}");
    assert_eq!(sandboxes(&mut journal), []);
    journal.commit(&[save(1)]).unwrap();

    limit(&journal, pages + 10_000);
    journal.commit(&many).unwrap();
    assert_eq!(sandboxes(&mut journal).len(), 1000);
}

/// Checks the settings, because only a power cut shows a missing sync.
#[test]
fn every_commit_is_synced_to_a_log_of_its_own() {
    let place = Place::new();
    let journal = place.opened();
    let setting =
        |name| journal.connection.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0));
    assert_eq!(setting("synchronous").unwrap(), 2.into());
    assert_eq!(setting("journal_mode").unwrap(), "wal".to_owned().into());
}
