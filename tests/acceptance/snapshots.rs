//! Tests of snapshots: on request, at a delete and at expiry; restored, and removed by their limits.

use std::path::Path;

use sandboxd_protocol::error::Error;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::interposed_engine::{interposed, real_engine};

const OFFLINE: &str = "profiles.default.network = 'none'";
const KEPT_AT_THE_END: &str = "
    reaper.tick = '50ms'
    profiles.default = { network = 'none', on_expire = 'snapshot' }
";

impl Daemon {
    async fn snapshot(&self, chat: &CreateParams) -> Value {
        let answer = self.call("sandbox.snapshot", json!({ "chat_id": chat.chat_id() })).await;
        answer.unwrap_or_else(|failure| panic!("no snapshot: {failure:?}"))
    }

    /// Returns the snapshots of a chat, newest first.
    async fn snapshots(&self, chat: &CreateParams) -> Vec<Value> {
        let page = self.call("snapshot.list", json!({ "chat_id": chat.chat_id() })).await.expect("a list");
        page["snapshots"].as_array().expect("an array").clone()
    }

    async fn delete_snapshot(&self, snapshot: &Value) -> Result<Value, Error> {
        self.call("snapshot.delete", json!({ "snapshot_id": snapshot["snapshot_id"] })).await
    }

    async fn delete_keeping(&self, chat: &CreateParams) -> Result<Value, Error> {
        self.call("sandbox.delete", json!({ "chat_id": chat.chat_id(), "snapshot": true })).await
    }

    async fn shell(&self, chat: &CreateParams, line: &str) -> String {
        let params = json!({ "chat_id": chat.chat_id(), "command": line });
        let ended = self.call("sandbox.exec", params).await.unwrap_or_else(|failure| panic!("{line}: {failure:?}"));
        assert_eq!(ended["exit_code"], 0, "{line}: {ended}");
        ended["stdout"]["text"].as_str().expect("text").to_owned()
    }

    fn snapshot_image(&self, snapshot: &Value) -> String {
        format!("sandboxd-snapshot-{}:{}", self.name(), snapshot["snapshot_id"].as_str().expect("an id"))
    }
}

fn restoring(chat: &CreateParams, snapshot: &Value) -> CreateParams {
    chat.with("snapshot_id", snapshot["snapshot_id"].clone())
}

/// Returns the raw bytes of an engine response.
async fn engine_response(path: &str) -> Vec<u8> {
    let mut engine = UnixStream::connect(real_engine().await).await.expect("it listens");
    engine.write_all(format!("GET {path} HTTP/1.0\r\nHost: engine\r\n\r\n").as_bytes()).await.expect("asked");
    let mut answer = Vec::new();
    engine.read_to_end(&mut answer).await.expect("answered");
    assert!(answer.starts_with(b"HTTP/1.") && answer[9..].starts_with(b"200"), "{path}");
    answer
}

fn contains(bytes: &[u8], text: &str) -> bool {
    memchr::memmem::find(bytes, text.as_bytes()).is_some()
}

