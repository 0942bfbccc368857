//! The use cases during which the service is killed, and their conditions afterwards.

use chrono::{DateTime, Utc};
use sandboxd_actors::domain::sandbox::{Sandbox, Status};
use serde_json::{Value, json};

use super::cell::Aftermath;
use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::engine::eventually;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UseCase {
    Create,
    /// A create that claims a slot.
    Claim,
    /// A create for a chat whose sandbox has expired.
    Replace,
    Renew,
    Pause,
    Delete,
    /// An expiry, without a request.
    Expire,
    /// An expiry that keeps the container.
    ExpireStopping,
    Snapshot,
    /// A delete that takes a snapshot first.
    DeleteWithSnapshot,
    /// An expiry that takes a snapshot first.
    ExpireWithSnapshot,
}

impl UseCase {
    pub(super) fn settings(self) -> &'static str {
        match self {
            UseCase::Expire => "reaper.tick = '50ms'\nprofiles.default.network = 'none'",
            UseCase::ExpireStopping => {
                "reaper.tick = '50ms'\nprofiles.default = { network = 'none', on_expire = 'stop' }"
            }
            UseCase::ExpireWithSnapshot => {
                "reaper.tick = '50ms'\nprofiles.default = { network = 'none', on_expire = 'snapshot' }"
            }
            // One slot per hint, and none otherwise.
            UseCase::Claim => "profiles.default = { network = 'none', pool = { size = 0, hints = 1 } }",
            _ => "profiles.default.network = 'none'",
        }
    }

    /// Prepares the chat, and returns its sandbox if it has one.
    pub(super) async fn prepare(self, service: &Daemon, chat: &CreateParams) -> Option<Value> {
        let params = match self {
            UseCase::Create => return None,
            UseCase::Claim => {
                service.call("sandbox.hint", json!({ "chat_id": chat.chat_id(), "ttl": 600 })).await.expect("taken");
                service.until_free(1).await;
                return None;
            }
            UseCase::Replace => chat.with("ttl", 1),
            // The idle time begins at readiness, however late that is.
            UseCase::Expire | UseCase::ExpireStopping | UseCase::ExpireWithSnapshot => chat.with("idle_timeout", 1),
            UseCase::Renew | UseCase::Pause | UseCase::Delete => chat.clone(),
            UseCase::Snapshot | UseCase::DeleteWithSnapshot => chat.clone(),
        };
        let before = service.created(&params).await;
        if self == UseCase::Replace {
            let end = time(&before["expires_at"]);
            eventually("it has expired", || async { (Utc::now() > end).then_some(()) }).await;
        }
        Some(before)
    }

    /// Returns the answer, or `None` if the service died before it.
    pub(super) async fn perform(self, service: &Daemon, chat: &CreateParams) -> Option<Value> {
        let id = json!({ "chat_id": chat.chat_id() });
        let answer = match self {
            UseCase::Create | UseCase::Claim | UseCase::Replace => service.try_call("sandbox.create", chat).await,
            UseCase::Renew => {
                service.try_call("sandbox.renew", json!({ "chat_id": chat.chat_id(), "ttl": 90_000 })).await
            }
            UseCase::Pause => service.try_call("sandbox.pause", id).await,
            UseCase::Delete => service.try_call("sandbox.delete", id).await,
            UseCase::Snapshot => service.try_call("sandbox.snapshot", id).await,
            UseCase::DeleteWithSnapshot => {
                service.try_call("sandbox.delete", json!({ "chat_id": chat.chat_id(), "snapshot": true })).await
            }
            UseCase::Expire | UseCase::ExpireStopping | UseCase::ExpireWithSnapshot => {
                eventually("its end has come", || async {
                    match service.try_call("sandbox.get", &id).await {
                        None => Some(None),
                        Some(Ok(sandbox)) if sandbox["status"] == "stopped" => Some(Some(Ok(sandbox))),
                        Some(Ok(_)) => None,
                        Some(Err(failure)) => {
                            assert_eq!(failure.data.kind.as_str(), "sandbox_not_found");
                            Some(Some(Ok(Value::Null)))
                        }
                    }
                })
                .await
            }
        };
        answer.map(|answer| answer.expect("no reason to fail"))
    }

    /// Asserts that the next service keeps the promises of the last one, and that a repeated request succeeds once.
    pub(super) async fn verify(self, next: &Daemon, chat: &CreateParams, aftermath: &Aftermath) {
        let Aftermath { before, answer, record } = aftermath;
        let session = |sandbox: &Value| sandbox["session_id"].as_str().map(String::from);
        let earlier = before.as_ref().and_then(session);
        let running = record.as_ref().filter(|record| record.status == Status::Running);
        let made_now = running.filter(|record| Some(record.session.to_string()) != earlier);
        match self {
            UseCase::Create | UseCase::Claim | UseCase::Replace => {
                if let Some(answer) = answer {
                    let promised = made_now.expect("on disk before it is answered");
                    assert_eq!(session(answer), Some(promised.session.to_string()));
                    assert_eq!(answer["outcome"], if self == UseCase::Replace { "replaced" } else { "created" });
                    assert_eq!(answer["launch"], if self == UseCase::Claim { "warm" } else { "cold" });
                }
                match made_now {
                    Some(promised) => exists_as_promised(next, chat, promised).await,
                    None => is_gone(next, chat).await,
                }
            }
            UseCase::Renew => {
                let kept = running.expect("a renewal does not end it");
                assert_eq!(Some(kept.session.to_string()), earlier);
                if let Some(answer) = answer {
                    assert_eq!(time(&answer["expires_at"]), to_the_millisecond(kept.expires_at));
                }
                exists_as_promised(next, chat, kept).await;
                let again = json!({ "chat_id": chat.chat_id(), "ttl": 90_000 });
                let renewed = next.call("sandbox.renew", again).await.expect("renewed");
                assert!(time(&renewed["expires_at"]) > time(&before.as_ref().expect("created")["expires_at"]));
            }
            UseCase::Pause => {
                let record = record.as_ref().expect("a pause does not end it");
                if let Some(answer) = answer {
                    assert_eq!((answer["status"].as_str(), record.status), (Some("paused"), Status::Paused));
                }
                matches_the_engine(next, chat, before.as_ref().expect("created")).await;
            }
            UseCase::Delete => {
                if answer.is_some() {
                    assert_eq!(*record, None, "struck out before it is answered");
                }
                match running {
                    // The delete had not begun.
                    Some(kept) => exists_as_promised(next, chat, kept).await,
                    None => is_gone(next, chat).await,
                }
                let deleted = next.delete(chat).await.expect("an answer");
                assert_eq!(deleted["result"], if running.is_some() { "deleted" } else { "not_found" });
                is_gone(next, chat).await;
            }
            UseCase::Snapshot => {
                let kept = running.expect("a snapshot does not end it");
                assert_eq!(Some(kept.session.to_string()), earlier);
                if let Some(answer) = answer {
                    assert!(snapshots(next, chat).await.contains(&answer["snapshot_id"]));
                }
                runs_again(next, chat).await;
            }
            UseCase::DeleteWithSnapshot => match running {
                Some(_) => {
                    assert_eq!(*answer, None, "struck out before it is answered");
                    runs_again(next, chat).await;
                }
                None => {
                    is_gone(next, chat).await;
                    let kept = snapshots(next, chat).await;
                    assert!(!kept.is_empty(), "it neither exists nor is saved");
                    if let Some(answer) = answer {
                        assert!(kept.contains(&answer["snapshot_id"]));
                    }
                }
            },
            UseCase::ExpireWithSnapshot => {
                is_gone(next, chat).await;
                assert!(!snapshots(next, chat).await.is_empty(), "it neither exists nor is saved");
            }
            UseCase::Expire => is_gone(next, chat).await,
            UseCase::ExpireStopping => is_stopped(next, chat, before.as_ref().expect("created")).await,
        }
        can_be_created_once(next, chat, record.as_ref()).await;
    }
}

