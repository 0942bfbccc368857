//! Tables of results.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sandboxd_protocol::pool::{Pool, PoolsResult};
use sandboxd_protocol::sandbox::*;
use sandboxd_protocol::system::{ReconcileAction, ReconcileResult};
use sandboxd_protocol::time::Time;
use serde_json::Value;

use super::chats::short_prefixes;
use super::columns::{Columns, Width};
use super::moment::{length, relative};

pub(super) fn created(CreatedSandbox { sandbox, outcome, launch }: CreatedSandbox, width: Width) -> String {
    let outcome = match launch {
        Launch::None => outcome.to_string(),
        launch => format!("{outcome}, {launch}"),
    };
    described(sandbox, Some(("outcome", outcome)), width)
}

pub(super) fn leased(LeasedSandbox { sandbox, lease_id, lease_until }: LeasedSandbox, width: Width) -> String {
    let lease = format!("{lease_id} until {}", time(lease_until, Utc::now()));
    described(sandbox, Some(("lease", lease)), width)
}

pub(super) fn sandbox(sandbox: Sandbox, width: Width) -> String {
    described(sandbox, None, width)
}

fn time(at: Time, now: DateTime<Utc>) -> String {
    format!("{} ({})", at.0.format("%Y-%m-%d %H:%M:%S UTC"), relative(at, now))
}

/// Returns the table of a sandbox, with a further row below the session.
fn described(sandbox: Sandbox, further: Option<(&str, String)>, width: Width) -> String {
    let now = Utc::now();
    let time = |at| time(at, now);
    let mut table = Columns::pairs();
    let mut row = |name: &str, value: Option<String>| {
        table.row([name, value.as_deref().unwrap_or("-")]);
    };
    row("chat", Some(sandbox.chat_id));
    row("session", Some(sandbox.session_id));
    if let Some((name, value)) = further {
        row(name, Some(value));
    }
    row("status", Some(format!("{} ({})", sandbox.status, sandbox.reason)));
    if sandbox.message.is_some() {
        row("message", sandbox.message);
    }
    row("endpoint", sandbox.endpoint.map(shown));
    row("agent", Some(sandbox.agent_id));
    if sandbox.workspace_id.is_some() {
        row("workspace", sandbox.workspace_id);
    }
    row("volume", sandbox.volume_host_path);
    row("profile", Some(format!("{} ({})", sandbox.profile, sandbox.image)));
    if sandbox.snapshot_id.is_some() {
        row("restored from", sandbox.snapshot_id);
    }
    row("container", sandbox.container_id.map(|id| format!("{} {}", short(&id), sandbox.container_name)));
    row("created", Some(time(sandbox.created_at)));
    row("started", sandbox.started_at.map(time));
    row("last activity", Some(time(sandbox.last_activity_at)));
    row("expires", Some(time(sandbox.expires_at)));
    row("expires if idle", Some(time(sandbox.idle_expires_at)));
    if sandbox.held_until.is_some() {
        row("held until", sandbox.held_until.map(time));
    }
    for Hold { kind, lease_id, command_id, until, .. } in sandbox.held_by {
        let which = lease_id.or(command_id.map(|id| id.to_string())).map_or(String::new(), |id| format!(" {id}"));
        row("held by", Some(format!("{kind}{which}, until {}", time(until))));
    }
    row("idle", Some(format!("{} ({})", if sandbox.idle.is { "yes" } else { "no" }, sandbox.idle.because)));
    row("ends", Some(format!("{}, {}", time(sandbox.ends_at), sandbox.ends_because)));
    table.text(width)
}

pub(super) fn list(list: ListResult, width: Width) -> String {
    if list.sandboxes.is_empty() && list.undescribed.is_empty() {
        return "no sandboxes\n".to_owned();
    }
    let now = Utc::now();
    let mut table = Columns::new(&[
        ("CHAT", 0),
        ("STATUS", 0),
        ("AGENT", 1),
        ("PROFILE", 3),
        ("ENDPOINT", 2),
        ("CREATED", 4),
        ("ENDS", 1),
    ]);
    for sandbox in list.sandboxes {
        table.row([
            sandbox.chat_id,
            sandbox.status.to_string(),
            sandbox.agent_id,
            sandbox.profile,
            sandbox.endpoint.map_or_else(|| "-".to_owned(), shown),
            relative(sandbox.created_at, now),
            relative(sandbox.ends_at, now),
        ]);
    }
    table.shorten(0, short_prefixes);
    let unknown = list.undescribed.iter();
    let unknown: String = unknown.map(|chat| format!("chat {}: unknown: {}\n", chat.chat_id, chat.message)).collect();
    let more = if list.next.is_some() { "more sandboxes exist; list them with --all\n" } else { "" };
    table.text(width) + &unknown + more
}

