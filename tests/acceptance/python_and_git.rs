//! Tests of an agent's typical work in an image with Python and git.

use bollard::query_parameters::TopOptions;
use futures_util::future::join_all;
use sandboxd::client::Client;
use sandboxd_protocol::error::Error;
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};

use crate::containers::id_of;
use crate::create_params::CreateParams;
use crate::daemon::{Daemon, call};
use crate::engine::eventually;
use crate::guest::sandbox;

const PYTHON_AND_GIT: &str = "
    [profiles.default]
    image = 'sandboxd-python-git:test'
    network = 'none'
    memory = '256MiB'
";

impl Daemon {
    async fn python(&self, chat: &CreateParams, code: &str, mut params: Value) -> Value {
        params["code"] = json!(code);
        self.ask_guest(chat, "sandbox.run_code", params).await
    }

    /// Returns all processes of the chat's container, as the host sees them.
    async fn processes(&self, chat: &CreateParams) -> Vec<String> {
        let sandbox = self.get(chat).await.expect("a sandbox");
        let options = TopOptions { ps_args: "-eo pid,args".to_owned() };
        let listed = self.containers().await.docker.top_processes(id_of(&sandbox), Some(options)).await;
        let rows = listed.expect("it runs").processes.expect("rows");
        rows.into_iter().map(|row| row[1..].join(" ")).collect()
    }
}

#[tokio::test]
async fn python_output_and_exit_are_reported() {
    let (service, chat) = sandbox(PYTHON_AND_GIT).await;
    let ended = service.python(&chat, "import json\nprint(json.dumps({'a': [1]}))", json!({})).await;
    assert_eq!((&ended["exit_code"], &ended["stdout"]["text"]), (&json!(0), &json!("{\"a\": [1]}\n")), "{ended}");
    let ended = service.python(&chat, "größe = '你好 🦀'\nprint(größe, len(größe))", json!({})).await;
    assert_eq!(ended["stdout"]["text"], "你好 🦀 4\n", "{ended}");
    let ended = service.python(&chat, "import sys\nprint(sys.stdin.read()[::-1])", json!({ "stdin": "abc" })).await;
    assert_eq!(ended["stdout"]["text"], "cba\n", "{ended}");

    let ended = service.python(&chat, "print('before')\nraise ValueError('für nichts')", json!({})).await;
    assert_eq!((&ended["exit_code"], &ended["stdout"]["text"]), (&json!(1), &json!("before\n")), "{ended}");
    let traceback = ended["stderr"]["text"].as_str().expect("text");
    assert!(traceback.starts_with("Traceback"), "{traceback}");
    assert!(traceback.ends_with("ValueError: für nichts\n"), "{traceback}");
    assert_eq!(service.python(&chat, "raise SystemExit(7)", json!({})).await["exit_code"], 7);
    assert_eq!(service.python(&chat, "import os\nos.abort()", json!({})).await["signal"], 6);
}

#[tokio::test]
async fn python_is_held_to_its_time_and_its_output() {
    let (service, chat) = sandbox(PYTHON_AND_GIT).await;
    let endless = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass";
    let ended = service.python(&chat, endless, json!({ "timeout": 0.5 })).await;
    assert_eq!((&ended["timed_out"], &ended["signal"]), (&json!(true), &json!(9)), "{ended}");
    let ended = service.python(&chat, "print('é' * 5_000_000)", json!({ "max_output": 1001 })).await;
    assert_eq!(ended["exit_code"], 0, "{ended}");
    let printed = &ended["stdout"];
    assert_eq!((&printed["bytes"], &printed["truncated"]), (&json!(10_000_001), &json!(true)), "{printed}");
    assert_eq!(printed["text"], "é".repeat(500), "a character is not cut in two");
}

#[tokio::test]
async fn a_language_brings_its_preamble_and_takes_a_megabyte_of_source() {
    let languages = r#"
        languages.python.preamble = "import math\ndef area(r): return round(math.pi * r * r, 2)"
        languages.long-python = { command = ["python3", "-"], stdin = true, preamble = "begun = True" }
    "#;
    let (service, chat) = sandbox(&format!("{PYTHON_AND_GIT}{languages}")).await;
    let ended = service.python(&chat, "print(area(2))", json!({})).await;
    assert_eq!(ended["stdout"]["text"], "12.57\n", "{ended}");

    let long = format!("text = '{}'\nprint(begun, len(text))", "ü".repeat(500_000));
    assert!(long.len() > 1_000_000);
    let ended = service.python(&chat, &long, json!({ "language": "long-python" })).await;
    assert_eq!((&ended["exit_code"], &ended["stdout"]["text"]), (&json!(0), &json!("True 500000\n")), "{ended}");
}

