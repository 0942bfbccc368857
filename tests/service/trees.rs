//! Tests of copying directories into and out of a sandbox, over the real socket and with the real init.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::support;
use crate::support::{Caller, Service, chat, kind, request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox_init::tar::{END, Entry, Kind};
use sandbox_init::tree::{Packing, Unpacking};
use serde_json::{Value, json};
use tokio::process::Command;

struct Sandbox {
    service: Service,
    caller: Caller,
    chat: String,
    place: tempfile::TempDir,
}

impl Sandbox {
    async fn new() -> Self {
        let service = Service::start().await;
        let mut caller = service.connect().await;
        let chat = chat();
        caller.ask(service.create(1, &chat)).await;
        Self { service, caller, chat, place: tempfile::tempdir().expect("a directory") }
    }

    /// Returns a guest path. The sandbox of these tests shares this machine's file system.
    fn path(&self, name: &str) -> String {
        self.place.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn line(&self, id: u64, method: &str, mut params: Value) -> String {
        params["chat_id"] = json!(self.chat);
        request(id, method, &params)
    }

    /// Returns the archive and the answer.
    async fn read(&mut self, path: &str) -> (Vec<u8>, Value) {
        let line = self.line(7, "sandbox.read_tree", json!({ "path": path }));
        self.caller.send(line).await;
        let mut archive = Vec::new();
        loop {
            let message = self.caller.answer().await;
            if message.get("id").is_some() {
                return (archive, message);
            }
            assert_eq!((&message["method"], &message["params"]["id"]), (&json!("sandbox.data"), &json!(7)));
            assert_eq!(message["params"]["offset"], archive.len());
            archive.extend(STANDARD.decode(message["params"]["base64"].as_str().expect("base64")).expect("base64"));
        }
    }

    async fn write(&mut self, path: &str, parents: bool, archive: &[u8]) -> Value {
        let line = self.line(8, "sandbox.write_tree", json!({ "path": path, "parents": parents }));
        let started = self.caller.ask(line).await;
        if started.get("id").is_some() {
            return started;
        }
        let command = started["params"]["command_id"].clone();
        let mut parts = archive.chunks(50_000).peekable();
        let mut answer = None;
        loop {
            let (part, end) = (parts.next().unwrap_or_default(), parts.peek().is_none());
            let params = json!({ "command_id": command, "base64": STANDARD.encode(part), "end": end });
            let line = self.line(9, "sandbox.input", params);
            self.caller.send(line).await;
            // A failed write takes no more data.
            loop {
                let message = self.caller.answer().await;
                if message["id"] == 9 {
                    break;
                }
                answer = Some(message);
            }
            if end || answer.is_some() {
                break;
            }
        }
        match answer {
            Some(answer) => answer,
            None => self.caller.answer().await,
        }
    }

    async fn sandboxctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxctl"));
        command.env("SANDBOXD_SOCKET", &self.service.socket).args(arguments);
        command.output().await.expect("it runs")
    }
}

fn tree(at: &Path) {
    fs::create_dir_all(at.join("src/deep")).expect("made");
    fs::write(at.join("src/deep/large"), vec![b'x'; 1 << 20]).expect("written");
    fs::write(at.join("README"), "read me").expect("written");
    std::os::unix::fs::symlink("README", at.join("link")).expect("made");
}

fn assert_tree(at: &Path) {
    assert_eq!(fs::read(at.join("src/deep/large")).expect("a file").len(), 1 << 20);
    assert_eq!(fs::read_to_string(at.join("link")).expect("a link"), "read me");
}

fn packed(at: &Path) -> Vec<u8> {
    let (mut packing, mut archive) = (Packing::open(at).expect("a directory"), Vec::new());
    while packing.advance(&mut archive, 1 << 16).expect("packed").is_none() {}
    archive
}

#[tokio::test]
async fn a_tree_is_read_and_written() {
    let mut sandbox = Sandbox::new().await;
    tree(&sandbox.place.path().join("from"));
    let (archive, answer) = sandbox.read(&sandbox.path("from")).await;
    let totals = json!({ "entries": 6, "bytes": (1 << 20) + 7, "skipped": 0 });
    assert_eq!(answer["result"], totals, "{answer}");
    let here = tempfile::tempdir().expect("a directory");
    let mut unpacking = Unpacking::open(here.path(), false).expect("a directory");
    unpacking.take(&archive).expect("an archive");
    unpacking.finish().expect("a whole one");
    assert_tree(here.path());

    let missing = sandbox.write(&sandbox.path("a/b"), false, &archive).await;
    assert_eq!(missing["error"]["data"]["details"]["reason"], "not_found", "{missing}");
    let answer = sandbox.write(&sandbox.path("a/b"), true, &archive).await;
    assert_eq!(answer["result"], totals, "{answer}");
    assert_tree(&sandbox.place.path().join("a/b"));
}

#[tokio::test]
async fn unreadable_and_unwritable_paths_are_named() {
    let mut sandbox = Sandbox::new().await;
    tree(&sandbox.place.path().join("from"));
    let (_, answer) = sandbox.read(&sandbox.path("from/README")).await;
    assert_eq!(answer["error"]["data"]["details"]["reason"], "not_a_directory", "{answer}");
    let plain =
        Entry { name: b"../out".into(), kind: Kind::File, size: 0, mode: 0o644, user: 0, group: 0, modified: 0 };
    let mut hostile = Vec::new();
    plain.put(&mut hostile);
    hostile.extend_from_slice(&END);
    let answer = sandbox.write(&sandbox.path("to"), true, &hostile).await;
    assert_eq!(kind(&answer), "file_error");
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.ends_with("../out: it would leave the directory"), "{message}");
    assert!(!sandbox.place.path().join("out").exists());

    let mut cut = packed(&sandbox.place.path().join("from"));
    cut.truncate(cut.len() / 2);
    let answer = sandbox.write(&sandbox.path("to"), true, &cut).await;
    assert!(
        answer["error"]["message"].as_str().expect("a message").ends_with("the archive ends too early"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_tree_waits_for_a_sync_like_any_write() {
    let mut sandbox = Sandbox::new().await;
    let gate = sandbox.path("gate");
    let line = format!("until test -e {gate}; do sleep 0.01; done");
    let syncing = sandbox.line(1, "sandbox.exec", json!({ "command": line, "sync": true }));
    let mut other = sandbox.service.connect().await;
    other.send(syncing).await;
    loop {
        let listing = sandbox.line(2, "sandbox.commands", json!({}));
        if sandbox.caller.ask(listing).await["result"]["sync"]["state"] == "running" {
            break;
        }
    }
    let writing = sandbox.line(3, "sandbox.write_tree", json!({ "path": sandbox.path("to"), "parents": true }));
    sandbox.caller.send(writing).await;
    // A read does not wait, and ends before the other has begun.
    tree(&sandbox.place.path().join("from"));
    assert_eq!(sandbox.read(&sandbox.path("from")).await.1["result"]["entries"], 6);
    fs::write(&gate, "").expect("opened");
    let started = sandbox.caller.answer().await;
    assert_eq!((&started["method"], &started["params"]["id"]), (&json!("sandbox.started"), &json!(3)), "{started}");
    assert_eq!(other.answer().await["result"]["exit_code"], 0);
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_the_transfer() {
    let sandbox = Sandbox::new().await;
    let from = sandbox.place.path().join("from");
    fs::create_dir_all(&from).expect("made");
    fs::File::create(from.join("huge")).and_then(|file| file.set_len(1 << 40)).expect("made");
    let mut caller = sandbox.service.connect().await;
    caller.send(sandbox.line(1, "sandbox.read_tree", json!({ "path": sandbox.path("from") }))).await;
    assert_eq!(caller.answer().await["method"], "sandbox.data");
    drop(caller);
    let held = || async {
        let mut caller = sandbox.service.connect().await;
        !caller.ask(sandbox.line(2, "sandbox.get", json!({}))).await["result"]["held_by"]
            .as_array()
            .expect("holders")
            .is_empty()
    };
    let begun = tokio::time::Instant::now();
    while held().await {
        assert!(begun.elapsed() < support::PATIENCE, "it is still held");
    }
}

#[tokio::test]
async fn cp_copies_directories_both_ways() {
    let sandbox = Sandbox::new().await;
    let here = tempfile::tempdir().expect("a directory");
    tree(&here.path().join("project"));
    let (from, inside) = (here.path().join("project"), format!("{}:{}", sandbox.chat, sandbox.path("copy")));
    let from = from.to_str().expect("UTF-8");
    let refused = sandbox.sandboxctl(&["cp", from, &inside]).await;
    assert!(!refused.status.success() && !sandbox.place.path().join("copy").exists(), "it is a directory");
    for target in [inside.clone(), format!("{}:{}/", sandbox.chat, sandbox.path("copy"))] {
        let done = sandbox.sandboxctl(&["cp", "-r", from, &target]).await;
        assert!(done.status.success(), "{done:?}");
    }
    assert_tree(&sandbox.place.path().join("copy"));
    assert_tree(&sandbox.place.path().join("copy/project"));

    let back = here.path().join("back");
    for _ in 0..2 {
        let done = sandbox.sandboxctl(&["cp", "-r", &inside, back.to_str().expect("UTF-8")]).await;
        assert!(done.status.success(), "{done:?}");
    }
    assert_tree(&back);
    assert_tree(&back.join("copy"));
    let done = sandbox.sandboxctl(&["cp", "-r", "--parents", from, &format!("{inside}/a/b")]).await;
    assert!(done.status.success(), "{done:?}");
    assert_tree(&sandbox.place.path().join("copy/a/b"));
}
