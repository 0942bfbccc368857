//! Conversion of the core's results to results of the wire.

mod guest;
mod images;
mod pools;
mod report;
mod sandbox;
mod snapshot;

use sandboxd_actors::domain::outcome::{Page, Undescribed};
use sandboxd_actors::ports::clock::Timestamp;
use sandboxd_actors::ports::engine::{EngineError, EngineIdentity};
use sandboxd_protocol as wire;
use sandboxd_protocol::sandbox::{CreatedSandbox, Outcome};
use sandboxd_protocol::system::{EngineHealth, EngineInfo, HealthResult, HealthStatus, StateHealth};
use serde::Serialize;
use serde_json::value::RawValue;

use super::error::of_sandbox;

pub use guest::{CommandOutput, Ended, ReadFile, Trailing, commands, entry, file, stats};
pub(super) use images::progress;
pub use images::{images, made_image, pruned_images};
pub use pools::{hint, pools};
pub use report::report;
pub use sandbox::{created, deletion, leased, sandbox};
pub use snapshot::{snapshot, snapshot_deletion, snapshots};

/// Result of a request.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Answer {
    Created(Box<CreatedSandbox>),
    Sandbox(Box<wire::sandbox::Sandbox>),
    Leased(Box<wire::sandbox::LeasedSandbox>),
    List(List),
    Deleted(wire::sandbox::DeleteResult),
    Hinted(wire::sandbox::HintResult),
    Snapshot(wire::snapshot::Snapshot),
    Snapshots(wire::snapshot::SnapshotListResult),
    SnapshotDeleted(wire::snapshot::SnapshotDeleteResult),
    Ended(Box<Ended>),
    Detached(wire::command::DetachedCommand),
    Commands(wire::command::CommandsResult),
    ReadFile(Box<ReadFile>),
    File(wire::file::File),
    Files(wire::file::ListFilesResult),
    Tree(wire::file::TreeResult),
    Logs(wire::guest::LogsResult),
    Stats(wire::guest::Stats),
    Images(wire::image::ImageListResult),
    Image(wire::image::ImageResult),
    Pruned(wire::image::ImagePruneResult),
    Pools(wire::pool::PoolsResult),
    Watched(wire::event::WatchResult),
    Health(wire::system::HealthResult),
    Info(wire::system::InfoResult),
    Checks(wire::system::DoctorResult),
    Reconciled(wire::system::ReconcileResult),
    Done(wire::empty::Empty),
}

impl Answer {
    /// The result of a request that only confirms that it succeeded.
    pub const DONE: Answer = Answer::Done(wire::empty::Empty {});

    /// Returns whether the result is a sandbox that did not exist before.
    pub fn is_new_sandbox(&self) -> bool {
        matches!(self, Answer::Created(created) if created.outcome != Outcome::Reused)
    }

    /// Takes out the parts that may be long.
    pub(super) fn trailing(&mut self) -> Vec<Trailing> {
        match self {
            Answer::Ended(ended) => ended.trailing(),
            Answer::ReadFile(read) => read.trailing(),
            _ => Vec::new(),
        }
    }
}

/// A page of sandboxes: a [`wire::sandbox::ListResult`] whose sandboxes are serialised already.
#[derive(Debug, Serialize)]
pub struct List {
    sandboxes: Vec<Box<RawValue>>,
    undescribed: Vec<wire::sandbox::Undescribed>,
    next: Option<String>,
}

impl List {
    /// Most bytes of sandboxes in a page, except for the last sandbox: a page is held in memory until it is read.
    const MAX_BYTES: usize = 256 << 10;

    /// Ends the page early if its sandboxes are unusually long; the next page continues from there.
    pub fn of(page: Page, now: Timestamp) -> Result<List, serde_json::Error> {
        let mut sandboxes = Vec::with_capacity(page.sandboxes.len());
        let mut bytes = 0;
        for listed in &page.sandboxes {
            if bytes > Self::MAX_BYTES {
                break;
            }
            let json = serde_json::value::to_raw_value(&sandbox(listed, now))?;
            bytes += json.get().len();
            sandboxes.push(json);
        }
        let next = match sandboxes.len() {
            whole if whole == page.sandboxes.len() => page.next,
            part => page.sandboxes.get(part - 1).map(|last| last.chat),
        };
        // The undescribed chats after the end of a page that ends early are in the next page.
        let is_listed = |undescribed: &Undescribed| next.is_none_or(|last| undescribed.chat <= last);
        let undescribed = page.undescribed.into_iter().filter(is_listed).map(undescribed).collect();
        Ok(List { sandboxes, undescribed, next: next.map(|chat| chat.to_string()) })
    }
}

fn undescribed(Undescribed { chat, error }: Undescribed) -> wire::sandbox::Undescribed {
    let error = of_sandbox(error);
    wire::sandbox::Undescribed { chat_id: chat.to_string(), kind: error.data.kind, message: error.message }
}

pub fn health(
    engine: Result<EngineIdentity, EngineError>,
    sandboxes: usize,
    state: Result<(), String>,
) -> HealthResult {
    let status = if engine.is_ok() && state.is_ok() { HealthStatus::Ok } else { HealthStatus::Degraded };
    let mut engine_health = EngineHealth {
        reachable: engine.is_ok(),
        kind: None,
        version: None,
        api_version: None,
        host: None,
        error: None,
    };
    match engine {
        Ok(EngineIdentity { kind, version, api_version, host }) => {
            engine_health.kind = Some(kind);
            engine_health.version = Some(version);
            engine_health.api_version = Some(api_version);
            engine_health.host = Some(host);
        }
        Err(error) => engine_health.error = Some(error.to_string()),
    }
    HealthResult {
        status,
        engine: engine_health,
        state: StateHealth { writable: state.is_ok(), error: state.err() },
        sandboxes: sandboxes as u64,
    }
}

pub fn engine_info(EngineIdentity { kind, version, api_version, host }: EngineIdentity) -> EngineInfo {
    EngineInfo { kind, version, api_version, host }
}

#[cfg(test)]
mod tests {
    use super::sandbox::tests::{NOON, sandbox_of};
    use super::*;
    use sandboxd_actors::domain::outcome::SandboxError;
    use sandboxd_actors::domain::sandbox::Sandbox;
    use sandboxd_protocol::method::Method;
    use serde_json::{Value, json};

    fn written(value: impl Serialize) -> Value {
        serde_json::to_value(value).expect("can be written")
    }

    #[test]
    fn a_page_that_ends_early_leaves_the_undescribed_chats_after_it_to_the_next() {
        let sandboxes: Vec<_> = (1..=1000).map(|chat| sandbox_of(chat, &"x".repeat(256))).collect();
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
        let sandboxes: Vec<_> = (1..=1000).map(|chat| sandbox_of(chat, &agent)).collect();
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
        assert_eq!(Method::SandboxList.check_result(short.clone()), Ok(short));
    }

    #[test]
    fn an_engine_that_does_not_answer_degrades_the_service() {
        let error = EngineError::Unreachable { message: "gone".into() };
        assert_eq!(
            written(health(Err(error), 3, Ok(()))),
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
        let health = written(health(Ok(identity), 0, Err("the disk is full".into())));
        assert_eq!((&health["status"], &health["state"]["error"]), (&json!("degraded"), &json!("the disk is full")));
    }
}
