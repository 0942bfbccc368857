//! Tests of a sandbox's logs and statistics.

use std::time::Duration;

use crate::support;
use crate::support::{Caller, PATIENCE, Service, chat, kind, request};
use sandboxd_actors::domain::ids::ContainerId;
use sandboxd_actors::ports::engine::fake::Fault;
use sandboxd_actors::ports::engine::logs::LogStream;
use sandboxd_actors::ports::engine::{EngineError, Exit, Operation};
use serde_json::{Value, json};

struct Chat {
    service: Service,
    caller: Caller,
    chat: String,
    container: ContainerId,
}

impl Chat {
    async fn new() -> Self {
        let service = Service::start().await;
        let (mut caller, chat) = (service.connect().await, chat());
        let created = caller.ask(service.create(1, &chat)).await;
        let container = ContainerId::new(created["result"]["container_id"].as_str().expect("a container"));
        Self { service, caller, chat, container }
    }

    fn line(&self, method: &str, mut params: Value) -> String {
        params["chat_id"] = json!(self.chat);
        request(7, method, &params)
    }

    fn print(&self, stream: LogStream, line: &str) {
        self.service.engine.print(&self.container, stream, line);
    }

    async fn send(&mut self, method: &str, params: Value) {
        let line = self.line(method, params);
        self.caller.send(line).await;
    }

    /// Returns all output notifications and the answer.
    async fn logs(&mut self, params: Value) -> (Vec<(String, String)>, Value) {
        self.send("sandbox.logs", params).await;
        self.rest().await
    }

    async fn rest(&mut self) -> (Vec<(String, String)>, Value) {
        let mut lines = Vec::new();
        loop {
            let message = self.caller.answer().await;
            if message.get("id").is_some() {
                return (lines, message);
            }
            lines.push(output(&message));
        }
    }

    async fn get(&self) -> Value {
        let mut caller = self.service.connect().await;
        caller.ask(request(1, "sandbox.get", &json!({ "chat_id": self.chat }))).await["result"].clone()
    }
}

fn output(message: &Value) -> (String, String) {
    assert_eq!(message["method"], "sandbox.output", "{message}");
    assert!(message["params"].get("command_id").is_none(), "{message}");
    let text = |name: &str| message["params"][name].as_str().expect("text").to_owned();
    (text("stream"), text("text"))
}

fn lines_of(lines: &[(&str, &str)]) -> Vec<(String, String)> {
    lines.iter().map(|(stream, line)| (stream.to_string(), format!("{line}\n"))).collect()
}