#[tokio::test]
async fn files_outside_the_mounts_are_restored() {
    let service = Daemon::start(OFFLINE).await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    assert_eq!(created["snapshot_id"], Value::Null);
    service.shell(&chat, "mkdir -p /srv/work && echo kept >/srv/work/file && rm /www/index.html").await;
    service.shell(&chat, "echo own >/chat/file; echo shared >/volume/file").await;
    let params = json!({ "chat_id": chat.chat_id(), "label": "before the upgrade" });
    let first = service.call("sandbox.snapshot", params).await.expect("taken");
    assert_eq!((&first["label"], &first["profile"]), (&json!("before the upgrade"), &json!("default")));
    assert_eq!((&first["chat_id"], &first["session_id"]), (&created["chat_id"], &created["session_id"]));
    assert_eq!(first["parent"], created["image"]);
    assert!(first["size_bytes"].as_u64().expect("a size") > 1_000_000, "{first}");
    assert_eq!(service.snapshots(&chat).await, std::slice::from_ref(&first));
    assert_eq!(service.get(&chat).await.expect("it goes on")["status"], "running");
    service.shell(&chat, "echo later >/srv/work/file").await;

    // Mounts belong to the chat and not to the snapshot: a restore shows their current content.
    service.shell(&chat, "echo newer >/chat/file").await;
    service.delete(&chat).await.expect("deleted");
    let restored = service.created(&restoring(&chat, &first)).await;
    assert_eq!((&restored["outcome"], &restored["launch"]), (&json!("restored"), &json!("cold")));
    assert_eq!(restored["snapshot_id"], first["snapshot_id"]);
    assert_eq!(service.shell(&chat, "cat /srv/work/file; ls /www | wc -l; cat /chat/file").await, "kept\n0\nnewer\n");
    let program = service.shell(&chat, "tr '\\0' ' ' </proc/1/cmdline").await;
    assert_eq!(program, "/.sandboxd/init sleep infinity ", "the image's own program, below one init");

    // A snapshot of the restored sandbox has the first snapshot as its parent.
    let second = service.snapshot(&chat).await;
    assert_eq!(second["parent"], first["snapshot_id"]);
    let listed: Vec<_> = service.snapshots(&chat).await.into_iter().map(|found| found["snapshot_id"].clone()).collect();
    assert_eq!(listed, [second["snapshot_id"].clone(), first["snapshot_id"].clone()], "newest first");

    // Another chat can restore the snapshot, and has mounts of its own.
    let other = service.new_chat();
    service.created(&restoring(&other, &second)).await;
    assert_eq!(service.shell(&other, "cat /srv/work/file; ls -A /chat").await, "kept\n");
}

#[tokio::test]
async fn a_live_sandbox_is_reused_for_its_own_snapshot_alone() {
    let service = Daemon::start(OFFLINE).await;
    let chat = service.new_chat();
    service.created(&chat).await;
    let snapshot = service.snapshot(&chat).await;
    let conflict = service.refused(&restoring(&chat, &snapshot)).await;
    assert_eq!(conflict.data.kind.as_str(), "sandbox_conflict");
    assert_eq!(conflict.data.details["fields"], json!(["snapshot_id"]));
    service.delete(&chat).await.expect("deleted");

    let restored = service.created(&restoring(&chat, &snapshot)).await;
    let service = service.kill().await.start().await;
    let reused = service.created(&restoring(&chat, &snapshot)).await;
    assert_eq!((&reused["outcome"], &reused["session_id"]), (&json!("reused"), &restored["session_id"]));
    assert_eq!(service.created(&chat).await["outcome"], "reused");

    // A snapshot in use is not removed.
    let failure = service.delete_snapshot(&snapshot).await.expect_err("in use");
    assert_eq!((failure.data.kind.as_str(), failure.data.retryable), ("snapshot_in_use", true));
    service.delete(&chat).await.expect("deleted");
    assert_eq!(service.delete_snapshot(&snapshot).await.expect("an answer")["result"], "deleted");
    assert_eq!(service.delete_snapshot(&snapshot).await.expect("an answer")["result"], "not_found");
    let failure = service.refused(&restoring(&chat, &snapshot)).await;
    assert_eq!(failure.data.kind.as_str(), "snapshot_not_found");
    assert_eq!(failure.data.details["snapshot_id"], snapshot["snapshot_id"]);
    service.containers().await.none_is_left().await;
}

