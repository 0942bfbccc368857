//! From what the core answers to what the caller reads. Every field is always there; null is what is not known.

mod report;
mod sandbox;
mod snapshot;

use std::fmt::Display;

use sandboxd_actors::clock::Timestamp;
use sandboxd_actors::engine::{EngineError, EngineIdentity};
use sandboxd_actors::ids::{ChatId, LeaseId, SnapshotId};
use sandboxd_actors::outcome::{Created, Deletion, Outcome, Page};
use sandboxd_actors::reconciler::Report;
use sandboxd_actors::sandbox::Sandbox;
use sandboxd_actors::snapshot::Snapshot;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::images::ImageAnswer;
use super::inside::answer::InsideAnswer;
use super::pools::{HintAnswer, PoolsAnswer};
use super::text::Shown;
use crate::doctor::check::Checks;
use report::ReportFields;
use sandbox::SandboxFields;
pub use snapshot::SnapshotPage;
use snapshot::{PageFields, RemovalFields, SnapshotFields};

/// Times are told as seen from `now`.
#[derive(Debug)]
pub enum Answer {
    Created {
        created: Created,
        now: Timestamp,
    },
    Sandbox {
        sandbox: Sandbox,
        now: Timestamp,
    },
    Leased {
        sandbox: Sandbox,
        lease: LeaseId,
        until: Timestamp,
        now: Timestamp,
    },
    List(List),
    Deletion(ChatId, Deletion),
    Snapshot(Snapshot),
    Snapshots(SnapshotPage),
    SnapshotDeletion {
        snapshot: SnapshotId,
        deleted: bool,
    },
    /// A watch is over.
    Watched {
        last_sequence: u64,
    },
    Health(Health),
    Info(Info),
    Examined(Checks),
    Reconciled(Report),
    Hinted(HintAnswer),
    Pools(PoolsAnswer),
    Inside(InsideAnswer),
    Image(ImageAnswer),
}

impl Answer {
    /// Whether it tells of a sandbox that was not there before.
    pub fn is_of_a_new_sandbox(&self) -> bool {
        matches!(self, Answer::Created { created, .. } if created.outcome != Outcome::Reused)
    }
}

impl Serialize for Answer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Answer::Created { created, now } => SandboxFields::of_created(created, *now).serialize(serializer),
            Answer::Sandbox { sandbox, now } => SandboxFields::of(sandbox, *now).serialize(serializer),
            Answer::Leased { sandbox, lease, until, now } => {
                SandboxFields::of_leased(sandbox, lease, *until, *now).serialize(serializer)
            }
            Answer::List(list) => list.serialize(serializer),
            Answer::Deletion(chat, deletion) => DeletionFields::of(chat, deletion).serialize(serializer),
            Answer::Snapshot(snapshot) => SnapshotFields::of(snapshot).serialize(serializer),
            Answer::Snapshots(page) => PageFields::of(page).serialize(serializer),
            Answer::SnapshotDeletion { snapshot, deleted } => {
                RemovalFields::of(*snapshot, *deleted).serialize(serializer)
            }
            Answer::Watched { last_sequence } => WatchedFields { last_sequence: *last_sequence }.serialize(serializer),
            Answer::Health(health) => health.serialize(serializer),
            Answer::Info(info) => info.serialize(serializer),
            Answer::Examined(checks) => checks.serialize(serializer),
            Answer::Reconciled(report) => ReportFields::of(report).serialize(serializer),
            Answer::Hinted(answer) => answer.serialize(serializer),
            Answer::Pools(answer) => answer.serialize(serializer),
            Answer::Inside(answer) => answer.serialize(serializer),
            Answer::Image(answer) => answer.serialize(serializer),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct List {
    sandboxes: Vec<Box<RawValue>>,
    next: Option<Shown<ChatId>>,
}

impl List {
    /// What a page may weigh, but for its last sandbox: a page is held in memory until its reader has taken it.
    const MAX_BYTES: usize = 256 << 10;

    /// Ends the page early where its sandboxes are unusually long; the next page goes on from there.
    pub fn of(page: Page, now: Timestamp) -> Result<List, serde_json::Error> {
        let mut sandboxes = Vec::with_capacity(page.sandboxes.len());
        let mut bytes = 0;
        for sandbox in &page.sandboxes {
            if bytes > Self::MAX_BYTES {
                break;
            }
            let fields = serde_json::value::to_raw_value(&SandboxFields::of(sandbox, now))?;
            bytes += fields.get().len();
            sandboxes.push(fields);
        }
        let next = match sandboxes.len() {
            whole if whole == page.sandboxes.len() => page.next,
            part => page.sandboxes.get(part - 1).map(|last| last.chat),
        };
        Ok(List { sandboxes, next: next.map(Shown) })
    }
}

