//! Tests of connections: limits per caller, roles, disconnects and shutdown.

use std::collections::HashMap;
use std::time::Duration;

use crate::support::{Caller, INFO, PATIENCE, Service, chat, is_usable, kind, request};
use rustix::process::{Gid, Resource, Rlimit, Uid};
use sandboxd::server::Limits;
use sandboxd::server::access::Allowed;
use sandboxd_actors::ports::engine::Operation;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

// ---- requests in flight ----

#[tokio::test]
async fn a_slow_request_holds_up_no_other() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let slow = chat();
    let gate = service.engine.hold_next(Operation::Create);
    caller.send(service.create(1, &slow)).await;
    service.engine.reached(Operation::Create, 1).await;
    let answer = caller.ask(request(2, "sandbox.get", &json!({ "chat_id": slow }))).await;
    assert_eq!((&answer["id"], &answer["result"]["status"]), (&json!(2), &json!("creating")));
    gate.open();
    assert_eq!(caller.answer().await["id"], 1);
}

#[tokio::test]
async fn a_caller_that_vanishes_mid_create_gets_its_sandbox_all_the_same() {
    let service = Service::start().await;
    let chat = chat();
    let gate = service.engine.hold_next(Operation::Create);
    let mut caller = service.connect().await;
    caller.send(service.create(1, &chat)).await;
    service.engine.reached(Operation::Create, 1).await;
    drop(caller);
    gate.open();
    let answer = service.connect().await.ask(service.create(2, &chat)).await;
    assert_eq!(answer["result"]["status"], "running", "{answer}");
    assert_eq!(service.engine.containers().len(), 1);
}

#[tokio::test]
async fn a_caller_that_stops_writing_still_gets_its_answers() {
    let service = Service::start().await;
    let chat = chat();
    let gate = service.engine.hold_next(Operation::Create);
    let mut caller = service.connect().await;
    caller.send(service.create(1, &chat)).await;
    caller.sink.shutdown().await.expect("half closed");
    service.engine.reached(Operation::Create, 1).await;
    gate.open();
    assert_eq!(caller.answer().await["result"]["chat_id"], json!(chat));
    assert_eq!(caller.next().await, None);
}

#[tokio::test]
async fn requests_beyond_the_limit_in_flight_wait() {
    let service = Service::with_limits(Limits { max_in_flight: 2, ..Limits::default() }).await;
    let mut caller = service.connect().await;
    let gates = [(); 2].map(|()| service.engine.hold_next(Operation::Create));
    for id in 1..=2 {
        caller.send(service.create(id, &chat())).await;
    }
    service.engine.reached(Operation::Create, 2).await;
    caller.send(request(3, "system.info", &json!({}))).await;
    is_usable(&mut service.connect().await).await;
    assert!(caller.is_silent());
    gates.iter().for_each(sandboxd_actors::ports::engine::fake::Gate::open);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(caller.answer().await["id"].as_u64());
    }
    ids.sort_unstable();
    assert_eq!(ids, [Some(1), Some(2), Some(3)]);
}

#[tokio::test]
async fn a_caller_that_never_reads_is_slowed_down_and_then_cut_off() {
    let limits =
        Limits { max_output: 64 << 10, write_stall: Duration::from_millis(300), max_in_flight: 8, ..Limits::default() };
    let service = Service::with_limits(limits).await;
    let mut unread = service.connect().await;
    let line = request(1, "system.info", &json!({}));
    let flood = async {
        let mut sent = 0u64;
        while unread.sink.write_all(line.as_bytes()).await.is_ok() {
            sent += 1;
        }
        sent
    };
    let sent = tokio::time::timeout(PATIENCE, flood).await.expect("cut off");
    // The caller can fill the kernel's and the service's buffers, and no more.
    assert!(sent < 20_000, "{sent}");
    is_usable(&mut service.connect().await).await;
}

#[tokio::test]
async fn a_flood_that_outruns_its_reader_loses_no_answer() {
    let service = Service::with_limits(Limits { max_output: 16 << 10, ..Limits::default() }).await;
    let Caller { source, mut sink } = service.connect().await;
    let sending = tokio::spawn(async move {
        for id in 0..5_000 {
            sink.write_all(request(id, "sandbox.list", &json!({})).as_bytes()).await.expect("sent");
        }
    });
    let mut lines = source.lines();
    let mut seen = HashMap::new();
    while let Some(line) = lines.next_line().await.expect("readable") {
        let answer: Value = serde_json::from_str(&line).expect("JSON");
        *seen.entry(answer["id"].as_u64()).or_insert(0) += 1;
    }
    sending.await.expect("sent");
    assert!(seen.len() == 5_000 && seen.values().all(|times| *times == 1));
}

