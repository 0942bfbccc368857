//! The journal from outside: what is left of it when its process is killed, and when its disk is full.
//!
//! The process that is killed, or whose disk is full, is this test program itself, started again for one test.

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

/// Tells the second process where to work.
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

/// A sandbox and the event that tells of it.
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

/// The chats that have a sandbox and those that have an event; the journal is whole if they are the same.
fn chats(journal: &mut impl Journal) -> (BTreeSet<ChatId>, BTreeSet<ChatId>) {
    let sandboxes = journal.load().unwrap().sandboxes.iter().map(|sandbox| sandbox.chat).collect();
    let page = journal.events(0, None, usize::MAX).unwrap();
    let numbers = page.events.iter().map(|event| event.sequence);
    assert!(numbers.eq(page.kept_from..=page.last), "the events have no gap");
    (sandboxes, page.events.iter().map(|event| event.change.chat).collect())
}

/// This program again, for one test, through `wrapper` if there is one.
fn again(wrapper: &[&str], test: &str, directory: &Path) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = match wrapper {
        [] => Command::new(program),
        [wrapper, arguments @ ..] => {
            let mut command = Command::new(wrapper);
            command.args(arguments).arg(program);
            command
        }
    };
    command.args(["--exact", test, "--nocapture"]).env(CHILD, directory);
    command
}

fn child_directory() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// As docs/protocol.md says of `events.watch`.
#[tokio::test]
async fn events_are_numbered_from_the_time_at_which_their_journal_was_made() {
    let directory = tempfile::tempdir().unwrap();
    let before = SystemClock.now().timestamp_millis().unsigned_abs();
    let (journal, _) = start(directory.path()).await;
    let made = before..=SystemClock.now().timestamp_millis().unsigned_abs();
    let nothing_yet = journal.events(0, None, 10).await.unwrap();
    assert_eq!(nothing_yet.kept_from, nothing_yet.last + 1);
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
async fn all_that_was_acknowledged_survives_a_kill() {
    if let Some(directory) = child_directory() {
        return acknowledge_for_ever(&directory).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeSet::new();
    for round in 0..5 {
        let mut child = again(&[], "all_that_was_acknowledged_survives_a_kill", directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let before = acknowledged.len();
        acknowledged.extend(heard_until_killed(&mut child, 40 + 25 * round));
        assert!(acknowledged.len() >= before + 40 + 25 * round);

        // The lock of the killed process is gone with it.
        let (sandboxes, told) = chats(&mut open(directory.path()));
        assert!(sandboxes.is_superset(&acknowledged), "round {round}");
        assert_eq!(sandboxes, told, "no write was half applied");
    }
}

/// Eight writers, so that commits are shared; each says what it was told.
async fn acknowledge_for_ever(directory: &Path) {
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

/// Kills the child after so many acknowledgements; answers with all it made until then.
fn heard_until_killed(child: &mut Child, enough: usize) -> Vec<ChatId> {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let parse = |line: String| line.split_once("acknowledged ")?.1.parse().ok();
    let mut heard: Vec<ChatId> = lines.by_ref().map_while(Result::ok).filter_map(parse).take(enough).collect();
    child.kill().unwrap();
    heard.extend(lines.map_while(Result::ok).filter_map(parse));
    child.wait().unwrap();
    heard
}

#[tokio::test]
async fn a_full_disk_is_an_error_until_there_is_space_again() {
    if let Some(directory) = child_directory() {
        return fill_the_disk(&directory).await;
    }
    let directory = tempfile::tempdir().unwrap();
    // The mount is seen by the child alone, and ends with it.
    let wrapper: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["unshare", "--mount", "--"],
        false => &["unshare", "--map-root-user", "--mount", "--"],
    };
    let test = "a_full_disk_is_an_error_until_there_is_space_again";
    let status = again(wrapper, test, directory.path()).status().unwrap();
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
        // What the log has room for already is still taken.
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
    let (sandboxes, told) = chats(&mut open(directory));
    assert_eq!(sandboxes, acknowledged);
    assert_eq!(told, acknowledged);
    assert!(refused.is_disjoint(&sandboxes) && refused.len() == 3);
}
