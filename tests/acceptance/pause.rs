//! Tests of pausing and resuming: the same processes, files and session.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::containers::id_of;
use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::engine::eventually;

const OFFLINE: &str = "profiles.default.network = 'none'";

/// Counts into the volume, where the host can read the count without using the sandbox.
const COUNTER: &str = "n=0; while :; do n=$((n+1)); echo $$ $n > /volume/next && mv /volume/next /volume/count; \
                       sleep 0.02; done";

impl Daemon {
    async fn asked(&self, method: &str, chat: &CreateParams) -> Value {
        let answer = self.call(method, json!({ "chat_id": chat.chat_id() })).await;
        answer.unwrap_or_else(|failure| panic!("{method}: {failure:?}"))
    }

    async fn until_status(&self, chat: &CreateParams, status: &str) -> Value {
        eventually(status, || async {
            let sandbox = self.get(chat).await.expect("it is there");
            (sandbox["status"] == status).then_some(sandbox)
        })
        .await
    }
}

fn count_file(chat: &CreateParams) -> PathBuf {
    chat.volume().join("count")
}

/// Returns the pid of the counting process and its count.
fn counted(chat: &CreateParams) -> Option<(u32, u64)> {
    let text = std::fs::read_to_string(count_file(chat)).ok()?;
    let (pid, count) = text.trim().split_once(' ')?;
    Some((pid.parse().ok()?, count.parse().ok()?))
}

/// Starts a sandbox with a counting process.
async fn counting(settings: &str) -> (Daemon, CreateParams, Value) {
    let service = Daemon::start(settings).await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    let params = json!({ "chat_id": chat.chat_id(), "command": COUNTER, "detach": true });
    service.call("sandbox.exec", params).await.expect("started");
    eventually("it counts", || async { counted(&chat) }).await;
    (service, chat, created)
}

/// Asserts that the count is unchanged a second later, and returns it.
async fn assert_paused(chat: &CreateParams) -> (u32, u64) {
    let (before, end) = (counted(chat), chrono::Utc::now() + chrono::TimeDelta::seconds(1));
    eventually("a second has passed", || async { (chrono::Utc::now() > end).then_some(()) }).await;
    assert_eq!(counted(chat), before);
    before.expect("it has counted")
}

/// Asserts that the same process continues to count.
async fn assert_continues(chat: &CreateParams, (pid, count): (u32, u64)) {
    eventually("it counts on", || async { counted(chat).filter(|(_, now)| *now > count + 2) }).await;
    assert_eq!(counted(chat).map(|(pid, _)| pid), Some(pid), "the same process");
}

#[tokio::test]
async fn processes_stop_while_paused_and_continue_afterwards() {
    let (service, chat, created) = counting(OFFLINE).await;
    service
        .call("sandbox.write_file", json!({ "chat_id": chat.chat_id(), "path": "/tmp/kept", "text": "x" }))
        .await
        .expect("written");
    let paused = service.asked("sandbox.pause", &chat).await;
    assert_eq!((&paused["status"], &paused["reason"]), (&json!("paused"), &json!("requested")));
    assert_eq!(paused["session_id"], created["session_id"]);
    assert_eq!((&paused["ends_at"], &paused["ends_because"]), (&paused["expires_at"], &json!("expired")));
    let still = assert_paused(&chat).await;
    // Neither a get nor a renewal resumes the sandbox.
    assert_eq!(service.asked("sandbox.pause", &chat).await["status"], "paused");
    let renew = json!({ "chat_id": chat.chat_id(), "ttl": 3600 });
    assert_eq!(service.call("sandbox.renew", renew).await.expect("renewed")["status"], "paused");
    assert_eq!(service.get(&chat).await.expect("found")["status"], "paused");

    let resumed = service.asked("sandbox.resume", &chat).await;
    assert_eq!((&resumed["status"], &resumed["reason"]), (&json!("running"), &json!("resumed")));
    assert_eq!(resumed["session_id"], created["session_id"]);
    assert_continues(&chat, still).await;

    // Use of the guest resumes the sandbox.
    service.asked("sandbox.pause", &chat).await;
    let read = json!({ "chat_id": chat.chat_id(), "path": "/tmp/kept" });
    let read = service.call("sandbox.read_file", read).await.expect("read");
    assert_eq!(read["text"], "x", "{read}");
    service.asked("sandbox.pause", &chat).await;
    let exec = json!({ "chat_id": chat.chat_id(), "command": "cat /tmp/kept" });
    assert_eq!(service.call("sandbox.exec", exec).await.expect("run")["stdout"]["text"], "x");
    assert_continues(&chat, still).await;
}

