//! Tests of the journal when its process is killed and when its disk is full.
//!
//! The killed process is this test program, started again for a single test.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sandboxd::journal::SqliteJournal;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{ChatId, ContainerName, InstanceName, SessionId};
use sandboxd_actors::domain::sandbox::{Reason, Sandbox, Status};
use sandboxd_actors::journal::{Change, Contents, Draft, Journal, JournalError, JournalHandle};
use sandboxd_actors::ports::clock::{Clock, SystemClock};

/// The environment variable that gives the child process its directory.
const CHILD: &str = "SANDBOXD_TEST_JOURNAL_DIRECTORY";

const PATIENCE: Duration = Duration::from_secs(60);

fn instance() -> InstanceName {
    "default".parse().unwrap()
}

fn open(directory: &Path) -> SqliteJournal {
    SqliteJournal::open(&directory.join("journal.db"), &instance(), 1_000_000).unwrap()
}

async fn start(directory: &Path) -> (JournalHandle, Contents) {
    JournalHandle::start(open(directory), PATIENCE, None).await.unwrap()
}

/// Returns a sandbox record and its creation event.
fn creation() -> (ChatId, Vec<Draft>) {
    let (chat, session) = (ChatId::new(uuid::Uuid::new_v4()), SessionId::random());
    let now = SystemClock.now();
    let sandbox = Sandbox {
        session,
        chat,
        agent: "agent".parse().unwrap(),
        workspace: None,
        volume: Some(HostPath::from_canonical(Path::new("/data")).unwrap()),
        profile: "default".parse().unwrap(),
        image: "image".into(),
        snapshot: None,
        container_name: ContainerName::of(&instance(), chat),
        container: None,
        endpoint: None,
        status: Status::Creating,
        reason: Reason::Requested,
        message: None,
        created_at: now,
        started_at: None,
        last_activity_at: now,
        expires_at: now + chrono::TimeDelta::seconds(300),
        idle_timeout: Duration::from_secs(7200),
        held_until: None,
        held_by: Vec::new(),
        durable_leases: Vec::new(),
    };
    let change = Change {
        at: now,
        chat,
        session,
        agent: sandbox.agent.clone(),
        container: None,
        from: None,
        to: Some(Status::Creating),
        reason: Reason::Requested,
        message: None,
    };
    (chat, vec![Draft::Save(Box::new(sandbox)), Draft::Event(Box::new(change))])
}

/// Returns the chats that have a record and the chats that have an event. In a consistent journal, both are equal.
fn chats(journal: &mut impl Journal) -> (BTreeSet<ChatId>, BTreeSet<ChatId>) {
    let sandboxes = journal.load().unwrap().sandboxes.iter().map(|sandbox| sandbox.chat).collect();
    let page = journal.events(0, None, usize::MAX).unwrap();
    let numbers = page.events.iter().map(|event| event.sequence);
    assert!(numbers.eq(page.kept_from..=page.last), "the events have no gap");
    (sandboxes, page.events.iter().map(|event| event.change.chat).collect())
}

/// Returns a command that starts this program again for one test, through `wrapper` unless it is empty.
fn child_command(wrapper: &[&str], test: &str, directory: &Path) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = match wrapper {
        [] => Command::new(program),
        [wrapper, arguments @ ..] => {
            let mut command = Command::new(wrapper);
            command.args(arguments).arg(program);
            command
        }
    };
    command.args(["--exact", &format!("journal::{test}"), "--nocapture"]).env(CHILD, directory);
    command
}