#[tokio::test]
async fn a_python_program_that_daemonizes_does_not_outlive_its_time() {
    let (service, chat) = sandbox(PYTHON_AND_GIT).await;
    let before = service.processes(&chat).await;
    // The daemon forks twice into a session of its own, and has none of the command's pipes.
    let daemon = "
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        os.execvp('sleep', ['sleep', '98765'])
    os._exit(0)
os.wait()
print('left', flush=True)
time.sleep(1000)";
    // Each process forks and exits, so that the pid changes and the parent is never alive.
    let runner = "
import os, time
if os.fork() == 0:
    os.closerange(0, 3)
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
print('left', flush=True)
time.sleep(1000)";
    for program in [daemon, runner] {
        let ended = service.python(&chat, program, json!({ "timeout": 1 })).await;
        assert_eq!((&ended["timed_out"], &ended["stdout"]["text"]), (&json!(true), &json!("left\n")), "{ended}");
        assert_eq!(service.processes(&chat).await, before);
        assert_eq!(service.ask_guest(&chat, "sandbox.commands", json!({})).await["commands"], json!([]));
    }
}

/// Returns a volume with `origin.git` and an outdated clone of it, `copy`. Fetching into the clone waits for the file
/// `go`.
async fn service_with_a_repository() -> (Daemon, CreateParams) {
    let service = Daemon::start(PYTHON_AND_GIT).await;
    let maker = service.new_chat().with("git", json!({ "name": "Ma Ker", "email": "maker@example.org" }));
    service.created(&maker).await;
    let script = "
set -e
git init --quiet --bare --initial-branch=main /volume/origin.git
git clone --quiet /volume/origin.git /tmp/work
cd /tmp/work
git checkout --quiet -B main
echo one > file; git add file; git commit --quiet --message=one; git push --quiet origin main
git clone --quiet /volume/origin.git /volume/copy
echo two > file; git commit --quiet --all --message=two; git push --quiet origin main
echo 'echo fetching >&2; while ! test -e /volume/go; do sleep 0.05; done; exec git-upload-pack \"$@\"' > /volume/gate
git -C /volume/copy config remote.origin.uploadpack 'sh /volume/gate'
echo local >> /volume/copy/file";
    service.printed(&maker, script).await;
    let chat = CreateParams::new(&uuid::Uuid::new_v4().to_string(), "agent", &maker.volume());
    (service, chat)
}

fn to_branch(branch: &str) -> Value {
    json!({ "git": { "directory": "/volume/copy", "branch": branch }, "timeout": 60 })
}

fn open_gate(chat: &CreateParams) {
    std::fs::write(chat.volume().join("go"), "").expect("written");
}

/// Requests on one connection, which the service takes in order.
struct Requests<'a> {
    client: Client,
    chat: &'a CreateParams,
}

impl Requests<'_> {
    async fn ask(&self, method: &str, mut params: Value) -> Result<Value, Error> {
        params["chat_id"] = json!(self.chat.chat_id());
        call(&self.client, method, params).await
    }

    async fn sync(&self) -> Value {
        self.ask("sandbox.commands", json!({})).await.expect("a list")["sync"].clone()
    }
}

#[tokio::test]
async fn writes_wait_in_order_for_a_branch_to_be_fetched_and_reads_do_not() {
    let (service, chat) = service_with_a_repository().await;
    service.created(&chat.with("sync", to_branch("main"))).await;
    let requests = Requests { client: service.connect().await, chat: &chat };
    let write = |text| requests.ask("sandbox.write_file", json!({ "path": "/volume/copy/note", "text": text }));
    let command = "cat /volume/copy/file /volume/copy/note; git -C /volume/copy log -1 --format=%s";
    let (first, second, run, ()) = tokio::join!(
        write("first\n"),
        write("second\n"),
        requests.ask("sandbox.exec", json!({ "command": command })),
        async {
            let read = requests.ask("sandbox.read_file", json!({ "path": "/volume/copy/file" })).await;
            assert_eq!(read.expect("read")["text"], "one\nlocal\n");
            let note = requests.ask("sandbox.stat_file", json!({ "path": "/volume/copy/note" })).await;
            assert_eq!(note.expect_err("not written yet").data.details["reason"], "not_found");
            assert_eq!(requests.sync().await["state"], "running");
            open_gate(&chat);
        }
    );
    assert_eq!((first.expect("written"), second.expect("written")), (json!({}), json!({})));
    assert_eq!(run.expect("run")["stdout"]["text"], "two\nsecond\ntwo\n");
    let sync = requests.sync().await;
    assert_eq!((&sync["state"], &sync["message"]), (&json!("done"), &json!(null)));
}

