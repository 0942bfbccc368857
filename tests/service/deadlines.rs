//! Tests of the lifetime of a sandbox as callers see it: renewals, expiry, leases, lists, and the dry run of a
//! reconciliation.

use std::time::Duration;

use crate::support::{Caller, MAX_LEASE, MAX_LEASES, PATIENCE, Service, chat, kind, request};
use chrono::{DateTime, Utc};
use sandboxd_actors::domain::ids::ContainerId;
use sandboxd_actors::domain::labels;
use sandboxd_actors::journal::memory::Fault;
use sandboxd_actors::ports::engine::{Observed, Operation};
use serde_json::{Value, json};

async fn create(service: &Service, caller: &mut Caller, chat: &str) {
    let answer = caller.ask(service.create(1, chat)).await;
    assert_eq!(answer["result"]["status"], "running", "{answer}");
}

async fn call(caller: &mut Caller, method: &str, params: Value) -> Value {
    caller.ask(request(2, method, &params)).await
}

async fn get(caller: &mut Caller, chat: &str) -> Value {
    call(caller, "sandbox.get", json!({ "chat_id": chat })).await
}

async fn lease(caller: &mut Caller, chat: &str, seconds: u64, durable: bool) -> Value {
    let answer =
        call(caller, "sandbox.lease", json!({ "chat_id": chat, "duration": seconds, "durable": durable })).await;
    assert!(answer["result"]["lease_id"].is_string(), "{answer}");
    answer["result"].clone()
}

/// Polls the sandbox until `wanted` holds.
async fn until(caller: &mut Caller, chat: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let asking = async {
        loop {
            let answer = get(caller, chat).await;
            if wanted(&answer) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("in time")
}

fn time(value: &Value) -> DateTime<Utc> {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no time: {value}"))
}

// ---- renewals ----

#[tokio::test]
async fn a_renewal_is_on_disk_when_it_is_answered_and_never_brings_the_end_closer() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = chat();
    create(&service, &mut caller, &chat).await;
    let before = time(&get(&mut caller, &chat).await["result"]["expires_at"]);

    let renewed = call(&mut caller, "sandbox.renew", json!({ "chat_id": chat, "ttl": 3600 })).await;
    let after = time(&renewed["result"]["expires_at"]);
    assert!(after > before, "{renewed}");
    assert_eq!(service.journal.sandboxes()[0].expires_at.timestamp_millis(), after.timestamp_millis());

    let shorter = call(&mut caller, "sandbox.renew", json!({ "chat_id": chat, "ttl": 1 })).await;
    assert_eq!(time(&shorter["result"]["expires_at"]), after);
}

#[tokio::test]
async fn a_renewal_that_cannot_be_committed_is_refused_and_undone() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = chat();
    create(&service, &mut caller, &chat).await;
    let before = get(&mut caller, &chat).await["result"]["expires_at"].clone();
    service.journal.fail_always(Fault::full());
    let refused = call(&mut caller, "sandbox.renew", json!({ "chat_id": chat, "ttl": 3600 })).await;
    assert_eq!(kind(&refused), "journal_unavailable");
    assert_eq!(get(&mut caller, &chat).await["result"]["expires_at"], before);
    service.journal.heal();
}

#[tokio::test]
async fn a_missing_sandbox_cannot_be_renewed_or_leased() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    for (method, params) in [
        ("sandbox.renew", json!({ "chat_id": chat(), "ttl": 60 })),
        ("sandbox.touch", json!({ "chat_id": chat() })),
        ("sandbox.lease", json!({ "chat_id": chat(), "duration": 60 })),
        ("sandbox.release", json!({ "chat_id": chat(), "lease_id": chat() })),
    ] {
        assert_eq!(kind(&call(&mut caller, method, params).await), "sandbox_not_found", "{method}");
    }
}

#[tokio::test]
async fn a_touch_counts_as_use_and_a_look_does_not() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = chat();
    create(&service, &mut caller, &chat).await;
    let used = time(&get(&mut caller, &chat).await["result"]["last_activity_at"]);
    while Utc::now().timestamp_millis() <= used.timestamp_millis() {
        tokio::task::yield_now().await;
    }
    assert_eq!(time(&get(&mut caller, &chat).await["result"]["last_activity_at"]), used);
    let touched = call(&mut caller, "sandbox.touch", json!({ "chat_id": chat })).await;
    assert!(time(&touched["result"]["last_activity_at"]) > used, "{touched}");
}

// ---- expiry ----