fn child_directory() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// As the reference says about `events.watch`.
#[tokio::test]
async fn events_are_numbered_from_the_time_at_which_their_journal_was_made() {
    let directory = tempfile::tempdir().unwrap();
    let before = SystemClock.now().timestamp_millis().unsigned_abs();
    let (journal, _) = start(directory.path()).await;
    let made = before..=SystemClock.now().timestamp_millis().unsigned_abs();
    let empty = journal.events(0, None, 10).await.unwrap();
    assert_eq!(empty.kept_from, empty.last + 1);
    for _ in 0..3 {
        journal.write(creation().1).await.unwrap();
    }
    let page = journal.events(0, None, 10).await.unwrap();
    let first = page.events[0].sequence;
    assert!(made.contains(&first), "{first} is not within {made:?}");
    assert_eq!(page.events.iter().map(|event| event.sequence - first).collect::<Vec<_>>(), [0, 1, 2]);
    let rest = journal.events(first, None, 10).await.unwrap();
    assert_eq!(rest.events, page.events[1..], "a cursor is the number of the last event that is known");
    journal.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_a_kill() {
    if let Some(directory) = child_directory() {
        return acknowledge_forever(&directory).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeSet::new();
    for round in 0..5 {
        let mut child = child_command(&[], "acknowledged_writes_survive_a_kill", directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let before = acknowledged.len();
        acknowledged.extend(acknowledged_until_killed(&mut child, 40 + 25 * round));
        assert!(acknowledged.len() >= before + 40 + 25 * round);

        // The lock of the killed process ended with that process.
        let (sandboxes, with_events) = chats(&mut open(directory.path()));
        assert!(sandboxes.is_superset(&acknowledged), "round {round}");
        assert_eq!(sandboxes, with_events, "no write was half applied");
    }
}

/// Runs eight writers, so that writes share commits. Each writer prints its acknowledgements.
async fn acknowledge_forever(directory: &Path) {
    let (journal, _) = start(directory).await;
    let writer = |journal: JournalHandle| async move {
        loop {
            let (chat, drafts) = creation();
            journal.write(drafts).await.unwrap();
            println!("acknowledged {chat}");
        }
    };
    let writers = (0..8).map(|_| tokio::spawn(writer(journal.clone())));
    futures_util::future::join_all(writers).await;
}

/// Kills the child after `enough` acknowledgements. Returns all acknowledgements that the child made before its death.
fn acknowledged_until_killed(child: &mut Child, enough: usize) -> Vec<ChatId> {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let parse = |line: String| line.split_once("acknowledged ")?.1.parse().ok();
    let mut received: Vec<ChatId> = lines.by_ref().map_while(Result::ok).filter_map(parse).take(enough).collect();
    child.kill().unwrap();
    received.extend(lines.map_while(Result::ok).filter_map(parse));
    child.wait().unwrap();
    received
}

#[tokio::test]
async fn a_full_disk_is_an_error_until_there_is_space_again() {
    if let Some(directory) = child_directory() {
        return fill_the_disk(&directory).await;
    }
    let directory = tempfile::tempdir().unwrap();
    // Only the child sees the mount, which ends with the child.
    let wrapper: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["unshare", "--mount", "--"],
        false => &["unshare", "--map-root-user", "--mount", "--"],
    };
    let test = "a_full_disk_is_an_error_until_there_is_space_again";
    let status = child_command(wrapper, test, directory.path()).status().unwrap();
    assert!(status.success(), "{status}");
}

async fn fill_the_disk(directory: &Path) {
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(directory).status();
    assert!(mount.unwrap().success());
    let (journal, _) = start(directory).await;
    let (mut acknowledged, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..3 {
        let filler = directory.join("filler");
        let mut space = File::create(&filler).unwrap();
        while space.write_all(&[0; 512]).is_ok() {}
        drop(space);
        // The log still accepts writes into space that it has already allocated.
        let error = loop {
            let (chat, drafts) = creation();
            match journal.write(drafts).await {
                Ok(()) => acknowledged.insert(chat),
                Err(error) => {
                    refused.insert(chat);
                    break error;
                }
            };
        };
        assert!(matches!(error, JournalError::Full { .. }), "{error}");
        assert!(error.to_string().contains("journal.db"), "{error}");

        let (kept, drafts) = creation();
        journal.write_later(drafts);
        assert!(matches!(journal.flush().await, Err(JournalError::Full { .. })));
        assert!(journal.events(0, None, 1).await.is_ok(), "it can still be read");

        fs::remove_file(&filler).unwrap();
        let (chat, drafts) = creation();
        assert_eq!(journal.write(drafts).await, Ok(()), "round {round}");
        acknowledged.extend([kept, chat]);
    }
    journal.stop().await.unwrap();
    let (sandboxes, with_events) = chats(&mut open(directory));
    assert_eq!(sandboxes, acknowledged);
    assert_eq!(with_events, acknowledged);
    assert!(refused.is_disjoint(&sandboxes) && refused.len() == 3);
}
