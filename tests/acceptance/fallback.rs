//! Tests of guests via the engine: sandboxes without an init, and commands as another user.

use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::guest::sandbox;

const WITHOUT_INIT: &str = "profiles.default = { network = 'none', memory = '64MiB', pids = 64, init = false }";

async fn refused(
    service: &Daemon,
    chat: &CreateParams,
    method: &str,
    mut params: Value,
) -> sandboxd_protocol::error::Error {
    params["chat_id"] = json!(chat.chat_id());
    service.call(method, params).await.expect_err("it cannot be done")
}

/// Counts the guest's processes whose command line contains the text.
async fn running(service: &Daemon, chat: &CreateParams, text: &str) -> usize {
    let containers = service.containers().await;
    let sandbox = service.get(chat).await.expect("a sandbox");
    let top = containers
        .docker
        .top_processes(sandbox["container_id"].as_str().expect("an id"), None)
        .await
        .expect("processes");
    let lines = top.processes.unwrap_or_default();
    lines.iter().filter(|fields| fields.last().is_some_and(|line| line.contains(text))).count()
}

#[tokio::test]
async fn commands_run_without_an_init() {
    let (service, chat) = sandbox(WITHOUT_INIT).await;
    let ended = service.exec(&chat, "echo out; echo err >&2; exit 3").await;
    assert_eq!(
        (&ended["exit_code"], &ended["stdout"]["text"], &ended["stderr"]["text"]),
        (&json!(3), &json!("out\n"), &json!("err\n"))
    );
    let params =
        json!({ "command": ["sh", "-c", "pwd; echo $A; cat"], "cwd": "/etc", "env": { "A": "b" }, "stdin": "in" });
    assert_eq!(service.ask_guest(&chat, "sandbox.exec", params).await["stdout"]["text"], "/etc\nb\nin");
    let params = json!({ "command": "tty; stty size", "terminal": { "rows": 7, "columns": 70 } });
    let ended = service.ask_guest(&chat, "sandbox.exec", params).await;
    assert!(ended["stdout"]["text"].as_str().expect("text").contains("/dev/pts/"), "{ended}");
    let code = json!({ "language": "sh", "code": "echo $((6 * 7))" });
    assert_eq!(service.ask_guest(&chat, "sandbox.run_code", code).await["stdout"]["text"], "42\n");
    let params = json!({ "command": "head -c 300000 /dev/zero", "max_output": 1000 });
    let stdout = service.ask_guest(&chat, "sandbox.exec", params).await["stdout"].clone();
    assert_eq!((&stdout["bytes"], &stdout["truncated"]), (&json!(300000), &json!(true)));
    for params in [json!({ "command": ["no-such-program"] }), json!({ "command": "true", "cwd": "/missing" })] {
        let failure = refused(&service, &chat, "sandbox.exec", params).await;
        assert_eq!(failure.data.kind.as_str(), "command_not_started", "{failure:?}");
    }
}