#[tokio::test]
async fn every_request_for_an_expired_sandbox_reports_when_and_by_which_limit() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let answer_of = |limit: &'static str| (chat(), json!({ limit: 1 }));
    for ((chat, limits), reason, limit) in
        [(answer_of("ttl"), "expired", "(ttl 1s)"), (answer_of("idle_timeout"), "idle", "(idle for 1s)")]
    {
        let mut params = json!({ "chat_id": chat, "agent_id": "a" });
        params.as_object_mut().expect("an object").extend(limits.as_object().expect("an object").clone());
        let created = call(&mut caller, "sandbox.create", params).await["result"].clone();
        until(&mut caller, &chat, |answer| answer["error"]["data"]["kind"] == "sandbox_not_found").await;
        let requests = [
            ("sandbox.get", json!({ "chat_id": chat })),
            ("sandbox.renew", json!({ "chat_id": chat, "ttl": 60 })),
            ("sandbox.exec", json!({ "chat_id": chat, "command": "true" })),
            ("sandbox.read_file", json!({ "chat_id": chat, "path": "/x" })),
            ("sandbox.snapshot", json!({ "chat_id": chat })),
            ("sandbox.logs", json!({ "chat_id": chat })),
            ("sandbox.stats", json!({ "chat_id": chat })),
        ];
        for (method, params) in requests {
            let error = call(&mut caller, method, params).await["error"].clone();
            assert_eq!(error["data"]["kind"], "sandbox_not_found", "{method}: {error}");
            let message = error["message"].as_str().expect("a message");
            assert!(message.contains("it expired ") && message.ends_with(limit), "{method}: {message}");
            let details = &error["data"]["details"];
            assert_eq!((&details["reason"], &details["session_id"]), (&json!(reason), &created["session_id"]));
            assert!(time(&details["ended_at"]) >= time(&created["created_at"]), "{details}");
        }
    }
}

#[tokio::test]
async fn a_deleted_sandbox_is_reported_as_deleted_and_a_chat_without_one_as_such() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let (chat, without_sandbox) = (chat(), chat());
    create(&service, &mut caller, &chat).await;
    call(&mut caller, "sandbox.delete", json!({ "chat_id": chat })).await;
    let error = get(&mut caller, &chat).await["error"].clone();
    assert!(error["message"].as_str().is_some_and(|text| text.contains("it was deleted 0 s ago")), "{error}");
    assert_eq!(error["data"]["details"]["reason"], "requested", "{error}");
    let never = get(&mut caller, &without_sandbox).await["error"].clone();
    assert_eq!(never["message"], format!("chat {without_sandbox} has no sandbox"));
    assert_eq!(never["data"]["details"], json!({ "chat_id": without_sandbox }));
}

// ---- lists ----

/// Returns the chats on all pages of size `limit`, and the number of pages.
async fn listed(caller: &mut Caller, limit: usize, filter: Value) -> (Vec<String>, usize) {
    let (mut chats, mut pages, mut after) = (Vec::new(), 0, Value::Null);
    loop {
        let mut params = filter.clone();
        (params["limit"], params["after"]) = (json!(limit), after);
        let page = call(caller, "sandbox.list", params).await["result"].clone();
        let sandboxes = page["sandboxes"].as_array().expect("an array");
        chats.extend(sandboxes.iter().map(|sandbox| sandbox["chat_id"].as_str().expect("an id").to_owned()));
        (pages, after) = (pages + 1, page["next"].clone());
        if after.is_null() {
            return (chats, pages);
        }
    }
}

#[tokio::test]
async fn a_list_matches_all_its_filters_at_every_page_size() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let workspaces = [uuid::Uuid::new_v4().to_string(), uuid::Uuid::new_v4().to_string()];
    let mut chats = Vec::new();
    for n in 0..8 {
        let (chat, agent, workspace) = (chat(), ["a", "b"][n % 2], &workspaces[n / 4]);
        let params = json!({ "chat_id": chat, "agent_id": agent, "workspace_id": workspace });
        assert!(call(&mut caller, "sandbox.create", params).await["error"].is_null());
        chats.push((chat, agent, workspace.clone()));
    }
    let paused = chats[0].0.clone();
    call(&mut caller, "sandbox.pause", json!({ "chat_id": paused })).await;
    chats.sort();
    let of = |fits: &dyn Fn(&str, &str, &str) -> bool| -> Vec<String> {
        let fitting = chats.iter().filter(|(chat, agent, workspace)| fits(chat, agent, workspace));
        fitting.map(|(chat, ..)| chat.clone()).collect()
    };
    for limit in [1, 3, 100] {
        for (filter, expected) in [
            (json!({}), of(&|_, _, _| true)),
            (json!({ "agent_id": "a" }), of(&|_, agent, _| agent == "a")),
            (json!({ "workspace_id": workspaces[1] }), of(&|_, _, workspace| workspace == workspaces[1])),
            (
                json!({ "agent_id": "b", "workspace_id": workspaces[0], "status": "running" }),
                of(&|_, agent, workspace| agent == "b" && workspace == workspaces[0]),
            ),
            (json!({ "status": "paused" }), vec![paused.clone()]),
            (json!({ "status": "running" }), of(&|chat, _, _| chat != paused)),
            (json!({ "profile": "default", "agent_id": "nobody" }), vec![]),
            (json!({ "profile": "other" }), vec![]),
        ] {
            let (found, pages) = listed(&mut caller, limit, filter.clone()).await;
            assert_eq!(found, expected, "{filter} in pages of {limit}");
            assert_eq!(pages, 8usize.div_ceil(limit), "{filter}");
        }
    }
}

