//! Tests that the service matches its documentation: the examples are played, and names and numbers are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support;
use crate::support::{Caller, Service, request};
use sandboxd::protocol::check::MAX_DURATION;
use sandboxd::protocol::error::{of_image, of_sandbox, path_unavailable};
use sandboxd::protocol::guest::{DEFAULT_OUTPUT, MAX_ARGUMENTS, MAX_FILES, MAX_OUTPUT, MAX_READ};
use sandboxd::protocol::params::{DEFAULT_PAGE, MAX_PAGE};
use sandboxd::protocol::request::Id;
use sandboxd::server::Limits;
use sandboxd_actors::domain::ended::Ended;
use sandboxd_actors::domain::ids::{ContainerId, LeaseId, SessionId};
use sandboxd_actors::domain::outcome::{Death, LimitKind, NotPurged, NotSaved, SandboxError, StartFailure};
use sandboxd_actors::domain::sandbox::{Reason, Status};
use sandboxd_actors::engine::fair_queue::QueueTimeout;
use sandboxd_actors::ports::chat_directories::DirectoryError;
use sandboxd_actors::ports::engine::logs::LogStream;
use sandboxd_actors::ports::engine::{EngineError, Exit, Operation};
use sandboxd_actors::ports::images::ImageError;
use sandboxd_protocol::error::{Error, ErrorKind, StartFailureCause};
use sandboxd_protocol::example::{self, Example};
use sandboxd_protocol::method::Method;
use sandboxd_protocol::schema;
use sandboxd_protocol::system::CheckName;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const PROSE: &str = include_str!("../../docs/protocol.md");
const REFERENCE: &str = include_str!("../../docs/protocol-reference.md");

/// Fields whose values differ between runs: only their types are compared.
const VOLATILE: [&str; 32] = [
    "time_remaining",
    "image_id",
    "built_at",
    "checked_at",
    "session_id",
    "snapshot_id",
    "container_id",
    "ip",
    "created_at",
    "started_at",
    "last_activity_at",
    "expires_at",
    "idle_expires_at",
    "held_until",
    "ends_at",
    "lease_id",
    "lease_until",
    "until",
    "at",
    "uptime",
    "version",
    "api_version",
    "host",
    "engine.kind",
    "volume_host_path",
    "command_id",
    "duration",
    "age",
    "uid",
    "gid",
    "modified_at",
    // In the answer of `system.health`: a chat counts until its actor has ended.
    "sandboxes",
];

/// Fields that depend on the host: a string or null.
const HOST_DEPENDENT: [&str; 3] = [".checks.status", ".checks.message", ".checks.advice"];

/// Fields that not every host can measure: a number or null.
const MEASURED: [&str; 9] = [
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

// ---- reading the documents ----

/// Returns the part of a document below a heading, up to the next heading of the same or a higher level.
fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let level = heading.split(' ').next().expect("a level");
    let start = document.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}")) + heading.len() + 2;
    let rest = &document[start..];
    let ends = (1..=level.len()).filter_map(|hashes| rest.find(&format!("\n{} ", "#".repeat(hashes))));
    &rest[..ends.min().unwrap_or(rest.len())]
}

/// Returns all texts in back quotes.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn parse(message: &str) -> Value {
    serde_json::from_str(message).unwrap_or_else(|error| panic!("{error}: {message}"))
}

fn examples() -> Vec<Example> {
    example::all().expect("examples")
}

/// Returns the messages of the examples of a method that are not played in sequence.
fn unplayed_messages(method: Method) -> Vec<Value> {
    let own = examples().into_iter().filter(|example| example.method == method && !example.is_played);
    own.flat_map(|example| example.messages).map(parse).collect()
}

/// Distinguishes requests from answers and notifications.
fn is_request(message: &Value) -> bool {
    message.get("id").is_some() && message.get("method").is_some()
}

// ---- examples ----

