//! Tests of sandboxctl as a shell sees it: output, errors, exit codes.

use std::path::Path;

use crate::support;
use crate::support::{PATIENCE, Service, chat, request};
use sandboxd_actors::ports::engine::Operation;
use sandboxd_actors::ports::engine::fake::Fault;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

struct Ran {
    code: Option<i32>,
    output: String,
    errors: String,
}

async fn run(socket: &Path, arguments: &[&str]) -> Ran {
    run_in(socket, &[], arguments).await
}

async fn run_in(socket: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Ran {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_sandboxctl"))
        .env_remove("COLUMNS")
        .env("SANDBOXD_SOCKET", socket)
        .envs(environment.iter().copied())
        .args(arguments)
        .stdin(std::process::Stdio::null())
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
async fn a_create_generates_missing_values_and_prints_them() {
    let service = Service::start().await;
    let created = run_in(&service.socket, &[("USER", "grace")], &["create"]).await;
    assert_eq!(created.code, Some(0), "{}", created.errors);
    let row = |name: &str| created.output.lines().find_map(|line| line.strip_prefix(name)).expect("a row").trim();
    assert!(row("chat").parse::<uuid::Uuid>().is_ok() && row("agent") == "grace", "{}", created.output);
    let quiet = run(&service.socket, &["create", "--quiet"]).await.output;
    assert!(quiet.trim_end() != row("chat") && quiet.trim_end().parse::<uuid::Uuid>().is_ok(), "{quiet}");
}

#[tokio::test]
async fn a_chat_is_named_by_the_beginning_of_its_id_if_no_other_begins_like_it() {
    let service = Service::start().await;
    let [one, two] = ["67e55044-10b1-426f-9247-bb680e5fe0c8", "67e55044-20b1-426f-9247-bb680e5fe0c8"];
    for chat in [one, two] {
        assert_eq!(create(&service, chat, &[]).await.code, Some(0));
    }
    let shown = run(&service.socket, &["get", "67e55044-2"]).await;
    assert!(shown.code == Some(0) && shown.output.contains(two), "{}{}", shown.output, shown.errors);
    let several = run(&service.socket, &["touch", "67e5"]).await;
    assert!(
        several.code == Some(2) && several.errors.contains(one) && several.errors.contains(two),
        "{}",
        several.errors
    );
    let none = run(&service.socket, &["delete", "77"]).await;
    assert_eq!(
        (none.code, none.errors.as_str()),
        (Some(4), "sandboxctl: no chat with a sandbox has an id that begins with 77\n")
    );
    let wrong = run(&service.socket, &["get", "coder"]).await;
    assert!(wrong.code == Some(2) && wrong.errors.contains("\"coder\" is not a chat"), "{}", wrong.errors);
}

#[tokio::test]
async fn a_list_is_filtered_and_deleted_only_with_confirmation() {
    let service = Service::start().await;
    for (agent, profile) in [("a", "default"), ("b", "default"), ("b", "other")] {
        let created = run(&service.socket, &["create", "--agent-id", agent, "--profile", profile]).await;
        assert_eq!(created.code, Some(0), "{}", created.errors);
    }
    let count = async |arguments: &[&str]| {
        let listed = run(&service.socket, &[&["list", "--json"], arguments].concat()).await.output;
        let listed: Value = serde_json::from_str(&listed).expect("one JSON object");
        listed["sandboxes"].as_array().expect("an array").len()
    };
    assert_eq!(count(&["--agent", "b"]).await, 2);
    assert_eq!(count(&["--agent", "b", "--profile", "other"]).await, 1);
    assert_eq!(count(&["--status", "paused"]).await, 0);
    let asked = run(&service.socket, &["delete", "--all"]).await;
    assert!(asked.code == Some(2) && asked.errors.contains("--yes"), "there is no one to ask: {}", asked.errors);
    assert_eq!(count(&[]).await, 3);
    let some = run(&service.socket, &["delete", "--all", "--agent", "b", "--yes"]).await;
    assert_eq!((some.code, some.output.lines().count(), count(&[]).await), (Some(0), 2, 1), "{}", some.errors);
    let all = run(&service.socket, &["delete", "--all", "--yes"]).await;
    assert_eq!((all.code, count(&[]).await), (Some(0), 0), "{}", all.errors);
}

#[tokio::test]
async fn tables_fit_the_terminal_and_are_whole_where_there_is_none() {
    let service = Service::start().await;
    let chat = chat();
    let agent = "an-agent-whose-name-is-longer-than-a-column-should-be";
    let created = run(&service.socket, &["create", "--chat-id", &chat, "--agent-id", agent]).await;
    assert_eq!(created.code, Some(0), "{}", created.errors);
    for arguments in [&["list"][..], &["pools"], &["images"], &["doctor"]] {
        let narrow = run_in(&service.socket, &[("COLUMNS", "80")], arguments).await.output;
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{arguments:?}: {narrow}");
    }
    let narrow = run_in(&service.socket, &[("COLUMNS", "80")], &["list"]).await.output;
    assert!(narrow.contains(&chat[..8]) && !narrow.contains(&chat), "{narrow}");
    for whole in [
        run(&service.socket, &["list"]).await,
        run_in(&service.socket, &[("COLUMNS", "80")], &["list", "--wide"]).await,
    ] {
        assert!(whole.output.contains(&chat) && whole.output.contains(agent), "{}", whole.output);
    }
}

#[tokio::test]
async fn a_closed_pipe_is_no_failure() {
    let service = Service::start().await;
    let chat = chat();
    assert_eq!(create(&service, &chat, &[]).await.code, Some(0));
    let with_closed_pipes = |arguments: &[&str]| {
        let closed = || std::io::pipe().expect("a pipe").1;
        tokio::process::Command::new(env!("CARGO_BIN_EXE_sandboxctl"))
            .env("SANDBOXD_SOCKET", &service.socket)
            .args(arguments)
            .stdout(closed())
            .stderr(closed())
            .kill_on_drop(true)
            .spawn()
            .expect("sandboxctl runs")
    };
    for arguments in
        [&["list"][..], &["get", &chat], &["--json", "info"], &["doctor"], &["--help"], &["events", "--after", "0"]]
    {
        let ended = tokio::time::timeout(PATIENCE, with_closed_pipes(arguments).wait()).await.expect("in time");
        assert_eq!(ended.expect("ended").code(), Some(0), "{arguments:?}");
    }
    // The command writes only to standard error: one line at its end.
    let mut watching = with_closed_pipes(&["events"]);
    let mut caller = service.connect().await;
    let _ = caller.ask(&request(1, "system.health", &json!({}))).await;
    service.shutdown.cancel();
    let ended = tokio::time::timeout(PATIENCE, watching.wait()).await.expect("in time").expect("ended");
    assert_ne!(ended.code(), Some(101), "it panicked");
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
async fn exit_codes_distinguish_failures() {
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
    let unreachable = run(Path::new("/nonexistent/socket"), &["health"]).await;
    assert!(
        unreachable.code == Some(3) && unreachable.errors.contains("is sandboxd running?"),
        "{}",
        unreachable.errors
    );
}

#[tokio::test]
async fn health_is_in_the_exit_code() {
    let service = Service::start().await;
    let healthy = run(&service.socket, &["health"]).await;
    assert!(healthy.code == Some(0) && healthy.output.contains("ok"), "{}", healthy.output);
    service.engine.fail_always(Operation::Identify, Fault::unreachable());
    let degraded = run(&service.socket, &["health"]).await;
    assert!(degraded.code == Some(1) && degraded.output.contains("degraded"), "{}", degraded.output);
    let info = run(&service.socket, &["info"]).await;
    assert!(info.code == Some(0) && info.output.contains("default, other"), "{}", info.output);
}

#[tokio::test]
async fn doctor_reports_problems_with_advice() {
    let service = Service::start().await;
    let healthy = run(&service.socket, &["doctor"]).await;
    assert!(
        healthy.code == Some(0) && healthy.output.contains(" checks, 0 problems"),
        "{}{}",
        healthy.output,
        healthy.errors
    );
    service.engine.lose_image("sandbox:1");
    let missing = run(&service.socket, &["doctor"]).await;
    assert_eq!(missing.code, Some(1), "{}", missing.output);
    for part in ["\u{2713} ok       engine", "\u{2717} problem  images", "-> `sandboxctl image pull sandbox:1` gets it"]
    {
        assert!(missing.output.contains(part), "{part}: {}", missing.output);
    }
    assert!(!missing.output.contains('\x1b'), "no colour but on a terminal");
    let report = run(&service.socket, &["--json", "doctor"]).await;
    let report: Value = serde_json::from_str(&report.output).expect("one JSON object");
    assert_eq!((&report["checks"][0]["name"], &report["checks"][0]["advice"]), (&"engine".into(), &Value::Null));
}

#[tokio::test]
async fn doctor_works_without_a_service() {
    let unreachable = run(Path::new("/nonexistent/socket"), &["doctor"]).await;
    assert_eq!(unreachable.code, Some(1));
    assert!(unreachable.output.contains("there is no socket /nonexistent/socket"), "{}", unreachable.output);
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
    let left = run(&socket, &["--json", "doctor"]).await;
    let report: Value = serde_json::from_str(&left.output).expect("one JSON object");
    let check = &report["checks"][0];
    assert_eq!((left.code, &check["name"], &check["status"]), (Some(1), &"service".into(), &"problem".into()));
    assert!(check["message"].as_str().is_some_and(|message| message.starts_with("no service listens at")), "{check}");
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

/// A running command that follows a stream.
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