#[derive(Debug, Serialize)]
pub struct Health {
    status: &'static str,
    engine: EngineHealth,
    sandboxes: usize,
}

#[derive(Debug, Serialize)]
struct EngineHealth {
    reachable: bool,
    #[serde(flatten)]
    identity: Identity,
    error: Option<String>,
}

impl Health {
    pub fn of(engine: Result<EngineIdentity, EngineError>, sandboxes: usize) -> Health {
        let (status, identity, error) = match engine {
            Ok(identity) => ("ok", Identity::from(identity), None),
            Err(error) => ("degraded", Identity::default(), Some(error.to_string())),
        };
        Health { status, engine: EngineHealth { reachable: error.is_none(), identity, error }, sandboxes }
    }
}

#[derive(Debug, Serialize)]
pub struct Info {
    pub version: &'static str,
    pub protocol: u32,
    pub instance: String,
    /// In seconds.
    pub uptime: f64,
    /// Null while the engine does not answer.
    pub engine: Option<Identity>,
    pub profiles: Vec<String>,
    pub limits: LimitFields,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct LimitFields {
    pub max_connections: usize,
    pub max_line: usize,
    pub max_in_flight: usize,
    pub max_output: usize,
}

#[derive(Debug, Default, Serialize)]
pub struct Identity {
    kind: Option<String>,
    version: Option<String>,
    api_version: Option<String>,
    host: Option<String>,
}

impl From<EngineIdentity> for Identity {
    fn from(EngineIdentity { kind, version, api_version, host }: EngineIdentity) -> Identity {
        Identity { kind: Some(kind), version: Some(version), api_version: Some(api_version), host: Some(host) }
    }
}

#[derive(Serialize)]
struct WatchedFields {
    last_sequence: u64,
}

#[derive(Serialize)]
struct DeletionFields<'a> {
    chat_id: Shown<&'a ChatId>,
    result: &'static str,
    session_id: Option<Shown<&'a dyn Display>>,
    container_id: Option<&'a str>,
    snapshot_id: Option<Shown<SnapshotId>>,
}

impl<'a> DeletionFields<'a> {
    fn of(chat: &'a ChatId, deletion: &'a Deletion) -> Self {
        let chat_id = Shown(chat);
        match deletion {
            Deletion::Deleted { session, container, snapshot } => DeletionFields {
                chat_id,
                result: "deleted",
                session_id: Some(Shown(session)),
                container_id: container.as_ref().map(|id| id.as_str()),
                snapshot_id: snapshot.map(Shown),
            },
            Deletion::NotFound => {
                DeletionFields { chat_id, result: "not_found", session_id: None, container_id: None, snapshot_id: None }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sandbox::tests::{NOON, sandbox};
    use super::*;
    use serde_json::{Value, json};

    fn written(value: impl Serialize) -> Value {
        serde_json::to_value(value).expect("can be written")
    }

    #[test]
    fn a_page_of_long_sandboxes_ends_early_and_is_continued() {
        let agent = "x".repeat(256);
        let sandboxes: Vec<_> = (1..=1000).map(|chat| sandbox(chat, &agent)).collect();
        let page = written(List::of(Page { sandboxes: sandboxes.clone(), next: None }, NOON).expect("can be written"));
        let listed = page["sandboxes"].as_array().expect("an array").len();
        assert!((200..1000).contains(&listed), "{listed}");
        assert_eq!(page["next"], json!(sandboxes[listed - 1].chat.to_string()));

        let short =
            written(List::of(Page { sandboxes: sandboxes[..3].to_vec(), next: None }, NOON).expect("can be written"));
        assert_eq!((short["sandboxes"].as_array().map(Vec::len), &short["next"]), (Some(3), &Value::Null));
    }

    #[test]
    fn an_engine_that_does_not_answer_degrades_the_service() {
        let error = EngineError::Unreachable { message: "gone".into() };
        assert_eq!(
            written(Health::of(Err(error), 3)),
            json!({
                "status": "degraded",
                "engine": {
                    "reachable": false, "kind": null, "version": null, "api_version": null, "host": null,
                    "error": "the engine cannot be reached: gone",
                },
                "sandboxes": 3,
            })
        );
    }
}