#[tokio::test]
async fn every_example_is_answered_as_documented() {
    let service = Service::start().await;
    let mut player = Player::new(&service, "/volume").await;
    for message in examples().iter().filter(|example| example.is_played).flat_map(|example| &example.messages) {
        let message = parse(message);
        if message["method"] == Method::SandboxLogs.name() {
            let container = service.engine.containers().pop().expect("a container").id;
            service.engine.print(&container, LogStream::Stdout, "listening on 8080");
        }
        player.play(&message).await;
    }
    assert_eq!(player.early, Vec::<Value>::new(), "no other message is sent");
}

#[test]
fn every_example_outside_the_sequence_has_its_own_test() {
    let unplayed = examples().into_iter().filter(|example| !example.is_played).map(|example| example.method);
    let tested = [Method::SandboxAttach, Method::SandboxStats, Method::EventsWatch];
    assert_eq!(unplayed.collect::<BTreeSet<_>>(), tested.into());
}

#[tokio::test]
async fn the_session_of_the_prose_is_answered_as_documented() {
    let service = Service::start().await;
    let mut player = Player { is_shortened: true, ..Player::new(&service, "/chat").await };
    let blocks = PROSE.split("```json\n").skip(1).map(|rest| rest.split("```").next().expect("an end"));
    let messages: Vec<_> = blocks.flat_map(str::lines).map(parse).collect();
    assert!(messages.iter().any(|message| message["method"] == Method::SandboxDelete.name()), "a whole session");
    for message in &messages {
        player.play(message).await;
    }
}

#[tokio::test]
async fn output_that_arrives_in_parts_is_one_message_of_an_example() {
    let service = Service::start().await;
    let mut player = Player::new(&service, "/volume").await;
    let output = |text| json!({ "method": "sandbox.output", "params": { "id": 1, "stream": "stdout", "text": text } });
    player.early = ["rea", "dy", "\r\n", "40 120\r\n"].map(output).into();
    player.receive(&output("ready\r\n")).await;
    assert_eq!(player.early, [output("40 120\r\n")]);
}

/// Plays messages on one connection, with several requests in flight.
struct Player<'a> {
    caller: Caller,
    /// The directory that the examples name.
    directory: &'a str,
    /// The directory that is used instead of it.
    volume: &'a str,
    /// Whether the examples leave fields out.
    is_shortened: bool,
    /// Messages that arrived before the examples mention them.
    early: Vec<Value>,
    /// Pairs of a documented id and its real value.
    ids: Vec<(Value, Value)>,
}

impl<'a> Player<'a> {
    async fn new(service: &'a Service, directory: &'a str) -> Self {
        let (caller, volume) = (service.connect().await, &service.volume);
        Player { caller, directory, volume, is_shortened: false, early: vec![], ids: vec![] }
    }

    async fn play(&mut self, message: &Value) {
        if is_request(message) { self.ask(message).await } else { self.receive(message).await }
    }

    async fn ask(&mut self, request: &Value) {
        let (documented, real) = (format!("{}/", self.directory), format!("{}/", self.volume));
        let mut request = parse(&request.to_string().replace(&documented, &real));
        if let Some(volume) = request.pointer_mut("/params/volume_host_path") {
            *volume = json!(self.volume);
        }
        if let Some(context) = request.pointer_mut("/params/context") {
            *context = json!(self.volume);
        }
        for name in ["lease_id", "command_id", "snapshot_id"] {
            if let Some(id) = request.pointer_mut(&format!("/params/{name}"))
                && let Some((_, real)) = self.ids.iter().find(|(documented, _)| documented == id)
            {
                *id = real.clone();
            }
        }
        self.caller.send(format!("{request}\n")).await;
    }

    async fn receive(&mut self, documented: &Value) {
        let mut received = self.next_like(documented).await;
        while is_part(&received, documented) {
            let rest = self.next_like(documented).await;
            append_text(&mut received, &rest);
        }
        shorten_archive(&mut received, documented);
        if self.is_shortened {
            retain_documented(&mut received, documented);
        }
        assert_alike("", documented, &received);
        for path in ["/result/lease_id", "/result/command_id", "/result/snapshot_id", "/params/command_id"] {
            self.ids.extend(documented.pointer(path).cloned().zip(received.pointer(path).cloned()));
        }
    }