pub(super) fn report(report: ReconcileResult, width: Width) -> String {
    let ReconcileResult { dry_run, containers, actions } = report;
    let done = if dry_run { "to do" } else { "done" };
    let summary = format!("{containers} containers, {} {done}\n", actions.len());
    if actions.is_empty() {
        return summary;
    }
    let mut table =
        Columns::new(&[("ACTION", 0), ("CHAT", 0), ("CONTAINER", 1), ("STATUS", 2), ("BECAUSE", 0), ("MESSAGE", 0)]);
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for ReconcileAction { action, chat_id, container_id, status, because, message, .. } in actions {
        let container = container_id.as_deref().map(short).map(str::to_owned);
        let status = status.map(|status| status.to_string());
        let (action, because) = (action.to_string(), because.to_string());
        table.row([action, known(chat_id), known(container), known(status), because, known(message)]);
    }
    table.shorten(1, short_prefixes);
    table.text(width) + &summary
}

/// Returns whether the drained pools are empty.
pub(super) fn is_drained(PoolsResult { pools }: &PoolsResult) -> bool {
    pools.iter().filter(|pool| pool.drained).all(|pool| pool.free + pool.coming + pool.removing == 0)
}

/// Returns the table of pools. The last column has the problem of a pool, if any.
pub(super) fn pools(status: PoolsResult, width: Width) -> String {
    let mut table = Columns::new(&[
        ("PROFILE", 0),
        ("TARGET", 0),
        ("FREE", 0),
        ("COMING", 0),
        ("HITS", 1),
        ("MISSES", 1),
        ("HINTS", 2),
        ("PROBLEM", 0),
    ]);
    for pool in status.pools {
        let Pool { profile, target, free, coming, hints, claims, unavailable, last_error, drained, .. } = pool;
        let numbers = [target, free, coming, claims.hits, claims.misses, hints].map(|number| number.to_string());
        let drained = drained.then(|| "drained".to_owned());
        let problem = unavailable.or(drained).or(last_error).unwrap_or_else(|| "-".to_owned());
        table.row([profile].into_iter().chain(numbers).chain([problem]));
    }
    table.text(width)
}

pub(super) fn deletion(deletion: DeleteResult, _: Width) -> String {
    let DeleteResult { chat_id, result, session_id, container_id, snapshot_id, purged } = deletion;
    let purged = if purged { format!("removed the directory of chat {chat_id}\n") } else { String::new() };
    match (result, session_id) {
        (Deletion::Deleted, Some(session)) => {
            let container = container_id.map(|id| format!(", container {}", short(&id))).unwrap_or_default();
            let kept = snapshot_id.map(|id| format!(", saved as snapshot {id}")).unwrap_or_default();
            format!("deleted the sandbox of chat {chat_id} (session {session}{container}){kept}\n{purged}")
        }
        _ => format!("chat {chat_id} has no sandbox\n{purged}"),
    }
}

/// Returns a table of any object. Nested fields are named by their path.
pub(super) fn fields(object: Value, width: Width) -> String {
    let mut table = Columns::pairs();
    add_fields(&mut table, "", &object);
    table.text(width)
}

fn add_fields(table: &mut Columns, path: &str, value: &Value) {
    let value = match value {
        Value::Null => return,
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                add_fields(table, &path, value);
            }
            return;
        }
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Number(seconds) if path == "uptime" => {
            length(Duration::try_from_secs_f64(seconds.as_f64().unwrap_or_default()).unwrap_or_default())
        }
        other => text(other),
    };
    table.row([path, value.as_str()]);
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn shown(endpoint: Endpoint) -> String {
    std::net::SocketAddr::new(endpoint.ip, endpoint.port).to_string()
}

