//! Tests of copying directories with real containers: with an init and without, hostile archives, hostile guests, and
//! memory.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox_init::tar::{END, Entry, Kind, padding};
use sandboxd_protocol::error::Error;
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};

use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::guest::sandbox;

const WAYS: [&str; 2] = [
    "profiles.default = { network = 'none', user = '1234:2345', read_only_root = true }",
    "profiles.default = { network = 'none', user = '1234:2345', read_only_root = true, init = false }",
];

async fn read(service: &Daemon, chat: &CreateParams, path: &str) -> (Vec<u8>, Result<Value, Error>) {
    let client = service.connect().await;
    let params = json!({ "chat_id": chat.chat_id(), "path": path });
    let mut stream = client.stream(Method::SandboxReadTree, params).await.expect("sent");
    let mut archive = Vec::new();
    while let Some(part) = stream.next().await {
        archive.extend(bytes(part.params.get()));
    }
    (archive, ended(stream).await)
}

fn bytes(params: &str) -> Vec<u8> {
    let params: Value = serde_json::from_str(params).expect("JSON");
    STANDARD.decode(params["base64"].as_str().expect("base64")).expect("base64")
}

async fn ended(stream: sandboxd::client::Stream) -> Result<Value, Error> {
    stream.end().await.map_err(|error| match error {
        sandboxd::client::ClientError::Failed(failure) => failure,
        other => panic!("{other}"),
    })
}

async fn write(service: &Daemon, chat: &CreateParams, path: &str, archive: &[u8]) -> Result<Value, Error> {
    let client = service.connect().await;
    let params = json!({ "chat_id": chat.chat_id(), "path": path, "parents": true });
    let mut stream = client.stream(Method::SandboxWriteTree, params).await.expect("sent");
    if let Some(started) = stream.next().await {
        let started: Value = serde_json::from_str(started.params.get()).expect("JSON");
        let mut parts = archive.chunks(200_000).peekable();
        while let Some(part) = parts.next() {
            let (encoded, end) = (STANDARD.encode(part), parts.peek().is_none());
            let params = json!({ "chat_id": chat.chat_id(), "command_id": started["command_id"], "base64": encoded, "end": end });
            if client.call::<Value>(Method::SandboxInput, params).await.is_err() {
                break;
            }
        }
    }
    ended(stream).await
}

fn entry(name: &str, kind: Kind, size: u64) -> Entry {
    Entry { name: name.into(), kind, size, mode: 0o644, user: 0, group: 0, modified: 1_000_000 }
}

fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        entry.put(&mut out);
        out.resize(out.len() + entry.size as usize + padding(entry.size), b'x');
    }
    out.extend_from_slice(&END);
    out
}

#[tokio::test]
async fn a_tree_comes_back_as_it_was_either_way() {
    for settings in WAYS {
        let (service, chat) = sandbox(settings).await;
        service.printed(&chat, "mkdir -p /volume/t/d && echo hi > /volume/t/d/f && ln -s d/f /volume/t/l").await;
        let (tree, answer) = read(&service, &chat, "/volume/t").await;
        let totals = json!({ "entries": 4, "bytes": 3, "skipped": 0 });
        assert_eq!(answer.expect("read"), totals, "{settings}");
        let names = tar_names(&tree);
        assert_eq!(names, ["./", "./d/", "./d/f", "./l"].map(String::from), "{settings}");
        assert_eq!(write(&service, &chat, "/chat/a/copy", &tree).await.expect("written")["bytes"], 3);
        let shown = service.printed(&chat, "cat /chat/a/copy/l; stat -c %u:%g /chat/a/copy/d/f").await;
        assert_eq!(shown, "hi\n1234:2345\n", "{settings}");
        let failure = write(&service, &chat, "/etc", &tree).await.expect_err("it is read-only");
        assert_eq!(failure.data.details["reason"], "read_only", "{settings}: {failure:?}");
        let (_, failure) = read(&service, &chat, "/volume/none").await;
        assert_eq!(failure.expect_err("nothing").data.details["reason"], "not_found", "{settings}");
    }
}

#[tokio::test]
async fn a_tree_needs_no_program_of_the_image() {
    let settings = "profiles.default = { image = 'sandboxd-one-binary:test', network = 'none'@ }";
    for init in ["", ", init = false"] {
        let (service, chat) = sandbox(&settings.replace('@', init)).await;
        let tree = archive(&[entry("./", Kind::Directory, 0), entry("./f", Kind::File, 3)]);
        write(&service, &chat, "/new/tree", &tree).await.expect("written");
        let (read, answer) = read(&service, &chat, "/new/tree").await;
        assert_eq!(answer.expect("read")["bytes"], 3, "{init}");
        assert_eq!(tar_names(&read), ["./", "./f"].map(String::from), "{init}");
    }
}

