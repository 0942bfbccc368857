//! From what the core answers to what the caller reads. Every field is always there; null is what is not known.

mod report;
mod sandbox;
mod snapshot;

use std::fmt::Display;

use sandboxd_actors::domain::ids::{ChatId, LeaseId, SnapshotId};
use sandboxd_actors::domain::outcome::{Created, Deletion, Outcome, Page, Undescribed};
use sandboxd_actors::domain::sandbox::Sandbox;
use sandboxd_actors::domain::snapshot::Snapshot;
use sandboxd_actors::ports::clock::Timestamp;
use sandboxd_actors::ports::engine::{EngineError, EngineIdentity};
use sandboxd_actors::reconciler::Report;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::error::Error;
use super::images::ImageAnswer;
use super::pools::{HintAnswer, PoolsAnswer};
use super::text::Shown;
use crate::doctor::check::Checks;
use crate::protocol::guest::answer::GuestResult;
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
    Deletion {
        chat: ChatId,
        deletion: Deletion,
        purged: bool,
    },
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
    GuestRequest(GuestResult),
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
            Answer::Deletion { chat, deletion, purged } => {
                DeletionFields::of(chat, deletion, *purged).serialize(serializer)
            }
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
            Answer::GuestRequest(answer) => answer.serialize(serializer),
            Answer::Image(answer) => answer.serialize(serializer),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct List {
    sandboxes: Vec<Box<RawValue>>,
    undescribed: Vec<UndescribedFields>,
    next: Option<Shown<ChatId>>,
}

/// A chat whose sandbox could not be described, and why.
#[derive(Debug, Serialize)]
struct UndescribedFields {
    chat_id: Shown<ChatId>,
    kind: &'static str,
    message: String,
}

impl From<Undescribed> for UndescribedFields {
    fn from(Undescribed { chat, error }: Undescribed) -> Self {
        let error = Error::from(error);
        Self { chat_id: Shown(chat), kind: error.kind.as_str(), message: error.message }
    }
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
        // Those after the end of a page that ends early are in the next one.
        let is_shown = |undescribed: &Undescribed| next.is_none_or(|last| undescribed.chat <= last);
        let undescribed = page.undescribed.into_iter().filter(is_shown).map(UndescribedFields::from).collect();
        Ok(List { sandboxes, undescribed, next: next.map(Shown) })
    }
}

#[derive(Debug, Serialize)]
pub struct Health {
    status: &'static str,
    engine: EngineHealth,
    state: StateHealth,
    sandboxes: usize,
}

/// Whether what has to be remembered can be written.
#[derive(Debug, Serialize)]
struct StateHealth {
    writable: bool,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct EngineHealth {
    reachable: bool,
    #[serde(flatten)]
    identity: Identity,
    error: Option<String>,
}

impl Health {
    pub fn of(engine: Result<EngineIdentity, EngineError>, sandboxes: usize, state: Result<(), String>) -> Health {
        let (identity, error) = match engine {
            Ok(identity) => (Identity::from(identity), None),
            Err(error) => (Identity::default(), Some(error.to_string())),
        };
        let engine = EngineHealth { reachable: error.is_none(), identity, error };
        let state = StateHealth { writable: state.is_ok(), error: state.err() };
        let status = if engine.reachable && state.writable { "ok" } else { "degraded" };
        Health { status, engine, state, sandboxes }
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
    pub max_memory: usize,
    pub max_memory_per_connection: usize,
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
    purged: bool,
}

impl<'a> DeletionFields<'a> {
    fn of(chat: &'a ChatId, deletion: &'a Deletion, purged: bool) -> Self {
        let chat_id = Shown(chat);
        match deletion {
            Deletion::Deleted { session, container, snapshot } => DeletionFields {
                chat_id,
                result: "deleted",
                session_id: Some(Shown(session)),
                container_id: container.as_ref().map(|id| id.as_str()),
                snapshot_id: snapshot.map(Shown),
                purged,
            },
            Deletion::NotFound => DeletionFields {
                chat_id,
                result: "not_found",
                session_id: None,
                container_id: None,
                snapshot_id: None,
                purged,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sandbox::tests::{NOON, sandbox};
    use super::*;
    use sandboxd_actors::domain::outcome::SandboxError;
    use serde_json::{Value, json};

    fn written(value: impl Serialize) -> Value {
        serde_json::to_value(value).expect("can be written")
    }

    #[test]
    fn a_page_that_ends_early_leaves_the_undescribed_chats_after_it_to_the_next() {
        let sandboxes: Vec<_> = (1..=1000).map(|chat| sandbox(chat, &"x".repeat(256))).collect();
        let undescribed = |sandbox: &Sandbox| {
            let retry_after = std::time::Duration::from_secs(1);
            Undescribed { chat: sandbox.chat, error: SandboxError::Recovering { chat: sandbox.chat, retry_after } }
        };
        let undescribed = vec![undescribed(&sandboxes[0]), undescribed(&sandboxes[999])];
        let page = List::of(Page { sandboxes: sandboxes.clone(), undescribed, next: None }, NOON);
        let named = written(page.expect("can be written"))["undescribed"].clone();
        assert_eq!(named.as_array().map(Vec::len), Some(1), "{named}");
        assert_eq!((&named[0]["chat_id"], &named[0]["kind"]), (&json!(sandboxes[0].chat.to_string()), &json!("busy")));
    }

    #[test]
    fn a_page_of_long_sandboxes_ends_early_and_is_continued() {
        let agent = "x".repeat(256);
        let sandboxes: Vec<_> = (1..=1000).map(|chat| sandbox(chat, &agent)).collect();
        let page = written(
            List::of(Page { sandboxes: sandboxes.clone(), undescribed: Vec::new(), next: None }, NOON)
                .expect("can be written"),
        );
        let listed = page["sandboxes"].as_array().expect("an array").len();
        assert!((200..1000).contains(&listed), "{listed}");
        assert_eq!(page["next"], json!(sandboxes[listed - 1].chat.to_string()));

        let short = written(
            List::of(Page { sandboxes: sandboxes[..3].to_vec(), undescribed: Vec::new(), next: None }, NOON)
                .expect("can be written"),
        );
        assert_eq!((short["sandboxes"].as_array().map(Vec::len), &short["next"]), (Some(3), &Value::Null));
    }

    #[test]
    fn an_engine_that_does_not_answer_degrades_the_service() {
        let error = EngineError::Unreachable { message: "gone".into() };
        assert_eq!(
            written(Health::of(Err(error), 3, Ok(()))),
            json!({
                "status": "degraded",
                "engine": {
                    "reachable": false, "kind": null, "version": null, "api_version": null, "host": null,
                    "error": "the engine cannot be reached: gone",
                },
                "state": { "writable": true, "error": null },
                "sandboxes": 3,
            })
        );
    }

    #[test]
    fn a_state_that_cannot_be_written_degrades_the_service() {
        let identity =
            EngineIdentity { kind: "docker".into(), version: "1".into(), api_version: "1".into(), host: "here".into() };
        let health = written(Health::of(Ok(identity), 0, Err("the disk is full".into())));
        assert_eq!((&health["status"], &health["state"]["error"]), (&json!("degraded"), &json!("the disk is full")));
    }
}