#[tokio::test]
async fn a_snapshot_has_no_environment_secret_or_label_of_its_sandbox() {
    let service =
        Daemon::start("profiles.default = { network = 'none', env = { FROM_PROFILE = 'profile-t0ken' } }").await;
    let chat = service.new_chat().with("env", json!({ "FROM_REQUEST": "request-t0ken", "PATH": "/bin:/own-t0ken" }));
    let created = service.created(&chat).await;
    let snapshot = service.snapshot(&chat).await;
    let image = service.snapshot_image(&snapshot);
    let inspected = engine_response(&format!("/images/{image}/json")).await;
    assert!(contains(&inspected, "PATH=/bin") && contains(&inspected, "sandboxd.snapshot.id"));
    // The saved image with all its layers.
    let saved = engine_response(&format!("/images/{image}/get")).await;
    assert!(contains(&saved, "PATH=/bin"));
    let history = engine_response(&format!("/images/{image}/history")).await;
    let session = created["session_id"].as_str().expect("a session");
    let secret = std::fs::read(service.path("state").join("sandboxes").join(session).join("secret")).expect("a secret");
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    for (name, bytes) in [("inspection", &inspected), ("archive", &saved), ("history", &history)] {
        for secret_text in
            ["t0ken", "FROM_REQUEST", "FROM_PROFILE", "SANDBOXD_INIT_SECRET", "sandboxd.managed", &secret]
        {
            assert!(!contains(bytes, secret_text), "{secret_text} is in the {name}");
        }
    }
    // The intermediate image of the commit is removed as well.
    let images = engine_response("/images/json?all=true").await;
    assert!(!contains(&images, &format!("\"sandboxd.snapshot.draft\":\"{}\"", service.name())));

    // A foreign container of the snapshot's image does not count as a sandbox.
    let containers = service.containers().await;
    let config = bollard::models::ContainerCreateBody { image: Some(image), ..Default::default() };
    let foreign = containers.docker.create_container(None::<bollard::query_parameters::CreateContainerOptions>, config);
    let foreign = foreign.await.expect("created").id;
    assert_eq!(containers.count().await, 1);
    containers.docker.remove_container(&foreign, None).await.expect("removed");

    // A restored sandbox has the environment of its own request.
    service.delete(&chat).await.expect("deleted");
    let again = service.new_chat().with("env", json!({ "FROM_REQUEST": "another" }));
    service.created(&restoring(&again, &snapshot)).await;
    assert_eq!(service.shell(&again, "echo $FROM_REQUEST $FROM_PROFILE $PATH").await, "another profile-t0ken /bin\n");
}

#[tokio::test]
async fn a_paused_sandbox_is_saved_and_stays_paused() {
    let service = Daemon::start(OFFLINE).await;
    let chat = service.new_chat();
    service.created(&chat).await;
    service.shell(&chat, "echo kept >/srv-file").await;
    service.call("sandbox.pause", json!({ "chat_id": chat.chat_id() })).await.expect("paused");
    let snapshot = service.snapshot(&chat).await;
    assert_eq!(service.get(&chat).await.expect("it is there")["status"], "paused");
    let other = service.new_chat();
    service.created(&restoring(&other, &snapshot)).await;
    assert_eq!(service.shell(&other, "cat /srv-file").await, "kept\n");
}

#[tokio::test]
async fn a_pause_for_a_snapshot_is_not_reported_as_paused() {
    let service = Daemon::start(OFFLINE).await;
    let chat = service.new_chat();
    service.created(&chat).await;
    for _ in 0..3 {
        service.snapshot(&chat).await;
        service.shell(&chat, "true").await;
    }
    let installation = service.stop().await;
    assert!(!installation.log().contains("\"to\":\"paused\""), "{}", installation.log());
    assert_eq!(installation.log().matches("\"reason\":\"snapshotted\"").count(), 3);
}

#[tokio::test]
async fn a_delete_with_a_snapshot_saves_the_sandbox() {
    let settings = "profiles.default.network = 'none'\n\
                    profiles.keeping = { network = 'none', snapshot_on_delete = true }";
    let service = Daemon::start(settings).await;
    let chat = service.new_chat();
    service.created(&chat).await;
    service.shell(&chat, "echo kept >/srv-file").await;
    let deleted = service.delete_keeping(&chat).await.expect("deleted");
    let kept = service.snapshots(&chat).await;
    assert_eq!((deleted["snapshot_id"].clone(), kept.len()), (kept[0]["snapshot_id"].clone(), 1));
    service.containers().await.none_is_left().await;
    service.created(&restoring(&chat, &kept[0])).await;
    assert_eq!(service.shell(&chat, "cat /srv-file").await, "kept\n");
    assert_eq!(service.delete(&chat).await.expect("deleted")["snapshot_id"], Value::Null);

    // The profile's setting applies unless the delete overrides it.
    let keeping = service.new_chat().with("profile", "keeping");
    service.created(&keeping).await;
    assert!(service.delete(&keeping).await.expect("deleted")["snapshot_id"].is_string());
    service.created(&keeping).await;
    let without = json!({ "chat_id": keeping.chat_id(), "snapshot": false });
    assert_eq!(service.call("sandbox.delete", without).await.expect("deleted")["snapshot_id"], Value::Null);
    assert_eq!(service.snapshots(&keeping).await.len(), 1);
}