async fn eventually(label: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = tokio::time::Instant::now();
    while !condition().await {
        assert!(start.elapsed() < PATIENCE, "{label}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn logs_are_sent_by_stream_and_in_part() {
    let mut chat = Chat::new().await;
    chat.print(LogStream::Stdout, "one");
    chat.print(LogStream::Stderr, "two");
    chat.print(LogStream::Stdout, "three");
    let (all, answer) = chat.logs(json!({})).await;
    assert_eq!(all, lines_of(&[("stdout", "one"), ("stderr", "two"), ("stdout", "three")]));
    assert_eq!(answer["result"], json!({ "bytes": 14 }), "{answer}");
    assert_eq!(chat.logs(json!({ "tail": 1 })).await.0, lines_of(&[("stdout", "three")]));
    assert_eq!(chat.logs(json!({ "tail": 0 })).await.0, vec![]);
    assert_eq!(chat.logs(json!({ "since": "2999-01-01T00:00:00Z" })).await.0, vec![]);
    assert_eq!(chat.logs(json!({ "since": "1999-01-01T00:00:00Z", "tail": 9 })).await.0.len(), 3);
}

#[tokio::test]
async fn followed_logs_hold_the_sandbox_and_end_with_it() {
    let mut chat = Chat::new().await;
    chat.print(LogStream::Stdout, "before");
    chat.send("sandbox.logs", json!({ "follow": true })).await;
    assert_eq!(output(&chat.caller.answer().await), ("stdout".into(), "before\n".into()));
    eventually("it is held", async || chat.get().await["held_by"] != json!([])).await;
    chat.print(LogStream::Stderr, "while");
    assert_eq!(output(&chat.caller.answer().await), ("stderr".into(), "while\n".into()));
    chat.service.engine.end(&chat.container, Exit { code: 3, oom_killed: false }, &["last words"]);
    let (rest, answer) = chat.rest().await;
    assert_eq!((rest, &answer["result"]["bytes"]), (lines_of(&[("stdout", "last words")]), &json!(24)), "{answer}");

    eventually("it has failed", async || chat.get().await["status"] == "failed").await;
    let (all, _) = chat.logs(json!({ "follow": true })).await;
    assert_eq!(all.len(), 3, "its container is still there");
    chat.service.engine.vanish(&chat.container);
    assert_eq!(kind(&chat.logs(json!({})).await.1), "sandbox_not_running");
}

#[tokio::test]
async fn a_caller_that_stops_reading_logs_no_longer_holds_the_sandbox() {
    let mut chat = Chat::new().await;
    chat.print(LogStream::Stdout, "line");
    chat.send("sandbox.logs", json!({ "follow": true })).await;
    chat.caller.answer().await;
    eventually("it is held", async || chat.get().await["held_by"] != json!([])).await;
    chat.caller = chat.service.connect().await;
    eventually("it is not held", async || chat.get().await["held_by"] == json!([])).await;
}

#[tokio::test]
async fn logs_that_cannot_be_read_say_why() {
    let mut chat = Chat::new().await;
    for (params, field) in [
        (json!({ "tail": -1 }), "tail"),
        (json!({ "since": "yesterday" }), "since"),
        (json!({ "follow": "yes" }), "follow"),
    ] {
        let (_, answer) = chat.logs(params).await;
        assert_eq!((kind(&answer), &answer["error"]["data"]["details"]["field"]), ("invalid_params", &json!(field)));
    }
    let refused = EngineError::Refused { operation: Operation::Logs, message: "no".into() };
    chat.service.engine.fail_next(Operation::Logs, Fault::Fail(refused));
    assert_eq!(kind(&chat.logs(json!({})).await.1), "engine_unavailable");
    chat.chat = support::chat();
    assert_eq!(kind(&chat.logs(json!({})).await.1), "sandbox_not_found");
}

const STATS: [&str; 10] = [
    "at",
    "cpu_seconds",
    "cpu_percent",
    "memory_bytes",
    "memory_limit_bytes",
    "pids",
    "pids_limit",
    "received_bytes",
    "sent_bytes",
    "written_bytes",
];

#[tokio::test]
async fn stats_are_answered_once_or_sent_at_an_interval() {
    let mut chat = Chat::new().await;
    chat.send("sandbox.stats", json!({})).await;
    let answer = chat.caller.answer().await;
    let fields = |stats: &Value| stats.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    let mut expected = STATS.map(String::from).to_vec();
    expected.sort();
    assert_eq!(fields(&answer["result"]), expected, "{answer}");

    chat.send("sandbox.stats", json!({ "interval": 0.1 })).await;
    for _ in 0..2 {
        let notification = chat.caller.answer().await;
        assert_eq!((&notification["method"], &notification["params"]["id"]), (&json!("sandbox.stats"), &json!(7)));
        assert_eq!(fields(&notification["params"]["stats"]), expected, "{notification}");
    }
    assert_eq!(chat.get().await["held_by"], json!([]), "a monitor does not hold the sandbox");
    chat.service.engine.end(&chat.container, Exit { code: 0, oom_killed: false }, &[]);
    loop {
        let message = chat.caller.answer().await;
        if message.get("id").is_some() {
            assert_eq!(kind(&message), "sandbox_not_running");
            break;
        }
    }
}

#[tokio::test]
async fn stats_of_a_missing_sandbox_or_at_a_short_interval_are_refused() {
    let mut chat = Chat::new().await;
    chat.send("sandbox.stats", json!({ "interval": 0.01 })).await;
    let answer = chat.caller.answer().await;
    assert_eq!((kind(&answer), &answer["error"]["data"]["details"]["field"]), ("invalid_params", &json!("interval")));
    chat.chat = support::chat();
    chat.send("sandbox.stats", json!({})).await;
    assert_eq!(kind(&chat.caller.answer().await), "sandbox_not_found");
}
