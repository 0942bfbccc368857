//! Tests of socket activation: another process holds the listening socket, the service restarts, and callers only wait.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use sandboxd::client::{Client, ClientError};
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::installation::Installation;

/// The fields of an unused sandbox that a restart must not change.
const LASTING: [&str; 9] = [
    "session_id",
    "container_id",
    "status",
    "created_at",
    "started_at",
    "last_activity_at",
    "expires_at",
    "idle_expires_at",
    "held_until",
];

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_never_refused_and_lose_no_acknowledged_change_through_restarts_and_a_kill() {
    let installation = Installation::new("profiles.default = { network = 'none', ttl = '1h' }");
    let listener = UnixListener::bind(installation.socket()).expect("a socket");
    let socket_file = identity(&installation.socket());
    let mut service = installation.start_on(&listener).await;

    let quiet = service.new_chat();
    service.created(&quiet).await;
    let hold = json!({ "chat_id": quiet.chat_id(), "duration": 600, "durable": true });
    let leased = service.call("sandbox.lease", hold).await.expect("leased");
    service.call("sandbox.renew", json!({ "chat_id": quiet.chat_id(), "ttl": 7200 })).await.expect("renewed");
    let promised = service.call("sandbox.touch", json!({ "chat_id": quiet.chat_id() })).await.expect("touched");

    let workers = [(); 3].map(|()| Worker::start(service.socket(), service.new_chat()));
    for end in [End::Term, End::Term, End::Kill, End::Term] {
        join_all(workers.iter().map(Worker::makes_progress)).await;
        let installation = match end {
            End::Term => service.stop().await,
            End::Kill => service.kill().await,
        };
        assert_eq!(identity(&installation.socket()), socket_file, "the socket is not the service's to remove");
        service = installation.start_on(&listener).await;
        let after = service.get(&quiet).await.expect("it was promised");
        for field in LASTING {
            assert_eq!(after[field], promised[field], "{field} after {end:?}");
        }
    }
    let release = json!({ "chat_id": quiet.chat_id(), "lease_id": leased["lease_id"] });
    let released = service.call("sandbox.release", release).await.expect("its lease is known by its id");
    assert_eq!(released["held_until"], Value::Null);
    join_all(workers.iter().map(Worker::makes_progress)).await;
    for worker in workers {
        worker.end(&service).await;
    }
    assert_eq!(service.containers().await.count().await, 4);
}

#[derive(Debug, Clone, Copy)]
enum End {
    Term,
    Kill,
}

/// Uses one chat's sandbox without a pause, and checks each answer against the earlier ones.
struct Worker {
    answers: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    work: JoinHandle<(CreateParams, Promise)>,
}

/// The promise in the last answer.
#[derive(Debug, Clone, PartialEq)]
struct Promise {
    session: String,
    expires_at: DateTime<Utc>,
}

impl Promise {
    fn of(sandbox: &Value) -> Self {
        let text = |field: &str| sandbox[field].as_str().unwrap_or_else(|| panic!("no {field}: {sandbox}"));
        Self { session: text("session_id").into(), expires_at: text("expires_at").parse().expect("a time") }
    }
}

impl Worker {
    fn start(socket: PathBuf, chat: CreateParams) -> Self {
        let (answers, ended) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let work = tokio::spawn(work(socket, chat, Arc::clone(&answers), Arc::clone(&ended)));
        Self { answers, ended, work }
    }

    /// Returns once the worker has got ten more answers.
    async fn makes_progress(&self) {
        let before = self.answers.load(Ordering::Relaxed);
        eventually("callers are answered", || async {
            assert!(!self.work.is_finished(), "a caller gave up");
            (self.answers.load(Ordering::Relaxed) >= before + 10).then_some(())
        })
        .await;
    }

    /// Asserts that the service's state matches the worker's last answer.
    async fn end(self, service: &Daemon) {
        self.ended.store(true, Ordering::Relaxed);
        let (chat, promise) = self.work.await.expect("it kept its promises");
        assert_eq!(Promise::of(&service.get(&chat).await.expect("it is there")), promise);
    }
}

async fn work(
    socket: PathBuf,
    chat: CreateParams,
    answers: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
) -> (CreateParams, Promise) {
    let mut client = connected(&socket).await;
    let mut promise: Option<Promise> = None;
    let mut ttl = 3600;
    while !ended.load(Ordering::Relaxed) || promise.is_none() {
        ttl += 1;
        let asked: Result<Value, _> = if promise.is_some() && ttl % 2 == 0 {
            client.call(Method::SandboxRenew, json!({ "chat_id": chat.chat_id(), "ttl": ttl })).await
        } else {
            client.call(Method::SandboxCreate, &chat).await
        };
        match asked {
            Ok(sandbox) => {
                let promised = Promise::of(&sandbox);
                if let Some(before) = promise.replace(promised.clone()) {
                    assert_eq!(promised.session, before.session, "another sandbox");
                    assert!(promised.expires_at >= before.expires_at, "{promised:?} is less than {before:?}");
                }
                answers.fetch_add(1, Ordering::Relaxed);
            }
            // The service is stopping: the next one answers on a new connection.
            Err(ClientError::Disconnected) => client = connected(&socket).await,
            Err(ClientError::Failed(failure)) if failure.data.kind.as_str() == "shutting_down" => {
                client = connected(&socket).await;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    (chat, promise.expect("an answer"))
}

async fn connected(socket: &Path) -> Client {
    Client::connect(socket).await.unwrap_or_else(|error| panic!("a refused connection: {error}"))
}

fn identity(file: &Path) -> (u64, u64) {
    let metadata = std::fs::symlink_metadata(file).expect("it is there");
    (metadata.dev(), metadata.ino())
}