#[tokio::test]
async fn an_expired_sandbox_is_saved_if_its_profile_says_so() {
    let service = Daemon::start(KEPT_AT_THE_END).await;
    let (old, idle) = (service.new_chat().with("ttl", 2), service.new_chat().with("idle_timeout", 1));
    for chat in [&old, &idle] {
        let created = service.created(chat).await;
        service.shell(chat, "echo kept >/srv-file").await;
        eventually("it has ended", || async { service.get(chat).await.err() }).await;
        let kept = service.snapshots(chat).await;
        assert_eq!((kept.len(), &kept[0]["session_id"]), (1, &created["session_id"]));
        let restored = service.created(&restoring(&chat.with("ttl", 60).with("idle_timeout", 60), &kept[0])).await;
        assert_eq!(restored["outcome"], "restored");
        assert_eq!(service.shell(chat, "cat /srv-file").await, "kept\n");
    }
}

#[tokio::test]
async fn a_delete_whose_snapshot_fails_keeps_the_sandbox() {
    let (installation, engine) = interposed(OFFLINE).await;
    let service = installation.start().await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    for step in ["POST /commit", "POST /images/load"] {
        engine.break_off(step);
        let failure = service.delete_keeping(&chat).await.expect_err("no snapshot");
        assert_eq!((failure.data.kind.as_str(), failure.data.retryable), ("snapshot_failed", true), "{failure:?}");
        let params = json!({ "chat_id": chat.chat_id() });
        let failure = service.call("sandbox.snapshot", params).await.expect_err("no snapshot");
        assert_eq!(failure.data.kind.as_str(), "snapshot_failed");
        let found = service.get(&chat).await.expect("it stays");
        assert_eq!((&found["status"], &found["session_id"]), (&json!("running"), &created["session_id"]));
        assert_eq!(service.snapshots(&chat).await, Vec::<Value>::new());
        engine.recover();
        let images = engine_response("/images/json?all=true").await;
        assert!(!contains(&images, &format!("\"sandboxd.snapshot.draft\":\"{}\"", service.name())), "a draft is left");
    }
    let deleted = service.delete_keeping(&chat).await.expect("deleted");
    assert_eq!(service.snapshots(&chat).await[0]["snapshot_id"], deleted["snapshot_id"]);
}

#[tokio::test]
async fn an_expired_sandbox_stays_until_its_snapshot_succeeds() {
    let (installation, engine) = interposed(KEPT_AT_THE_END).await;
    let service = installation.start().await;
    let chat = service.new_chat();
    let created = service.created(&chat.with("ttl", 2)).await;
    engine.break_off("POST /commit");
    eventually("it was tried", || async { service.log().contains("snapshot_failed").then_some(()) }).await;
    let found = service.get(&chat).await.expect("it stays");
    assert_eq!((&found["status"], &found["session_id"]), (&json!("running"), &created["session_id"]));
    assert_eq!(service.refused(&chat).await.data.kind.as_str(), "snapshot_failed", "no other sandbox replaces it");
    // The sandbox also survives a kill of the service.
    let service = service.kill().await.start().await;
    assert_eq!(service.get(&chat).await.expect("it stays")["session_id"], created["session_id"]);
    engine.recover();
    eventually("it has ended", || async { service.get(&chat).await.err() }).await;
    assert_eq!(service.snapshots(&chat).await[0]["session_id"], created["session_id"]);
}

