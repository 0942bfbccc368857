//! Callers that create, reuse, get, renew and delete at random, and check the service's promises.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::prelude::*;
use sandboxd::client::Client;
use sandboxd_protocol::error::Error;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::create_params::CreateParams;
use crate::daemon::{Daemon, call};
use crate::private_dockerd::PrivateDockerd;

const CALLERS: u64 = 4;
/// The pause between two requests of a caller, so that immediate refusals do not use up the processor.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest wait for a condition, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// The longest wait for requests that need no engine. `system.health` asks the engine, but only briefly.
const UNAFFECTED: Duration = Duration::from_secs(5);

/// The counts of answers so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) created: usize,
    pub(super) reused: usize,
    pub(super) deleted: usize,
    pub(super) refused_creates: usize,
    pub(super) refused_deletes: usize,
    pub(super) unaffected: usize,
    /// The current time limit of requests that need the engine.
    limit: Option<Duration>,
}

/// A chat, and the promise to its only caller.
pub(super) struct Account {
    pub(super) chat: CreateParams,
    pub(super) session: Option<Value>,
    /// The load never deletes this chat's sandbox, so it must stay.
    lasting: bool,
}

pub(super) struct Load {
    seen: Arc<watch::Sender<Seen>>,
    stop: watch::Sender<bool>,
    callers: JoinSet<Vec<Account>>,
}

impl Load {
    pub(super) async fn start(service: &Daemon, engine: &PrivateDockerd, sandboxes_survive: bool) -> Self {
        let seen = Arc::new(watch::Sender::new(Seen::default()));
        let (stop, mut callers) = (watch::Sender::new(false), JoinSet::new());
        for seed in 0..CALLERS {
            let account = |lasting| Account { chat: service.new_chat(), session: None, lasting };
            let caller = Caller {
                client: service.connect().await,
                accounts: [true, false, false].map(account).into(),
                random: StdRng::seed_from_u64(seed),
                seen: Arc::clone(&seen),
                container_directories: engine.container_directories(),
                sandboxes_survive,
            };
            callers.spawn(caller.call_until(stop.subscribe()));
        }
        Self { seen, stop, callers }
    }

    pub(super) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Sets the time limit of all requests that need the engine and begin from now on.
    pub(super) fn set_limit(&self, limit: Duration) {
        self.seen.send_modify(|seen| seen.limit = Some(limit));
    }

    pub(super) fn remove_limit(&self) {
        self.seen.send_modify(|seen| seen.limit = None);
    }

    pub(super) async fn until(&mut self, label: &str, condition: impl Fn(&Seen) -> bool) {
        let mut seen = self.seen.subscribe();
        tokio::select! {
            _ = seen.wait_for(condition) => {}
            ended = self.callers.join_next() => panic!("a caller ended: {:?}", ended.map(|caller| caller.map(drop))),
            () = tokio::time::sleep(PATIENCE) => panic!("not within the time limit: {label}: {:?}", self.seen()),
        }
    }

    /// Waits for the last answer of every caller.
    pub(super) async fn end(&mut self) -> Vec<Account> {
        self.stop.send_replace(true);
        std::mem::take(&mut self.callers).join_all().await.into_iter().flatten().collect()
    }
}

struct Caller {
    client: Client,
    accounts: Vec<Account>,
    random: StdRng,
    seen: Arc<watch::Sender<Seen>>,
    container_directories: PathBuf,
    sandboxes_survive: bool,
}

