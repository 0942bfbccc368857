//! Tests of an engine that is missing, silent or disconnecting: errors are in time, and no sandbox is lost.

use std::time::{Duration, Instant};

use sandboxd_protocol::error::Error;
use serde_json::json;

use crate::containers::id_of;
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::installation::Installation;
use crate::interposed_engine::{InterposedEngine, interposed};
use crate::pool::can_be_bound;

/// Short engine time limits. The tests allow somewhat more on a busy machine.
const IMPATIENT: &str = "
    profiles.default.network = 'none'
    profiles.plain = { network = 'none', init = false }
    teardown = { graceful = 0, remove = '2s', total = '2s' }
    [engine.timeouts]
    connect = '2s'
    create = '2s'
    inspect = '2s'
    list = '2s'
    network = '2s'
    image = '2s'
    logs = '2s'
";
const IN_TIME: Duration = Duration::from_secs(25);

async fn impatient() -> (Daemon, InterposedEngine) {
    let (installation, engine) = interposed(IMPATIENT).await;
    (installation.start().await, engine)
}

fn assert_unavailable(failure: &Error) {
    assert_eq!((failure.data.kind.as_str(), failure.data.retryable), ("engine_unavailable", true), "{failure:?}");
}

#[tokio::test]
async fn without_an_engine_the_service_serves_and_says_so() {
    let mut installation = Installation::new(IMPATIENT);
    let missing = installation.path("no-engine.sock");
    installation.configure(&format!("engine.host = 'unix://{}'", missing.display()));
    let service = installation.start().await;
    let asked = Instant::now();
    let health = service.call("system.health", json!({})).await.expect("answered");
    assert_eq!((&health["status"], &health["engine"]["reachable"]), (&json!("degraded"), &json!(false)));
    assert!(health["engine"]["error"].as_str().expect("a text").contains("no-engine.sock"), "{health}");

    let chat = service.new_chat();
    let failure = service.refused(&chat).await;
    assert_unavailable(&failure);
    assert!(failure.message.contains("no-engine.sock"), "{failure:?}");
    assert_unavailable(&service.get(&chat).await.expect_err("not known"));
    assert_unavailable(&service.delete(&chat).await.expect_err("not known"));
    assert_unavailable(&service.call("sandbox.list", json!({})).await.expect_err("not known"));
    assert_eq!(service.call("system.info", json!({})).await.expect("answered")["engine"], json!(null));
    assert!(asked.elapsed() < IN_TIME, "{:?}", asked.elapsed());
}

#[tokio::test]
async fn an_engine_named_by_docker_host_is_found() {
    let installation = Installation::new(IMPATIENT);
    let engine = InterposedEngine::at(&installation.path("engine.sock")).await;
    let host = format!("unix://{}", installation.path("engine.sock").display());
    let service = installation.with_variable("DOCKER_HOST", &host).start().await;
    let health = service.call("system.health", json!({})).await.expect("answered");
    assert_eq!((&health["status"], &health["engine"]["host"]), (&json!("ok"), &json!(host)));
    assert!(!engine.take_requests().is_empty());
}

#[tokio::test]
async fn an_engine_that_comes_late_is_used_and_its_sandboxes_are_adopted() {
    let (installation, engine) = interposed(IMPATIENT).await;
    let service = installation.start().await;
    let chat = service.new_chat();
    let before = service.created(&chat).await;
    let installation = service.stop().await;

    engine.fall_silent("");
    let service = installation.start().await;
    assert_unavailable(&service.refused(&chat).await);
    engine.recover();
    let listed = eventually("the engine is found", || async {
        service.call("sandbox.list", json!({})).await.ok().filter(|page| !page["sandboxes"][0].is_null())
    })
    .await;
    assert_eq!(listed["sandboxes"][0]["session_id"], before["session_id"]);
    let after = service.created(&chat).await;
    assert_eq!((&after["outcome"], &after["session_id"]), (&json!("reused"), &before["session_id"]));
    assert_eq!(service.containers().await.count().await, 1);
}

#[tokio::test]
async fn a_silent_engine_is_unavailable_in_time_and_loses_no_sandbox() {
    let (service, engine) = impatient().await;
    let (known, new) = (service.new_chat(), service.new_chat());
    let before = service.created(&known).await;

    engine.fall_silent("");
    let asked = Instant::now();
    assert_unavailable(&service.refused(&new).await);
    let health = service.call("system.health", json!({})).await.expect("answered");
    assert_eq!(health["status"], "degraded");
    // An unreachable engine does not make a sandbox gone.
    assert_eq!(service.get(&known).await.expect("known")["status"], "running");
    assert_eq!(service.created(&known).await["session_id"], before["session_id"]);
    assert!(asked.elapsed() < IN_TIME, "{:?}", asked.elapsed());

    engine.recover();
    let containers = service.containers().await;
    assert!(containers.is_running(id_of(&before)).await);
    let created = eventually("it works again", || async { service.create(&new).await.ok() }).await;
    // The service removes the container of the create that it gave up.
    eventually("one for each chat", || async { (containers.count().await == 2).then_some(()) }).await;
    assert!(containers.is_running(id_of(&created)).await);
}