    /// Returns the first message that has the method, the ids and the stream of the documented one.
    async fn next_like(&mut self, documented: &Value) -> Value {
        let key = |message: &Value| {
            let params = &message["params"];
            (message.get("method").cloned(), message.get("id").cloned(), params["id"].clone(), params["stream"].clone())
        };
        loop {
            if let Some(index) = self.early.iter().position(|message| key(message) == key(documented)) {
                return self.early.remove(index);
            }
            let line = self.caller.line().await.expect("an answer, not the end");
            self.early.push(parse(&line.replace(self.volume, self.directory)));
        }
    }
}

const TEXT: &str = "/params/text";

/// Returns whether a notification has the beginning of the documented text: a terminal may split a line in two reads.
fn is_part(received: &Value, documented: &Value) -> bool {
    let text = |message: &Value| message.pointer(TEXT).and_then(Value::as_str).map(str::to_owned);
    match (text(received), text(documented)) {
        (Some(part), Some(whole)) => part.len() < whole.len() && whole.starts_with(&part),
        _ => false,
    }
}

fn append_text(message: &mut Value, rest: &Value) {
    if let (Some(Value::String(text)), Some(Value::String(rest))) = (message.pointer_mut(TEXT), rest.pointer(TEXT)) {
        text.push_str(rest);
    }
}

/// Shortens an archive to its beginning: the rest has owners and times, and is mostly zeros.
fn shorten_archive(received: &mut Value, documented: &Value) {
    const BEGINNING: &str = "Li8AAAAAAAAA";
    let field_path = "/params/base64";
    if documented.pointer(field_path).is_some_and(|bytes| bytes == BEGINNING)
        && let Some(Value::String(bytes)) = received.pointer_mut(field_path)
    {
        bytes.truncate(BEGINNING.len());
    }
}

/// Removes the fields that a shortened example leaves out.
fn retain_documented(received: &mut Value, documented: &Value) {
    if let (Value::Object(received), Value::Object(documented)) = (received, documented) {
        received.retain(|name, _| documented.contains_key(name));
        received.iter_mut().for_each(|(name, value)| retain_documented(value, &documented[name]));
    }
}

#[tokio::test]
async fn missed_output_of_a_detached_command_is_announced_as_documented() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = support::chat();
    caller.ask(service.create(1, &chat)).await;
    let params = json!({ "chat_id": chat, "command": "head -c 3000000 /dev/zero", "detach": true });
    let command = caller.ask(request(2, "sandbox.exec", &params)).await["result"]["command_id"].clone();
    loop {
        let listed = caller.ask(request(3, "sandbox.commands", &json!({ "chat_id": chat }))).await;
        if listed["result"]["commands"][0]["running"] == false {
            break;
        }
    }
    let [documented] = &unplayed_messages(Method::SandboxAttach)[..] else { panic!("one message") };
    let id = documented["params"]["id"].as_u64().expect("a number");
    let params = json!({ "chat_id": chat, "command_id": command, "stream": true });
    assert_eq!(caller.ask(request(id, "sandbox.attach", &params)).await["method"], "sandbox.started");
    let mut missed = caller.answer().await;
    assert!(missed["params"]["bytes"].as_u64() > Some(1_900_000), "{missed}");
    missed["params"]["bytes"] = documented["params"]["bytes"].clone();
    assert_alike("", documented, &missed);
}

#[tokio::test]
async fn statistics_at_an_interval_are_sent_as_documented() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let chat = support::chat();
    caller.ask(service.create(1, &chat)).await;
    let [documented] = &unplayed_messages(Method::SandboxStats)[..] else { panic!("one message") };
    let id = documented["params"]["id"].as_u64().expect("a number");
    let sent = caller.ask(request(id, "sandbox.stats", &json!({ "chat_id": chat, "interval": 0.1 }))).await;
    assert_alike("", documented, &sent);
}

