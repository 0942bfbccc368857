//! Tests of restarts, graceful or by a kill during an operation: the sandboxes stay.

use rustix::process::Signal;
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};

use crate::containers::id_of;
use crate::daemon::{Daemon, call};
use crate::engine::eventually;
use crate::gate::{GATED, open_gate};
use crate::installation::Installation;
use crate::interposed_engine::interposed;

const SMALL: &str = "profiles.default.network = 'none'";

/// The fields that a restart must not change.
const LASTING: [&str; 12] = [
    "session_id",
    "chat_id",
    "agent_id",
    "volume_host_path",
    "container_id",
    "container_name",
    "endpoint",
    "status",
    "profile",
    "image",
    "created_at",
    "expires_at",
];

fn assert_same(before: &Value, after: &Value) {
    for field in LASTING {
        assert_eq!(after[field], before[field], "{field}");
    }
}

#[tokio::test]
async fn sandboxes_outlive_the_service_and_are_reused_by_the_next_one() {
    let service = Daemon::start("").await;
    let chat = service.new_chat();
    let before = service.created(&chat).await;

    let installation = service.stop().await;
    assert!(!installation.socket().exists());
    assert!(installation.containers().await.is_running(id_of(&before)).await);
    let service = installation.start().await;
    assert_same(&before, &service.get(&chat).await.expect("found"));
    assert_eq!(service.list().await.len(), 1);
    let after = service.created(&chat).await;
    assert_eq!(after["outcome"], "reused");
    assert_same(&before, &after);

    // A stale socket file does not prevent the start.
    let installation = service.kill().await;
    assert!(installation.socket().exists());
    let service = installation.start().await;
    let after = service.created(&chat).await;
    assert_eq!(after["outcome"], "reused");
    assert_same(&before, &after);
    assert_eq!(service.containers().await.count().await, 1);
    let conflict = service.refused(&chat.with("agent_id", "another")).await;
    assert_eq!(conflict.data.kind.as_str(), "sandbox_conflict");
    assert_eq!(service.delete(&chat).await.expect("deleted")["session_id"], before["session_id"]);
}

#[tokio::test]
async fn a_sandbox_that_ended_during_downtime_is_not_handed_out() {
    let service = Daemon::start(SMALL).await;
    let containers = service.containers().await;
    let (killed, removed, expired) = (service.new_chat(), service.new_chat(), service.new_chat());
    let (dead, gone) = (service.created(&killed).await, service.created(&removed).await);
    let short = service.created(&expired.with("ttl", 1)).await;
    let installation = service.stop().await;
    containers.kill(id_of(&dead)).await;
    containers.remove(id_of(&gone)).await;
    let end: chrono::DateTime<chrono::Utc> = short["expires_at"].as_str().expect("a time").parse().expect("a time");
    eventually("it has expired", || async { (chrono::Utc::now() > end).then_some(()) }).await;

    let service = installation.start().await;
    let failed = service.get(&killed).await.expect("kept until the next create");
    assert_eq!((&failed["status"], &failed["reason"]), (&json!("failed"), &json!("killed")));
    assert_eq!(service.created(&killed).await["outcome"], "replaced");
    let vanished = service.get(&removed).await.expect("an acknowledged sandbox is not lost");
    assert_eq!((&vanished["status"], &vanished["reason"]), (&json!("failed"), &json!("vanished")));
    assert_eq!(service.created(&removed).await["outcome"], "replaced");
    // The removal began before the service accepted the first request.
    let renewed = service.created(&expired).await;
    assert_ne!(renewed["session_id"], short["session_id"]);
    assert_eq!(containers.count().await, 3);
}

#[tokio::test]
async fn the_next_service_also_reports_why_a_sandbox_ended() {
    let service = Daemon::start(&format!("reaper.tick = '50ms'\n{SMALL}")).await;
    let (expired, deleted) = (service.new_chat(), service.new_chat());
    let session = service.created(&expired.with("ttl", 1)).await["session_id"].clone();
    service.created(&deleted).await;
    service.delete(&deleted).await.expect("deleted");
    eventually("it is gone", || async { service.get(&expired).await.is_err().then_some(()) }).await;

    let service = service.stop().await.start().await;
    let failure = service.get(&expired).await.expect_err("it has expired");
    assert!(failure.message.contains("it expired ") && failure.message.ends_with(" ago (ttl 1s)"), "{failure:?}");
    assert_eq!(failure.data.details["session_id"], session);
    let failure = service.get(&deleted).await.expect_err("it is deleted");
    assert!(failure.message.contains("it was deleted "), "{failure:?}");
    let shown = service.sandboxctl(&["exec", expired.chat_id(), "--", "true"]).await;
    let shown = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(shown.contains("ago (ttl 1s)"), "{shown}");
}

#[tokio::test]
async fn a_stopping_service_finishes_its_requests() {
    let service = Daemon::start(&format!("shutdown.grace = '30s'\n{GATED}")).await;
    let chat = service.new_chat();
    let client = service.connect().await;
    let creating = tokio::spawn({
        let (client, chat) = (client.clone(), chat.clone());
        async move { call(&client, "sandbox.create", chat).await }
    });
    service.containers().await.only().await;

    service.signal(Signal::TERM);
    eventually("new connections are refused", || async { (!service.socket().exists()).then_some(()) }).await;
    let late = call(&client, "sandbox.create", service.new_chat()).await.expect_err("too late");
    assert_eq!((late.data.kind.as_str(), late.data.retryable), ("shutting_down", true));
    assert!(!creating.is_finished());

    open_gate(&chat);
    let created = creating.await.expect("no panic").expect("created");
    let service = service.stop().await.start().await;
    let again = service.created(&chat).await;
    assert_eq!((&again["outcome"], &again["session_id"]), (&json!("reused"), &created["session_id"]));
}

