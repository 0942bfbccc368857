//! Tests that docs/protocol.md matches the service: its examples are played, and its tables are compared with the code.

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
use sandboxd_protocol as wire;
use sandboxd_protocol::error::{Error, ErrorKind};
use sandboxd_protocol::file::FileReason;
use sandboxd_protocol::method::Method;
use sandboxd_protocol::sandbox::{Launch, Outcome};
use sandboxd_protocol::system::ReconcileBecause;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const DOCUMENT: &str = include_str!("../../docs/protocol.md");

/// Fields whose values differ between runs: only their types are compared.
const VOLATILE: [&str; 31] = [
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

// ---- reading the document ----

/// Returns the part below a heading, up to the next heading of the same or a higher level.
fn section(heading: &str) -> &'static str {
    let level = heading.split(' ').next().expect("a level");
    let start = DOCUMENT.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}")) + heading.len() + 2;
    let rest = &DOCUMENT[start..];
    let ends = (1..=level.len()).filter_map(|hashes| rest.find(&format!("\n{} ", "#".repeat(hashes))));
    &rest[..ends.min().unwrap_or(rest.len())]
}

fn method_section(method: Method) -> &'static str {
    section(&format!("### `{}`", method.name()))
}

/// Returns the rows of the table with this header.
fn table(section: &str, header: &str) -> Vec<Vec<String>> {
    let mut lines = section.lines().skip_while(|line| *line != header).skip(2);
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    std::iter::from_fn(|| lines.next().filter(|line| line.starts_with('|'))).map(cells).collect()
}

/// Returns all texts in back quotes.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn first_column(rows: &[Vec<String>]) -> BTreeSet<String> {
    rows.iter().map(|row| row[0].trim_matches('`').to_owned()).collect()
}

fn messages(section: &str) -> Vec<Value> {
    section
        .split("```json\n")
        .skip(1)
        .map(|rest| rest.split("```").next().expect("an end"))
        .map(|block| serde_json::from_str(block).unwrap_or_else(|error| panic!("{error}: {block}")))
        .collect()
}

/// Returns the requests of a section, each with its only answer. Notifications have no id.
fn examples(section: &str) -> Vec<(Value, Value)> {
    let messages = messages(section);
    let requests = messages.iter().filter(|message| is_request(message));
    let answer = |request: &Value| {
        let answers = messages.iter().filter(|message| !is_request(message) && message.get("id") == request.get("id"));
        let answers: Vec<_> = answers.collect();
        assert_eq!(answers.len(), 1, "{request} has one answer");
        answers[0].clone()
    };
    requests.map(|request| (request.clone(), answer(request))).collect()
}

/// Distinguishes requests from answers and notifications.
fn is_request(message: &Value) -> bool {
    message.get("id").is_some() && message.get("method").is_some()
}

fn words<const N: usize>(known: [&str; N]) -> BTreeSet<String> {
    known.map(str::to_owned).into()
}

// ---- examples ----

#[tokio::test]
async fn every_example_is_answered_as_documented() {
    // The examples of these methods are not played in order: other tests cover them.
    let watch = messages(method_section(Method::EventsWatch))[0]["id"].clone();
    let elsewhere = |message: &Value| {
        let method = message["method"].as_str().unwrap_or_default();
        let again = method == Method::SandboxStats.name() && message.get("id").is_none();
        again || method.starts_with("events.") || method == "sandbox.missed" || message.get("id") == Some(&watch)
    };
    let service = Service::start().await;
    let mut player = Player { caller: service.connect().await, volume: &service.volume, early: vec![], ids: vec![] };
    for message in messages(DOCUMENT).iter().filter(|message| !elsewhere(message)) {
        if message["method"] == Method::SandboxLogs.name() {
            let container = service.engine.containers().pop().expect("a container").id;
            service.engine.print(&container, LogStream::Stdout, "listening on 8080");
        }
        if is_request(message) { player.ask(message).await } else { player.receive(message).await }
    }
    assert_eq!(player.early, Vec::<Value>::new(), "no other message is sent");
    let documented = examples(DOCUMENT);
    let played = documented.iter().map(|(request, _)| request["method"].as_str().expect("a method").to_owned());
    assert_eq!(played.collect::<BTreeSet<_>>(), words(Method::ALL.map(Method::name)), "each method has an example");
}

