//! Tests of callers that open streams in a sandbox and do not read them: they cannot use up the guest's memory.

use std::io::Write;
use std::os::unix::net::UnixStream;

use serde_json::json;

use crate::containers::id_of;
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::guest::sandbox;

const SMALL: &str = "profiles.default = { network = 'none', memory = '128MiB' }";

const CONNECTIONS: usize = 10;
const STREAMS: usize = 128;

fn descriptors(process: i64) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count)
}

/// Opens a connection with streams of one file that it never reads.
fn unread(service: &Daemon, chat: &str) -> UnixStream {
    let mut connection = UnixStream::connect(service.socket()).expect("connected");
    for id in 0..STREAMS {
        let params = json!({ "chat_id": chat, "path": "/tmp/large", "stream": true });
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": "sandbox.read_file", "params": params });
        connection.write_all(format!("{request}\n").as_bytes()).expect("sent");
    }
    connection
}

#[tokio::test]
async fn streams_that_are_not_read_leave_a_small_sandbox_alive() {
    let (service, chat) = sandbox(SMALL).await;
    let before = service.get(&chat).await.expect("a sandbox");
    let containers = service.containers().await;
    let init = containers.inspect(id_of(&before)).await.state.and_then(|state| state.pid).expect("a process");
    service.printed(&chat, "head -c 33554432 /dev/zero | tr '\\0' a > /tmp/large").await;

    let connections: Vec<UnixStream> = (0..CONNECTIONS).map(|_| unread(&service, chat.chat_id())).collect();
    // Each stream needs a socket and a file in the guest; streams beyond the limit wait.
    let most =
        eventually("the streams are open", || async { (descriptors(init) > 1000).then(|| descriptors(init)) }).await;
    assert_eq!(service.printed(&chat, "echo alive").await, "alive\n", "{most} descriptors");
    drop(connections);
    eventually("the streams are closed", || async { (descriptors(init) < 50).then_some(()) }).await;

    let read = service.ask_guest(&chat, "sandbox.read_file", json!({ "path": "/tmp/large", "length": 5 })).await;
    assert_eq!(read["text"], "aaaaa");
    let after = service.get(&chat).await.expect("a sandbox");
    assert_eq!((&after["session_id"], &after["status"]), (&before["session_id"], &json!("running")));
    let kills = service.printed(&chat, "cat /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events 2>/dev/null | grep oom_kill; true").await;
    assert!(kills.lines().all(|line| line.ends_with(" 0") || line.starts_with("oom_kill_disable")), "{kills}");
}
