//! Tests of create: the sandbox's identity, reuse, conflicts and replacement.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::containers::id_of;
use crate::daemon::Daemon;
use crate::engine::{eventually, test_image};
use crate::gate::{GATED, open_gate};
use crate::installation::link;
use crate::interposed_engine::interposed;

fn session(sandbox: &Value) -> &str {
    sandbox["session_id"].as_str().expect("a session")
}

/// Waits until a time from an answer has passed.
async fn passed(time: &Value) {
    let time: chrono::DateTime<chrono::Utc> = time.as_str().expect("a time").parse().expect("a time");
    let left = (time - chrono::Utc::now()).to_std().unwrap_or_default();
    tokio::time::sleep(left + Duration::from_millis(2)).await;
}

#[tokio::test]
async fn a_create_answers_all_that_its_caller_needs() {
    let service = Daemon::start("profiles.default.port = 9000").await;
    let chat = service.new_chat();
    let created = service.created(&chat.with("ttl", 60)).await;

    assert_eq!((&created["outcome"], &created["launch"]), (&json!("created"), &json!("cold")));
    assert_eq!((&created["status"], &created["reason"]), (&json!("running"), &json!("ready")));
    assert_eq!(created["chat_id"], chat.chat_id());
    assert_eq!(created["agent_id"], "agent");
    assert_eq!(created["volume_host_path"], json!(chat.volume()));
    assert_eq!((&created["profile"], &created["image"]), (&json!("default"), &json!(test_image())));
    assert_eq!(created["container_name"], format!("sandboxd-{}-{}", service.name(), chat.chat_id()));
    assert!(session(&created).parse::<uuid::Uuid>().is_ok(), "{created}");

    let containers = service.containers().await;
    assert_eq!(created["container_id"], containers.only().await);
    let container = containers.inspect(&containers.only().await).await;
    let networks = container.network_settings.and_then(|settings| settings.networks).expect("networks");
    let addresses: Vec<_> = networks.values().filter_map(|network| network.ip_address.clone()).collect();
    assert_eq!(created["endpoint"], json!({ "ip": addresses[0], "port": 9000 }));

    let time =
        |field: &str| created[field].as_str().expect(field).parse::<chrono::DateTime<chrono::Utc>>().expect(field);
    assert_eq!((time("expires_at") - time("created_at")).num_seconds(), 60);
    assert_eq!((time("idle_expires_at") - time("last_activity_at")).num_seconds(), 2 * 60 * 60);
    assert!(time("created_at") <= time("started_at"), "{created}");
}

#[tokio::test]
async fn get_and_list_match_create() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let chats = [service.new_chat(), service.new_chat()];
    let mut created = Vec::new();
    for chat in &chats {
        let mut sandbox = service.created(chat).await;
        let fields = sandbox.as_object_mut().expect("an object");
        fields.retain(|name, _| name != "outcome" && name != "launch");
        assert_eq!(service.get(chat).await.expect("found"), sandbox);
        created.push(sandbox);
    }
    created.sort_by_key(|sandbox| sandbox["chat_id"].to_string());
    assert_eq!(service.list().await, created);

    let failure = service.get(&service.new_chat()).await.expect_err("no sandbox");
    assert_eq!(failure.data.kind.as_str(), "sandbox_not_found");
}

#[tokio::test]
async fn a_chat_is_the_same_however_its_id_is_spelled() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let chat = service.new_chat();
    let id = chat.chat_id();
    let created = service.created(&chat.with("chat_id", id.to_uppercase())).await;
    assert_eq!(created["chat_id"], id);
    for spelling in [id.to_owned(), id.replace('-', ""), format!("{{{id}}}"), format!("urn:uuid:{id}")] {
        let again = service.created(&chat.with("chat_id", spelling.clone())).await;
        assert_eq!((&again["outcome"], &again["chat_id"]), (&json!("reused"), &json!(id)), "{spelling}");
        assert_eq!(session(&again), session(&created), "{spelling}");
    }
    assert_eq!(service.containers().await.count().await, 1);
}

#[tokio::test]
async fn a_volume_is_the_same_however_its_path_is_spelled() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let chat = service.new_chat();
    let volume = chat.volume();
    let alias = volume.with_file_name("alias");
    link(&alias, &volume);
    let created = service.created(&chat.with("volume_host_path", alias.to_str())).await;
    assert_eq!(created["volume_host_path"], json!(volume));
    let path = volume.display();
    for spelling in [format!("{path}"), format!("{path}/"), format!("/.{path}//."), format!("{path}/../alias")] {
        let again = service.created(&chat.with("volume_host_path", spelling.clone())).await;
        assert_eq!(again["outcome"], "reused", "{spelling}");
        assert_eq!(again["volume_host_path"], json!(volume), "{spelling}");
    }
}