impl Caller {
    async fn call_until(mut self, stop: watch::Receiver<bool>) -> Vec<Account> {
        while !*stop.borrow() {
            let index = self.random.random_range(0..self.accounts.len());
            match self.random.random_range(0..100) {
                0..35 => self.create(index).await,
                35..55 if !self.accounts[index].lasting => self.delete(index).await,
                35..70 => self.get(index).await,
                70..90 => self.renew(index).await,
                90..95 => self.unaffected("sandbox.list").await,
                _ => self.unaffected("system.health").await,
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.accounts
    }

    async fn create(&mut self, index: usize) {
        let params = self.accounts[index].chat.clone();
        let answer = self.with_the_engine("sandbox.create", json!(params)).await;
        let (survive, account) = (self.sandboxes_survive, &mut self.accounts[index]);
        match answer {
            Ok(sandbox) => {
                let outcome = sandbox["outcome"].as_str().expect("a text");
                match (&account.session, outcome) {
                    (Some(session), "reused") => assert_eq!(session, &sandbox["session_id"]),
                    (Some(_), "replaced") => assert!(!survive, "lost: {sandbox}"),
                    (None, "created") => {}
                    (before, _) => panic!("{outcome} where {before:?} was promised: {sandbox}"),
                }
                account.session = Some(sandbox["session_id"].clone());
                self.seen.send_modify(|seen| match outcome {
                    "reused" => seen.reused += 1,
                    _ => seen.created += 1,
                });
            }
            Err(failure) => {
                // The sandbox was started, and then ended with its engine.
                let ended = !survive && failure.data.kind.as_str() == "sandbox_start_failed";
                assert!(ended || failure.data.kind.as_str() == "engine_unavailable", "{failure:?}");
                assert!(!survive || account.session.is_none(), "not reused: {failure:?}");
                account.session = None;
                self.seen.send_modify(|seen| seen.refused_creates += 1);
            }
        }
    }

    async fn delete(&mut self, index: usize) {
        let params = json!({ "chat_id": self.accounts[index].chat.chat_id() });
        let answer = self.with_the_engine("sandbox.delete", params).await;
        let promised = self.accounts[index].session.take();
        match answer {
            Ok(deleted) => {
                if let Some(session) = promised {
                    assert_eq!((&deleted["result"], &deleted["session_id"]), (&json!("deleted"), &session));
                    self.seen.send_modify(|seen| seen.deleted += 1);
                }
                if let Some(container) = deleted["container_id"].as_str() {
                    // The engine may be down by now, but its directories are readable.
                    assert!(!self.container_directories.join(container).exists(), "it remains: {deleted}");
                }
            }
            Err(failure) => {
                assert_eq!(
                    (failure.data.kind.as_str(), &failure.data.details["owed"]),
                    ("engine_unavailable", &json!(true))
                );
                self.seen.send_modify(|seen| seen.refused_deletes += 1);
            }
        }
    }

    async fn get(&mut self, index: usize) {
        let answer = self.without_the_engine("sandbox.get", self.of(index)).await;
        match (&self.accounts[index].session, answer) {
            (Some(session), Ok(sandbox)) => {
                assert_eq!(session, &sandbox["session_id"]);
                let failed = !self.sandboxes_survive && sandbox["status"] == "failed";
                assert!(failed || sandbox["status"] == "running", "{sandbox}");
            }
            // The sandbox is no longer promised, but perhaps not yet removed.
            (None, Ok(sandbox)) => assert_eq!(sandbox["status"], "deleting", "{sandbox}"),
            (None, Err(failure)) => assert_eq!(failure.data.kind.as_str(), "sandbox_not_found", "{failure:?}"),
            (Some(session), Err(failure)) => panic!("{session} is lost: {failure:?}"),
        }
    }

    async fn renew(&mut self, index: usize) {
        let mut params = self.of(index);
        params["ttl"] = json!(90_000);
        let answer = self.without_the_engine("sandbox.renew", params).await;
        match (&self.accounts[index].session, answer) {
            (Some(session), Ok(sandbox)) => assert_eq!(session, &sandbox["session_id"]),
            (Some(session), Err(failure)) => {
                let failed = !self.sandboxes_survive && failure.data.kind.as_str() == "sandbox_not_running";
                assert!(failed, "{session} is not renewed: {failure:?}");
            }
            (None, Ok(sandbox)) => panic!("it is gone: {sandbox}"),
            (None, Err(failure)) => {
                assert!(
                    ["sandbox_not_found", "sandbox_not_running"].contains(&failure.data.kind.as_str()),
                    "{failure:?}"
                );
            }
        }
    }

    async fn unaffected(&mut self, method: &str) {
        self.without_the_engine(method, json!({})).await.unwrap_or_else(|failure| panic!("{method}: {failure:?}"));
    }

    fn of(&self, index: usize) -> Value {
        json!({ "chat_id": self.accounts[index].chat.chat_id() })
    }

    async fn with_the_engine(&self, method: &str, params: Value) -> Result<Value, Error> {
        let limit = self.seen.borrow().limit;
        let asked = Instant::now();
        let answer = call(&self.client, method, params).await;
        let took = asked.elapsed();
        assert!(limit.is_none_or(|limit| took <= limit), "{method} took {took:?}: {answer:?}");
        answer
    }

    async fn without_the_engine(&self, method: &str, params: Value) -> Result<Value, Error> {
        let asked = Instant::now();
        let answer = call(&self.client, method, params).await;
        assert!(asked.elapsed() <= UNAFFECTED, "{method} took {:?}: {answer:?}", asked.elapsed());
        self.seen.send_modify(|seen| seen.unaffected += 1);
        answer
    }
}
