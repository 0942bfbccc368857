//! The snapshot commands.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::chats::short_prefixes;
use super::columns::{Columns, Width};
use super::moment::relative;
use super::{CliError, Exit, Service, parsed};
use crate::cli::guest::size;

#[derive(Debug, Deserialize)]
struct Snapshot {
    snapshot_id: String,
    chat_id: String,
    session_id: String,
    profile: String,
    label: Option<String>,
    size_bytes: u64,
    parent: String,
    created_at: DateTime<Utc>,
}

#[derive(serde::Serialize, Deserialize)]
struct Page {
    snapshots: Vec<Box<RawValue>>,
    next: Value,
}

pub(super) async fn save(service: &Service, chat: &str, label: Option<&str>) -> Result<(Exit, String), CliError> {
    let snapshot = service.call("sandbox.snapshot", json!({ "chat_id": chat, "label": label })).await?;
    Ok((Exit::Done, service.show(&snapshot, |snapshot| snapshot_table(snapshot, service.width))?))
}

pub(super) async fn list(service: &Service, chat: Option<&str>, all: bool) -> Result<(Exit, String), CliError> {
    let page = async |after: &Value| service.call("snapshot.list", json!({ "chat_id": chat, "after": after })).await;
    let mut shown = page(&Value::Null).await?;
    if all {
        let Page { mut snapshots, mut next } = parsed(&shown)?;
        while !next.is_null() {
            let more: Page = parsed(&page(&next).await?)?;
            snapshots.extend(more.snapshots);
            next = more.next;
        }
        shown = serde_json::value::to_raw_value(&Page { snapshots, next }).map_err(crate::client::ClientError::from)?;
    }
    Ok((Exit::Done, service.show(&shown, |page| list_table(page, service.width))?))
}

pub(super) async fn delete(service: &Service, snapshot: &str) -> Result<(Exit, String), CliError> {
    let deletion = service.call("snapshot.delete", json!({ "snapshot_id": snapshot })).await?;
    let found = parsed::<Value>(&deletion)?["result"] == "deleted";
    let text = match found {
        true => format!("deleted snapshot {snapshot}\n"),
        false => format!("there is no snapshot {snapshot}\n"),
    };
    let exit = if found { Exit::Done } else { Exit::NotFound };
    Ok((exit, service.show(&deletion, |_: Value| text)?))
}

fn snapshot_table(snapshot: Snapshot, width: Width) -> String {
    let mut table = Columns::pairs();
    table.row(["snapshot", &snapshot.snapshot_id]);
    table.row(["chat", &snapshot.chat_id]);
    table.row(["session", &snapshot.session_id]);
    table.row(["profile", &snapshot.profile]);
    table.row(["label", snapshot.label.as_deref().unwrap_or("-")]);
    table.row(["size", size(snapshot.size_bytes).as_str()]);
    table.row(["parent", &snapshot.parent]);
    table.row(["created", &snapshot.created_at.format("%Y-%m-%d %H:%M:%S UTC").to_string()]);
    table.text(width)
}

fn list_table(Page { snapshots, next }: Page, width: Width) -> String {
    if snapshots.is_empty() {
        return "no snapshots\n".to_owned();
    }
    let now = Utc::now();
    let mut table =
        Columns::new(&[("SNAPSHOT", 0), ("CHAT", 1), ("PROFILE", 3), ("SIZE", 0), ("CREATED", 2), ("LABEL", 0)]);
    for snapshot in snapshots.iter().filter_map(|snapshot| parsed::<Snapshot>(snapshot).ok()) {
        table.row([
            snapshot.snapshot_id,
            snapshot.chat_id,
            snapshot.profile,
            size(snapshot.size_bytes),
            relative(snapshot.created_at, now),
            snapshot.label.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    let more = if next.is_null() { "" } else { "more snapshots exist; list them with --all\n" };
    table.shorten(1, short_prefixes);
    table.text(width) + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_one_line_for_each_snapshot_and_says_if_there_are_more() {
        let snapshot = json!({
            "snapshot_id": "s", "chat_id": "c", "session_id": "t", "profile": "py", "label": "before the upgrade",
            "size_bytes": 1_984_299, "parent": "base", "created_at": Utc::now().to_rfc3339(),
        });
        let page = json!({ "snapshots": [snapshot], "next": "s" });
        let shown = list_table(serde_json::from_value(page).expect("a list"), Width::UNLIMITED);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines.len(), 3, "{shown}");
        assert!(lines[1].contains("1.9 MiB") && lines[1].ends_with("before the upgrade"), "{shown}");
    }
}