/// Asserts that exactly the promised sandbox exists.
async fn exists_as_promised(service: &Daemon, chat: &CreateParams, promised: &Sandbox) {
    let found = service.get(chat).await.expect("it was promised");
    assert_eq!(found["status"], "running", "{found}");
    assert_eq!(found["session_id"], promised.session.to_string());
    assert_eq!(found["container_id"], promised.container.as_ref().expect("it ran").to_string());
    for (field, expected) in [
        ("created_at", promised.created_at),
        ("expires_at", promised.expires_at),
        ("last_activity_at", promised.last_activity_at),
    ] {
        assert_eq!(time(&found[field]), to_the_millisecond(expected), "{field}");
    }
    let containers = service.containers().await;
    let only = containers.only().await;
    assert_eq!(found["container_id"], only);
    assert!(containers.is_running(&only).await);
    eventually("it has its chat's name", || async {
        let name = containers.inspect(&only).await.name.expect("a name");
        (name.trim_start_matches('/') == found["container_name"]).then_some(())
    })
    .await;
}

async fn snapshots(service: &Daemon, chat: &CreateParams) -> Vec<Value> {
    let page = service.call("snapshot.list", json!({ "chat_id": chat.chat_id() })).await.expect("a list");
    page["snapshots"].as_array().expect("an array").iter().map(|kept| kept["snapshot_id"].clone()).collect()
}