/// Returns the entries' names, sorted.
fn tar_names(archive: &[u8]) -> Vec<String> {
    let (mut reader, mut rest, mut names) = (sandbox_init::tar::Reader::default(), archive, Vec::new());
    while let Some(item) = reader.next(&mut rest).expect("an archive") {
        if let sandbox_init::tar::Item::Entry(entry) = item {
            names.push(String::from_utf8(entry.name).expect("UTF-8"));
        }
    }
    names.sort();
    names
}

#[tokio::test]
async fn a_hostile_archive_does_not_leave_its_directory() {
    let link = |target: &str| Kind::Link { target: target.into() };
    let mut cut = archive(&[entry("f", Kind::File, 5000)]);
    cut.truncate(3000);
    let mut huge = Vec::new();
    entry("huge", Kind::File, 1 << 50).put(&mut huge);
    huge.resize(10_000, 0);
    let hostile = [
        (archive(&[entry("../out", Kind::File, 3)]), "../out: it would leave the directory"),
        (archive(&[entry("/volume/out", Kind::File, 3)]), "/volume/out: the name of an entry must not be absolute"),
        (archive(&[entry("l", link("/volume"), 0), entry("l/out", Kind::File, 3)]), "l/out: "),
        (archive(&[entry("l", link(".."), 0), entry("l/d/out", Kind::File, 3)]), "l/d/out: "),
        (archive(&[entry("s", Kind::Same { name: "../f".into() }, 0)]), "s: it would leave the directory"),
        (cut, "f: the archive ends too early"),
        (huge, "huge: the archive ends too early"),
        (vec![b'x'; 4096], "not a tar archive, or a damaged one"),
    ];
    for settings in WAYS {
        let (service, chat) = sandbox(settings).await;
        for (archive, why) in &hostile {
            let failure = write(&service, &chat, "/volume/to", archive).await.expect_err("it is hostile");
            assert_eq!(failure.data.kind.as_str(), "file_error", "{failure:?}");
            assert!(failure.message.contains(why), "{settings}: {why}: {failure:?}");
            assert!(!chat.volume().join("out").exists(), "{why}");
        }
        assert_eq!(service.printed(&chat, "ls /volume").await, "to\n", "{settings}");
    }
}

#[tokio::test]
async fn a_guest_that_swaps_directories_for_links_reads_no_host_file() {
    let (service, chat) = sandbox(WAYS[0]).await;
    let secret = service.path("secret");
    std::fs::create_dir(&secret).expect("made");
    std::fs::write(secret.join("f"), "the-secret-of-the-host").expect("written");
    let line = format!(
        "mkdir -p /volume/t/d; echo x > /volume/t/d/f; cd /volume/t; while :; do mv d e; ln -s {} d; rm d; mv e d; done",
        secret.display()
    );
    service.ask_guest(&chat, "sandbox.exec", json!({ "command": line, "detach": true })).await;
    for _ in 0..50 {
        let (archive, answer) = read(&service, &chat, "/volume/t").await;
        assert!(!archive.windows(10).any(|window| window == b"the-secret"));
        // A file that is removed during the read may be missing; no other failure may occur.
        if let Err(failure) = answer {
            assert_eq!(failure.data.kind.as_str(), "file_error", "{failure:?}");
        }
    }
    assert_eq!(service.get(&chat).await.expect("a sandbox")["status"], "running");
}

#[tokio::test]
async fn a_large_tree_passes_through_little_memory() {
    const SIZE: u64 = 10 << 20;
    let peak = |service: &Daemon| {
        let pid = service.pid().as_raw_nonzero();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    for (settings, files) in WAYS.into_iter().zip([20, 5]) {
        let (service, chat) = sandbox(settings).await;
        let line =
            format!("mkdir /volume/t; for i in $(seq {files}); do head -c {SIZE} /dev/zero > /volume/t/$i; done");
        service.printed(&chat, &line).await;
        let before = peak(&service);
        let client = service.connect().await;
        let params = json!({ "chat_id": chat.chat_id(), "path": "/volume/t" });
        let mut stream = client.stream(Method::SandboxReadTree, params).await.expect("sent");
        let mut received = 0;
        while let Some(part) = stream.next().await {
            // Decoding would take longer than the rest of the test.
            received += part.params.get().len() as u64 * 3 / 4;
        }
        assert_eq!(ended(stream).await.expect("read")["bytes"], files * SIZE);
        assert!(received > files * SIZE);
        let grown = peak(&service) - before;
        assert!(grown < 32 << 20, "{settings}: {grown} bytes more");
    }
}