// ---- leases ----

#[tokio::test]
async fn a_lease_holds_off_the_end_until_it_is_released() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = chat();
    let params = json!({ "chat_id": chat, "agent_id": "a", "volume_host_path": service.volume, "ttl": 3 });
    call(&mut caller, "sandbox.create", params).await;
    let leased = lease(&mut caller, &chat, 300, false).await;
    assert_eq!(leased["held_until"], leased["ends_at"]);
    assert_eq!(leased["idle"], json!({ "is": false, "because": "leased" }));

    let end = time(&leased["expires_at"]);
    let past = until(&mut caller, &chat, |_| Utc::now() > end + Duration::from_millis(200)).await;
    assert_eq!(past["result"]["status"], "running", "{past}");
    call(&mut caller, "sandbox.release", json!({ "chat_id": chat, "lease_id": leased["lease_id"] })).await;
    until(&mut caller, &chat, |answer| answer["error"]["data"]["kind"] == "sandbox_not_found").await;
    assert!(service.engine.containers().is_empty());
}

#[tokio::test]
async fn leases_hold_a_sandbox_for_at_most_the_longest_lease_past_its_end() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = chat();
    let params = json!({ "chat_id": chat, "agent_id": "a", "volume_host_path": service.volume, "ttl": 1 });
    let created = call(&mut caller, "sandbox.create", params).await["result"].clone();
    let end = time(&created["expires_at"]);
    let first = lease(&mut caller, &chat, MAX_LEASE.as_secs(), false).await;
    let holder =
        json!({ "kind": "lease", "lease_id": first["lease_id"], "durable": false, "until": first["lease_until"] });
    assert_eq!(first["held_by"], json!([holder]));
    until(&mut caller, &chat, |_| Utc::now() > end + Duration::from_millis(100)).await;
    let second = lease(&mut caller, &chat, MAX_LEASE.as_secs(), true).await;
    for end_of in ["lease_until", "held_until", "ends_at"] {
        assert_eq!(time(&second[end_of]), end + MAX_LEASE, "{end_of}: {second}");
    }
}

#[tokio::test]
async fn a_lease_ends_with_its_connection_and_a_durable_one_does_not() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = chat();
    create(&service, &mut caller, &chat).await;
    let mut holder = service.connect().await;
    let durable = lease(&mut holder, &chat, 100, true).await;
    let held = lease(&mut holder, &chat, 500, false).await;
    assert!(time(&held["held_until"]) > time(&durable["held_until"]));
    drop(holder);
    let ended = until(&mut caller, &chat, |answer| answer["result"]["held_until"] == durable["held_until"]).await;
    assert_eq!(ended["result"]["idle"]["because"], "leased", "{ended}");
    let other = json!({ "chat_id": chat, "lease_id": durable["lease_id"] });
    let released = call(&mut caller, "sandbox.release", other.clone()).await;
    assert_eq!(released["result"]["held_until"], Value::Null, "{released}");
    assert_eq!(kind(&call(&mut caller, "sandbox.release", other).await), "lease_not_found");
}

#[tokio::test]
async fn a_lease_ends_with_a_connection_that_breaks() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = chat();
    create(&service, &mut caller, &chat).await;
    let mut holder = service.connect().await;
    lease(&mut holder, &chat, 500, false).await;
    // The connection breaks with unread answers and a half-written line.
    holder.send(request(3, "system.info", &json!({}))).await;
    holder.send("{\"jsonrpc\":").await;
    drop(holder);
    until(&mut caller, &chat, |answer| answer["result"]["held_until"].is_null()).await;
}