#[tokio::test]
async fn a_watch_yields_the_documented_messages() {
    let documented = unplayed_messages(Method::EventsWatch);
    let [watch, watching, event, gap, answer] = &documented[..] else { panic!("{documented:?}") };
    let service = Service::start().await;
    let chat = event["params"]["event"]["chat_id"].as_str().expect("a chat");
    let agent = &event["params"]["event"]["agent_id"];
    let params = json!({ "chat_id": chat, "agent_id": agent, "volume_host_path": service.volume });
    service.connect().await.ask(request(1, "sandbox.create", &params)).await;

    let mut watcher = service.connect().await;
    assert_alike("", watching, &watcher.ask(format!("{watch}\n")).await);
    assert_alike("", event, &watcher.answer().await);
    watcher.sink.shutdown().await.expect("half closed");
    assert_alike("", answer, &watcher.answer().await);
    assert_eq!(watcher.next().await, None);

    service.journal.keep_events(1);
    let mut late = service.connect().await;
    late.ask(request(2, "sandbox.delete", &json!({ "chat_id": chat }))).await;
    assert_eq!(late.ask(format!("{watch}\n")).await["method"], watching["method"]);
    let mut found = late.answer().await;
    assert!(found["params"]["resumes_at"].as_u64() > Some(2), "{found}");
    found["params"]["resumes_at"] = gap["params"]["resumes_at"].clone();
    assert_alike("", gap, &found);
}

fn assert_alike(path: &str, documented: &Value, actual: &Value) {
    let name = path.rsplit('.').next().unwrap_or_default();
    match (documented, actual) {
        (Value::Object(expected), Value::Object(found)) => {
            assert!(expected.keys().eq(found.keys()), "{path}: {expected:?} is documented, {found:?} answered");
            for (field, value) in expected {
                assert_alike(&format!("{path}.{field}"), value, &found[field]);
            }
        }
        (Value::Array(expected), Value::Array(found)) => {
            assert_eq!(expected.len(), found.len(), "{path}");
            expected.iter().zip(found).for_each(|(expected, found)| assert_alike(path, expected, found));
        }
        _ if HOST_DEPENDENT.iter().any(|place| path.ends_with(place)) => {
            assert!(actual.is_string() || actual.is_null(), "{path}: {actual}");
        }
        _ if MEASURED.contains(&name) => assert!(actual.is_number() || actual.is_null(), "{path}: {actual}"),
        _ if VOLATILE.iter().any(|volatile| *volatile == name || path.ends_with(&format!(".{volatile}"))) => {
            assert_eq!(std::mem::discriminant(documented), std::mem::discriminant(actual), "{path}");
        }
        _ => assert_eq!(documented, actual, "{path}"),
    }
}

// ---- names and numbers ----

#[tokio::test]
async fn the_parameters_of_the_schema_are_those_that_the_service_accepts() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    let document = serde_json::to_value(schema::document()).expect("JSON");
    for (method, entry) in Method::ALL.into_iter().zip(document["methods"].as_array().expect("an array")) {
        let name = entry["params"]["$ref"].as_str().expect("a reference").trim_start_matches("#/$defs/");
        let properties = document["$defs"][name]["properties"].as_object().into_iter().flatten();
        // The refusal of an unknown field names the known ones.
        let refusal = caller.ask(request(1, method.name(), &json!({ "?": 1 }))).await;
        let message = refusal["error"]["message"].as_str().expect("a message");
        let known = message.split_once("expected").map(|(_, known)| quoted(known)).unwrap_or_default();
        assert_eq!(properties.map(|(name, _)| name.clone()).collect::<BTreeSet<_>>(), known, "{message}");
    }
}

#[tokio::test]
async fn the_checks_of_the_doctor_are_the_known_ones_in_their_order() {
    let service = Service::start().await;
    let answer = service.connect().await.ask(request(1, Method::SystemDoctor.name(), &json!({}))).await;
    let checks = answer["result"]["checks"].as_array().expect("an array");
    let names: Vec<_> = checks.iter().map(|check| check["name"].as_str().expect("a name")).collect();
    assert_eq!(names, CheckName::ALL.map(CheckName::as_str));
}