#[tokio::test]
async fn a_wrong_parameter_is_named_and_no_container_is_started() {
    let service = Daemon::start("").await;
    let chat = service.new_chat();
    for (field, wrong) in [
        ("chat_id", json!("no-uuid")),
        ("chat_id", Value::Null),
        ("agent_id", json!(" \t")),
        ("agent_id", Value::Null),
        ("volume_host_path", json!("volumes/relative")),
        ("colour", json!("green")),
        ("ttl", json!(0)),
        ("env", json!({ "A=B": "1" })),
        ("profile", json!("no-such-profile")),
    ] {
        let failure = service.refused(&chat.with(field, wrong.clone())).await;
        assert_eq!((failure.code, failure.data.kind.as_str()), (-32602, "invalid_params"), "{field}: {wrong}");
        assert_eq!(failure.data.details["field"], field, "{wrong}");
        assert!(failure.message.contains(field), "{failure:?}");
    }
    assert_eq!(service.containers().await.count().await, 0);
    assert_eq!(service.list().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_live_sandbox_is_reused_by_an_equal_create() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    // Environment and deadlines apply only to a new sandbox.
    let again = service.created(&chat.with("env", json!({ "A": "1" })).with("ttl", 1)).await;
    assert_eq!((&again["outcome"], &again["launch"]), (&json!("reused"), &json!("none")));
    for field in ["session_id", "container_id", "created_at", "started_at", "expires_at"] {
        assert_eq!(again[field], created[field], "{field}");
    }
    assert!(again["last_activity_at"].as_str() >= created["last_activity_at"].as_str(), "{again}");
    assert_eq!(service.containers().await.count().await, 1);
}

#[tokio::test]
async fn a_reuse_asks_the_engine_once_at_most() {
    let (installation, engine) = interposed("profiles.default.network = 'none'").await;
    let service = installation.start().await;
    let chat = service.new_chat();
    service.created(&chat).await;
    engine.take_requests();
    let look = eventually("it is looked at again", || async {
        assert_eq!(service.created(&chat).await["outcome"], "reused");
        let mut requests = engine.take_requests();
        assert!(requests.len() <= 1, "{requests:?}");
        requests.pop()
    })
    .await;
    assert!(look.starts_with("GET /containers/") && look.contains("/json"), "{look}");
}

#[tokio::test]
async fn a_create_with_other_values_conflicts_names_them_and_starts_no_container() {
    let service = Daemon::start("profiles.default.network = 'none'\n[profiles.other]").await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    let other_agent = chat.with("agent_id", "another");
    let other_all = other_agent.with("volume_host_path", service.volume("other").to_str()).with("profile", "other");
    for (asked, fields) in [
        (&other_agent, json!(["agent_id"])),
        (&chat.with("profile", "other"), json!(["profile"])),
        (&other_all, json!(["agent_id", "volume_host_path", "profile"])),
    ] {
        let failure = service.refused(asked).await;
        assert_eq!((failure.data.kind.as_str(), failure.data.retryable), ("sandbox_conflict", false));
        assert_eq!(failure.data.details["fields"], fields);
        assert_eq!(failure.data.details["session_id"], created["session_id"]);
    }
    assert_eq!(service.containers().await.only().await, created["container_id"]);
    assert_eq!(service.created(&chat).await["outcome"], "reused");
}

#[tokio::test]
async fn a_create_that_conflicts_with_one_under_way_does_not_disturb_it() {
    let service = Daemon::start(GATED).await;
    let chat = service.new_chat();
    let creating = service.creating(&chat).await;
    service.containers().await.only().await;
    let failure = service.refused(&chat.with("agent_id", "another")).await;
    assert_eq!(failure.data.kind.as_str(), "sandbox_conflict");
    open_gate(&chat);
    assert_eq!(creating.await.expect("no panic").expect("created")["agent_id"], "agent");
}

#[tokio::test]
async fn an_expired_sandbox_is_replaced() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let containers = service.containers().await;
    for (limit, end) in [("ttl", "expires_at"), ("idle_timeout", "idle_expires_at")] {
        let chat = service.new_chat();
        let expired = service.created(&chat.with(limit, 0.5)).await;
        passed(&expired[end]).await;
        let replaced = service.created(&chat.with("agent_id", "another")).await;
        assert_eq!((&replaced["outcome"], &replaced["launch"]), (&json!("replaced"), &json!("cold")), "{limit}");
        assert_ne!(session(&replaced), session(&expired));
        assert_eq!(containers.only().await, replaced["container_id"]);
        service.delete(&chat).await.expect("deleted");
    }
}

#[tokio::test]
async fn a_sandbox_that_died_or_vanished_is_replaced_by_the_next_create() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let containers = service.containers().await;
    let (killed, removed) = (service.new_chat(), service.new_chat());
    let before = [service.created(&killed).await, service.created(&removed).await];
    containers.kill(id_of(&before[0])).await;
    containers.remove(id_of(&before[1])).await;

    for (chat, before) in [killed, removed].iter().zip(&before) {
        // The service does not check a container again shortly after the last check.
        let after = eventually("it is replaced", || async {
            let answer = service.created(chat).await;
            (answer["outcome"] == "replaced").then_some(answer)
        })
        .await;
        assert_ne!(session(&after), session(before));
        assert_eq!(after["status"], "running");
        assert!(containers.is_running(id_of(&after)).await);
    }
    assert_eq!(containers.count().await, 2);
}

#[tokio::test]
async fn a_caller_that_vanishes_cancels_neither_its_create_nor_its_delete() {
    let service = Daemon::start(GATED).await;
    let containers = service.containers().await;
    let chat = service.new_chat();
    vanishing_call(&service, "sandbox.create", json!(chat)).await;
    let container = containers.only().await;
    open_gate(&chat);
    let created = eventually("it runs", || async {
        service.get(&chat).await.ok().filter(|sandbox| sandbox["status"] == "running")
    })
    .await;
    let again = service.created(&chat).await;
    assert_eq!((&again["outcome"], session(&again)), (&json!("reused"), session(&created)));
    assert_eq!(containers.only().await, container);

    vanishing_call(&service, "sandbox.delete", json!({ "chat_id": chat.chat_id() })).await;
    containers.none_is_left().await;
    eventually("it is removed", || async { service.get(&chat).await.err() }).await;
}

/// Sends a request and disconnects without waiting for the answer.
async fn vanishing_call(service: &Daemon, method: &str, params: Value) {
    let mut stream = tokio::net::UnixStream::connect(service.socket()).await.expect("it listens");
    let line = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string() + "\n";
    stream.write_all(line.as_bytes()).await.expect("sent");
}
