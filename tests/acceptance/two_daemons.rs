//! Tests of two services on one engine: with two names they never interfere, and one name admits only one service.

use std::collections::HashMap;

use rand::prelude::*;
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};

use crate::create_params::CreateParams;
use crate::daemon::{Daemon, call};
use crate::engine::eventually;
use crate::gate::{GATED, open_gate};
use crate::installation::Installation;
use crate::interposed_engine::interposed;

const SMALL: &str = "profiles.default.network = 'none'";
const STEPS: usize = 30;

#[tokio::test(flavor = "multi_thread")]
async fn services_with_two_names_never_touch_each_others_sandboxes() {
    // Both services have the same chats: only the instance name distinguishes their containers.
    let chats: Vec<String> = (0..4).map(|_| uuid::Uuid::new_v4().to_string()).collect();
    let (one, other) = tokio::join!(Daemon::start(SMALL), Daemon::start(SMALL));
    let one = Customer::new(one, &chats, 1);
    let other = Customer::new(other, &chats, 2);
    let (one, other) = tokio::join!(one.use_it(true), other.use_it(false));
    for customer in [one, other] {
        customer.has_exactly_the_promised_sandboxes().await;
    }
}

/// A caller that records a service's promises and checks them.
struct Customer {
    service: Daemon,
    chats: Vec<CreateParams>,
    /// Session and container, by chat.
    promised: HashMap<String, (Value, Value)>,
    random: StdRng,
}

impl Customer {
    fn new(service: Daemon, chats: &[String], seed: u64) -> Self {
        let chats = chats.iter().map(|chat| CreateParams::new(chat, "agent", &service.volume(chat))).collect();
        Self { service, chats, promised: HashMap::new(), random: StdRng::seed_from_u64(seed) }
    }

    async fn use_it(mut self, with_kills: bool) -> Self {
        for step in 0..STEPS {
            let chat = self.chats.choose(&mut self.random).expect("a chat").clone();
            match self.random.random_range(0..10) {
                0..4 => self.create(&chat).await,
                4..6 => self.delete(&chat).await,
                6..8 => self.renew(&chat).await,
                _ => drop(self.service.call("system.reconcile", json!({})).await.expect("a report")),
            }
            if with_kills && step % 6 == 5 {
                self = self.killed_in_the_middle().await;
            }
        }
        self
    }

    async fn create(&mut self, chat: &CreateParams) {
        let sandbox = self.service.created(chat).await;
        let now = (sandbox["session_id"].clone(), sandbox["container_id"].clone());
        match self.promised.insert(chat.chat_id().to_owned(), now.clone()) {
            Some(before) => assert_eq!((&sandbox["outcome"], now), (&json!("reused"), before)),
            None => assert_eq!(sandbox["outcome"], "created"),
        }
    }

    async fn delete(&mut self, chat: &CreateParams) {
        let deleted = self.service.delete(chat).await.expect("an answer");
        let before = self.promised.remove(chat.chat_id());
        assert_eq!(deleted["result"], if before.is_some() { "deleted" } else { "not_found" });
    }

    async fn renew(&mut self, chat: &CreateParams) {
        let renewed = self.service.call("sandbox.renew", json!({ "chat_id": chat.chat_id(), "ttl": 90_000 })).await;
        match self.promised.get(chat.chat_id()) {
            Some((session, _)) => assert_eq!(renewed.expect("it is there")["session_id"], *session),
            None => assert_eq!(renewed.expect_err("it is not there").data.kind.as_str(), "sandbox_not_found"),
        }
    }

