//! Tests of the read-only role: its calls neither resume a sandbox nor count as activity.

use crate::support::{Caller, Service, chat, kind, request};
use rustix::process::{Gid, Uid};
use sandboxd::server::Limits;
use sandboxd::server::access::Allowed;
use sandboxd_actors::domain::ids::ContainerId;
use sandboxd_actors::ports::engine::logs::LogStream;
use sandboxd_protocol::method::{Effect, Method};
use serde_json::{Value, json};
use tokio::net::UnixStream;

const READER: u32 = 4_243;

struct Watched {
    service: Service,
    full: Caller,
    under_way: Vec<Caller>,
    chat: String,
}

impl Watched {
    /// Returns `None` unless the test runs as root: only root can impersonate another user.
    async fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can impersonate another user");
            return None;
        }
        let allowed = Allowed { read_only_groups: vec![READER.to_string()], ..Allowed::default() };
        let service = Service::with(Limits::default(), &allowed).await;
        let mut full = service.connect().await;
        let chat = chat();
        let created = full.ask(service.create(1, &chat)).await;
        assert_eq!(created["result"]["status"], "running", "{created}");
        let container = ContainerId::new(created["result"]["container_id"].as_str().expect("a container"));
        service.engine.print(&container, LogStream::Stdout, "printed");
        Some(Self { service, full, under_way: Vec::new(), chat })
    }

    /// Returns the fields that activity, a lease or a resume would change.
    async fn state(&mut self) -> Value {
        let sandbox = self.full.ask(request(1, "sandbox.get", &json!({ "chat_id": self.chat }))).await;
        let fields = ["status", "reason", "last_activity_at", "expires_at", "idle_expires_at", "held_until", "held_by"];
        fields.map(|field| sandbox["result"][field].clone()).to_vec().into()
    }

    fn line(&self, method: Method) -> String {
        let mut params = match method {
            Method::SandboxReadFile | Method::SandboxStatFile => json!({ "path": "/etc/passwd" }),
            Method::SandboxListFiles => json!({ "path": "/etc" }),
            Method::SandboxReadTree => json!({ "path": "/etc/init.d" }),
            Method::SandboxLogs => json!({ "follow": true }),
            Method::EventsWatch => json!({ "after": 0 }),
            _ => json!({}),
        };
        if method.name().starts_with("sandbox.") && method != Method::SandboxList {
            params["chat_id"] = json!(self.chat);
        }
        request(7, method.name(), &params)
    }

    /// Returns the answer and skips notifications. A call without an end stays in flight after its first notification.
    async fn ask(&mut self, method: Method) -> Option<Value> {
        let mut reader = connect_as_reader(&self.service);
        reader.send(self.line(method)).await;
        loop {
            let message = reader.answer().await;
            if message.get("id").is_some() {
                return Some(message);
            }
            if matches!(method, Method::EventsWatch | Method::SandboxLogs) {
                self.under_way.push(reader);
                return None;
            }
        }
    }
}

/// Connects as the reader. Credentials belong to a thread; the kernel records those of the connecting one.
fn connect_as_reader(service: &Service) -> Caller {
    let socket = service.socket.clone();
    let connecting = std::thread::spawn(move || {
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_gid(Gid::from_raw(READER))?;
        rustix::thread::set_thread_uid(Uid::from_raw(READER))?;
        std::os::unix::net::UnixStream::connect(socket)
    });
    let stream = connecting.join().expect("no panic").expect("connected");
    stream.set_nonblocking(true).expect("non-blocking");
    Caller::new(UnixStream::from_std(stream).expect("a stream"))
}

fn readable() -> impl Iterator<Item = Method> {
    Method::ALL.into_iter().filter(|method| method.only_reads())
}

#[tokio::test]
async fn no_call_of_a_reader_is_use_of_a_running_sandbox() {
    let Some(mut watched) = Watched::new().await else { return };
    let before = watched.state().await;
    for method in readable() {
        let answer = watched.ask(method).await;
        assert!(answer.as_ref().is_none_or(|answer| answer.get("result").is_some()), "{method:?}: {answer:?}");
        assert_eq!(watched.state().await, before, "{method:?}");
    }
}

#[tokio::test]
async fn no_call_of_a_reader_resumes_a_paused_sandbox() {
    let Some(mut watched) = Watched::new().await else { return };
    let paused = watched.full.ask(request(1, "sandbox.pause", &json!({ "chat_id": watched.chat }))).await;
    assert_eq!(paused["result"]["status"], "paused", "{paused}");
    let before = watched.state().await;
    for method in readable() {
        let answer = watched.ask(method).await;
        if method.effect() == Effect::ReadGuest || method == Method::SandboxStats {
            let answer = answer.expect("an answer");
            assert_eq!(kind(&answer), "sandbox_not_running", "{method:?}: {answer}");
            let message = answer["error"]["message"].as_str().expect("a message");
            assert!(message.contains("paused") && message.contains("full role"), "{message}");
        }
        assert_eq!(watched.state().await, before, "{method:?}");
    }
}

#[tokio::test]
async fn a_call_with_the_full_role_that_asks_the_guest_is_use_and_resumes() {
    let Some(mut watched) = Watched::new().await else { return };
    let paused = watched.full.ask(request(1, "sandbox.pause", &json!({ "chat_id": watched.chat }))).await;
    assert_eq!(paused["result"]["status"], "paused", "{paused}");
    let before = watched.state().await;
    let line = watched.line(Method::SandboxStatFile);
    assert_eq!(watched.full.ask(line).await["result"]["kind"], "file");
    let after = watched.state().await;
    assert!(after[0] == "running" && after != before, "{after}");
}
