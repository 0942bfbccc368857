//! docs/protocol.md against the types: its examples are read and written, and its tables are compared.

use std::collections::BTreeMap;

use sandboxd_protocol::error::{Error, ErrorKind};
use sandboxd_protocol::method::Method;
use sandboxd_protocol::notification::Notification;
use sandboxd_protocol::schema;
use serde_json::Value;
use serde_json::value::RawValue;

const DOCUMENT: &str = include_str!("../../docs/protocol.md");

/// Results whose long fields the service writes behind the others, in another order than the document shows.
const REORDERED: [Method; 4] =
    [Method::SandboxExec, Method::SandboxRunCode, Method::SandboxAttach, Method::SandboxReadFile];

fn blocks() -> impl Iterator<Item = &'static str> {
    DOCUMENT.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap())
}

/// A JSON-RPC message, with the text of its parts.
#[derive(serde::Deserialize)]
struct Message<'a> {
    id: Option<Value>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

fn value(json: &RawValue) -> Value {
    serde_json::from_str(json.get()).unwrap()
}

/// Numbers compare by value: a duration may be written as 300 or 300.0.
fn normal(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::from(number.as_f64()),
        Value::Array(values) => values.into_iter().map(normal).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, normal(value))).collect(),
        other => other,
    }
}

/// Names of all fields in the order of the text.
fn field_order(json: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = json;
    while let Some(start) = rest.find('"') {
        let mut end = start + 1;
        while rest.as_bytes()[end] != b'"' {
            end += if rest.as_bytes()[end] == b'\\' { 2 } else { 1 };
        }
        let text = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if rest.trim_start().starts_with(':') {
            names.push(text.to_owned());
        }
    }
    names
}

#[test]
fn every_example_is_read_and_written_unchanged() {
    let mut requests: BTreeMap<String, Method> = BTreeMap::new();
    let (mut params, mut results, mut errors, mut notifications) = (0, 0, 0, 0);
    for block in blocks() {
        let message: Message<'_> = serde_json::from_str(block).unwrap_or_else(|error| panic!("{error}: {block}"));
        let id = message.id.as_ref().map(Value::to_string);
        match (id, message.method.as_deref()) {
            (Some(id), Some(name)) => {
                let method = Method::from_name(name).unwrap_or_else(|| panic!("{name}"));
                let given = message.params.map_or_else(|| Value::Object(Default::default()), value);
                let written = method.check_params(given.clone()).unwrap_or_else(|error| panic!("{error}: {block}"));
                assert_eq!(normal(written), normal(given), "{block}");
                requests.insert(id, method);
                params += 1;
            }
            (None, Some(name)) => {
                let notification = Notification::from_method(name).unwrap_or_else(|| panic!("{name}"));
                let given = value(message.params.unwrap());
                let written =
                    notification.check_params(given.clone()).unwrap_or_else(|error| panic!("{error}: {block}"));
                assert_eq!(normal(written), normal(given.clone()), "{block}");
                if let Some(method) = requests.get(&given["id"].to_string()) {
                    assert!(method.streams().contains(&notification), "{}: {block}", method.name());
                }
                notifications += 1;
            }
            (id, None) => match message.error {
                Some(error) => {
                    let typed: Error = serde_json::from_str(error.get()).unwrap();
                    assert_eq!(serde_json::to_value(&typed).unwrap(), value(error));
                    assert_eq!(typed.code, typed.data.kind.code());
                    let known: Vec<_> = typed.data.kind.details().iter().map(|(name, _)| *name).collect();
                    assert!(typed.data.details.keys().all(|name| known.contains(&name.as_str())), "{block}");
                    errors += 1;
                }
                None => {
                    let (method, given) = (requests[&id.unwrap()], value(message.result.unwrap()));
                    let written = method.check_result(given.clone()).unwrap_or_else(|error| panic!("{error}: {block}"));
                    assert_eq!(normal(written), normal(given), "{block}");
                    results += 1;
                }
            },
        }
    }
    let least = [(params, 45), (results, 45), (errors, 5), (notifications, 15)];
    assert!(least.iter().all(|(seen, least)| seen >= least), "{least:?}");
}