#[test]
fn the_documented_limits_are_those_of_the_code() {
    let Limits { max_connections, max_line, max_in_flight, max_output, write_stall, .. } = Limits::default();
    let Limits { max_memory, max_memory_per_connection, .. } = Limits::default();
    for (heading, text) in [
        ("## Limits", format!("| `max_connections` | {max_connections} |")),
        ("## Limits", format!("| `max_line` | {max_line} |")),
        ("## Limits", format!("| `max_in_flight` | {max_in_flight} |")),
        ("## Limits", format!("| `max_output` | {max_output} |")),
        ("## Limits", format!("| `max_memory` | {max_memory} |")),
        ("## Limits", format!("| `max_memory_per_connection` | {max_memory_per_connection} |")),
        ("## Limits", format!("for {} seconds", write_stall.as_secs())),
        ("## A line and its answer", format!("of at most {} bytes", Id::MAX_BYTES)),
        ("## A line and its answer", format!("at most {} (a year)", MAX_DURATION.as_secs())),
    ] {
        assert!(section(PROSE, heading).contains(&text), "{heading}: {text}");
    }
    for (method, text) in [
        (Method::SandboxList, format!("1 to {MAX_PAGE} | {DEFAULT_PAGE} |")),
        (Method::SnapshotList, format!("1 to {MAX_PAGE} | {DEFAULT_PAGE} |")),
        (Method::SandboxExec, format!("at most {MAX_ARGUMENTS} bytes")),
        (Method::SandboxExec, format!("| {DEFAULT_OUTPUT}, and unlimited if")),
        (Method::SandboxExec, format!("at most {MAX_OUTPUT} unless")),
        (Method::SandboxAttach, format!("| {DEFAULT_OUTPUT}, and unlimited if")),
        (Method::SandboxReadFile, format!("| {MAX_READ}, and unlimited if")),
        (Method::SandboxReadFile, format!("at most {MAX_READ} unless")),
        (Method::SandboxListFiles, format!("more than {MAX_FILES} or")),
    ] {
        let heading = format!("### `{}`", method.name());
        assert!(section(REFERENCE, &heading).contains(&text), "{heading}: {text}");
    }
}

// ---- errors ----

#[test]
fn the_details_of_errors_are_those_of_the_table() {
    let mut made: BTreeMap<ErrorKind, BTreeSet<String>> = BTreeMap::new();
    let mut causes = BTreeMap::new();
    for error in every_error() {
        made.entry(error.data.kind).or_default().extend(error.data.details.keys().cloned());
        if let Some(cause) = error.detail::<StartFailureCause>("cause") {
            causes.insert(cause, error.data.retryable);
        } else {
            let kind = error.data.kind;
            assert!(kind.has_exceptions() || error.data.retryable == kind.is_retryable(), "{error:?}");
        }
    }
    let names = |kind: ErrorKind| kind.details().iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(made, ErrorKind::ALL.map(|kind| (kind, names(kind))).into());
    assert_eq!(causes, StartFailureCause::ALL.map(|cause| (cause, cause.is_retryable())).into());
}