    /// Kills the service during a create and a delete, and repeats both at the next one.
    async fn killed_in_the_middle(mut self) -> Self {
        let mut chats = self.chats.clone();
        chats.shuffle(&mut self.random);
        let client = self.service.connect().await;
        let cut_off = [
            (Method::SandboxCreate, json!(chats[0])),
            (Method::SandboxDelete, json!({ "chat_id": chats[1].chat_id() })),
        ]
        .map(|(method, params)| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<Value>(method, params).await })
        });
        // This answer comes after the service has taken the earlier requests of the connection.
        call(&client, "system.info", json!({})).await.expect("an answer");
        let Customer { service, chats: all, mut promised, random } = self;
        let service = service.kill().await.start().await;
        for request in cut_off {
            // The request may have failed; the repeated request decides.
            let _ = request.await.expect("no panic");
        }
        let created = service.created(&chats[0]).await;
        service.delete(&chats[1]).await.expect("an answer");
        promised.remove(chats[1].chat_id());
        let now = (created["session_id"].clone(), created["container_id"].clone());
        if let Some(before) = promised.insert(chats[0].chat_id().to_owned(), now.clone()) {
            assert_eq!(now, before);
        }
        Customer { service, chats: all, promised, random }
    }

    async fn has_exactly_the_promised_sandboxes(self) {
        let running = |sandbox: &Value| (sandbox["session_id"].clone(), sandbox["container_id"].clone());
        let listed = self.service.list().await;
        assert!(listed.iter().all(|sandbox| sandbox["status"] == "running"), "{listed:#?}");
        let listed: HashMap<String, _> = listed
            .iter()
            .map(|sandbox| (sandbox["chat_id"].as_str().expect("a chat").to_owned(), running(sandbox)))
            .collect();
        assert_eq!(listed, self.promised);
        let mut present: Vec<_> =
            self.service.containers().await.all().await.into_iter().map(|container| json!(container.id)).collect();
        let mut expected: Vec<_> = self.promised.values().map(|(_, container)| container.clone()).collect();
        present.sort_by_key(Value::to_string);
        expected.sort_by_key(Value::to_string);
        assert_eq!(present, expected);
        let would = self.service.call("system.reconcile", json!({ "dry_run": true })).await.expect("a report");
        assert_eq!(would["actions"], json!([]));
    }
}

#[tokio::test]
async fn a_second_service_of_the_same_name_is_refused_wherever_it_keeps_its_state() {
    let first = Daemon::start(GATED).await;
    let (ready, half_made) = (first.new_chat(), first.new_chat());
    open_gate(&ready);
    let sandbox = first.created(&ready).await;
    let creating = first.creating(&half_made).await;
    eventually("it is half made", || async { (first.containers().await.count().await == 2).then_some(()) }).await;

    // The second service has its own state, socket and chats: only the name and the engine are shared.
    let second = Installation::new(&format!("instance.name = '{}'\n{GATED}", first.name()));
    let refused = second.sandboxd_output(&[]).await;
    assert_eq!(refused.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&refused.stderr);
    let expected = format!("another service runs as instance {} on ", first.name());
    assert!(errors.contains(&expected) && errors.contains("set a different instance.name"), "{errors}");
    assert!(!second.socket().exists(), "no connections are accepted");

    open_gate(&half_made);
    assert_eq!(creating.await.expect("no panic").expect("created")["status"], "running");
    let again = first.created(&ready).await;
    assert_eq!((&again["outcome"], &again["session_id"]), (&json!("reused"), &sandbox["session_id"]));
    assert_eq!(first.containers().await.count().await, 2);

    // The name is free as soon as no service runs under it, also after a kill.
    let _first = first.kill().await;
    let second = second.start().await;
    assert_eq!(second.get(&ready).await.expect("known by its labels")["session_id"], sandbox["session_id"]);
}

#[tokio::test]
async fn a_second_service_that_could_not_ask_the_engine_ends_once_it_can() {
    let (installation, engine) = interposed(SMALL).await;
    let first = installation.start().await;
    let chat = first.new_chat();
    let sandbox = first.created(&chat).await;

    engine.fall_silent("");
    let host = format!("unix://{}", first.path("engine.sock").display());
    let settings = format!("instance.name = '{}'\nengine.host = '{host}'\n{SMALL}", first.name());
    let second = Installation::new(&settings).start().await;
    engine.recover();
    let (status, second) = second.ended().await;
    assert_eq!(status.code(), Some(1));
    let log = second.log();
    assert!(log.contains(&format!("another service runs as instance {}", first.name())), "{log}");

    let again = first.created(&chat).await;
    assert_eq!((&again["outcome"], &again["session_id"]), (&json!("reused"), &sandbox["session_id"]));
}