#[tokio::test]
async fn a_lease_beyond_the_maximum_is_refused() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = chat();
    create(&service, &mut caller, &chat).await;
    let params = json!({ "chat_id": chat, "duration": MAX_LEASE.as_secs() + 1 });
    let refused = call(&mut caller, "sandbox.lease", params).await;
    assert_eq!((kind(&refused), &refused["error"]["data"]["details"]["field"]), ("invalid_params", &json!("duration")));
    lease(&mut caller, &chat, MAX_LEASE.as_secs(), false).await;
}

#[tokio::test]
async fn a_sandbox_has_only_so_many_leases() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = chat();
    create(&service, &mut caller, &chat).await;
    let first = lease(&mut caller, &chat, 100, false).await;
    for _ in 1..MAX_LEASES {
        lease(&mut caller, &chat, 100, false).await;
    }
    let refused = call(&mut caller, "sandbox.lease", json!({ "chat_id": chat, "duration": 1 })).await;
    assert_eq!(kind(&refused), "too_many_leases");
    assert_eq!(refused["error"]["data"]["details"]["limit"], MAX_LEASES);
    call(&mut caller, "sandbox.release", json!({ "chat_id": chat, "lease_id": first["lease_id"] })).await;
    lease(&mut caller, &chat, 100, false).await;
}

// ---- reconciliation ----

/// Adds a copy of the only container, for another chat and with some labels changed.
fn place_copy(service: &Service, id: &str, changes: &[(&str, &str)]) {
    let (mut observed, spec) = (service.engine.containers().remove(0), service.engine.specs().remove(0));
    let chat = chat();
    observed = Observed { id: ContainerId::new(id), name: format!("sandboxd-default-{chat}"), ..observed };
    observed.labels.insert("sandboxd.chat-id".to_owned(), chat);
    for (label, value) in changes {
        observed.labels.insert((*label).to_owned(), (*value).to_owned());
    }
    service.engine.place(observed, spec);
}

#[tokio::test]
async fn a_dry_run_lists_each_action_with_its_reason_and_performs_none() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    create(&service, &mut caller, &chat()).await;
    place_copy(&service, "unacknowledged", &[("sandboxd.created-at", "2020-01-01T00:00:00Z")]);
    place_copy(&service, "young", &[]);
    place_copy(&service, "newer", &[(labels::SCHEMA, "99")]);

    let planned = call(&mut caller, "system.reconcile", json!({ "dry_run": true })).await["result"].clone();
    assert_eq!((&planned["dry_run"], &planned["containers"]), (&json!(true), &json!(4)), "{planned}");
    let actions = planned["actions"].as_array().expect("an array");
    let planned_actions: std::collections::BTreeMap<_, _> = actions
        .iter()
        .map(|action| (action["container_id"].as_str().expect("an id"), (&action["action"], &action["because"])))
        .collect();
    let left = (&json!("leave"), &json!("left_alone"));
    let expected =
        [("unacknowledged", (&json!("adopt"), &json!("never_acknowledged"))), ("young", left), ("newer", left)];
    assert_eq!(planned_actions, expected.into(), "{planned}");
    let unacknowledged = actions.iter().find(|action| action["container_id"] == "unacknowledged").expect("listed");
    assert!(unacknowledged["status"] == "deleting" && unacknowledged["chat_id"].is_string(), "{unacknowledged}");
    let newer = actions.iter().find(|action| action["container_id"] == "newer").expect("listed");
    assert!(newer["message"].as_str().is_some_and(|why| why.contains("schema")), "{newer}");
    assert_eq!((service.engine.containers().len(), service.engine.calls(Operation::Remove)), (4, 0));

    let done = call(&mut caller, "system.reconcile", json!({})).await["result"].clone();
    assert_eq!((&done["dry_run"], &done["actions"]), (&json!(false), &planned["actions"]));
    let removed = service.engine.until(|engine| engine.containers().len() == 3);
    tokio::time::timeout(PATIENCE, removed).await.expect("the unacknowledged container is removed");
    let again = call(&mut caller, "system.reconcile", json!({ "dry_run": true })).await["result"].clone();
    assert!(
        again["actions"].as_array().is_some_and(|actions| actions.iter().all(|a| a["action"] == "leave")),
        "{again}"
    );
}

#[tokio::test]
async fn a_reconciliation_without_an_engine_fails() {
    let service = Service::start().await;
    service.engine.fail_always(Operation::List, sandboxd_actors::ports::engine::fake::Fault::unreachable());
    let mut caller = service.connect().await;
    assert_eq!(kind(&call(&mut caller, "system.reconcile", json!({})).await), "engine_unavailable");
}