#[tokio::test]
async fn a_container_that_is_created_too_late_is_removed() {
    let (service, engine) = impatient().await;
    // Without an init: a late create with an init fails, because its mount sources are already removed.
    let chat = service.new_chat().with("profile", "plain");
    engine.fall_silent("/containers/create");
    assert_unavailable(&service.refused(&chat).await);
    let containers = service.containers().await;
    assert_eq!(containers.count().await, 0);
    let mut events = Box::pin(containers.creations_and_removals());
    engine.recover();
    // The engine now creates the container, which no chat wants any more.
    let life = tokio::time::timeout(Duration::from_secs(30), async {
        let mut actions = Vec::new();
        while actions.len() < 2 {
            actions.extend(futures_util::StreamExt::next(&mut events).await.and_then(|event| event.action));
        }
        actions
    });
    assert_eq!(life.await.expect("taken back"), ["create", "destroy"]);
    assert_eq!(service.created(&chat).await["outcome"], "created");
}

#[tokio::test]
async fn a_start_that_breaks_off_leaves_no_container() {
    let (service, engine) = impatient().await;
    let chat = service.new_chat();
    engine.break_off("/start");
    assert_unavailable(&service.refused(&chat).await);
    assert_eq!(service.containers().await.count().await, 0);
    engine.recover();
    assert_eq!(service.created(&chat).await["outcome"], "created");
}

#[tokio::test]
async fn a_failed_removal_is_owed_and_retried() {
    let (service, engine) = impatient().await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    let containers = service.containers().await;
    engine.break_off("DELETE");
    let failure = service.delete(&chat).await.expect_err("not removed");
    assert_unavailable(&failure);
    assert_eq!(failure.data.details["owed"], true);
    let owed = service.get(&chat).await.expect("it is known");
    assert_eq!((&owed["status"], &owed["session_id"]), (&json!("deleting"), &created["session_id"]));
    assert_eq!(containers.count().await, 1);
    // A create does not start a second container beside it.
    assert_unavailable(&service.refused(&chat).await);
    assert_eq!(containers.count().await, 1);

    engine.recover();
    containers.none_is_left().await;
    eventually("it is removed", || async { service.get(&chat).await.err() }).await;
    assert_eq!(service.created(&chat).await["outcome"], "created");
}

#[tokio::test]
async fn a_warm_sandbox_that_cannot_be_described_at_start_keeps_its_container_and_its_directory() {
    if !can_be_bound() {
        return;
    }
    let (mut installation, engine) = interposed(IMPATIENT).await;
    installation.configure("profiles.default.pool = { size = 1 }");
    let service = installation.start().await;
    service.until_free(1).await;
    let chat = service.new_chat();
    let before = service.created(&chat).await;
    assert_eq!(before["launch"], "warm", "{before}");
    let installation = service.stop().await;

    engine.fall_silent("");
    let service = installation.start().await;
    assert_unavailable(&service.refused(&chat).await);
    // The engine lists containers, but fails to describe them.
    engine.break_off("/json HTTP");
    let page = eventually("the containers are listed", || async { service.call("sandbox.list", json!({})).await.ok() });
    let page = page.await;
    assert_eq!((&page["sandboxes"], &page["undescribed"][0]["chat_id"]), (&json!([]), &json!(chat.chat_id())));
    assert_eq!(page["undescribed"][0]["kind"], "engine_unavailable", "{page}");
    let directory = service.path("state/sandboxes").join(before["session_id"].as_str().expect("an id"));
    service.call("system.reconcile", json!({})).await.expect("listed");
    assert!(directory.join("run/socket").exists(), "the directory of a sandbox that is not known to be gone");

    engine.recover();
    let after = eventually("it is described again", || async { service.create(&chat).await.ok() }).await;
    assert_eq!((&after["outcome"], &after["session_id"]), (&json!("reused"), &before["session_id"]), "{after}");
    assert!(service.containers().await.is_running(id_of(&before)).await);
    assert_eq!(service.output_of(&chat, "echo there").await, "there\n");
}
