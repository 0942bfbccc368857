//! The snapshot commands.

use chrono::Utc;
use sandboxd_protocol::method::Method;
use sandboxd_protocol::sandbox::Deletion;
use sandboxd_protocol::snapshot::*;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::chats::short_prefixes;
use super::columns::{Columns, Width};
use super::moment::relative;
use super::{CliError, Exit, Service, parsed};
use crate::cli::guest::size;
use crate::client::ClientError;

/// A page of which each snapshot is as the service sent it.
#[derive(Serialize, Deserialize)]
struct Page {
    snapshots: Vec<Box<RawValue>>,
    next: Option<String>,
}

pub(super) async fn save(service: &Service, chat: &str, label: Option<&str>) -> Result<(Exit, String), CliError> {
    let params = SnapshotParams { chat_id: chat.to_owned(), label: label.map(str::to_owned) };
    service.call_and_show(Method::SandboxSnapshot, params, snapshot_table).await
}

pub(super) async fn list(service: &Service, chat: Option<&str>, all: bool) -> Result<(Exit, String), CliError> {
    let page = async |after| {
        let params = SnapshotListParams { chat_id: chat.map(str::to_owned), after, limit: None };
        service.call(Method::SnapshotList, params).await
    };
    let mut shown = page(None).await?;
    if all {
        let mut list: Page = parsed(&shown)?;
        while let Some(after) = list.next.take() {
            let Page { snapshots, next } = parsed(&page(Some(after)).await?)?;
            list.snapshots.extend(snapshots);
            list.next = next;
        }
        shown = to_raw_value(&list).map_err(ClientError::from)?;
    }
    Ok((Exit::Done, service.show(&shown, list_table)?))
}

pub(super) async fn delete(service: &Service, snapshot: &str) -> Result<(Exit, String), CliError> {
    let params = SnapshotDeleteParams { snapshot_id: snapshot.to_owned() };
    let deletion = service.call(Method::SnapshotDelete, params).await?;
    let found = parsed(&deletion).is_ok_and(|done: SnapshotDeleteResult| done.result == Deletion::Deleted);
    let (exit, text) = match found {
        true => (Exit::Done, format!("deleted snapshot {snapshot}\n")),
        false => (Exit::NotFound, format!("there is no snapshot {snapshot}\n")),
    };
    Ok((exit, service.show(&deletion, |_: SnapshotDeleteResult, _| text)?))
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
    table.row(["created", &snapshot.created_at.0.format("%Y-%m-%d %H:%M:%S UTC").to_string()]);
    table.text(width)
}

fn list_table(SnapshotListResult { snapshots, next }: SnapshotListResult, width: Width) -> String {
    if snapshots.is_empty() {
        return "no snapshots\n".to_owned();
    }
    let now = Utc::now();
    let mut table =
        Columns::new(&[("SNAPSHOT", 0), ("CHAT", 1), ("PROFILE", 3), ("SIZE", 0), ("CREATED", 2), ("LABEL", 0)]);
    for snapshot in snapshots {
        table.row([
            snapshot.snapshot_id,
            snapshot.chat_id,
            snapshot.profile,
            size(snapshot.size_bytes),
            relative(snapshot.created_at, now),
            snapshot.label.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    let more = if next.is_some() { "more snapshots exist; list them with --all\n" } else { "" };
    table.shorten(1, short_prefixes);
    table.text(width) + more
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
