//! Tests of many callers at once: each chat has at most one container, and none is left at the end.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use rand::prelude::*;
use serde_json::{Value, json};

use crate::containers::Containers;
use crate::daemon::{Daemon, call};

const SMALL: &str = "profiles.default.network = 'none'";

#[tokio::test(flavor = "multi_thread")]
async fn fifty_creates_at_once_for_one_chat_get_one_sandbox() {
    let service = Daemon::start(SMALL).await;
    let limit_counts = LimitCounts::start(service.containers().await);
    let chat = service.new_chat();
    let clients = join_all((0..50).map(|_| service.connect())).await;
    let answers = join_all(clients.iter().map(|client| call(client, "sandbox.create", &chat))).await;

    let mut answers: Vec<Value> = answers.into_iter().map(|answer| answer.expect("a sandbox")).collect();
    let created = answers.iter().filter(|answer| answer["outcome"] == "created").count();
    assert!(created > 0);
    // A late caller finds the sandbox running; otherwise all answers are equal.
    for answer in &mut answers {
        let fields = answer.as_object_mut().expect("an object");
        fields.retain(|name, _| !["outcome", "launch", "last_activity_at", "idle_expires_at"].contains(&name.as_str()));
    }
    assert!(answers.iter().all(|answer| answer == &answers[0]), "{answers:#?}");
    assert_eq!(service.containers().await.only().await, answers[0]["container_id"]);
    service.delete(&chat).await.expect("deleted");
    assert_eq!(limit_counts.end().await, HashMap::from([(chat.chat_id().to_owned(), 1)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_never_have_two_containers_under_parallel_creates_and_deletes() {
    const CONNECTIONS: usize = 8;
    const REQUESTS_EACH: usize = 25;
    let service = Daemon::start(SMALL).await;
    let containers = service.containers().await;
    let limit_counts = LimitCounts::start(containers.clone());
    let chats: Vec<_> = (0..10).map(|_| service.new_chat()).collect();
    let clients = join_all((0..CONNECTIONS).map(|_| service.connect())).await;

    let work = clients.iter().enumerate().map(|(seed, client)| {
        let chats = &chats;
        async move {
            let mut random = StdRng::seed_from_u64(seed as u64);
            for _ in 0..REQUESTS_EACH {
                let chat = chats.choose(&mut random).expect("a chat");
                if random.random_bool(0.6) {
                    match call(client, "sandbox.create", chat).await {
                        Ok(sandbox) => assert_eq!(sandbox["chat_id"], chat.chat_id()),
                        // Another connection deleted it meanwhile.
                        Err(failure) => assert_eq!(failure.data.details["cause"], "deleted", "{failure:?}"),
                    }
                } else {
                    let answer = call(client, "sandbox.delete", json!({ "chat_id": chat.chat_id() })).await;
                    assert!(["deleted", "not_found"].map(Value::from).contains(&answer.expect("an answer")["result"]));
                }
            }
        }
    });
    join_all(work).await;

    // The service's list must match the engine's containers.
    let mut listed: Vec<_> = service.list().await.iter().map(|sandbox| sandbox["container_id"].clone()).collect();
    let mut present: Vec<_> = containers.all().await.into_iter().map(|container| json!(container.id)).collect();
    listed.sort_by_key(Value::to_string);
    present.sort_by_key(Value::to_string);
    assert_eq!(listed, present);

    for deleted in join_all(chats.iter().map(|chat| service.delete(chat))).await {
        deleted.expect("an answer");
    }
    assert_eq!(containers.count().await, 0);
    assert_eq!(service.list().await, Vec::<Value>::new());
    let births = limit_counts.end().await;
    assert!(births.values().sum::<usize>() > chats.len(), "{births:?}");
}

/// Watches the engine, and asserts that no chat ever has two containers.
struct LimitCounts {
    containers: Containers,
    watch: tokio::task::JoinHandle<HashMap<String, usize>>,
}

impl LimitCounts {
    fn start(containers: Containers) -> Self {
        let mut events = Box::pin(containers.creations_and_removals());
        let watch = tokio::spawn(async move {
            let (mut births, mut alive) = (HashMap::new(), HashMap::new());
            // The marker that `end` creates has no chat.
            while let Some(event) = events.next().await {
                let chat = event.actor.and_then(|actor| actor.attributes?.remove("sandboxd.chat-id"));
                let Some(chat) = chat else { break };
                let alive: &mut i32 = alive.entry(chat.clone()).or_default();
                match event.action.as_deref() {
                    Some("create") => {
                        *births.entry(chat).or_default() += 1;
                        *alive += 1;
                    }
                    _ => *alive -= 1,
                }
                assert!((0..=1).contains(alive), "{alive} containers at once");
            }
            assert!(alive.values().all(|alive| *alive == 0), "{alive:?}");
            births
        });
        Self { containers, watch }
    }

    /// Returns the number of containers that each chat has had. All of them must be gone.
    async fn end(self) -> HashMap<String, usize> {
        let marker = self.containers.create_marker().await;
        let births = tokio::time::timeout(Duration::from_secs(30), self.watch).await;
        self.containers.remove(&marker).await;
        births.expect("the marker's event arrives").expect("never two containers")
    }
}
