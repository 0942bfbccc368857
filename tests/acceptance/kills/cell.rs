//! One run of a service that is killed, and the checks of the next run.

use std::fmt;
use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;
use sandboxd::journal::SqliteJournal;
use sandboxd_actors::domain::sandbox::Sandbox;
use sandboxd_actors::journal::Journal;
use serde_json::Value;

use super::use_case::UseCase;
use crate::installation::Installation;

const AT: &str = "SANDBOXD_CRASH_AT";
const LOG: &str = "SANDBOXD_CRASH_LOG";
const FROM: &str = "SANDBOXD_CRASH_FROM";

/// How the first run ends.
#[derive(Debug, Clone)]
pub(super) enum End {
    /// Gracefully, with a record of the crash points that it passed.
    Recorded,
    /// Killed at this crash point.
    At(String),
    /// Killed right after the answer.
    Answered,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Recorded => f.write_str("recorded"),
            End::At(crash_point) => f.write_str(crash_point),
            End::Answered => f.write_str("once answered"),
        }
    }
}

pub(super) struct Report {
    pub(super) killed: bool,
    /// The recorded crash points.
    pub(super) crash_points: Vec<String>,
}

/// The known facts after the death of the service.
#[derive(Debug)]
pub(super) struct Aftermath {
    /// The chat's sandbox before the use case.
    pub(super) before: Option<Value>,
    /// The answer of the use case, if it came.
    pub(super) answer: Option<Value>,
    /// The chat's record on disk.
    pub(super) record: Option<Sandbox>,
}

pub(super) async fn run(use_case: UseCase, end: End) -> Report {
    let mut installation = Installation::new(use_case.settings());
    let (log, armed) = (installation.path("crash-points"), installation.path("armed"));
    installation = installation.with_variable(FROM, &armed.display().to_string());
    installation = match &end {
        End::Recorded => installation.with_variable(LOG, &log.display().to_string()),
        End::At(crash_point) => installation.with_variable(AT, crash_point),
        End::Answered => installation,
    };
    let service = installation.start().await;
    let chat = service.new_chat();
    let before = use_case.prepare(&service, &chat).await;
    std::fs::write(armed, "").expect("written");
    let answer = use_case.perform(&service, &chat).await;
    let (killed, installation) = match end {
        End::Answered => (true, service.kill().await),
        End::Recorded | End::At(_) => {
            let (status, installation) = service.end().await;
            let killed = status.signal() == Some(Signal::KILL.as_raw());
            assert!(killed || status.success(), "{status}");
            (killed, installation)
        }
    };
    assert!(killed || answer.is_some(), "a living service answers");

    let record = records(&installation).into_iter().find(|record| record.chat.to_string() == chat.chat_id());
    let aftermath = Aftermath { before, answer, record };
    let mut installation = installation.without_variable(AT).without_variable(LOG);
    // Frequent checks: the engine may create a container after the next service's first reconciliation.
    installation.configure("reaper.tick = '50ms'\nreconciler.interval = '1s'");
    let next = installation.start().await;
    use_case.verify(&next, &chat, &aftermath).await;

    let installation = next.stop().await;
    assert_eq!(installation.containers().await.count().await, 0);
    assert_eq!(records(&installation), [], "no removal is owed");
    for directory in ["sandboxes", "slots"] {
        let left = std::fs::read_dir(installation.path("state").join(directory)).expect("it is there");
        assert_eq!(left.count(), 0, "{directory}");
    }
    let crash_points = std::fs::read_to_string(log).unwrap_or_default().lines().map(String::from).collect();
    Report { killed, crash_points }
}

/// Reads the records from a copy, so that the next service finds the journal unchanged.
fn records(dead: &Installation) -> Vec<Sandbox> {
    let copy = tempfile::tempdir().expect("a directory");
    for part in ["journal.sqlite", "journal.sqlite-wal"] {
        let original = dead.path("state").join(part);
        if original.exists() {
            std::fs::copy(original, copy.path().join(part)).expect("copied");
        }
    }
    let instance = dead.name().parse().expect("a name");
    let mut journal = SqliteJournal::open(&copy.path().join("journal.sqlite"), &instance, 1000).expect("sound");
    journal.load().expect("readable").sandboxes
}
