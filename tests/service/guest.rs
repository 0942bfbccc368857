//! Tests of commands and files in a sandbox, over the real socket and with the real init as a process of this machine.
//! The acceptance tests cover behaviour that needs a container.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{Caller, PATIENCE, Service, chat, kind, request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

struct Guest {
    service: Service,
    caller: Caller,
    chat: String,
    place: tempfile::TempDir,
}

impl Guest {
    async fn new() -> Self {
        Self::living_for(300).await
    }

    async fn living_for(ttl: u64) -> Self {
        let service = Service::start().await;
        let mut caller = service.connect().await;
        let chat = chat();
        let params = json!({ "chat_id": chat, "agent_id": "a", "volume_host_path": service.volume, "ttl": ttl });
        let created = caller.ask(request(1, "sandbox.create", &params)).await;
        assert_eq!(created["result"]["status"], "running", "{created}");
        Self { service, caller, chat, place: tempfile::tempdir().expect("a directory") }
    }

    fn line(&self, id: u64, method: &str, mut params: Value) -> String {
        params["chat_id"] = json!(self.chat);
        request(id, method, &params)
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let line = self.line(7, method, params);
        self.caller.ask(line).await
    }

    async fn exec(&mut self, params: Value) -> Value {
        let answer = self.ask("sandbox.exec", params).await;
        assert!(answer.get("result").is_some(), "{answer}");
        answer["result"].clone()
    }

    /// Returns the remaining notifications and the answer.
    async fn rest(&mut self) -> (Vec<Value>, Value) {
        let mut notified = Vec::new();
        loop {
            let message = self.caller.answer().await;
            if message.get("id").is_some() {
                return (notified, message);
            }
            notified.push(message);
        }
    }

    fn path(&self, name: &str) -> String {
        self.place.path().join(name).to_str().expect("UTF-8").to_owned()
    }
}