#[tokio::test]
async fn the_end_of_a_command_is_the_end_of_all_that_it_started() {
    let (service, chat) = sandbox(WITHOUT_INIT).await;
    let line = "(setsid sleep 1001 &); sleep 1002 & sleep 1003";
    let ended = service.ask_guest(&chat, "sandbox.exec", json!({ "command": line, "timeout": 1 })).await;
    assert_eq!((&ended["timed_out"], &ended["signal"]), (&json!(true), &json!(9)), "{ended}");
    eventually("no process is left", || async { (running(&service, &chat, "sleep 100").await == 0).then_some(()) })
        .await;

    let started = service.ask_guest(&chat, "sandbox.exec", json!({ "command": "sleep 1004", "detach": true })).await;
    let listed = service.ask_guest(&chat, "sandbox.commands", json!({})).await["commands"][0].clone();
    assert_eq!((&listed["command_id"], &listed["running"]), (&started["command_id"], &json!(true)), "{listed}");
    let failure = refused(&service, &chat, "sandbox.attach", json!({ "command_id": started["command_id"] })).await;
    assert_eq!((failure.data.kind.as_str(), failure.data.retryable), ("guest_unreachable", false), "{failure:?}");
    service.ask_guest(&chat, "sandbox.kill", json!({ "command_id": started["command_id"] })).await;
    eventually("it is known to have ended", || async {
        let listed = service.ask_guest(&chat, "sandbox.commands", json!({})).await["commands"][0].clone();
        (listed["running"] == false && listed["end"]["killed"] == true).then_some(())
    })
    .await;
    assert_eq!(running(&service, &chat, "sleep 100").await, 0);

    let mut caller = BufReader::new(UnixStream::connect(service.socket()).await.expect("it listens"));
    let params = json!({ "chat_id": chat.chat_id(), "command": "sleep 1005", "stream": true });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "sandbox.exec", "params": params });
    caller.write_all(format!("{request}\n").as_bytes()).await.expect("sent");
    let mut started = String::new();
    caller.read_line(&mut started).await.expect("a line");
    assert!(started.contains("sandbox.started"), "{started}");
    drop(caller);
    eventually("it ends with its caller", || async {
        (running(&service, &chat, "sleep 1005").await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn files_are_reached_without_an_init() {
    let settings = "profiles.default = { network = 'none', init = false, user = '1234:2345', read_only_root = true }";
    let (service, chat) = sandbox(settings).await;
    let write = json!({ "path": "/chat/a/b/f", "text": "content", "parents": true, "mode": 0o600 });
    service.ask_guest(&chat, "sandbox.write_file", write).await;
    let written = service.path("chats").join(chat.chat_id()).join("a/b/f").metadata().expect("written");
    assert_eq!((written.uid(), written.gid(), written.mode() & 0o777), (1234, 2345, 0o600));
    let read = json!({ "path": "/chat/a/b/f", "offset": 3, "length": 2 });
    let read = service.ask_guest(&chat, "sandbox.read_file", read).await;
    assert_eq!((&read["text"], &read["uid"], &read["size"]), (&json!("te"), &json!(1234), &json!(7)), "{read}");
    service.ask_guest(&chat, "sandbox.write_file", json!({ "path": "/chat/a/b/f", "text": "again" })).await;
    let stat = service.ask_guest(&chat, "sandbox.stat_file", json!({ "path": "/chat/a/b/f" })).await;
    assert_eq!((&stat["mode"], &stat["size"]), (&json!(0o600), &json!(5)), "it keeps its mode");
    service.ask_guest(&chat, "sandbox.make_directory", json!({ "path": "/chat/a/c" })).await;
    let listed = service.ask_guest(&chat, "sandbox.list_files", json!({ "path": "/chat/a" })).await;
    let mut names: Vec<_> = listed["files"].as_array().expect("files").iter().map(|file| &file["name"]).collect();
    names.sort_by_key(|name| name.to_string());
    assert_eq!(names, ["b", "c"]);
    service.ask_guest(&chat, "sandbox.move_file", json!({ "from": "/chat/a/b/f", "to": "/chat/a/c/g" })).await;
    let around = [("/chat/a/c/g", "/volume"), ("/volume/g", "/chat/a"), ("/chat/a/g", "/chat/a/c")];
    for (from, to) in around {
        service.ask_guest(&chat, "sandbox.move_file", json!({ "from": from, "to": to })).await;
    }
    service.printed(&chat, "ln -s c/g /chat/a/link").await;
    let read = service.ask_guest(&chat, "sandbox.read_file", json!({ "path": "/chat/a/link" })).await;
    assert_eq!(read["text"], "again");
    for (method, params, reason) in [
        ("sandbox.read_file", json!({ "path": "/chat/none" }), "not_found"),
        ("sandbox.read_file", json!({ "path": "/chat/a" }), "is_a_directory"),
        ("sandbox.list_files", json!({ "path": "/chat/a/c/g" }), "not_a_directory"),
        ("sandbox.make_directory", json!({ "path": "/chat/a" }), "exists"),
        ("sandbox.remove_file", json!({ "path": "/chat/a" }), "not_empty"),
        ("sandbox.write_file", json!({ "path": "/etc/f", "text": "" }), "read_only"),
    ] {
        let failure = refused(&service, &chat, method, params).await;
        assert_eq!(failure.data.details["reason"], reason, "{method}: {failure:?}");
    }
    service.ask_guest(&chat, "sandbox.remove_file", json!({ "path": "/chat/a", "recursive": true })).await;
    assert!(!service.path("chats").join(chat.chat_id()).join("a").exists());
}

#[tokio::test]
async fn logs_and_stats_work_without_an_init() {
    let talkative = "init = false, command = ['sh', '-c', 'echo hello; exec sleep infinity'] }";
    let (service, chat) = sandbox(&WITHOUT_INIT.replace("init = false }", talkative)).await;
    eventually("it is logged", || async {
        (service.ask_guest(&chat, "sandbox.logs", json!({})).await["bytes"] == 6).then_some(())
    })
    .await;
    let stats = service.ask_guest(&chat, "sandbox.stats", json!({})).await;
    assert_eq!((&stats["memory_limit_bytes"], &stats["pids_limit"]), (&json!(64 << 20), &json!(64)), "{stats}");
    assert!(stats["pids"].as_u64().is_some_and(|count| count >= 1) && stats["cpu_seconds"].is_number(), "{stats}");
}

#[tokio::test]
async fn another_user_cannot_read_the_secret() {
    let (service, chat) = sandbox("profiles.default = { network = 'none', user = '1234:2345' }").await;
    for (user, shown) in [("1000", "1000:"), ("1000:7", "1000:7"), ("sandbox", "1000:1000"), ("root", "0:0")] {
        let line = "echo $(id -u):$(id -g); env; tr '\\0' '\\n' < /proc/self/environ";
        let ended = service.ask_guest(&chat, "sandbox.exec", json!({ "command": line, "user": user })).await;
        let text = ended["stdout"]["text"].as_str().expect("text");
        assert!(text.starts_with(shown), "{user}: {ended}");
        assert!(text.contains("SANDBOXD_INIT_SECRET=\n"), "{text}");
    }
    assert_eq!(service.printed(&chat, "id -u").await, "1234\n", "as ever");
    let code = json!({ "language": "sh", "code": "id -u", "user": "1000" });
    assert_eq!(service.ask_guest(&chat, "sandbox.run_code", code).await["stdout"]["text"], "1000\n");
    let failure = refused(&service, &chat, "sandbox.exec", json!({ "command": "true", "user": "nobody-such" })).await;
    assert_eq!(failure.data.kind.as_str(), "command_not_started", "{failure:?}");
    let params = json!({ "command": "sleep 1006", "user": "1000", "detach": true });
    let command = service.ask_guest(&chat, "sandbox.exec", params).await["command_id"].clone();
    let listed = service.ask_guest(&chat, "sandbox.commands", json!({})).await["commands"].clone();
    assert_eq!(listed[0]["command_id"], command, "{listed}");
    service.ask_guest(&chat, "sandbox.kill", json!({ "command_id": command })).await;
    eventually("it is over", || async { (running(&service, &chat, "sleep 1006").await == 0).then_some(()) }).await;
}

/// An image with one program only: no shell, no tools, no user table.
#[tokio::test]
async fn an_image_from_scratch_says_what_it_lacks() {
    let settings = "profiles.default = { image = 'sandboxd-one-binary:test', network = 'none', init = false }";
    let (service, chat) = sandbox(settings).await;
    let ended = service.ask_guest(&chat, "sandbox.exec", json!({ "command": ["/busybox", "echo", "hello"] })).await;
    assert_eq!(ended["stdout"]["text"], "hello\n", "{ended}");
    let failure = refused(&service, &chat, "sandbox.exec", json!({ "command": "echo hello" })).await;
    assert_eq!((failure.data.kind.as_str(), &failure.data.details["errno"]), ("command_not_started", &json!(2)));
    service.ask_guest(&chat, "sandbox.write_file", json!({ "path": "/new/f", "text": "x", "parents": true })).await;
    assert_eq!(service.ask_guest(&chat, "sandbox.read_file", json!({ "path": "/new/f" })).await["text"], "x");
    let failure = refused(&service, &chat, "sandbox.remove_file", json!({ "path": "/new/f" })).await;
    assert_eq!(failure.data.kind.as_str(), "file_error");
    assert!(failure.message.contains("the image has no rm"), "{failure:?}");
}

#[tokio::test]
async fn a_command_that_the_kernel_kills_for_want_of_memory_says_so_without_an_init() {
    let (service, chat) = sandbox(&WITHOUT_INIT.replace("64MiB", "32MiB")).await;
    let starved = service.exec(&chat, json!(["tail", "/dev/zero"])).await;
    assert_eq!((&starved["oom_killed"], &starved["exit_code"]), (&json!(true), &json!(137)), "{starved}");
    let other = service.exec(&chat, "kill -9 $$").await;
    assert_eq!((&other["oom_killed"], &other["exit_code"]), (&json!(false), &json!(137)), "{other}");
    assert_eq!(service.get(&chat).await.expect("a sandbox")["status"], "running");
}