/// Waits until the sandbox runs. The engine may still pause it for a commit whose caller is gone.
async fn runs_again(service: &Daemon, chat: &CreateParams) {
    eventually("it runs", || async {
        let found = service.get(chat).await.expect("it was promised");
        (found["status"] == "running").then_some(())
    })
    .await;
}

/// Asserts that the status matches the engine's state, even if the request got no answer.
async fn matches_the_engine(service: &Daemon, chat: &CreateParams, before: &Value) {
    let found = service.get(chat).await.expect("it was promised");
    assert_eq!(found["session_id"], before["session_id"]);
    let containers = service.containers().await;
    let only = containers.only().await;
    assert_eq!(found["container_id"], only);
    let paused = containers.inspect(&only).await.state.and_then(|state| state.paused);
    assert_eq!(found["status"], if paused == Some(true) { "paused" } else { "running" });
}

async fn is_stopped(service: &Daemon, chat: &CreateParams, before: &Value) {
    eventually("it is stopped", || async {
        let found = service.get(chat).await.expect("it is kept");
        assert_eq!(found["session_id"], before["session_id"]);
        (found["status"] == "stopped").then(|| assert_eq!(found["reason"], "idle"))
    })
    .await;
    let containers = service.containers().await;
    let only = containers.only().await;
    assert_eq!(before["container_id"], only);
    assert!(!containers.is_running(&only).await);
}

async fn is_gone(service: &Daemon, chat: &CreateParams) {
    eventually("it is removed completely", || async {
        let failure = service.get(chat).await.err()?;
        assert_eq!(failure.data.kind.as_str(), "sandbox_not_found");
        Some(())
    })
    .await;
    assert_eq!(service.list().await, Vec::<Value>::new());
    service.containers().await.none_is_left().await;
}

/// Asserts that a repeated create yields exactly one sandbox.
async fn can_be_created_once(service: &Daemon, chat: &CreateParams, record: Option<&Sandbox>) {
    let there = service.get(chat).await.ok();
    let created = service.created(chat).await;
    match &there {
        Some(there) if there["status"] == "stopped" => assert_eq!(created["outcome"], "replaced"),
        Some(there) => {
            assert_eq!(created["outcome"], "reused");
            assert_eq!(created["session_id"], there["session_id"]);
        }
        None => {
            assert_eq!(created["outcome"], "created");
            assert!(record.is_none_or(|record| created["session_id"] != record.session.to_string()));
        }
    }
    assert_eq!(service.containers().await.only().await, created["container_id"]);
    assert_eq!(service.delete(chat).await.expect("deleted")["result"], "deleted");
    is_gone(service, chat).await;
}

fn time(value: &Value) -> DateTime<Utc> {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no time: {value}"))
}

/// Truncates a time to the precision of the protocol.
fn to_the_millisecond(time: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(time.timestamp_millis()).expect("within range")
}