#[test]
fn fields_are_written_in_the_order_of_the_examples() {
    use sandboxd_protocol::{command, event, file, guest, image, pool, sandbox, snapshot, system};
    fn written<T: serde::de::DeserializeOwned + serde::Serialize>(json: &str) -> String {
        serde_json::to_string(&serde_json::from_str::<T>(json).unwrap()).unwrap()
    }
    let mut requests: BTreeMap<String, Method> = BTreeMap::new();
    let mut compared = 0;
    for block in blocks() {
        let message: Message<'_> = serde_json::from_str(block).unwrap();
        let Some(id) = message.id.as_ref().map(Value::to_string) else { continue };
        if let Some(name) = message.method {
            requests.insert(id, Method::from_name(&name).unwrap());
            continue;
        }
        let (method, Some(result)) = (requests[&id], message.result) else { continue };
        let json = result.get();
        let written = match method {
            method if REORDERED.contains(&method) => continue,
            Method::SandboxCreate => written::<sandbox::CreatedSandbox>(json),
            Method::SandboxLease => written::<sandbox::LeasedSandbox>(json),
            Method::SandboxList => written::<sandbox::ListResult>(json),
            Method::SandboxDelete => written::<sandbox::DeleteResult>(json),
            Method::SandboxHint => written::<sandbox::HintResult>(json),
            Method::SandboxGet
            | Method::SandboxRenew
            | Method::SandboxTouch
            | Method::SandboxPause
            | Method::SandboxResume
            | Method::SandboxRelease => written::<sandbox::Sandbox>(json),
            Method::SandboxCommands => written::<command::CommandsResult>(json),
            Method::SandboxListFiles => written::<file::ListFilesResult>(json),
            Method::SandboxStatFile => written::<file::File>(json),
            Method::SandboxReadTree | Method::SandboxWriteTree => written::<file::TreeResult>(json),
            Method::SandboxStats => written::<guest::Stats>(json),
            Method::SandboxSnapshot => written::<snapshot::Snapshot>(json),
            Method::SnapshotList => written::<snapshot::SnapshotListResult>(json),
            Method::SnapshotDelete => written::<snapshot::SnapshotDeleteResult>(json),
            Method::PoolStatus | Method::PoolDrain | Method::PoolFill => written::<pool::PoolsResult>(json),
            Method::ImageList => written::<image::ImageListResult>(json),
            Method::ImagePull | Method::ImageBuild | Method::ImageRefresh => written::<image::ImageResult>(json),
            Method::ImagePrune => written::<image::ImagePruneResult>(json),
            Method::EventsWatch => written::<event::WatchResult>(json),
            Method::SystemHealth => written::<system::HealthResult>(json),
            Method::SystemInfo => written::<system::InfoResult>(json),
            Method::SystemDoctor => written::<system::DoctorResult>(json),
            Method::SystemReconcile => written::<system::ReconcileResult>(json),
            _ => continue,
        };
        assert_eq!(field_order(&written), field_order(json), "{}", method.name());
        compared += 1;
    }
    assert!(compared > 30, "{compared}");
}

#[test]
fn long_content_is_last_and_can_be_left_out() {
    use sandboxd_protocol::command::CommandResult;
    use sandboxd_protocol::file::ReadFileResult;
    let json = concat!(
        r#"{"command_id":1,"exit_code":0,"signal":null,"timed_out":false,"killed":false,"oom_killed":false,"#,
        r#""duration":0.5,"missed":0,"stdout":{"bytes":1,"truncated":false,"text":"a","base64":null},"#,
        r#""stderr":{"bytes":0,"truncated":false,"text":"","base64":null}}"#
    );
    let mut ended: CommandResult = serde_json::from_str(json).unwrap();
    assert_eq!(serde_json::to_string(&ended).unwrap(), json);
    (ended.stdout, ended.stderr) = (None, None);
    assert!(serde_json::to_string(&ended).unwrap().ends_with(r#""missed":0}"#));

    let json = concat!(
        r#"{"bytes":1,"kind":"file","size":1,"mode":420,"uid":0,"gid":0,"#,
        r#""modified_at":"2026-01-31T09:31:00.000Z","target":null,"text":null,"base64":"AA=="}"#
    );
    let mut read: ReadFileResult = serde_json::from_str(json).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), json);
    read.content = None;
    assert!(serde_json::to_string(&read).unwrap().ends_with(r#""target":null}"#));
}

/// The rows below a header, without back quotes.
fn table<'a>(document: &'a str, header: &str) -> Vec<Vec<&'a str>> {
    let rows = document.lines().skip_while(|line| *line != header).skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect()).collect()
}

/// The part of the document about a method.
fn section(method: Method) -> &'static str {
    let section = DOCUMENT.split(&format!("\n### `{}`\n", method.name())).nth(1).unwrap();
    section.split("\n### ").next().unwrap()
}

#[test]
fn the_documented_methods_are_those_of_the_table() {
    let rows = table(DOCUMENT, "| method | role | does |");
    let documented: BTreeMap<_, _> = rows.iter().map(|row| (row[0], row[1])).collect();
    let known: BTreeMap<_, _> = Method::ALL.map(|method| (method.name(), method.role().as_str())).into();
    assert_eq!(documented, known);
    for method in Method::ALL {
        let listed = section(method).split("**Errors**:").nth(1).map_or("", |rest| rest.split("\n\n").next().unwrap());
        for word in listed.split('`').skip(1).step_by(2) {
            assert!(method.errors().iter().any(|kind| kind.as_str() == word), "{}: {word}", method.name());
        }
    }
}

#[test]
fn the_documented_errors_are_those_of_the_table() {
    let rows = table(DOCUMENT, "| kind | code | retryable | meaning | details |");
    assert_eq!(rows.len(), ErrorKind::ALL.len());
    for row in rows {
        let kind = ErrorKind::ALL.into_iter().find(|kind| kind.as_str() == row[0]).unwrap_or_else(|| panic!("{row:?}"));
        assert_eq!(kind.code().to_string(), row[1]);
        assert!(row[2] == "depends" || kind.is_retryable() == (row[2] == "yes"), "{row:?}");
    }
}

#[test]
fn the_documented_parameters_are_those_of_the_types() {
    let schema = serde_json::to_value(schema::document()).unwrap();
    for (method, entry) in Method::ALL.into_iter().zip(schema["methods"].as_array().unwrap()) {
        let params = &schema["$defs"][entry["params"]["$ref"].as_str().unwrap().trim_start_matches("#/$defs/")];
        let fields = params["properties"].as_object().into_iter().flat_map(|properties| properties.keys());
        let is_required =
            |name: &str| params["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
        let known: BTreeMap<_, _> = fields.map(|name| (name.as_str(), is_required(name))).collect();
        let rows = table(section(method), "| field | type | default | meaning |");
        let documented: BTreeMap<_, _> = rows.iter().map(|row| (row[0], row[2] == "required")).collect();
        assert_eq!(documented, known, "{}", method.name());
    }
}