/// Returns the 12 characters of a container id that engines also show.
pub(super) fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;
    use serde_json::json;

    fn example(now: DateTime<Utc>) -> Value {
        let at = |seconds| (now + TimeDelta::seconds(seconds)).to_rfc3339();
        json!({
            "session_id": "s", "chat_id": "c", "agent_id": "a", "volume_host_path": "/v",
            "container_id": "0123456789abcdef", "container_name": "sandboxd-default-c",
            "endpoint": { "ip": "10.0.0.2", "port": 8080 }, "status": "running", "reason": "ready", "message": null,
            "profile": "default", "image": "base", "created_at": at(-60), "started_at": at(-59),
            "last_activity_at": at(-30), "expires_at": at(250), "time_remaining": 250, "idle_expires_at": at(7201),
            "held_until": null, "held_by": [], "ends_at": at(250), "ends_because": "expired",
            "idle": { "is": false, "because": "recent_activity" },
        })
    }

    #[test]
    fn a_list_has_one_line_for_each_sandbox_and_says_if_there_are_more() {
        let page = json!({ "sandboxes": [example(Utc::now())], "undescribed": [], "next": "c" });
        let shown = list(serde_json::from_value(page).expect("a list"), Width::UNLIMITED);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines.len(), 3, "{shown}");
        assert!(lines[1].contains("10.0.0.2:8080") && lines[1].contains("in 4m"), "{shown}");
        assert!(lines[2].contains("--all"), "{shown}");
        let none = json!({ "sandboxes": [], "undescribed": [], "next": null });
        assert_eq!(list(serde_json::from_value(none).expect("a list"), Width::UNLIMITED), "no sandboxes\n");
    }

    #[test]
    fn a_list_fits_eighty_columns_with_chats_that_can_be_typed() {
        let mut one = example(Utc::now());
        one["chat_id"] = json!("67e55044-10b1-426f-9247-bb680e5fe0c8");
        one["agent_id"] = json!("an-agent-with-a-rather-long-name-of-its-own");
        let page = json!({ "sandboxes": [one], "undescribed": [], "next": null });
        let shown = list(serde_json::from_value(page).expect("a list"), Width::of(80));
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        let row = shown.lines().nth(1).unwrap_or_default();
        assert!(
            row.starts_with("67e55044  running") && row.contains("10.0.0.2:8080") && row.contains("in 4m "),
            "{shown}"
        );
    }

    #[test]
    fn a_list_names_the_chats_that_could_not_be_described() {
        let undescribed = json!([{ "chat_id": "d", "kind": "engine_unavailable", "message": "the engine is away" }]);
        let page = json!({ "sandboxes": [], "undescribed": undescribed, "next": null });
        let shown = list(serde_json::from_value(page).expect("a list"), Width::UNLIMITED);
        assert!(shown.contains("chat d: unknown: the engine is away"), "{shown}");
        assert!(!shown.contains("no sandboxes"), "{shown}");
    }

    #[test]
    fn a_sandbox_is_shown_with_all_known_fields() {
        let mut created = example(Utc::now());
        created["outcome"] = json!("created");
        created["launch"] = json!("cold");
        created["endpoint"] = Value::Null;
        created["workspace_id"] = json!("w-7");
        let shown = super::created(serde_json::from_value(created).expect("a sandbox"), Width::UNLIMITED);
        for part in
            ["created, cold", "running (ready)", "w-7", "0123456789ab sandboxd-default-c", "endpoint", " -\n", "1m ago"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }

    #[test]
    fn a_sandbox_is_shown_with_its_idle_reason_and_its_end() {
        let shown = sandbox(serde_json::from_value(example(Utc::now())).expect("a sandbox"), Width::UNLIMITED);
        let row = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{shown}"));
        assert!(row("idle").contains("no (recent_activity)"), "{shown}");
        let end = row("ends");
        assert!(end.contains("in 4m") && end.trim_end().ends_with("expired"), "{shown}");
    }

    #[test]
    fn a_report_names_each_action_and_its_reason() {
        let left = json!({
            "action": "leave", "chat_id": null, "session_id": null, "container_id": "0123456789abcdef",
            "status": null, "because": "left_alone", "message": "it is young",
        });
        let shown = report(
            serde_json::from_value(json!({ "dry_run": true, "containers": 2, "actions": [left] })).expect("a report"),
            Width::UNLIMITED,
        );
        let lines: Vec<_> = shown.lines().collect();
        assert!(lines[1].starts_with("leave") && lines[1].ends_with("it is young"), "{shown}");
        assert_eq!(lines[2], "2 containers, 1 to do");
    }

    #[test]
    fn nested_fields_are_named_by_their_path() {
        let shown = fields(json!({ "a": { "b": [1, "x"], "c": null }, "uptime": 61.5 }), Width::UNLIMITED);
        let words: Vec<_> = shown.split_whitespace().collect();
        assert_eq!(words, ["a.b", "1,", "x", "uptime", "1m", "1s"]);
    }
}