#[tokio::test]
async fn a_command_that_waited_is_started_before_later_requests() {
    let (service, chat) = service_with_a_repository().await;
    service.created(&chat.with("sync", to_branch("main"))).await;
    let requests = Requests { client: service.connect().await, chat: &chat };
    // The file is removed at once, so that an overtaken command does not find it.
    let start_and_remove = |number: usize| {
        let name = format!("place-{number}");
        std::fs::create_dir(chat.volume().join(&name)).expect("a directory");
        let place = format!("/volume/{name}");
        let start = requests.ask("sandbox.exec", json!({ "command": ["true"], "cwd": place }));
        let remove = requests.ask("sandbox.remove_file", json!({ "path": place }));
        async { tokio::join!(start, remove) }
    };
    let (done, ()) = tokio::join!(join_all((0..8).map(start_and_remove)), async {
        assert_eq!(requests.sync().await["state"], "running");
        open_gate(&chat);
    });
    assert!(done.iter().all(|(started, removed)| started.is_ok() && removed.is_ok()), "{done:#?}");
}

#[tokio::test]
async fn a_branch_that_is_not_there_refuses_the_writes_that_waited_and_says_why() {
    let (service, chat) = service_with_a_repository().await;
    service.created(&chat.with("sync", to_branch("no-such-branch"))).await;
    let requests = Requests { client: service.connect().await, chat: &chat };
    let write = || requests.ask("sandbox.write_file", json!({ "path": "/volume/copy/note", "text": "x" }));
    let (refused, ()) = tokio::join!(write(), async {
        assert_eq!(requests.sync().await["state"], "running");
        open_gate(&chat);
    });
    let failure = refused.expect_err("the sync has failed");
    assert_eq!(failure.data.kind.as_str(), "sync_failed");
    assert!(failure.message.contains("couldn't find remote ref no-such-branch"), "{}", failure.message);
    let sync = requests.sync().await;
    assert_eq!(sync["state"], "failed");
    assert!(sync["message"].as_str().expect("a reason").contains("no-such-branch"), "{sync}");
    // The sync changed no file, and requests after its failure are not refused.
    let file = requests.ask("sandbox.read_file", json!({ "path": "/volume/copy/file" })).await.expect("read");
    assert_eq!(file["text"], "one\nlocal\n");
    write().await.expect("written");
}

#[tokio::test]
async fn an_attached_caller_does_not_disturb_a_sync() {
    for stays in [true, false] {
        let (service, chat) = service_with_a_repository().await;
        service.created(&chat.with("sync", to_branch("main"))).await;
        let requests = Requests { client: service.connect().await, chat: &chat };
        let command = eventually("it runs", || async {
            let listed = requests.ask("sandbox.commands", json!({})).await.expect("a list");
            (listed["commands"] != json!([])).then(|| listed["sync"]["command_id"].clone())
        })
        .await;
        let attach = json!({ "chat_id": chat.chat_id(), "command_id": command, "stream": true });
        let onlooker = service.connect().await;
        let mut seen = onlooker.stream(Method::SandboxAttach, attach).await.expect("sent");
        assert_eq!(seen.next().await.expect("it runs").method, "sandbox.started");
        if !stays {
            drop((seen, onlooker));
        } else {
            tokio::spawn(async move {
                while seen.next().await.is_some() {}
                let ended: Value = seen.end().await.expect("its end");
                assert_eq!(ended["exit_code"], 0, "{ended}");
                drop(onlooker);
            });
        }
        let (written, ()) = tokio::join!(
            requests.ask("sandbox.write_file", json!({ "path": "/volume/copy/note", "text": "x" })),
            async {
                assert_eq!(requests.sync().await["state"], "running");
                open_gate(&chat);
            }
        );
        written.expect("written");
        assert_eq!(requests.sync().await["state"], "done");
        assert_eq!(service.printed(&chat, "cat /volume/copy/file").await, "two\n");
    }
}

#[tokio::test]
async fn commits_have_the_identity_of_their_session() {
    let (service, first) = service_with_a_repository().await;
    let second = CreateParams::new(&uuid::Uuid::new_v4().to_string(), "agent", &first.volume());
    let people = [("Ada Lovelace", "ada@example.org"), ("Ünal Ö'Brien", "unal@example.org")];
    for (chat, (name, email)) in [&first, &second].into_iter().zip(people) {
        service.created(&chat.with("git", json!({ "name": name, "email": email }))).await;
        let commit = "cd /volume/copy && git commit --quiet --allow-empty --message=empty";
        service.printed(chat, commit).await;
    }
    let log = service.printed(&first, "git -C /volume/copy log --format='%an <%ae>, %cn <%ce>'").await;
    let expected = [people[1], people[0], ("Ma Ker", "maker@example.org")];
    let expected = expected.map(|(name, email)| format!("{name} <{email}>, {name} <{email}>\n"));
    assert_eq!(log, expected.concat());
}