#[tokio::test]
async fn an_idle_sandbox_is_paused_where_its_profile_says_so_and_used_again_by_the_next_create() {
    let settings = "reaper.tick = '50ms'\nprofiles.default = { network = 'none', on_expire = 'pause' }";
    let service = Daemon::start(settings).await;
    let chat = service.new_chat().with("idle_timeout", 1);
    let created = service.created(&chat).await;
    let paused = service.until_status(&chat, "paused").await;
    assert_eq!((&paused["reason"], &paused["ends_because"]), (&json!("idle"), &json!("expired")));
    assert_eq!(paused["idle"], json!({ "is": true, "because": "paused" }));
    let reused = service.created(&chat).await;
    assert_eq!((&reused["outcome"], &reused["status"]), (&json!("reused"), &json!("running")));
    assert_eq!(reused["session_id"], created["session_id"]);
    service.until_status(&chat, "paused").await;

    // The absolute deadline also applies to a paused sandbox.
    let with_ttl = service.new_chat().with("idle_timeout", 1).with("ttl", 3);
    service.created(&with_ttl).await;
    service.until_status(&with_ttl, "paused").await;
    eventually("it is gone", || async { service.get(&with_ttl).await.err() }).await;
    assert_eq!(service.containers().await.count().await, 1);
}

#[tokio::test]
async fn a_paused_sandbox_is_adopted_as_paused_by_the_next_run() {
    let (mut service, chat, created) = counting(OFFLINE).await;
    for killed in [false, true] {
        service.asked("sandbox.pause", &chat).await;
        let still = assert_paused(&chat).await;
        let installation = if killed { service.kill().await } else { service.stop().await };
        service = installation.start().await;
        let found = service.get(&chat).await.expect("found");
        assert_eq!((&found["status"], &found["reason"]), (&json!("paused"), &json!("requested")));
        assert_eq!(assert_paused(&chat).await, still);
        let reused = service.created(&chat).await;
        assert_eq!((&reused["outcome"], &reused["session_id"]), (&json!("reused"), &created["session_id"]));
        assert_continues(&chat, still).await;
    }
}

#[tokio::test]
async fn a_paused_sandbox_can_be_deleted() {
    let (service, chat, created) = counting(OFFLINE).await;
    service.asked("sandbox.pause", &chat).await;
    let deleted = service.delete(&chat).await.expect("deleted");
    assert_eq!(deleted["session_id"], created["session_id"]);
    service.containers().await.none_is_left().await;
    assert_eq!(service.created(&chat).await["outcome"], "created");
}

#[tokio::test]
async fn a_sandbox_paused_and_resumed_by_hand_is_seen_as_such() {
    let (service, chat, created) = counting(OFFLINE).await;
    let containers = service.containers().await;
    let docker = &containers.docker;
    docker.pause_container(id_of(&created)).await.expect("paused");
    assert_eq!(service.until_status(&chat, "paused").await["reason"], "by_others");
    let still = assert_paused(&chat).await;
    docker.unpause_container(id_of(&created)).await.expect("resumed");
    assert_eq!(service.until_status(&chat, "running").await["reason"], "by_others");
    assert_continues(&chat, still).await;

    docker.pause_container(id_of(&created)).await.expect("paused");
    service.until_status(&chat, "paused").await;
    let reused = service.created(&chat).await;
    assert_eq!((&reused["outcome"], &reused["session_id"]), (&json!("reused"), &created["session_id"]));

    // Also without a request.
    service.asked("sandbox.pause", &chat).await;
    let installation = service.stop().await;
    docker.unpause_container(id_of(&created)).await.expect("resumed");
    let service = installation.start().await;
    assert_eq!(service.get(&chat).await.expect("found")["status"], "running");
    let installation = service.stop().await;
    docker.pause_container(id_of(&created)).await.expect("paused");
    let service = installation.start().await;
    assert_eq!(service.get(&chat).await.expect("found")["status"], "paused");
    assert_eq!(service.created(&chat).await["session_id"], created["session_id"]);
}