#[tokio::test]
async fn snapshots_are_kept_up_to_a_number_and_an_age() {
    let settings = format!("{OFFLINE}\nsnapshots = {{ keep = 2, interval = '200ms' }}");
    let service = Daemon::start(&settings).await;
    let (chat, other) = (service.new_chat(), service.new_chat());
    service.created(&chat).await;
    service.created(&other).await;
    let others = service.snapshot(&other).await;
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.push(service.snapshot(&chat).await["snapshot_id"].clone());
    }
    let newest = [taken[3].clone(), taken[2].clone()];
    eventually("the newest are left", || async {
        let left: Vec<_> = service.snapshots(&chat).await.iter().map(|kept| kept["snapshot_id"].clone()).collect();
        (left == newest).then_some(())
    })
    .await;
    assert_eq!(service.snapshots(&other).await, [others]);

    // Page by page, over all chats.
    let all = service.call("snapshot.list", json!({ "limit": 2 })).await.expect("a list");
    assert_eq!(all["next"], all["snapshots"][1]["snapshot_id"]);
    let rest = service.call("snapshot.list", json!({ "limit": 2, "after": all["next"] })).await.expect("a list");
    assert_eq!((rest["snapshots"].as_array().map(Vec::len), &rest["next"]), (Some(1), &Value::Null));

    let mut installation = service.stop().await;
    installation.configure("snapshots.max_age = '1ms'");
    let service = installation.start().await;
    eventually("all are too old", || async { service.snapshots(&chat).await.is_empty().then_some(()) }).await;
    eventually("all are too old", || async { service.snapshots(&other).await.is_empty().then_some(()) }).await;
}

#[tokio::test]
async fn snapshots_are_known_to_a_service_that_has_lost_its_journal() {
    let service = Daemon::start(OFFLINE).await;
    let chat = service.new_chat();
    service.created(&chat).await;
    let snapshot = service.snapshot(&chat).await;
    service.delete(&chat).await.expect("deleted");
    service.created(&restoring(&chat, &snapshot)).await;
    let installation = service.stop().await;
    for part in std::fs::read_dir(installation.path("state")).expect("a directory").flatten() {
        if part.file_name().to_string_lossy().starts_with("journal.sqlite") {
            std::fs::remove_file(part.path()).expect("removed");
        }
    }
    let service = installation.start().await;
    assert_eq!(service.snapshots(&chat).await, std::slice::from_ref(&snapshot));
    let found = service.get(&chat).await.expect("adopted");
    assert_eq!(found["snapshot_id"], snapshot["snapshot_id"]);
}

#[tokio::test]
async fn sandboxctl_takes_lists_restores_and_deletes_snapshots() {
    let service = Daemon::start(OFFLINE).await;
    let chat = service.new_chat();
    let ctl = async |arguments: &[&str]| {
        let output = service.sandboxctl(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    service.created(&chat).await;
    let id = chat.chat_id();
    let taken = ctl(&["snapshot", id, "--label", "by hand", "--json"]).await;
    let taken: Value = serde_json::from_str(&taken).expect("JSON");
    let snapshot = taken["snapshot_id"].as_str().expect("an id");
    let deleted = ctl(&["delete", id, "--snapshot"]).await;
    assert!(deleted.contains("saved as snapshot"), "{deleted}");
    let listed = ctl(&["snapshots", "--chat", id]).await;
    assert!(listed.contains(snapshot) && listed.contains("by hand"), "{listed}");
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let volume = chat.volume();
    let volume = Path::new(&volume).display().to_string();
    let create = ["create", "--chat-id", id, "--agent-id", "agent", "--volume", &volume, "--snapshot", snapshot];
    let restored = ctl(&create).await;
    assert!(restored.contains("restored, cold") && restored.contains("restored from"), "{restored}");
    ctl(&["delete", id]).await;
    assert!(ctl(&["snapshots", "delete", snapshot]).await.contains("deleted snapshot"));
    assert_eq!(service.sandboxctl(&["snapshots", "delete", snapshot]).await.status.code(), Some(4));
}
