//! Snapshots from a shell.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::moment::relative;
use super::tables::{finished, plain};
use super::{Exit, Service, Trouble, parsed};

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

pub(super) async fn take(service: &Service, chat: &str, label: Option<&str>) -> Result<(Exit, String), Trouble> {
    let snapshot = service.call("sandbox.snapshot", json!({ "chat_id": chat, "label": label })).await?;
    Ok((Exit::Done, service.show(&snapshot, snapshot_table)?))
}

pub(super) async fn list(service: &Service, chat: Option<&str>, all: bool) -> Result<(Exit, String), Trouble> {
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
    Ok((Exit::Done, service.show(&shown, list_table)?))
}

pub(super) async fn delete(service: &Service, snapshot: &str) -> Result<(Exit, String), Trouble> {
    let deletion = service.call("snapshot.delete", json!({ "snapshot_id": snapshot })).await?;
    let found = parsed::<Value>(&deletion)?["result"] == "deleted";
    let text = match found {
        true => format!("deleted snapshot {snapshot}\n"),
        false => format!("there is no snapshot {snapshot}\n"),
    };
    let exit = if found { Exit::Done } else { Exit::NotFound };
    Ok((exit, service.show(&deletion, |_: Value| text)?))
}

fn snapshot_table(snapshot: Snapshot) -> String {
    let mut table = plain();
    table.add_row(["snapshot", &snapshot.snapshot_id]);
    table.add_row(["chat", &snapshot.chat_id]);
    table.add_row(["session", &snapshot.session_id]);
    table.add_row(["profile", &snapshot.profile]);
    table.add_row(["label", snapshot.label.as_deref().unwrap_or("-")]);
    table.add_row(["size", &size(snapshot.size_bytes)]);
    table.add_row(["parent", &snapshot.parent]);
    table.add_row(["created", &snapshot.created_at.format("%Y-%m-%d %H:%M:%S UTC").to_string()]);
    finished(table)
}

fn list_table(Page { snapshots, next }: Page) -> String {
    if snapshots.is_empty() {
        return "no snapshots\n".to_owned();
    }
    let now = Utc::now();
    let mut table = plain();
    table.add_row(["SNAPSHOT", "CHAT", "PROFILE", "SIZE", "CREATED", "LABEL"]);
    for snapshot in snapshots.iter().filter_map(|snapshot| parsed::<Snapshot>(snapshot).ok()) {
        table.add_row([
            snapshot.snapshot_id,
            snapshot.chat_id,
            snapshot.profile,
            size(snapshot.size_bytes),
            relative(snapshot.created_at, now),
            snapshot.label.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    let more = if next.is_null() { "" } else { "there are more; see them with --all\n" };
    finished(table) + more
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    let mut size = bytes as f64 / 1000.0;
    let mut unit = 0;
    while size >= 1000.0 && unit + 1 < UNITS.len() {
        size /= 1000.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
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
        let shown = list_table(serde_json::from_value(page).expect("a list"));
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines.len(), 3, "{shown}");
        assert!(lines[1].contains("2.0 MB") && lines[1].ends_with("before the upgrade"), "{shown}");
    }
}
