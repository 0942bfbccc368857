//! sandboxctl as a shell sees it: output, errors, exit codes.

#[path = "support/in_process.rs"]
mod support;

use std::path::Path;

use sandboxd_actors::engine::Operation;
use sandboxd_actors::engine::fake::Fault;
use serde_json::{Value, json};
use support::{PATIENCE, Service, chat, request};
use tokio::io::{AsyncBufReadExt, BufReader};

struct Ran {
    code: Option<i32>,
    output: String,
    errors: String,
}

async fn run(socket: &Path, arguments: &[&str]) -> Ran {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_sandboxctl"))
        .env("SANDBOXD_SOCKET", socket)
        .args(arguments)
        .output()
        .await
        .expect("sandboxctl runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code(), output: text(output.stdout), errors: text(output.stderr) }
}

async fn create(service: &Service, chat: &str, more: &[&str]) -> Ran {
    let arguments = ["create", "--chat-id", chat, "--agent-id", "a", "--volume", &service.volume];
    run(&service.socket, &[&arguments, more].concat()).await
}

#[tokio::test]
async fn a_sandbox_is_created_shown_listed_and_deleted() {
    let service = Service::start().await;
    let chat = chat();
    let created = create(&service, &chat, &["--env", "A=1", "--ttl", "5m"]).await;
    assert_eq!(created.code, Some(0), "{}", created.errors);
    for part in [chat.as_str(), "created, cold", "running (ready)", ":8080", "(in 4m 5"] {
        assert!(created.output.contains(part), "{part}: {}", created.output);
    }
    let shown = run(&service.socket, &["get", &chat]).await;
    assert!(shown.code == Some(0) && shown.output.contains("running"), "{}", shown.output);
    let listed = run(&service.socket, &["list"]).await;
    assert_eq!((listed.code, listed.output.lines().count()), (Some(0), 2), "{}", listed.output);
    let deleted = run(&service.socket, &["delete", &chat]).await;
    assert!(deleted.code == Some(0) && deleted.output.starts_with("deleted the sandbox of chat"), "{}", deleted.output);
    let gone = run(&service.socket, &["delete", &chat]).await;
    assert_eq!((gone.code, gone.output), (Some(4), format!("chat {chat} has no sandbox\n")));
}

#[tokio::test]
async fn programs_get_the_result_as_the_service_sent_it() {
    let service = Service::start().await;
    let chat = chat();
    let created: Value =
        serde_json::from_str(&create(&service, &chat, &["--json"]).await.output).expect("one JSON object");
    assert_eq!((&created["chat_id"], &created["outcome"]), (&chat.as_str().into(), &"created".into()));
    let listed = run(&service.socket, &["--json", "list", "--all"]).await;
    let listed: Value = serde_json::from_str(&listed.output).expect("one JSON object");
    assert_eq!((&listed["sandboxes"][0]["session_id"], &listed["next"]), (&created["session_id"], &Value::Null));
    let failed = run(&service.socket, &["--json", "get", &support::chat()]).await;
    let error: Value = serde_json::from_str(&failed.errors).expect("one JSON object");
    assert_eq!(
        (failed.code, failed.output.as_str(), &error["data"]["kind"]),
        (Some(4), "", &"sandbox_not_found".into())
    );
}

#[tokio::test]
async fn every_page_of_a_long_list_is_shown() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    for id in 0..120 {
        caller.send(service.create(id, &chat())).await;
    }
    for _ in 0..120 {
        assert!(caller.answer().await["result"].is_object());
    }
    let first = run(&service.socket, &["list"]).await;
    assert_eq!(first.output.lines().count(), 102, "a header, a hundred sandboxes, and a word about the others");
    let all = run(&service.socket, &["list", "--all"]).await;
    assert_eq!(all.output.lines().count(), 121);
}

#[tokio::test]
async fn exit_codes_tell_failures_apart() {
    let service = Service::start().await;
    let chat = chat();
    assert_eq!(create(&service, &chat, &[]).await.code, Some(0));
    let conflict =
        run(&service.socket, &["create", "--chat-id", &chat, "--agent-id", "b", "--volume", &service.volume]).await;
    assert_eq!(conflict.code, Some(1));
    assert!(conflict.errors.contains("[sandbox_conflict]; use the same values"), "{}", conflict.errors);
    assert_eq!(conflict.errors.lines().count(), 1);

    assert_eq!(run(&service.socket, &["get", &support::chat()]).await.code, Some(4));
    assert_eq!(run(&service.socket, &["frobnicate"]).await.code, Some(2));
    let nowhere = run(Path::new("/nonexistent/socket"), &["health"]).await;
    assert!(nowhere.code == Some(3) && nowhere.errors.contains("is sandboxd running?"), "{}", nowhere.errors);
}

#[tokio::test]
async fn health_is_in_the_exit_code() {
    let service = Service::start().await;
    let well = run(&service.socket, &["health"]).await;
    assert!(well.code == Some(0) && well.output.contains("ok"), "{}", well.output);
    service.engine.fail_always(Operation::Identify, Fault::unreachable());
    let ill = run(&service.socket, &["health"]).await;
    assert!(ill.code == Some(1) && ill.output.contains("degraded"), "{}", ill.output);
    let info = run(&service.socket, &["info"]).await;
    assert!(info.code == Some(0) && info.output.contains("default, other"), "{}", info.output);
}