// ---- roles ----

/// Connects with the credentials of another user. Credentials belong to a thread; the kernel records those of the
/// connecting one.
fn connect_as(service: &Service, uid: u32, gid: u32) -> Caller {
    let socket = service.socket.clone();
    let connecting = std::thread::spawn(move || {
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_gid(Gid::from_raw(gid))?;
        rustix::thread::set_thread_uid(Uid::from_raw(uid))?;
        std::os::unix::net::UnixStream::connect(socket)
    });
    let stream = connecting.join().expect("no panic").expect("connected");
    stream.set_nonblocking(true).expect("non-blocking");
    Caller::new(UnixStream::from_std(stream).expect("a stream"))
}

#[tokio::test]
async fn roles_follow_the_peer_credentials() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can impersonate another user");
        return;
    }
    let (full, read_only, unlisted) = (4_242, 4_243, 4_244);
    let allowed =
        Allowed { users: vec![full.to_string()], groups: vec![], read_only_groups: vec![read_only.to_string()] };
    let service = Service::with(Limits::default(), &allowed).await;
    let chat = chat();

    let mut caller = connect_as(&service, unlisted, unlisted);
    let refused = caller.answer().await;
    assert_eq!((kind(&refused), &refused["id"]), ("unauthorized", &Value::Null));
    assert_eq!(caller.next().await, None);

    let mut caller = connect_as(&service, unlisted, read_only);
    let by_chat = json!({ "chat_id": chat });
    for line in [service.create(1, &chat), request(1, "sandbox.delete", &by_chat)] {
        assert_eq!(kind(&caller.ask(line).await), "unauthorized");
    }
    assert_eq!(kind(&caller.ask(request(1, "sandbox.get", &by_chat)).await), "sandbox_not_found");
    for method in ["sandbox.list", "system.health", "system.info"] {
        assert!(caller.ask(request(1, method, &json!({}))).await["result"].is_object(), "{method}");
    }
    assert_eq!(service.engine.calls(Operation::Create), 0);

    let mut caller = connect_as(&service, full, unlisted);
    assert_eq!(caller.ask(service.create(1, &chat)).await["result"]["outcome"], "created");
}

// ---- connections ----

/// Raises the limit of open files: both ends of every connection are in this process.
fn allow_many_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("raised");
}

#[tokio::test]
async fn a_thousand_connections_are_served_and_the_next_is_refused_with_a_reason() {
    allow_many_files();
    let service = Service::with_limits(Limits { max_connections: 1_000, ..Limits::default() }).await;
    let mut callers = Vec::new();
    for _ in 0..1_000 {
        callers.push(service.connect().await);
    }
    for caller in &mut callers {
        caller.send(INFO).await;
    }
    for caller in &mut callers {
        assert_eq!(caller.answer().await["id"], 1);
    }
    let mut one_too_many = service.connect().await;
    let refused = one_too_many.answer().await;
    assert_eq!((kind(&refused), &refused["error"]["data"]["retryable"]), ("too_many_connections", &json!(true)));
    assert_eq!(one_too_many.next().await, None);

    callers.pop();
    let mut next = loop {
        let mut caller = service.connect().await;
        caller.send(INFO).await;
        if caller.answer().await.get("result").is_some() {
            break caller;
        }
    };
    is_usable(&mut next).await;
}

// ---- shutdown ----

#[tokio::test]
async fn at_shutdown_requests_under_way_are_answered_and_new_ones_refused() {
    let service = Service::start().await;
    let (mut caller, mut idle) = (service.connect().await, service.connect().await);
    is_usable(&mut idle).await;
    let gate = service.engine.hold_next(Operation::Create);
    caller.send(service.create(1, &chat())).await;
    service.engine.reached(Operation::Create, 1).await;

    service.shutdown.cancel();
    assert_eq!(idle.next().await, None);
    let refused = caller.ask(request(2, "system.info", &json!({}))).await;
    assert_eq!((kind(&refused), &refused["error"]["data"]["retryable"]), ("shutting_down", &json!(true)));
    assert!(UnixStream::connect(&service.socket).await.is_err());

    gate.open();
    assert_eq!(caller.answer().await["result"]["status"], "running");
    assert_eq!(caller.next().await, None);
    tokio::time::timeout(PATIENCE, service.serving).await.expect("ended").expect("no panic");
    assert!(!service.socket.exists());
}