/// Plays the document on one connection, with several requests in flight.
struct Player<'a> {
    caller: Caller,
    /// The guest path of the directory that the document calls `/volume`.
    volume: &'a str,
    /// Messages that arrived before the document mentions them.
    early: Vec<Value>,
    /// Pairs of a documented id and its real value.
    ids: Vec<(Value, Value)>,
}

impl Player<'_> {
    async fn ask(&mut self, request: &Value) {
        let real_volume = format!("{}/", self.volume);
        let mut request: Value =
            serde_json::from_str(&request.to_string().replace("/volume/", &real_volume)).expect("JSON");
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
        let same = |message: &Value| {
            let of = |message: &Value| (message.get("id").cloned(), message["params"]["id"].clone());
            message.get("method") == documented.get("method") && of(message) == of(documented)
        };
        let mut received = loop {
            if let Some(index) = self.early.iter().position(same) {
                break self.early.remove(index);
            }
            let line = self.caller.line().await.expect("an answer, not the end");
            self.early.push(serde_json::from_str(&line.replace(self.volume, "/volume")).expect("JSON"));
        };
        shorten(&mut received, documented);
        assert_alike("", documented, &received);
        for path in ["/result/lease_id", "/result/command_id", "/result/snapshot_id", "/params/command_id"] {
            self.ids.extend(documented.pointer(path).cloned().zip(received.pointer(path).cloned()));
        }
    }
}