/// Returns at least one error of each kind and cause, with all its details.
fn every_error() -> Vec<Error> {
    let chat = "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().expect("a UUID");
    let unreachable = || EngineError::Unreachable { message: "gone".into() };
    let refused = || EngineError::Refused { operation: Operation::Create, message: "no".into() };
    let death = |code, oom_killed| {
        StartFailure::Died(Death { exit: Some(Exit { code, oom_killed }), memory_limit_bytes: None, log_tail: vec![] })
    };
    let ended = Box::new(Ended {
        session: SessionId::random(),
        at: chrono::Utc::now(),
        reason: Reason::Expired,
        message: Some("ttl 4h".into()),
        ago: Duration::from_secs(2),
    });
    let failures = [
        StartFailure::Directory(DirectoryError::new("/chats", "broken")),
        StartFailure::Engine(unreachable()),
        StartFailure::Engine(refused()),
        StartFailure::Engine(EngineError::ImageNotFound { image: "base".into() }),
        StartFailure::NameConflict { name: "n".into(), holder: ContainerId::new("c"), why: "foreign".into() },
        StartFailure::NoAddress,
        StartFailure::NotReady { limit: Duration::from_secs(1), last: "refused".into(), log_tail: vec![] },
        StartFailure::NoHealthCheck,
        StartFailure::NotBound("x".into()),
        StartFailure::VolumeChanged("x".into()),
        StartFailure::NotBegun("x".into()),
        StartFailure::QueueTimeout(QueueTimeout(Duration::from_secs(1))),
        death(1, false),
        death(137, false),
        death(137, true),
        StartFailure::Deleted,
        StartFailure::PredecessorRemains(refused().into()),
        StartFailure::NotSaved(NotSaved("full".into())),
        StartFailure::Defect("panic".into()),
    ];
    let from_the_core = failures.into_iter().map(|failure| SandboxError::StartFailed { chat, failure }).chain([
        SandboxError::Conflict { chat, session: SessionId::random(), fields: vec!["agent_id"] },
        SandboxError::DeleteOwed { chat, error: refused().into() },
        SandboxError::DeleteOwed { chat, error: unreachable().into() },
        SandboxError::DeleteOwed { chat, error: NotSaved("full".into()).into() },
        SandboxError::NotListed,
        SandboxError::NotFound { chat },
        SandboxError::Ended { chat, ended },
        SandboxError::NotPurged { chat, why: NotPurged::InUse },
        SandboxError::NotRunning { chat, status: Status::Failed },
        SandboxError::NoSuchLease { chat, lease: LeaseId::random() },
        SandboxError::TooManyLeases { chat, limit: 64 },
        SandboxError::SnapshotFailed { chat, error: refused() },
        SandboxError::NotSaved { chat, error: NotSaved("full".into()) },
        SandboxError::Unknown { chat, error: refused() },
        SandboxError::Recovering { chat, retry_after: Duration::from_secs(1) },
        SandboxError::AdmissionDenied { chat, what: LimitKind::Agent, limit: 1, retry_after: Duration::from_secs(1) },
        SandboxError::ShuttingDown,
        SandboxError::NoAnswer { chat, limit: Duration::from_secs(1) },
    ]);
    // The server makes these errors itself; `tests/protocol_bytes.rs` provokes them.
    let server_errors = [
        Error::invalid_params("ttl", "no"),
        path_unavailable("volume_host_path", "hung"),
        ErrorKind::SandboxNotFound.error("").with("chat_id", "c"),
        ErrorKind::SnapshotNotFound.error("").with("snapshot_id", "s"),
        ErrorKind::SnapshotInUse.error("").with("snapshot_id", "s"),
        ErrorKind::LineTooLong.error("").with("limit", 1),
        ErrorKind::TooManyConnections.error("").with("limit", 1),
        ErrorKind::ShuttingDown.error("").with("command_id", 1),
        ErrorKind::GuestUnreachable.error("").with("chat_id", "c"),
        ErrorKind::CommandNotStarted.error("").with("chat_id", "c").with("errno", 2),
        ErrorKind::CommandNotFound.error("").with("chat_id", "c").with("command_id", 1),
        ErrorKind::SyncFailed.error("").with("chat_id", "c"),
        ErrorKind::FileError.error("").with("path", "/p").with("reason", "other"),
        of_image(ImageError::PullFailed { image: "i".into(), registry: "r".into(), reason: "no".into() }),
        of_image(ImageError::BuildFailed { tag: "i".into(), step: None, reason: "no".into(), log_tail: vec![] }),
        of_image(ImageError::SourceUnavailable { repository: "r".into(), reason: "no".into() }),
        ErrorKind::ParseError.error(""),
        ErrorKind::InvalidRequest.error(""),
        ErrorKind::MethodNotFound.error(""),
        ErrorKind::Unauthorized.error(""),
    ];
    from_the_core.map(of_sandbox).chain(server_errors).collect()
}