#[tokio::test]
async fn work_that_does_not_end_does_not_keep_the_service_from_stopping() {
    let service = Daemon::start(&format!("shutdown.grace = '300ms'\n{GATED}")).await;
    let chat = service.new_chat();
    let client = service.connect().await;
    let creating = tokio::spawn(async move { client.call::<Value>(Method::SandboxCreate, chat).await });
    service.containers().await.only().await;
    service.stop().await;
    creating.await.expect("no panic").expect_err("cut off");
}

#[tokio::test]
async fn a_service_killed_in_the_middle_of_a_create_leaves_one_container_at_most() {
    let service = Daemon::start(GATED).await;
    let chat = service.new_chat();
    let client = service.connect().await;
    let creating = {
        let chat = chat.clone();
        tokio::spawn(async move { client.call::<Value>(Method::SandboxCreate, chat).await })
    };
    service.containers().await.only().await;
    let installation = service.kill().await;
    creating.await.expect("no panic").expect_err("cut off");

    open_gate(&chat);
    let service = installation.start().await;
    let created = service.created(&chat).await;
    assert_eq!(created["status"], "running");
    assert_eq!(service.containers().await.only().await, created["container_id"]);
    service.delete(&chat).await.expect("deleted");
    assert_eq!(service.containers().await.count().await, 0);
}

#[tokio::test]
async fn a_renewed_sandbox_outlives_its_journal() {
    let service = Daemon::start(SMALL).await;
    let chat = service.new_chat();
    let before = service.created(&chat.with("ttl", 5)).await;
    let renew = json!({ "chat_id": chat.chat_id(), "ttl": 3600 });
    service.call("sandbox.renew", renew.clone()).await.expect("renewed");
    let time =
        |value: &Value| value.as_str().expect("a time").parse::<chrono::DateTime<chrono::Utc>>().expect("a time");
    let labelled = time(&before["expires_at"]);
    eventually("the deadline in its labels has passed", || async { (chrono::Utc::now() > labelled).then_some(()) })
        .await;

    let installation = service.stop().await;
    let refused = installation.sandboxd_output(&["--rebuild-journal"]).await;
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && errors.contains("healthy") && errors.contains("--force"), "{errors}");
    let service = installation.start_with(&["--rebuild-journal", "--force"]).await;
    let adopted = service.get(&chat).await.expect("it was not ended");
    assert_eq!((&adopted["session_id"], &adopted["status"]), (&before["session_id"], &json!("running")));
    let full = chrono::TimeDelta::seconds(5);
    assert!(time(&adopted["expires_at"]) - time(&adopted["last_activity_at"]) == full, "{adopted}");
    let state = std::fs::read_dir(service.path("state")).expect("a directory");
    let names = state.map(|part| part.expect("an entry").file_name().to_string_lossy().into_owned());
    assert_eq!(names.filter(|name| name.starts_with("journal.sqlite.aside-")).count(), 1, "the old one is kept");

    service.call("sandbox.renew", renew).await.expect("renewed again");
    let installation = service.kill().await;
    for part in ["journal.sqlite", "journal.sqlite-wal"] {
        let _ = std::fs::remove_file(installation.path("state").join(part));
    }
    let service = installation.start().await;
    let adopted = service.get(&chat).await.expect("it was not ended");
    assert_eq!(adopted["session_id"], before["session_id"]);
    assert!(time(&adopted["expires_at"]) > labelled + full, "{adopted}");
}

#[tokio::test]
async fn a_container_that_cannot_be_recognised_is_left_alone() {
    let installation = Installation::new(SMALL);
    let marker = installation.containers().await.create_marker().await;
    let service = installation.start().await;
    assert_eq!(service.list().await, Vec::<Value>::new());
    assert_eq!(service.containers().await.only().await, marker);
    let log = service.log();
    assert!(log.lines().any(|line| line.contains(&marker) && line.contains("sandboxd.schema")), "{log}");
}

#[tokio::test]
async fn a_second_service_on_the_same_socket_is_refused_and_leaves_the_first_intact() {
    let (installation, engine) = interposed(SMALL).await;
    let service = installation.start().await;
    let chat = service.new_chat();
    engine.fall_silent("/start");
    let creating = service.creating(&chat).await;
    let container = service.containers().await.only().await;

    let second = service.sandboxd_output(&[]).await;
    assert_eq!(second.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&second.stderr);
    assert!(errors.contains("journal.sqlite is in use by process"), "{errors}");

    assert_eq!(service.containers().await.only().await, container);
    engine.recover();
    assert_eq!(creating.await.expect("no panic").expect("created")["container_id"], container);
}

#[tokio::test]
async fn starting_and_listing_take_the_same_few_calls_however_many_sandboxes_there_are() {
    let (mut installation, engine) = interposed(SMALL).await;
    let mut calls = Vec::new();
    for _ in 0..2 {
        engine.take_requests();
        let service = installation.start().await;
        service.list().await;
        // The image builder's requests come at any time.
        let requests = engine.take_requests().into_iter();
        calls.push(requests.filter(|request| !request.contains(" /images/")).collect::<Vec<_>>());
        for _ in 0..2 {
            service.created(&service.new_chat()).await;
        }
        let listed = service.list().await.len();
        engine.take_requests();
        assert_eq!(service.list().await.len(), listed);
        let asked: Vec<_> =
            engine.take_requests().into_iter().filter(|request| !request.contains(" /images/")).collect();
        assert_eq!(asked, Vec::<String>::new(), "the service knows without asking");
        installation = service.stop().await;
    }
    assert_eq!(calls[0].len(), calls[1].len(), "{calls:#?}");
    assert!(calls[0].len() < 8, "{calls:#?}");
}