/// Shortens an archive to its beginning: the rest has owners and times, and is mostly zeros.
fn shorten(received: &mut Value, documented: &Value) {
    const BEGINNING: &str = "Li8AAAAAAAAA";
    let field_path = "/params/base64";
    if documented.pointer(field_path).is_some_and(|bytes| bytes == BEGINNING)
        && let Some(Value::String(bytes)) = received.pointer_mut(field_path)
    {
        bytes.truncate(BEGINNING.len());
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
    let documented = messages(method_section(Method::SandboxAttach)).pop().expect("a notification");
    let id = documented["params"]["id"].as_u64().expect("a number");
    let params = json!({ "chat_id": chat, "command_id": command, "stream": true });
    assert_eq!(caller.ask(request(id, "sandbox.attach", &params)).await["method"], "sandbox.started");
    let mut missed = caller.answer().await;
    assert!(missed["params"]["bytes"].as_u64() > Some(1_900_000), "{missed}");
    missed["params"]["bytes"] = documented["params"]["bytes"].clone();
    assert_alike("", &documented, &missed);
}

#[test]
fn the_documented_guest_notifications_are_those_of_the_examples() {
    let mut shown: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for message in messages(section("## Methods")).iter().filter(|message| message.get("id").is_none()) {
        let method = message["method"].as_str().expect("a method");
        if method.starts_with("sandbox.") {
            let params = message["params"].as_object().expect("an object").keys().filter(|name| *name != "id");
            shown.entry(method.to_owned()).or_default().extend(params.cloned());
        }
    }
    let rows = table(section("## Inside a sandbox"), "| notification | further params | meaning |");
    for row in &rows {
        let params = shown.remove(row[0].trim_matches('`')).unwrap_or_else(|| panic!("no example: {row:?}"));
        let documented: BTreeSet<_> = quoted(&row[1]).into_iter().collect();
        // Bytes are in one of two fields.
        assert!(params.is_subset(&documented), "{row:?}");
        let absent: BTreeSet<_> = documented.difference(&params).map(String::as_str).collect();
        assert!(absent.is_subset(&BTreeSet::from(["text", "base64"])), "{row:?}");
    }
    assert_eq!(shown, BTreeMap::new(), "not documented");
}

#[tokio::test]
async fn a_watch_yields_the_documented_messages() {
    let service = Service::start().await;
    let (create, _) = examples(method_section(Method::SandboxCreate)).remove(0);
    let chat = create["params"]["chat_id"].as_str().expect("a chat");
    let params =
        json!({ "chat_id": chat, "agent_id": create["params"]["agent_id"], "volume_host_path": service.volume });
    service.connect().await.ask(request(1, "sandbox.create", &params)).await;

    let documented = messages(method_section(Method::EventsWatch));
    let [watch, watching, event, gap, answer] = &documented[..] else { panic!("{documented:?}") };
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

    let section = method_section(Method::EventsWatch);
    let fields = first_column(&table(section, "| of an event | type | meaning |"));
    assert_covers(&fields, std::slice::from_ref(&event["params"]["event"]));
    for (row, shown) in table(section, "| notification | further params | meaning |").iter().zip([watching, event, gap])
    {
        assert_eq!(row[0].trim_matches('`'), shown["method"]);
        let params = shown["params"].as_object().expect("an object").keys().filter(|name| *name != "id");
        assert_eq!(quoted(&row[1]), params.cloned().collect::<Vec<_>>());
    }
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

// ---- methods ----

#[test]
fn the_documented_methods_and_roles_are_those_of_the_code() {
    let documented: BTreeMap<_, _> = table(section("## Methods"), "| method | role | does |")
        .into_iter()
        .map(|row| (row[0].trim_matches('`').to_owned(), row[1] == "read-only"))
        .collect();
    let known = Method::ALL.map(|method| (method.name().to_owned(), method.only_reads()));
    assert_eq!(documented, known.into());
}

#[tokio::test]
async fn the_documented_parameters_are_those_of_the_code() {
    let service = Service::start().await;
    let mut caller = service.connect().await;
    for method in Method::ALL {
        let documented = first_column(&table(method_section(method), "| field | type | default | meaning |"));
        // The refusal of an unknown field names the known ones.
        let refusal = caller.ask(request(1, method.name(), &json!({ "?": 1 }))).await;
        let message = refusal["error"]["message"].as_str().expect("a message");
        let known = message.split_once("expected").map(|(_, known)| quoted(known)).unwrap_or_default();
        assert_eq!(documented, known.into_iter().collect(), "{}: {message}", method.name());
    }
}

#[test]
fn the_documented_results_are_those_of_the_examples() {
    const FIELDS: &str = "| field | type | meaning |";
    let of_a_sandbox = first_column(&table(section("## A sandbox"), FIELDS));
    let of_a_snapshot = first_column(&table(section("## A snapshot"), FIELDS));
    let of_a_file = first_column(&table(section("### A file"), FIELDS));
    let of_a_command = table(method_section(Method::SandboxCommands), "| of a command | type | meaning |");
    let of_a_command = first_column(&of_a_command);
    let of_a_pool = first_column(&table(method_section(Method::PoolStatus), "| of a pool | type | meaning |"));
    let listed = |method, header| first_column(&table(method_section(method), header));
    let of_an_image = listed(Method::ImageList, "| of an image | type | meaning |");
    let of_a_repository = listed(Method::ImageList, "| of a repository | type | meaning |");
    let of_a_check = listed(Method::SystemDoctor, "| of a check | type | meaning |");
    let of_a_removed = listed(Method::ImagePrune, "| of an image | type | meaning |");
    let named = of_a_file.iter().cloned().chain(["name".to_owned()]).collect();
    for method in Method::ALL {
        let section = method_section(method);
        let mut documented = first_column(&table(section, FIELDS));
        if section.contains("**Result**: [a sandbox](#a-sandbox)") {
            documented.extend(of_a_sandbox.clone());
        }
        if section.contains("**Result**: [a snapshot](#a-snapshot)") {
            documented.extend(of_a_snapshot.clone());
        }
        if section.contains("**Result**: [a file](#a-file)") {
            documented.extend(of_a_file.clone());
        }
        if section.contains("**Result**: as for [`sandbox.exec`](#sandboxexec)") {
            documented.extend(first_column(&table(method_section(Method::SandboxExec), FIELDS)));
        }
        let examples = examples(DOCUMENT).into_iter().filter(|(request, _)| request["method"] == method.name());
        let results: Vec<_> = examples.filter_map(|(_, answer)| answer.get("result").cloned()).collect();
        if !results.is_empty() {
            assert_covers(&documented, &results);
        }
        let lists = [
            ("sandboxes", &of_a_sandbox),
            ("snapshots", &of_a_snapshot),
            ("files", &named),
            ("commands", &of_a_command),
            ("pools", &of_a_pool),
            ("images", &of_an_image),
            ("repositories", &of_a_repository),
            ("removed", &of_a_removed),
            ("checks", &of_a_check),
        ];
        for (list, documented) in lists {
            for item in results.iter().filter_map(|result| result.get(list)?.as_array()).flatten() {
                assert_covers(documented, std::slice::from_ref(item));
            }
        }
    }
}

#[tokio::test]
async fn the_documented_checks_are_those_of_the_code() {
    let service = Service::start().await;
    let answer = service.connect().await.ask(request(1, Method::SystemDoctor.name(), &json!({}))).await;
    let checks = answer["result"]["checks"].as_array().expect("an array");
    let names = checks.iter().map(|check| check["name"].as_str().expect("a name").to_owned());
    let documented = table(method_section(Method::SystemDoctor), "| check | of what | worse than ok if |");
    assert_eq!(first_column(&documented), names.collect());
}

/// Asserts that every value is documented, and that every documented field is in one of the results.
fn assert_covers(documented: &BTreeSet<String>, results: &[Value]) {
    let (mut all, mut leaves) = (BTreeSet::new(), BTreeSet::new());
    for result in results {
        collect_paths("", result, &mut all, &mut leaves);
    }
    assert!(leaves.is_subset(documented), "not documented: {:?}", leaves.difference(documented));
    assert!(documented.is_subset(&all), "not answered: {:?}", documented.difference(&all));
}

fn collect_paths(path: &str, value: &Value, all: &mut BTreeSet<String>, leaves: &mut BTreeSet<String>) {
    all.insert(path.to_owned());
    let Some(fields) = value.as_object() else {
        leaves.insert(path.to_owned());
        return;
    };
    for (name, value) in fields {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        collect_paths(&path, value, all, leaves);
    }
}

// ---- words and numbers ----

#[test]
fn the_documented_words_are_those_of_the_code() {
    let sandbox = section("## A sandbox");
    assert_eq!(
        first_column(&table(sandbox, "| status | meaning |")),
        words(wire::sandbox::Status::ALL.map(wire::sandbox::Status::as_str))
    );
    assert_eq!(
        first_column(&table(sandbox, "| reason | meaning |")),
        words(wire::sandbox::Reason::ALL.map(wire::sandbox::Reason::as_str))
    );

    assert_eq!(
        first_column(&table(section("## Errors"), "| reason | meaning |")),
        words(FileReason::ALL.map(FileReason::as_str))
    );

    assert_eq!(
        first_column(&table(method_section(Method::SystemReconcile), "| because | meaning |")),
        words(ReconcileBecause::ALL.map(ReconcileBecause::as_str))
    );

    let create = table(method_section(Method::SandboxCreate), "| field | type | meaning |");
    let in_quotes = |row: &[String]| quoted(&row[2]).iter().map(|word| word.trim_matches('"').to_owned()).collect();
    assert_eq!(words(Outcome::ALL.map(Outcome::as_str)), in_quotes(&create[0]));
    assert_eq!(words(Launch::ALL.map(Launch::as_str)), in_quotes(&create[1]));
}

#[test]
fn the_documented_limits_are_those_of_the_code() {
    let Limits { max_connections, max_line, max_in_flight, max_output, write_stall, .. } = Limits::default();
    let Limits { max_memory, max_memory_per_connection, .. } = Limits::default();
    let documented: BTreeMap<_, _> = table(section("## Limits"), "| limit | default | beyond it |")
        .into_iter()
        .map(|row| (row[0].trim_matches('`').to_owned(), row[1].parse().expect("a number")))
        .collect();
    let known = [
        ("max_connections", max_connections),
        ("max_line", max_line),
        ("max_in_flight", max_in_flight),
        ("max_output", max_output),
        ("max_memory", max_memory),
        ("max_memory_per_connection", max_memory_per_connection),
    ];
    assert_eq!(documented, known.map(|(name, limit)| (name.to_owned(), limit)).into());
    for (heading, text) in [
        ("## Limits", format!("for {} seconds is cut off", write_stall.as_secs())),
        ("## Requests", format!("of at most {} bytes", Id::MAX_BYTES)),
        ("## Types", format!("at most {} (a year)", MAX_DURATION.as_secs())),
        ("### `sandbox.list`", format!("| {DEFAULT_PAGE} |")),
        ("### `sandbox.list`", format!("from 1 to {MAX_PAGE} |")),
        ("### `snapshot.list`", format!("| {DEFAULT_PAGE} |")),
        ("### `snapshot.list`", format!("from 1 to {MAX_PAGE} |")),
        ("### `sandbox.exec`", format!("at most {MAX_ARGUMENTS} bytes |")),
        ("### `sandbox.exec`", format!("| {DEFAULT_OUTPUT} | bytes that are told")),
        ("### `sandbox.exec`", format!("at most {MAX_OUTPUT} unless")),
        ("### `sandbox.attach`", format!("| {DEFAULT_OUTPUT} |")),
        ("### `sandbox.read_file`", format!("| {MAX_READ} | bytes to read at most; at most {MAX_READ} unless")),
        ("### `sandbox.list_files`", format!("more than {MAX_FILES}, or")),
    ] {
        assert!(section(heading).contains(&text), "{heading}: {text}");
    }
}

// ---- errors ----

const KINDS: &str = "| kind | code | retryable | meaning | details |";
const CAUSES: &str = "| cause | retryable | meaning | details |";

#[test]
fn the_documented_kinds_and_codes_are_those_of_the_code() {
    let rows = table(section("## Errors"), KINDS);
    let documented: BTreeMap<_, _> =
        rows.iter().map(|row| (row[0].trim_matches('`').to_owned(), row[1].parse().expect("a code"))).collect();
    assert_eq!(documented, ErrorKind::ALL.map(|kind| (kind.as_str().to_owned(), kind.code())).into());
    for kind in ErrorKind::ALL {
        let row = rows.iter().find(|row| row[0].trim_matches('`') == kind.as_str()).expect("documented");
        let retryable = if kind.is_retryable() { "yes" } else { "no" };
        assert!(row[2] == retryable || row[2] == "depends", "{row:?}");
    }
    for method in Method::ALL {
        let errors = method_section(method).split("**Errors**").nth(1).and_then(|rest| rest.split("\n\n").next());
        let known = words(ErrorKind::ALL.map(ErrorKind::as_str));
        assert!(quoted(errors.unwrap_or_default()).into_iter().all(|kind| known.contains(&kind)), "{}", method.name());
    }
}

#[test]
fn the_documented_details_are_those_of_the_code() {
    let errors = section("## Errors");
    // A name is at the beginning of a cell or after a comma; other quoted words belong to an explanation.
    let names = |cell: &str| -> BTreeSet<String> {
        let parts = cell.split(", ").filter_map(|part| part.strip_prefix('`'));
        parts.filter_map(|part| part.split('`').next()).map(str::to_owned).collect()
    };
    let mut documented: BTreeMap<String, BTreeSet<String>> =
        table(errors, KINDS).into_iter().map(|row| (row[0].trim_matches('`').to_owned(), names(&row[4]))).collect();
    let causes = table(errors, CAUSES);
    for row in &causes {
        let started = documented.entry("sandbox_start_failed".into()).or_default();
        if !row[3].starts_with("as for") {
            started.extend(names(&row[3]));
        }
    }

    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut known_causes = BTreeMap::new();
    for error in every_error() {
        let details = known.entry(error.data.kind.as_str().to_owned()).or_default();
        details.extend(error.data.details.keys().cloned());
        if let Some(cause) = error.data.details.get("cause").and_then(Value::as_str) {
            known_causes.insert(cause.to_owned(), error.data.retryable);
        }
    }
    assert_eq!(documented, known);
    let documented_causes: BTreeMap<_, _> =
        causes.iter().map(|row| (row[0].trim_matches('`').to_owned(), row[1] == "yes")).collect();
    assert_eq!(documented_causes, known_causes);
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
