//! Tests of limits and of the engine queue.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::daemon::Daemon;

/// Returns the limit kind and the limit of an `admission_denied` error, which must have a `retry_after`.
fn denied(failure: sandboxd_protocol::error::Error) -> (Value, Value) {
    assert_eq!((failure.data.kind.as_str(), failure.data.retryable), ("admission_denied", true), "{failure:?}");
    let seconds = failure.data.details["retry_after"].as_f64().expect("a duration");
    assert!((1.0..=30.0).contains(&seconds), "{seconds}");
    (failure.data.details["what"].clone(), failure.data.details["limit"].clone())
}

#[tokio::test]
async fn beyond_a_limit_creates_are_refused_and_no_sandbox_is_removed() {
    let service = Daemon::start(
        "limits = { sandboxes = 3, per_agent = 2 }
         profiles.default.network = 'none'
         profiles.rare = { network = 'none', max_sandboxes = 1 }",
    )
    .await;
    let [first, second, third, fourth] = [(); 4].map(|()| service.new_chat().with("ttl", 30));
    service.created(&first).await;
    service.created(&second.with("profile", "rare")).await;
    assert_eq!(denied(service.refused(&third).await), (json!("agent"), json!(2)));
    let third = third.with("agent_id", "another");
    let rare = third.with("profile", "rare");
    assert_eq!(denied(service.refused(&rare).await), (json!("profile"), json!(1)));
    service.created(&third).await;
    let fourth = fourth.with("agent_id", "yet another");
    assert_eq!(denied(service.refused(&fourth).await), (json!("sandboxes"), json!(3)));
    for chat in [&first, &third] {
        assert_eq!(service.created(chat).await["outcome"], "reused", "a reuse needs no free place");
    }

    let service = service.kill().await.start().await;
    assert_eq!(denied(service.refused(&fourth).await), (json!("sandboxes"), json!(3)));
    assert_eq!(service.delete(&third).await.expect("deleted")["result"], "deleted");
    assert_eq!(service.created(&fourth).await["outcome"], "created");
    assert_eq!(service.containers().await.count().await, 3);

    // A lowered limit ends no sandbox.
    let mut installation = service.stop().await;
    installation.configure("limits.sandboxes = 1");
    let service = installation.start().await;
    assert_eq!(service.created(&first).await["outcome"], "reused");
    assert_eq!(service.list().await.len(), 3);
}

#[tokio::test]
async fn a_full_workspace_stays_full_through_a_restart_and_leaves_others_their_room() {
    let service = Daemon::start(
        "limits.per_workspace = 2
         profiles.default.network = 'none'",
    )
    .await;
    let [mine, yours] = [(); 2].map(|()| uuid::Uuid::new_v4().to_string());
    let new_chat = |agent: &str| service.new_chat().with("ttl", 30).with("agent_id", agent);
    let [first, second, third] = ["a", "b", "c"].map(|agent| new_chat(agent).with("workspace_id", mine.as_str()));
    let [fourth, fifth] = ["a", "b"].map(|agent| new_chat(agent).with("workspace_id", yours.as_str()));
    let nobodys = ["a", "a", "a"].map(new_chat);
    assert_eq!(service.created(&first).await["workspace_id"], mine);
    service.created(&second).await;
    assert_eq!(denied(service.refused(&third).await), (json!("workspace"), json!(2)));
    service.created(&fourth).await;
    for chat in &nobodys {
        assert_eq!(service.created(chat).await["workspace_id"], Value::Null);
    }
    let conflict = service.refused(&first.with("workspace_id", yours.as_str())).await;
    assert_eq!(
        (conflict.data.kind.as_str(), &conflict.data.details["fields"]),
        ("sandbox_conflict", &json!(["workspace_id"]))
    );
    let without_workspace = first.with("workspace_id", Value::Null);
    assert_eq!(service.created(&without_workspace).await["workspace_id"], mine, "omitted values are not compared");

    // The counts come from the journal, or without it from the containers' labels.
    let mut stopped = service.kill().await;
    for lost in [false, true] {
        if lost {
            for file in std::fs::read_dir(stopped.path("state")).expect("there").flatten() {
                if file.file_name().to_string_lossy().starts_with("journal") {
                    std::fs::remove_file(file.path()).expect("removed");
                }
            }
        }
        let service = stopped.start().await;
        assert_eq!(denied(service.refused(&third).await), (json!("workspace"), json!(2)), "lost: {lost}");
        assert_eq!(service.created(&first).await["outcome"], "reused");
        stopped = service.kill().await;
    }

    let service = stopped.start().await;
    assert_eq!(service.created(&fifth).await["outcome"], "created", "another workspace has its own room");
    assert_eq!(service.delete(&second).await.expect("deleted")["result"], "deleted");
    assert_eq!(service.created(&third).await["outcome"], "created");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_waits_too_long_for_the_engine_is_refused_and_leaves_no_container() {
    let service = Daemon::start(
        "engine = { max_operations = 1, queue_timeout = '400ms' }
         profiles.default.network = 'none'",
    )
    .await;
    let chats: Vec<_> = (0..12).map(|_| service.new_chat()).collect();
    let mut creates = Vec::new();
    for chat in &chats {
        creates.push(service.creating(chat).await);
    }
    let outcomes: Vec<_> = join_all(creates).await.into_iter().map(|outcome| outcome.expect("no panic")).collect();
    let created = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    for failure in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        assert_eq!((failure.data.kind.as_str(), failure.data.retryable), ("busy", true), "{failure:?}");
        assert!(failure.data.details["retry_after"].is_number());
    }
    assert!((1..12).contains(&created), "{created}");
    assert_eq!(service.containers().await.count().await, created);
    assert_eq!(service.list().await.len(), created);
    let left = std::fs::read_dir(service.path("state").join("sandboxes")).expect("there").count();
    assert_eq!(left, created, "refused creates leave no containers");

    let again = outcomes.iter().zip(&chats).find(|(outcome, _)| outcome.is_err()).expect("one was refused").1;
    tokio::time::timeout(Duration::from_secs(30), service.created(again)).await.expect("there is time now");
}
