//! Tests of callers that make the service buffer as much as possible and do not read: its memory stays bounded, and it
//! answers other callers. Each test prints the service's peak memory.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::{Gid, Uid};
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};

use crate::create_params::CreateParams;
use crate::daemon::Daemon;

const ATTACKERS: usize = 10;

/// A user and group that no account has.
const READER: u32 = 61234;

const MOST_MEMORY_KB: u64 = 200_000;

const LARGE: usize = 16 << 20;

async fn service() -> (Daemon, CreateParams) {
    let settings = format!(
        "profiles.default = {{ network = 'none', memory = '256MiB' }}
         socket = {{ mode = '0666', read_only_groups = ['{READER}'] }}"
    );
    let service = Daemon::start(&settings).await;
    let chat = service.new_chat();
    service.created(&chat).await;
    let command = "mkdir /tmp/tree && head -c 16777216 /dev/urandom > /tmp/large \
                   && for i in 1 2 3 4 5 6; do cp /tmp/large /tmp/tree/$i; done";
    let made = service.call("sandbox.exec", json!({ "chat_id": chat.chat_id(), "command": command })).await;
    assert_eq!(made.expect("run")["exit_code"], 0);
    (service, chat)
}

/// Connects with the rights of the test or with those of the reader.
fn connect(service: &Daemon, read_only: bool) -> UnixStream {
    let socket = service.socket().to_owned();
    let connecting = std::thread::spawn(move || {
        if read_only {
            rustix::thread::set_thread_groups(&[])?;
            rustix::thread::set_thread_gid(Gid::from_raw(READER))?;
            rustix::thread::set_thread_uid(Uid::from_raw(READER))?;
        }
        UnixStream::connect(socket)
    });
    let stream = connecting.join().expect("no panic").expect("connected");
    stream.set_write_timeout(Some(Duration::from_secs(1))).expect("a time-out");
    stream
}

/// Sends the request `times` times on each connection, as far as the service takes it.
async fn attack(service: &Daemon, read_only: bool, method: &str, params: Value, times: usize) -> Vec<UnixStream> {
    let line = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string() + "\n";
    let connections: Vec<_> = (0..ATTACKERS).map(|_| connect(service, read_only)).collect();
    let sending = connections.iter().map(|connection| {
        let (mut connection, line) = (connection.try_clone().expect("a descriptor"), line.clone());
        tokio::task::spawn_blocking(move || {
            let _ = (0..times).try_for_each(|_| connection.write_all(line.as_bytes()));
        })
    });
    futures_util::future::join_all(sending).await;
    connections
}

fn kilobytes(service: &Daemon, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.pid().as_raw_nonzero())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with(field)).expect("a field");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// Asserts that other callers are answered: small answers at once, large ones once the attackers are gone.
async fn assert_others_are_served(service: &Daemon, chat: &CreateParams) {
    let chat = chat.chat_id();
    for _ in 0..5 {
        service.call("sandbox.get", json!({ "chat_id": chat })).await.expect("found");
        let ran = service.call("sandbox.exec", json!({ "chat_id": chat, "command": "echo here" })).await.expect("run");
        assert_eq!(ran["stdout"]["text"], "here\n");
        let small = json!({ "chat_id": chat, "path": "/tmp/large", "length": 1000 });
        assert_eq!(service.call("sandbox.read_file", small).await.expect("read")["bytes"], 1000);
        assert_eq!(service.list().await.len(), 1);
    }
    let large = service.call("sandbox.read_file", json!({ "chat_id": chat, "path": "/tmp/large" })).await;
    assert_eq!(large.expect("read")["bytes"], LARGE);
}

fn is_stream(method: &str, params: &Value) -> bool {
    ["sandbox.exec", "sandbox.read_tree"].contains(&method) || params["stream"] == true
}

fn assert_memory_is_bounded(service: &Daemon, attack: &str) {
    let (most, now) = (kilobytes(service, "VmHWM:"), kilobytes(service, "VmRSS:"));
    println!("{attack}: at most {most} kB, now {now} kB");
    assert!(most < MOST_MEMORY_KB, "{attack}: {most} kB");
}

async fn unread_files(read_only: bool) {
    let (service, chat) = service().await;
    println!("before: {} kB", kilobytes(&service, "VmHWM:"));
    let params = json!({ "chat_id": chat.chat_id(), "path": "/tmp/large" });
    let _unread = attack(&service, read_only, "sandbox.read_file", params, 30).await;
    assert_others_are_served(&service, &chat).await;
    assert_memory_is_bounded(&service, "unread files");
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_do_not_read_large_files_cost_little_memory_and_stop_no_other() {
    unread_files(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_do_not_read_large_files_cost_little_memory_and_stop_no_other() {
    unread_files(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_do_not_read_streams_cost_little_memory_and_stop_no_other() {
    let (service, chat) = service().await;
    let chat_id = chat.chat_id();
    for (method, params) in [
        ("sandbox.read_tree", json!({ "chat_id": chat_id, "path": "/tmp/tree" })),
        (
            "sandbox.read_file",
            json!({ "chat_id": chat_id, "path": "/tmp/large", "stream": true, "length": 1u64 << 40 }),
        ),
        ("sandbox.read_file", json!({ "chat_id": chat_id, "path": "/tmp/large", "length": 60_000 })),
        ("sandbox.exec", json!({ "chat_id": chat_id, "command": "cat /tmp/large", "max_output": LARGE })),
        ("sandbox.list_files", json!({ "chat_id": chat_id, "path": "/proc/sys/kernel" })),
        ("sandbox.list", json!({})),
        ("events.watch", json!({ "after": 0 })),
    ] {
        // Streams also use the guest's memory, and some of them a lease.
        let times = if is_stream(method, &params) { 5 } else { 100 };
        let unread = attack(&service, false, method, params, times).await;
        assert_others_are_served(&service, &chat).await;
        assert_memory_is_bounded(&service, method);
        drop(unread);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_requests_that_do_not_end_cost_little_memory_and_stop_no_other() {
    let (service, chat) = service().await;
    let chat_id = chat.chat_id();
    let client = service.connect().await;
    let sleeping = json!({ "chat_id": chat_id, "command": "sleep 1000", "stdin_follows": true });
    let mut stream = client.stream(Method::SandboxExec, sleeping).await.expect("sent");
    let started: Value = serde_json::from_str(stream.next().await.expect("started").params.get()).expect("JSON");
    // Standard input that the command does not read.
    let input = json!({ "chat_id": chat_id, "command_id": started["command_id"], "text": "x".repeat(1_000_000) });
    let _untaken = attack(&service, false, "sandbox.input", input, 100).await;
    // Lines without an end.
    let unfinished: Vec<_> = (0..100).map(|_| connect(&service, false)).collect();
    for mut connection in &unfinished {
        let _ = connection.write_all(&[b' '; 600_000]);
    }
    assert_others_are_served(&service, &chat).await;
    assert_memory_is_bounded(&service, "long requests");
}
