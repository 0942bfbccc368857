//! The examples against the types: each message is read and written, and each method has an example.

use std::collections::BTreeMap;

use sandboxd_protocol::error::Error;
use sandboxd_protocol::example;
use sandboxd_protocol::method::Method;
use sandboxd_protocol::notification::Notification;
use serde_json::Value;
use serde_json::value::RawValue;

/// Results whose long fields the service writes behind the others, in another order than the examples show.
const REORDERED: [Method; 4] =
    [Method::SandboxExec, Method::SandboxRunCode, Method::SandboxAttach, Method::SandboxReadFile];

fn messages() -> impl Iterator<Item = &'static str> {
    example::all().unwrap().into_iter().flat_map(|example| example.messages)
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
    for text in messages() {
        let message: Message<'_> = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let id = message.id.as_ref().map(Value::to_string);
        match (id, message.method.as_deref()) {
            (Some(id), Some(name)) => {
                let method = Method::from_name(name).unwrap_or_else(|| panic!("{name}"));
                let given = message.params.map_or_else(|| Value::Object(Default::default()), value);
                let written = method.check_params(given.clone()).unwrap_or_else(|error| panic!("{error}: {text}"));
                assert_eq!(normal(written), normal(given), "{text}");
                requests.insert(id, method);
                params += 1;
            }
            (None, Some(name)) => {
                let notification = Notification::from_method(name).unwrap_or_else(|| panic!("{name}"));
                let given = value(message.params.unwrap());
                let written =
                    notification.check_params(given.clone()).unwrap_or_else(|error| panic!("{error}: {text}"));
                assert_eq!(normal(written), normal(given.clone()), "{text}");
                if let Some(method) = requests.get(&given["id"].to_string()) {
                    assert!(method.streams().contains(&notification), "{}: {text}", method.name());
                }
                notifications += 1;
            }
            (id, None) => match message.error {
                Some(error) => {
                    let typed: Error = serde_json::from_str(error.get()).unwrap();
                    assert_eq!(serde_json::to_value(&typed).unwrap(), value(error));
                    assert_eq!(typed.code, typed.data.kind.code());
                    let known: Vec<_> = typed.data.kind.details().iter().map(|(name, _)| *name).collect();
                    assert!(typed.data.details.keys().all(|name| known.contains(&name.as_str())), "{text}");
                    errors += 1;
                }
                None => {
                    let (method, given) = (requests[&id.unwrap()], value(message.result.unwrap()));
                    let written = method.check_result(given.clone()).unwrap_or_else(|error| panic!("{error}: {text}"));
                    assert_eq!(normal(written), normal(given), "{text}");
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
    for text in messages() {
        let message: Message<'_> = serde_json::from_str(text).unwrap();
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

#[test]
fn every_method_has_an_example_with_a_request() {
    let examples = example::all().unwrap();
    for method in Method::ALL {
        let name = format!("\"method\":\"{}\"", method.name());
        let mut own = examples.iter().filter(|example| example.method == method).flat_map(|example| &example.messages);
        assert!(own.any(|text| text.contains(&name)), "{}", method.name());
    }
}