#[tokio::test]
async fn a_doctor_says_what_is_missing_and_what_to_do_about_it() {
    let service = Service::start().await;
    let well = run(&service.socket, &["doctor"]).await;
    assert!(well.code == Some(0) && well.output.contains("14 checks, 0 problems"), "{}{}", well.output, well.errors);
    service.engine.lose_image("sandbox:1");
    let missing = run(&service.socket, &["doctor"]).await;
    assert_eq!(missing.code, Some(1), "{}", missing.output);
    for part in ["\u{2713} ok       engine", "\u{2717} problem  images", "-> sandboxctl image pull sandbox:1"] {
        assert!(missing.output.contains(part), "{part}: {}", missing.output);
    }
    assert!(!missing.output.contains('\x1b'), "no colour but on a terminal");
    let told = run(&service.socket, &["--json", "doctor"]).await;
    let told: Value = serde_json::from_str(&told.output).expect("one JSON object");
    assert_eq!((&told["checks"][0]["name"], &told["checks"][0]["advice"]), (&"engine".into(), &Value::Null));
}

#[tokio::test]
async fn a_doctor_is_of_use_without_a_service() {
    let nowhere = run(Path::new("/nonexistent/socket"), &["doctor"]).await;
    assert_eq!(nowhere.code, Some(1));
    assert!(nowhere.output.contains("there is no socket /nonexistent/socket"), "{}", nowhere.output);
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
    let left = run(&socket, &["--json", "doctor"]).await;
    let told: Value = serde_json::from_str(&left.output).expect("one JSON object");
    let check = &told["checks"][0];
    assert_eq!((left.code, &check["name"], &check["status"]), (Some(1), &"service".into(), &"problem".into()));
    assert!(check["message"].as_str().is_some_and(|message| message.starts_with("nobody listens at")), "{check}");
}

#[tokio::test]
async fn a_sandbox_is_renewed_touched_leased_and_released() {
    let service = Service::start().await;
    let chat = chat();
    assert_eq!(create(&service, &chat, &[]).await.code, Some(0));
    let renewed = run(&service.socket, &["renew", &chat, "--ttl", "1h"]).await;
    assert!(renewed.code == Some(0) && renewed.output.contains("(in 59m 5"), "{}{}", renewed.output, renewed.errors);
    assert_eq!(run(&service.socket, &["touch", &chat]).await.code, Some(0));
    let leased = run(&service.socket, &["--json", "lease", &chat, "--for", "5m", "--durable"]).await;
    let leased: Value = serde_json::from_str(&leased.output).expect("one JSON object");
    let lease = leased["lease_id"].as_str().expect("an id");
    let shown = run(&service.socket, &["get", &chat]).await;
    assert!(shown.output.contains("no (leased)"), "{}", shown.output);
    let released = run(&service.socket, &["release", &chat, lease]).await;
    assert!(released.code == Some(0) && released.output.contains("no (recent_activity)"), "{}", released.output);
    let again = run(&service.socket, &["release", &chat, lease]).await;
    assert!(again.code == Some(1) && again.errors.contains("[lease_not_found]"), "{}", again.errors);
    let reconciled = run(&service.socket, &["reconcile", "--dry-run"]).await;
    assert_eq!((reconciled.code, reconciled.output.as_str()), (Some(0), "1 containers, 0 to do\n"));
}

#[tokio::test]
async fn a_lease_is_held_as_long_as_the_command_runs() {
    let service = Service::start().await;
    let chat = chat();
    assert_eq!(create(&service, &chat, &[]).await.code, Some(0));
    let mut holding = following(&service.socket, &["--json", "lease", &chat, "--for", "5m"]);
    assert!(holding.line().await.contains("\"lease_id\""));
    let mut caller = service.connect().await;
    let get = request(1, "sandbox.get", &json!({ "chat_id": chat }));
    assert_eq!(caller.ask(&get).await["result"]["idle"]["because"], "leased");
    holding.child.kill().await.expect("ended");
    while !caller.ask(&get).await["result"]["held_until"].is_null() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn events_are_followed_line_by_line() {
    let service = Service::start().await;
    let chat = chat();
    assert_eq!(create(&service, &chat, &[]).await.code, Some(0));
    let mut watching = following(&service.socket, &["events", "--after", "0", "--chat", &chat]);
    assert!(watching.line().await.ends_with(&format!("  {chat}  creating (requested)")));
    assert!(watching.line().await.ends_with("creating -> running (ready)"));
    assert_eq!(run(&service.socket, &["delete", &chat]).await.code, Some(0));
    assert!(watching.line().await.ends_with("running -> deleting (requested)"));
    assert!(watching.line().await.ends_with("deleting -> gone (requested)"));
    service.shutdown.cancel();
    assert_eq!(watching.child.wait().await.expect("ended").code(), Some(0));
}

/// A command that goes on until it is ended.
struct Following {
    child: tokio::process::Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

fn following(socket: &Path, arguments: &[&str]) -> Following {
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_sandboxctl"))
        .env("SANDBOXD_SOCKET", socket)
        .args(arguments)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("sandboxctl runs");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    Following { child, lines }
}

impl Following {
    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("in time");
        line.expect("readable").expect("a line, not the end")
    }
}
