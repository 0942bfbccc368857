//! Tests of readiness: the time at which a new sandbox is handed out, and the removal of one that never becomes ready.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::containers::id_of;
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::gate::{GATED, open_gate};

#[tokio::test]
async fn a_sandbox_is_handed_out_once_its_http_service_answers_and_others_do_not_wait_for_it() {
    let service = Daemon::start(&format!("{GATED}\n[profiles.quick]\nnetwork = 'none'")).await;
    let slow = service.new_chat();
    let creating = service.creating(&slow).await;
    service.containers().await.only().await;

    let quick = service.new_chat().with("profile", "quick");
    assert_eq!(service.created(&quick).await["status"], "running");
    assert_eq!(service.get(&slow).await.expect("answered meanwhile")["status"], "creating");
    assert!(!creating.is_finished());

    open_gate(&slow);
    let created = creating.await.expect("no panic").expect("created");
    assert_eq!(created["status"], "running");
    let at = |field: &str| created["endpoint"][field].to_string().trim_matches('"').to_owned();
    let address = format!("{}:{}", at("ip"), at("port"));
    tokio::net::TcpStream::connect(&address).await.expect("it answers");
}

#[tokio::test]
async fn a_sandbox_is_handed_out_once_its_port_accepts() {
    let service = Daemon::start(
        "[profiles.default]
         command = ['nc', '-ll', '-p', '7000', '-e', 'cat']
         readiness = { kind = 'tcp', port = 7000 }
         [profiles.deaf]
         readiness = { kind = 'tcp', port = 7000, timeout = '300ms' }",
    )
    .await;
    assert_eq!(service.created(&service.new_chat()).await["status"], "running");
    let failure = service.refused(&service.new_chat().with("profile", "deaf")).await;
    assert_eq!(failure.data.kind.as_str(), "readiness_timeout");
    assert!(failure.data.details["last"].as_str().expect("a text").contains("7000"), "{failure:?}");
}

#[tokio::test]
async fn a_sandbox_is_handed_out_once_its_own_health_check_passes() {
    let service = Daemon::start(
        "[profiles.default]
         image = 'sandboxd-healthcheck:test'
         readiness = { kind = 'health' }
         [profiles.sick]
         image = 'sandboxd-healthcheck:test'
         command = ['sleep', 'infinity']
         readiness = { kind = 'health', timeout = '1s' }
         [profiles.unchecked]
         readiness = { kind = 'health' }",
    )
    .await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    let container = service.containers().await.inspect(id_of(&created)).await;
    let health = container.state.and_then(|state| state.health?.status).map(|status| status.to_string());
    assert_eq!(health.as_deref(), Some("healthy"));
    service.delete(&chat).await.expect("deleted");

    let failure = service.refused(&service.new_chat().with("profile", "sick")).await;
    assert_eq!(failure.data.kind.as_str(), "readiness_timeout");
    let failure = service.refused(&service.new_chat().with("profile", "unchecked")).await;
    assert_eq!(failure.data.kind.as_str(), "sandbox_start_failed");
    assert_eq!(failure.data.details["cause"], "no_health_check");
    assert_eq!(service.containers().await.count().await, 0);
}

#[tokio::test]
async fn a_sandbox_whose_own_service_has_ended_is_not_handed_out_again() {
    let service = Daemon::start(
        "[profiles.default]
         command = ['sh', '-c', 'httpd -p 8080 -h /www; exec sleep infinity']
         readiness = { kind = 'http', port = 8080 }",
    )
    .await;
    let chat = service.new_chat();
    let before = service.created(&chat).await;
    assert_eq!(service.created(&chat).await["outcome"], "reused");
    assert_eq!(service.printed(&chat, "killall httpd && echo ended").await, "ended\n");
    // The service hands out a sandbox without a check if its last check is recent.
    let after = eventually("it is replaced", || async {
        let created = service.created(&chat).await;
        (created["outcome"] == "replaced").then_some(created)
    })
    .await;
    assert_ne!(after["session_id"], before["session_id"]);
    assert_eq!(service.containers().await.count().await, 1);
}

#[tokio::test]
async fn a_sandbox_that_is_never_ready_is_removed_before_its_caller_is_answered() {
    let service = Daemon::start(
        "[profiles.default]
         command = ['sh', '-c', 'echo still warming up; exec sleep infinity']
         readiness = { kind = 'http', timeout = '500ms' }",
    )
    .await;
    let chat = service.new_chat();
    let failure = service.refused(&chat).await;
    assert_eq!((failure.data.kind.as_str(), failure.data.retryable), ("readiness_timeout", true));
    assert_eq!(failure.data.details["timeout"], 0.5);
    assert_eq!(failure.data.details["log_tail"], json!(["still warming up"]));
    assert_eq!(failure.data.details["chat_id"], chat.chat_id());
    assert_eq!(service.containers().await.count().await, 0);
    assert_eq!(service.list().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_service_that_accepts_and_stays_silent_does_not_outlast_the_limit() {
    let service = Daemon::start(
        "[profiles.default]
         command = ['nc', '-ll', '-p', '8080', '-e', 'sleep', '1000']
         readiness = { kind = 'http', timeout = '1s' }",
    )
    .await;
    let asked = Instant::now();
    let failure = service.refused(&service.new_chat()).await;
    assert_eq!(failure.data.kind.as_str(), "readiness_timeout");
    // The rest of the time is the engine's, for starting and removing a container.
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_sandbox_that_dies_while_starting_fails_at_once_with_its_cause() {
    let service = Daemon::start(
        "[profiles.default]
         command = ['sh', '-c', 'echo one; echo two; exit 3']
         readiness = { kind = 'http', timeout = '10m' }
         [profiles.killed]
         command = ['sh', '-c', 'kill -9 $$']
         readiness = { kind = 'tcp', timeout = '10m' }
         [profiles.missing]
         command = ['/no/such/program']
         readiness = { kind = 'tcp', timeout = '10m' }",
    )
    .await;
    let failure = service.refused(&service.new_chat()).await;
    assert_eq!((failure.data.kind.as_str(), failure.data.retryable), ("sandbox_start_failed", false));
    let details = &failure.data.details;
    assert_eq!((&details["cause"], &details["exit_code"]), (&json!("exited"), &json!(3)));
    assert_eq!((&details["oom_killed"], &details["signal"]), (&json!(false), &Value::Null));
    assert_eq!(details["log_tail"], json!(["one", "two"]));

    let failure = service.refused(&service.new_chat().with("profile", "killed")).await;
    assert_eq!((&failure.data.details["cause"], &failure.data.details["signal"]), (&json!("killed"), &json!(9)));

    let failure = service.refused(&service.new_chat().with("profile", "missing")).await;
    assert_eq!(failure.data.kind.as_str(), "sandbox_start_failed");
    assert!(json!(failure).to_string().contains("/no/such/program"), "{failure:?}");
    assert_eq!(service.containers().await.count().await, 0);
}

#[tokio::test]
async fn a_sandbox_that_runs_out_of_memory_while_starting_says_so() {
    let service = Daemon::start(
        "[profiles.default]
         memory = '16MiB'
         command = ['tail', '/dev/zero']
         readiness = { kind = 'http', timeout = '10m' }",
    )
    .await;
    let failure = service.refused(&service.new_chat()).await;
    let details = &failure.data.details;
    assert_eq!((&details["cause"], &details["oom_killed"]), (&json!("oom_killed"), &json!(true)), "{failure:?}");
    assert_eq!(details["memory_limit_bytes"], 16 << 20);
    assert_eq!(service.containers().await.count().await, 0);
}
