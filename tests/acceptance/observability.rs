//! Tests of metrics and logs: their names, labels and ids, and the absence of secrets.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use sandboxd::config::Config;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::gate::GATED;
use crate::interposed_engine::interposed;
use crate::pool::can_be_bound;

#[tokio::test]
async fn metrics_count_requests_and_their_outcomes() {
    let service = Daemon::start(
        "metrics.listen = '127.0.0.1:0'
         profiles.default.network = 'none'
         profiles.broken = { image = 'sandboxd-no-such-image:none' }",
    )
    .await;
    let (chat, expired) = (service.new_chat(), service.new_chat());
    service.created(&chat).await;
    service.created(&chat).await;
    service.refused(&chat.with("agent_id", "another")).await;
    service.refused(&service.new_chat().with("profile", "broken")).await;
    service.created(&expired.with("ttl", 0.001)).await;
    service.created(&expired).await;
    let metrics = Metrics::of(&service).await;
    for (series, count) in [
        (r#"sandboxd_create_total{outcome="created"}"#, 2),
        (r#"sandboxd_create_total{outcome="reused"}"#, 1),
        (r#"sandboxd_create_total{outcome="conflict"}"#, 1),
        (r#"sandboxd_create_total{outcome="error"}"#, 1),
        (r#"sandboxd_create_total{outcome="replaced"}"#, 1),
        (r#"sandboxd_create_duration_seconds_count{outcome="created"}"#, 2),
        (r#"sandboxd_sandboxes{status="running"}"#, 2),
        (r#"sandboxd_transitions_total{to="deleting",reason="expired"}"#, 1),
        (r#"sandboxd_expiries_total{reason="expired"}"#, 1),
        (r#"sandboxd_engine_operation_duration_seconds_count{operation="create",error="image_not_found"}"#, 1),
        (r#"sandboxd_engine_errors_total{operation="create",error="image_not_found"}"#, 1),
        (r#"sandboxd_engine_operation_duration_seconds_count{operation="start",error="none"}"#, 3),
        (r#"sandboxd_requests_total{method="sandbox.create",result="sandbox_conflict"}"#, 1),
        ("sandboxd_connections", 1),
    ] {
        assert_eq!(metrics.value(series), Some(f64::from(count)), "{series} in\n{}", metrics.0);
    }

    for chat in [&chat, &expired, &service.new_chat()] {
        service.delete(chat).await.expect("an answer");
    }
    let metrics = Metrics::of(&service).await;
    for (series, count) in [
        (r#"sandboxd_delete_total{result="deleted"}"#, 2),
        (r#"sandboxd_delete_total{result="not_found"}"#, 1),
        (r#"sandboxd_sandboxes{status="running"}"#, 0),
    ] {
        assert_eq!(metrics.value(series), Some(f64::from(count)), "{series} in\n{}", metrics.0);
    }
    assert!(metrics.0.contains("sandboxd_build_info{version="), "{}", metrics.0);
    assert!(!metrics.0.contains(chat.chat_id()), "a chat is no label");
}

#[tokio::test]
async fn reconciliation_actions_are_counted() {
    let service = Daemon::start("metrics.listen = '127.0.0.1:0'\nprofiles.default.network = 'none'").await;
    service.created(&service.new_chat()).await;
    service.containers().await.create_marker().await;
    let service = service.stop().await.start().await;
    let metrics = Metrics::of(&service).await;
    assert_eq!(metrics.value(r#"sandboxd_reconcile_actions_total{because="resumed"}"#), Some(1.0));
    assert_eq!(metrics.value(r#"sandboxd_reconcile_actions_total{because="left_alone"}"#), Some(1.0));
    assert_eq!(metrics.value(r#"sandboxd_sandboxes{status="running"}"#), Some(1.0));
}

#[tokio::test]
async fn the_documented_metrics_are_those_that_are_served() {
    let (installation, engine) = interposed(
        "metrics.listen = '127.0.0.1:0'
         reaper.tick = '50ms'
         profiles.default.network = 'none'
         profiles.pooled = { network = 'none', pool = { size = 1, max_age = '2s', hints = 1 } }
         profiles.broken = { image = 'sandboxd-no-such-image:none' }",
    )
    .await;
    let mut installation = installation;
    let volumes = installation.path("volumes");
    installation.configure(&format!("images.context_roots = ['{}']", volumes.display()));
    let service = installation.start().await;
    let chat = service.new_chat();
    service.created(&chat).await;
    service.refused(&service.new_chat().with("profile", "broken")).await;
    service.call("system.reconcile", json!({})).await.expect("reconciled");
    engine.break_off("DELETE");
    service.delete(&chat).await.expect_err("it is owed");
    let metrics = Metrics::of(&service).await;
    assert_eq!(metrics.value("sandboxd_owed_tear_downs"), Some(1.0));
    engine.recover();
    eventually("the owed removal is done", || async {
        (Metrics::of(&service).await.value("sandboxd_owed_tear_downs") == Some(0.0)).then_some(())
    })
    .await;
    service.created(&chat).await;
    // Reconciliation actions are counted only if there is a difference.
    let service = service.stop().await.start().await;
    service.created(&chat).await;
    service.refused(&service.new_chat().with("profile", "broken")).await;
    let snapshot = service.call("sandbox.snapshot", json!({ "chat_id": chat.chat_id() })).await.expect("taken");
    let snapshot = json!({ "snapshot_id": snapshot["snapshot_id"] });
    service.call("snapshot.delete", snapshot).await.expect("deleted");
    service.delete(&chat).await.expect("deleted");
    // A hint that is wasted, a claim, and slots that are created and removed.
    service.call("sandbox.hint", json!({ "profile": "pooled", "ttl": 0.1 })).await.expect("taken");
    service.created(&service.new_chat().with("profile", "pooled")).await;
    service.call("image.pull", json!({ "image": "127.0.0.1:1/none:1" })).await.expect_err("no registry");
    let context = service.volume("context");
    let build = json!({ "context": context, "tag": "none:1" });
    service.call("image.build", build).await.expect_err("no instructions");
    service.call("image.prune", json!({ "dry_run": true })).await.expect("looked");
    // Claims are not counted where slots cannot be bound.
    let mut documented = documented_metrics();
    documented
        .retain(|name, _| can_be_bound() || !name.starts_with("sandboxd_pool_") && name != "sandboxd_hints_total");
    let served = eventually("everything has been counted", || async {
        let metrics = Metrics::of(&service).await;
        documented.keys().all(|name| metrics.families().contains_key(name)).then_some(metrics)
    })
    .await;
    let mut families = served.families();
    families.retain(|name, _| documented.contains_key(name) || !documented_metrics().contains_key(name));
    assert_eq!(families, documented);
    for name in served.families().keys() {
        assert!(served.0.contains(&format!("# HELP {name} ")), "{name} is not described");
    }
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/sandboxd.toml");
    let defaults = Config::load(Some(&shipped), std::iter::empty::<(String, String)>()).expect("a valid file");
    assert!(defaults.metrics.listen.is_some_and(|address| address.ip().is_loopback()), "for this host alone");
}

/// Returns the name and labels of each metric in the documentation's table.
fn documented_metrics() -> BTreeMap<String, BTreeSet<String>> {
    let page = include_str!("../../docs/operations.md");
    let table = page.split("\n## ").find(|section| section.starts_with("Metrics\n")).expect("a section");
    let names = table.lines().filter_map(|line| line.strip_prefix("| `sandboxd_")?.split(" |").next());
    names
        .flat_map(|cell| cell.split("`, `"))
        .map(|metric| {
            let metric = metric.trim_end_matches('`');
            let metric = metric.strip_prefix("sandboxd_").unwrap_or(metric);
            let (name, labels) = metric.trim_end_matches('}').split_once('{').unwrap_or((metric, ""));
            let labels = labels.split(',').filter(|label| !label.is_empty()).map(ToOwned::to_owned).collect();
            (format!("sandboxd_{name}"), labels)
        })
        .collect()
}

#[tokio::test]
async fn a_reconciliation_is_a_span_around_its_calls_to_the_engine() {
    let (installation, engine) = interposed("log.filter = 'debug'\nprofiles.default.network = 'none'").await;
    let service = installation.start().await;
    engine.break_off("/containers/json");
    service.call("system.reconcile", json!({ "dry_run": true })).await.expect_err("no engine");
    let failed = lines(&service.log(), "engine call failed");
    let spans = failed.last().expect("a line")["spans"].as_array().expect("an array").clone();
    let pass = spans.iter().find(|span| span["name"] == "reconcile").unwrap_or_else(|| panic!("{spans:?}"));
    assert_eq!((&pass["because"], &pass["dry_run"]), (&json!("request"), &json!(true)));
}

#[tokio::test]
async fn every_change_of_a_sandbox_is_one_line_with_its_ids() {
    let service = Daemon::start("").await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    service.delete(&chat).await.expect("deleted");
    let installation = service.stop().await;

    let changes = lines(&installation.log(), "sandbox changed");
    let steps: Vec<_> = changes.iter().map(|line| [&line["from"], &line["to"], &line["reason"]]).collect();
    assert_eq!(
        json!(steps),
        json!([
            ["absent", "creating", "requested"],
            ["creating", "running", "ready"],
            ["running", "deleting", "requested"],
            ["deleting", "absent", "requested"],
        ])
    );
    let endpoint =
        format!("{}:{}", created["endpoint"]["ip"].as_str().expect("an address"), created["endpoint"]["port"]);
    for line in &changes {
        assert_eq!(line["chat.id"], chat.chat_id(), "{line}");
        assert_eq!(line["session.id"], created["session_id"], "{line}");
        assert_eq!(line["agent.id"], "agent", "{line}");
        assert!(line["timestamp"].is_string() && line["level"] == "INFO", "{line}");
        if line["to"] != "creating" {
            assert_eq!(
                (&line["container.id"], &line["endpoint"]),
                (&created["container_id"], &json!(endpoint)),
                "{line}"
            );
        }
    }
}

#[tokio::test]
async fn a_failed_start_is_logged_with_its_chat_and_its_cause() {
    let service = Daemon::start(
        "[profiles.default]
         command = ['sh', '-c', 'echo alas; exit 3']
         readiness = { kind = 'tcp' }",
    )
    .await;
    let chat = service.new_chat();
    service.refused(&chat).await;
    let failures = lines(&service.log(), "create refused or failed");
    assert_eq!(failures.len(), 1);
    assert_eq!((&failures[0]["level"], &failures[0]["chat.id"]), (&json!("WARN"), &json!(chat.chat_id())));
    assert!(failures[0]["error"].as_str().expect("a text").contains("alas"), "{failures:?}");
}

#[tokio::test]
async fn a_call_to_the_engine_is_logged_with_the_chat_it_was_made_for() {
    let service = Daemon::start(
        "log.filter = 'debug'
         profiles.default.image = 'sandboxd-no-such-image:none'",
    )
    .await;
    let chat = service.new_chat();
    service.refused(&chat).await;
    let failed = lines(&service.log(), "engine call failed");
    let call = &failed[0]["span"];
    assert_eq!((&call["operation"], &call["error.type"]), (&json!("create"), &json!("image_not_found")));
    let spans = failed[0]["spans"].as_array().expect("an array");
    let launch = spans.iter().find(|span| span["effect"] == "launch").unwrap_or_else(|| panic!("{failed:?}"));
    assert_eq!(launch["chat.id"], chat.chat_id());
    assert!(launch["session.id"].is_string(), "{failed:?}");
}

#[tokio::test]
async fn environment_values_are_in_no_log_line_however_much_is_logged() {
    let service =
        Daemon::start(&format!("log.filter = 'trace'\n{GATED}\nenv = {{ CONFIGURED = 'c0nf1gur3d-s3cret' }}")).await;
    let chat = service.new_chat().with("env", json!({ "TOKEN": "t0p-s3cret" }));
    let creating = service.creating(&chat).await;
    service.containers().await.only().await;
    service.refused(&chat.with("agent_id", "another")).await;
    service.refused(&chat.with("env", json!({ "TOKEN": 1, "OTHER": "0th3r-s3cret" }))).await;
    crate::gate::open_gate(&chat);
    creating.await.expect("no panic").expect("created");
    let service = service.stop().await.start().await;
    service.created(&chat).await;
    service.delete(&chat).await.expect("deleted");
    let log = service.stop().await.log();
    assert!(log.lines().any(|line| line.contains(r#""level":"TRACE""#)), "all is logged");
    let leaks: HashSet<_> = log.lines().filter(|line| line.contains("s3cret")).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}

fn lines(log: &str, message: &str) -> Vec<Value> {
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    lines.filter(|line: &Value| line["message"] == message).collect()
}

/// The metrics as Prometheus reads them.
struct Metrics(String);

impl Metrics {
    async fn of(service: &Daemon) -> Self {
        let port = listening_port(service);
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"), "{answer}");
        Self(answer)
    }

    /// Returns the name and labels of each metric of any kind.
    fn families(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut families = BTreeMap::<String, BTreeSet<String>>::new();
        let kinds = self.0.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let kinds: HashMap<&str, &str> = kinds.collect();
        for line in self.0.lines().filter(|line| line.starts_with("sandboxd_")) {
            let series = line.rsplit_once(' ').expect("a value").0;
            let (name, labels) = series.trim_end_matches('}').split_once('{').unwrap_or((series, ""));
            let parts = ["_bucket", "_sum", "_count"];
            let whole = parts.iter().find_map(|part| name.strip_suffix(part)).filter(|name| kinds.contains_key(name));
            let labels = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
            let own = labels.filter(|label| !["le", "quantile"].contains(&label.as_str()));
            families.entry(whole.unwrap_or(name).to_owned()).or_default().extend(own);
        }
        families
    }

    fn value(&self, series: &str) -> Option<f64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        line.parse().ok()
    }
}

/// Returns the port of the metrics listener: the configuration says any free port.
fn listening_port(service: &Daemon) -> u16 {
    const LISTENING: &str = "0A";
    let process = format!("/proc/{}", service.pid().as_raw_nonzero());
    let descriptors = std::fs::read_dir(format!("{process}/fd")).expect("a process");
    let sockets: HashSet<String> = descriptors
        .filter_map(|entry| Some(std::fs::read_link(entry.ok()?.path()).ok()?.to_str()?.to_owned()))
        .collect();
    let table = std::fs::read_to_string(format!("{process}/net/tcp")).expect("a table");
    let ports = table.lines().skip(1).filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let ours = columns[3] == LISTENING && sockets.contains(&format!("socket:[{}]", columns[9]));
        ours.then(|| u16::from_str_radix(columns[1].rsplit(':').next()?, 16).ok())?
    });
    ports.last().expect("it listens")
}
