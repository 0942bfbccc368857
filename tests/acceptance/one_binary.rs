//! Tests of a guest whose image has only one program: the sandbox's init brings everything else.

use serde_json::json;

use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::guest::sandbox;

const ONE_BINARY: &str = "
    [profiles.default]
    image = 'sandboxd-one-binary:test'
    network = 'none'
";

impl Daemon {
    async fn busybox(&self, chat: &CreateParams, arguments: &[&str]) -> String {
        let ended = self.exec(chat, [&["/busybox"], arguments].concat()).await;
        assert_eq!(ended["exit_code"], 0, "{arguments:?}: {ended}");
        ended["stdout"]["text"].as_str().expect("text").to_owned()
    }
}

#[tokio::test]
async fn the_only_program_runs_below_the_init_and_as_a_command() {
    let (service, chat) = sandbox(ONE_BINARY).await;
    let init = service.busybox(&chat, &["sh", "-c", "/busybox tr '\\0' '|' < /proc/1/cmdline"]).await;
    assert_eq!(init, "/.sandboxd/init|/busybox|sleep|infinity|");
    let processes = service.busybox(&chat, &["ps", "-o", "pid,ppid,args"]).await;
    assert!(processes.lines().any(|line| line.ends_with(" 1 /busybox sleep infinity")), "{processes}");
    assert_eq!(service.busybox(&chat, &["printf", "%s|", "a b", "", "$HOME"]).await, "a b||$HOME|");
    let params = json!({ "command": ["/busybox", "sleep", "1000"], "timeout": 0.2 });
    assert_eq!(service.ask_guest(&chat, "sandbox.exec", params).await["timed_out"], true);
}

#[tokio::test]
async fn files_need_no_program_at_all() {
    let (service, chat) = sandbox(ONE_BINARY).await;
    service.ask_guest(&chat, "sandbox.make_directory", json!({ "path": "/new" })).await;
    service.ask_guest(&chat, "sandbox.write_file", json!({ "path": "/new/a", "text": "hello" })).await;
    service.ask_guest(&chat, "sandbox.move_file", json!({ "from": "/new/a", "to": "/new/b" })).await;
    assert_eq!(service.ask_guest(&chat, "sandbox.read_file", json!({ "path": "/new/b" })).await["text"], "hello");
    let listed = service.ask_guest(&chat, "sandbox.list_files", json!({ "path": "/" })).await;
    let names: Vec<_> = listed["files"].as_array().expect("a list").iter().map(|file| &file["name"]).collect();
    assert!(names.contains(&&json!("busybox")) && names.contains(&&json!("new")), "{names:?}");
    assert!(!names.contains(&&json!("tmp")) && !names.contains(&&json!("bin")), "{names:?}");
    service.ask_guest(&chat, "sandbox.remove_file", json!({ "path": "/new", "recursive": true })).await;
    let gone = service.call("sandbox.stat_file", json!({ "chat_id": chat.chat_id(), "path": "/new" })).await;
    assert_eq!(gone.expect_err("it was removed").data.details["reason"], "not_found");
}

#[tokio::test]
async fn a_missing_program_is_named() {
    let (service, chat) = sandbox(ONE_BINARY).await;
    let (no_entry, no_directory) = (2, 20);
    for (method, params, missing, errno) in [
        ("sandbox.exec", json!({ "command": "echo hello" }), "/bin/sh", no_entry),
        ("sandbox.exec", json!({ "command": ["frobnicate"] }), "frobnicate", no_entry),
        ("sandbox.exec", json!({ "command": ["/busybox"], "cwd": "/no-such-place" }), "/no-such-place", no_directory),
        ("sandbox.run_code", json!({ "code": "print(1)" }), "python3", no_entry),
        ("sandbox.run_code", json!({ "code": "echo 1", "language": "sh" }), "/bin/sh", no_entry),
    ] {
        let mut request = params.clone();
        request["chat_id"] = json!(chat.chat_id());
        let failure = service.call(method, request).await.expect_err("it cannot be started");
        assert_eq!(
            (failure.data.kind.as_str(), &failure.data.details["errno"]),
            ("command_not_started", &json!(errno))
        );
        assert!(failure.message.contains(missing), "{params}: {}", failure.message);
    }
}

#[tokio::test]
async fn a_guest_works_without_root_and_without_writable_paths() {
    let settings = format!("{ONE_BINARY} user = '1234:2345'\n read_only_root = true");
    let (service, chat) = sandbox(&settings).await;
    assert_eq!(service.busybox(&chat, &["id", "-u"]).await, "1234\n");
    service.ask_guest(&chat, "sandbox.write_file", json!({ "path": "/chat/a", "text": "mine" })).await;
    assert_eq!(service.busybox(&chat, &["cat", "/chat/a"]).await, "mine");
    assert_eq!(service.busybox(&chat, &["stat", "-c", "%u:%g", "/chat/a"]).await, "1234:2345\n");
    let refused = json!({ "chat_id": chat.chat_id(), "path": "/a", "text": "mine" });
    let failure = service.call("sandbox.write_file", refused).await.expect_err("it is read-only");
    assert_eq!(failure.data.details["reason"], "read_only", "{failure:?}");
}