async fn eventually(label: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = tokio::time::Instant::now();
    while !condition().await {
        assert!(start.elapsed() < PATIENCE, "{label}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test]
async fn a_command_answers_with_its_output_and_its_end() {
    let mut guest = Guest::new().await;
    let ended = guest.exec(json!({ "command": "echo out; echo err >&2; exit 3" })).await;
    assert_eq!((&ended["exit_code"], &ended["signal"]), (&json!(3), &Value::Null), "{ended}");
    let printed = |text: &str| json!({ "text": text, "base64": null, "bytes": text.len(), "truncated": false });
    assert_eq!((&ended["stdout"], &ended["stderr"]), (&printed("out\n"), &printed("err\n")));
    let ended = guest.exec(json!({ "command": ["printf", "%s", "a b"] })).await;
    assert_eq!(ended["stdout"]["text"], "a b");
    let ended = guest.exec(json!({ "command": "kill -9 $$" })).await;
    assert_eq!((&ended["exit_code"], &ended["signal"]), (&Value::Null, &json!(9)), "{ended}");
}

#[tokio::test]
async fn a_command_gets_its_directory_environment_and_input() {
    let mut guest = Guest::new().await;
    let params = json!({ "command": "pwd; echo $A; cat", "cwd": "/usr", "env": { "A": "b" }, "stdin": "input" });
    assert_eq!(guest.exec(params).await["stdout"]["text"], "/usr\nb\ninput");
    let params = json!({ "command": "cat", "stdin_base64": STANDARD.encode([0xff, 0]) });
    let ended = guest.exec(params).await;
    assert_eq!((&ended["stdout"]["text"], &ended["stdout"]["base64"]), (&Value::Null, &json!("/wA=")));
}

#[tokio::test]
async fn output_over_the_limit_is_cut_and_counted() {
    let mut guest = Guest::new().await;
    let params = json!({ "command": "printf 'aaaé%.0s' 1 2 3", "max_output": 9 });
    let stdout = guest.exec(params).await["stdout"].clone();
    assert_eq!(
        stdout,
        json!({ "text": "aaaéaaa", "base64": null, "bytes": 15, "truncated": true }),
        "whole characters"
    );
}

#[tokio::test]
async fn a_stream_is_sent_in_order_as_it_arrives() {
    let mut guest = Guest::new().await;
    let params =
        json!({ "command": "read a; echo got $a; read b; echo end $b", "stream": true, "stdin_follows": true });
    let line = guest.line(1, "sandbox.exec", params);
    guest.caller.send(line).await;
    let started = guest.caller.answer().await;
    assert_eq!((&started["method"], &started["params"]["id"]), (&json!("sandbox.started"), &json!(1)));
    let command = started["params"]["command_id"].clone();
    for (text, printed) in [("one\n", "got one\n"), ("two\n", "end two\n")] {
        let line = guest.line(2, "sandbox.input", json!({ "command_id": command, "text": text }));
        guest.caller.send(line).await;
        let mut seen = [guest.caller.answer().await, guest.caller.answer().await];
        seen.sort_by_key(|message| message.get("id").is_some());
        assert_eq!(seen[0]["params"]["text"], printed, "{seen:?}");
        assert_eq!(seen[0]["params"]["stream"], "stdout");
    }
    let (_, ended) = guest.rest().await;
    assert_eq!((&ended["result"]["exit_code"], &ended["result"]["stdout"]["bytes"]), (&json!(0), &json!(16)));
    let late = guest.ask("sandbox.input", json!({ "command_id": command, "text": "x" })).await;
    assert_eq!(kind(&late), "command_not_found");
}

#[tokio::test]
async fn a_large_stream_arrives_whole() {
    let mut guest = Guest::new().await;
    let params = json!({ "command": "head -c 20000000 /dev/zero | tr '\\0' 'x'", "stream": true });
    let line = guest.line(1, "sandbox.exec", params);
    guest.caller.send(line).await;
    let (notifications, ended) = guest.rest().await;
    let length: usize =
        notifications.iter().filter_map(|message| message["params"]["text"].as_str()).map(str::len).sum();
    assert_eq!((length, &ended["result"]["stdout"]["bytes"]), (20_000_000, &json!(20_000_000)));
}

#[tokio::test]
async fn a_time_out_ends_all_that_was_started() {
    let mut guest = Guest::new().await;
    let ended = guest.exec(json!({ "command": "setsid sleep 1000 & echo $!; sleep 1000", "timeout": 0.3 })).await;
    assert_eq!((&ended["timed_out"], &ended["signal"]), (&json!(true), &json!(9)), "{ended}");
    let pid = ended["stdout"]["text"].as_str().expect("a process").to_owned();
    eventually("it survived", async || !is_alive(&pid)).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_takes_its_commands_along_unless_they_are_to_go_on() {
    let mut guest = Guest::new().await;
    for (on_disconnect, survives) in [("kill", false), ("detach", true)] {
        let params = json!({ "command": "echo $$; sleep 1000", "stream": true, "on_disconnect": on_disconnect });
        let mut caller = guest.service.connect().await;
        caller.send(guest.line(1, "sandbox.exec", params)).await;
        let command = caller.answer().await["params"]["command_id"].clone();
        let pid = caller.answer().await["params"]["text"].as_str().expect("a process").to_owned();
        drop(caller);
        if !survives {
            eventually("it survived its caller", async || !is_alive(&pid)).await;
            continue;
        }
        eventually("no caller is attached", async || {
            let listed = guest.ask("sandbox.commands", json!({})).await["result"]["commands"].clone();
            listed[0]["command_id"] == command && listed[0]["attached"] == false
        })
        .await;
        assert!(is_alive(&pid));
        assert_eq!(guest.ask("sandbox.kill", json!({ "command_id": command })).await["result"], json!({}));
        let ended = guest.ask("sandbox.attach", json!({ "command_id": command })).await;
        assert_eq!(ended["result"]["killed"], true, "{ended}");
    }
}

#[tokio::test]
async fn a_caller_that_only_sends_no_more_still_gets_its_answer() {
    let guest = Guest::new().await;
    let mut caller = guest.service.connect().await;
    caller.send(guest.line(1, "sandbox.exec", json!({ "command": "sleep 0.3; echo done" }))).await;
    tokio::io::AsyncWriteExt::shutdown(&mut caller.sink).await.expect("closed one way");
    assert_eq!(caller.answer().await["result"]["stdout"]["text"], "done\n");
}

#[tokio::test]
async fn a_detached_command_is_found_and_attached_to() {
    let mut guest = Guest::new().await;
    let go = guest.path("go");
    let line = format!("echo early; while ! test -e {go}; do sleep 0.01; done; echo late; exit 5");
    let command = guest.exec(json!({ "command": line, "detach": true })).await["command_id"].clone();
    let listed = guest.ask("sandbox.commands", json!({})).await["result"]["commands"].clone();
    assert_eq!((&listed[0]["command_id"], &listed[0]["running"]), (&command, &json!(true)), "{listed}");
    std::fs::write(go, "").expect("written");
    let ended = guest.ask("sandbox.attach", json!({ "command_id": command })).await["result"].clone();
    assert_eq!((&ended["exit_code"], &ended["stdout"]["text"]), (&json!(5), &json!("early\nlate\n")), "{ended}");
    let again = guest.ask("sandbox.attach", json!({ "command_id": command })).await;
    assert_eq!(kind(&again), "command_not_found");
}

#[tokio::test]
async fn a_running_command_keeps_the_sandbox_from_being_idle() {
    let mut guest = Guest::new().await;
    let get = async |caller: &mut Caller, chat: &str| {
        caller.ask(request(1, "sandbox.get", &json!({ "chat_id": chat }))).await["result"].clone()
    };
    let mut other = guest.service.connect().await;
    let params = json!({ "command": "read a", "stream": true, "stdin_follows": true });
    let line = guest.line(1, "sandbox.exec", params);
    guest.caller.send(line).await;
    let command = guest.caller.answer().await["params"]["command_id"].clone();
    let busy = get(&mut other, &guest.chat).await;
    let [hold] = &busy["held_by"].as_array().expect("holders")[..] else { panic!("{busy}") };
    assert_eq!((&hold["kind"], &hold["command_id"]), (&json!("command"), &command), "{busy}");
    assert_eq!((&busy["held_until"], &busy["idle"]["because"]), (&Value::Null, &json!("in_use")), "{busy}");
    assert_eq!(busy["ends_at"], busy["expires_at"], "a command does not put the absolute end off");
    other.ask(guest.line(2, "sandbox.input", json!({ "command_id": command, "end": true }))).await;
    guest.rest().await;
    assert_eq!(get(&mut other, &guest.chat).await["held_by"], json!([]), "the command has ended");
}

#[tokio::test]
async fn a_command_does_not_keep_its_sandbox_past_its_end() {
    let mut guest = Guest::living_for(2).await;
    let params = json!({ "command": "sleep 1000", "detach": true });
    let command = guest.exec(params).await["command_id"].clone();
    let attached = guest.line(8, "sandbox.exec", json!({ "command": "sleep 1000" }));
    guest.caller.send(attached).await;
    let mut other = guest.service.connect().await;
    let get = request(1, "sandbox.get", &json!({ "chat_id": guest.chat }));
    let held = other.ask(&get).await["result"].clone();
    let holders = held["held_by"].as_array().expect("holders");
    assert!(holders.iter().any(|hold| hold["command_id"] == command), "{held}");
    eventually("its time to live ends it", async || {
        other.ask(&get).await["error"]["data"]["kind"] == "sandbox_not_found"
    })
    .await;
    assert!(guest.service.engine.containers().is_empty());
}

#[tokio::test]
async fn a_command_that_cannot_be_started_reports_why() {
    let mut guest = Guest::new().await;
    let answer = guest.ask("sandbox.exec", json!({ "command": ["no-such-program"] })).await;
    assert_eq!((kind(&answer), &answer["error"]["data"]["details"]["errno"]), ("command_not_started", &json!(2)));
    let answer = guest.ask("sandbox.exec", json!({ "command": "true", "cwd": "/none" })).await;
    assert!(answer["error"]["message"].as_str().expect("a message").contains("/none"), "{answer}");
    for (params, field) in [
        (json!({}), "command"),
        (json!({ "command": [] }), "command"),
        (json!({ "command": 1 }), "command"),
        (json!({ "command": "a\u{0}b" }), "command"),
        (json!({ "command": "x".repeat(200_000) }), "command"),
        (json!({ "command": "true", "stdin": "a", "stdin_base64": "" }), "stdin"),
        (json!({ "command": "true", "stdin_base64": "%" }), "stdin_base64"),
        (json!({ "command": "true", "timeout": 0 }), "timeout"),
        (json!({ "command": "true", "max_output": 1u64 << 40 }), "max_output"),
        (json!({ "command": "true", "env": { "A=B": "" } }), "env"),
        (json!({ "command": "true", "cwd": "" }), "cwd"),
        (json!({ "command": "true", "on_disconnect": "never" }), "on_disconnect"),
    ] {
        let answer = guest.ask("sandbox.exec", params).await;
        assert_eq!(kind(&answer), "invalid_params", "{answer}");
        assert_eq!(answer["error"]["data"]["details"]["field"], field, "{answer}");
    }
}

#[tokio::test]
async fn files_are_written_as_a_whole_and_read_in_parts() {
    let mut guest = Guest::new().await;
    let path = guest.path("a/b.txt");
    let written = guest.ask("sandbox.write_file", json!({ "path": path, "text": "hello", "mode": 0o640 })).await;
    assert_eq!(kind(&written), "file_error");
    assert_eq!(written["error"]["data"]["details"]["reason"], "not_found");
    let params = json!({ "path": path, "text": "hello world", "mode": 0o640, "parents": true });
    assert_eq!(guest.ask("sandbox.write_file", params).await["result"], json!({}));
    let read = guest.ask("sandbox.read_file", json!({ "path": path, "offset": 6, "length": 3 })).await;
    let read = &read["result"];
    assert_eq!((&read["text"], &read["bytes"], &read["size"]), (&json!("wor"), &json!(3), &json!(11)), "{read}");
    assert_eq!((&read["mode"], &read["kind"]), (&json!(0o640), &json!("file")));

    let bytes: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    let line = guest.line(2, "sandbox.write_file", json!({ "path": path, "follows": true }));
    guest.caller.send(line).await;
    let transfer = guest.caller.answer().await["params"]["command_id"].clone();
    for (index, chunk) in bytes.chunks(500_000).enumerate() {
        assert_eq!(std::fs::read(&path).expect("a file"), b"hello world", "it is replaced at the end");
        let end = index == bytes.len() / 500_000;
        let params = json!({ "command_id": transfer, "base64": STANDARD.encode(chunk), "end": end });
        let line = guest.line(4, "sandbox.input", params);
        guest.caller.send(line).await;
        let answered = guest.caller.answer().await;
        if end && answered["id"] == 2 {
            guest.caller.answer().await;
        } else {
            assert_eq!(answered["result"], json!({}));
        }
    }
    eventually("it is written", async || std::fs::read(&path).expect("a file") == bytes).await;
    let mut caller = guest.service.connect().await;
    std::mem::swap(&mut guest.caller, &mut caller);
    assert_eq!(std::fs::read(&path).expect("a file"), bytes);
    let line = guest.line(3, "sandbox.read_file", json!({ "path": path, "stream": true }));
    guest.caller.send(line).await;
    let (notifications, answer) = guest.rest().await;
    let mut read = Vec::new();
    for message in notifications {
        assert_eq!(message["params"]["offset"], read.len());
        read.extend(STANDARD.decode(message["params"]["base64"].as_str().expect("not UTF-8")).expect("base64"));
    }
    assert!(read == bytes && answer["result"]["bytes"] == bytes.len(), "{answer}");
}

#[tokio::test]
async fn files_are_listed_moved_and_removed() {
    let mut guest = Guest::new().await;
    let (one, two) = (guest.path("one"), guest.path("two"));
    for (method, params) in [
        ("sandbox.make_directory", json!({ "path": one })),
        ("sandbox.write_file", json!({ "path": format!("{one}/f"), "text": "" })),
        ("sandbox.move_file", json!({ "from": one, "to": two })),
    ] {
        assert_eq!(guest.ask(method, params).await["result"], json!({}), "{method}");
    }
    let listed = guest.ask("sandbox.list_files", json!({ "path": two })).await["result"].clone();
    assert_eq!((&listed["files"][0]["name"], &listed["truncated"]), (&json!("f"), &json!(false)), "{listed}");
    assert_eq!(guest.ask("sandbox.stat_file", json!({ "path": two })).await["result"]["kind"], "directory");
    let refused = guest.ask("sandbox.remove_file", json!({ "path": two })).await;
    assert_eq!(refused["error"]["data"]["details"]["reason"], "not_empty");
    assert_eq!(guest.ask("sandbox.remove_file", json!({ "path": two, "recursive": true })).await["result"], json!({}));
    let gone = guest.ask("sandbox.stat_file", json!({ "path": two })).await;
    assert_eq!(gone["error"]["data"]["details"]["reason"], "not_found");
    for path in ["", "a\u{0}"] {
        assert_eq!(kind(&guest.ask("sandbox.stat_file", json!({ "path": path })).await), "invalid_params");
    }
}

#[tokio::test]
async fn writes_wait_in_order_for_a_sync_and_reads_do_not() {
    let mut guest = Guest::new().await;
    let (go, path) = (guest.path("go"), guest.path("f"));
    std::fs::write(&path, "old").expect("written");
    let sync = format!("while ! test -e {go}; do sleep 0.01; done; printf synced > {path}");
    let line = guest.line(1, "sandbox.exec", json!({ "command": sync, "sync": true }));
    guest.caller.send(line).await;
    for (id, text) in [(2, "first"), (3, "second")] {
        let line = guest.line(id, "sandbox.write_file", json!({ "path": path, "text": text }));
        guest.caller.send(line).await;
    }
    let line = guest.line(4, "sandbox.exec", json!({ "command": format!("cat {path}") }));
    guest.caller.send(line).await;
    let read = guest.ask("sandbox.read_file", json!({ "path": path })).await;
    assert_eq!(read["result"]["text"], "old", "reads go at once");
    let listed = guest.ask("sandbox.commands", json!({})).await["result"].clone();
    assert_eq!(listed["sync"]["state"], "running", "{listed}");
    assert_eq!(listed["sync"]["command_id"], listed["commands"][0]["command_id"], "{listed}");
    let again = guest.ask("sandbox.exec", json!({ "command": "true", "sync": true })).await;
    assert_eq!(kind(&again), "busy");
    std::fs::write(go, "").expect("written");
    let mut answers = BTreeMap::new();
    for _ in 0..4 {
        let answer = guest.caller.answer().await;
        answers.insert(answer["id"].as_u64().expect("a number"), answer["result"].clone());
    }
    assert_eq!(answers[&1]["exit_code"], 0);
    assert_eq!(answers[&4]["stdout"]["text"], "second", "after both: {answers:?}");
    assert_eq!(std::fs::read_to_string(path).expect("a file"), "second");
}

#[tokio::test]
async fn the_sync_of_a_sandbox_that_has_expired_is_not_that_of_the_next() {
    let mut guest = Guest::living_for(2).await;
    let synced = guest.exec(json!({ "command": "true", "sync": true })).await;
    assert_eq!(synced["exit_code"], 0);
    assert_eq!(guest.ask("sandbox.commands", json!({})).await["result"]["sync"]["state"], "done");
    eventually("its time to live ends it", async || {
        guest.ask("sandbox.get", json!({})).await["error"]["data"]["kind"] == "sandbox_not_found"
    })
    .await;
    let created = guest.caller.ask(guest.service.create(1, &guest.chat)).await;
    assert_eq!(created["result"]["outcome"], "created", "{created}");
    assert_eq!(guest.ask("sandbox.commands", json!({})).await["result"]["sync"], Value::Null);
}

#[tokio::test]
async fn a_sandbox_is_created_with_a_sync_and_an_identity() {
    let mut guest = Guest::new().await;
    guest.chat = chat();
    let (go, path) = (guest.path("go"), guest.path("f"));
    let mut create: Value = serde_json::from_str(&guest.service.create(1, &guest.chat)).expect("JSON");
    let sync = format!("while ! test -e {go}; do sleep 0.01; done; printf synced > {path}");
    create["params"]["sync"] = json!({ "command": sync, "timeout": 30 });
    create["params"]["git"] = json!({ "name": "A. Uthor", "email": "a@example.org" });
    let created = guest.caller.ask(format!("{create}\n")).await;
    assert_eq!(created["result"]["outcome"], "created", "{created}");
    let line = guest.line(2, "sandbox.write_file", json!({ "path": path, "text": "mine" }));
    guest.caller.send(line).await;
    let reused = guest.service.connect().await.ask(format!("{create}\n")).await;
    assert_eq!(reused["result"]["outcome"], "reused", "it is not brought up to date again");
    assert!(guest.caller.is_silent(), "the write waits");
    std::fs::write(go, "").expect("written");
    assert_eq!(guest.caller.answer().await["result"], json!({}));
    assert_eq!(std::fs::read_to_string(path).expect("a file"), "mine");

    for (field, value, named) in [
        ("sync", json!({}), "sync"),
        ("sync", json!({ "command": [] }), "sync.command"),
        ("sync", json!({ "git": { "directory": "/x", "branch": "--upload-pack=x" } }), "sync.git.branch"),
        ("git", json!({ "name": " ", "email": "a@example.org" }), "git.name"),
    ] {
        let mut create = create.clone();
        create["params"][field] = value;
        let refused = guest.caller.ask(format!("{create}\n")).await;
        assert_eq!(refused["error"]["data"]["details"]["field"], named, "{refused}");
    }
}

#[tokio::test]
async fn a_failed_sync_is_reported_and_refuses_the_requests_that_waited() {
    let mut guest = Guest::new().await;
    let (go, path) = (guest.path("go"), guest.path("f"));
    let sync = format!("while ! test -e {go}; do sleep 0.01; done; exit 3");
    let lines = guest.line(1, "sandbox.exec", json!({ "command": sync, "sync": true }))
        + &guest.line(2, "sandbox.write_file", json!({ "path": path, "text": "x" }));
    guest.caller.send(lines).await;
    eventually("it runs", async || {
        let mut other = guest.service.connect().await;
        let listed = other.ask(guest.line(1, "sandbox.commands", json!({}))).await;
        !listed["result"]["commands"].as_array().expect("a list").is_empty()
    })
    .await;
    std::fs::write(go, "").expect("written");
    let mut answers = [guest.caller.answer().await, guest.caller.answer().await];
    answers.sort_by_key(|answer| answer["id"].as_u64());
    assert_eq!(answers[0]["result"]["exit_code"], 3);
    assert_eq!(kind(&answers[1]), "sync_failed");
    let listed = guest.ask("sandbox.commands", json!({})).await["result"].clone();
    assert_eq!(listed["sync"]["state"], "failed", "{listed}");
    let written = guest.ask("sandbox.write_file", json!({ "path": path, "text": "x" })).await;
    assert_eq!(written["result"], json!({}), "later requests are not refused");
}

#[tokio::test]
async fn guest_requests_without_a_sandbox_are_refused() {
    let mut guest = Guest::new().await;
    guest.chat = chat();
    assert_eq!(kind(&guest.ask("sandbox.exec", json!({ "command": "true" })).await), "sandbox_not_found");
    assert_eq!(kind(&guest.ask("sandbox.read_file", json!({ "path": "/" })).await), "sandbox_not_found");
}
