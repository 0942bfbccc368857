//! Snapshots of sandboxes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sandbox::Deletion;
use crate::time::Time;

/// Files that a sandbox had written at a moment, kept as an image of the engine. Mounts, processes, memory and `tmpfs`
/// are not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// UUID of the snapshot. Later snapshots have greater ids.
    pub snapshot_id: String,
    /// UUID of the chat that had the sandbox.
    pub chat_id: String,
    /// Session of the sandbox.
    pub session_id: String,
    /// Profile of the sandbox.
    pub profile: String,
    /// Label that the caller gave; null if none was given.
    pub label: Option<String>,
    /// Size of the whole image as the engine reports it, layers shared with other images included.
    pub size_bytes: u64,
    /// Origin of the sandbox: the `snapshot_id` that it was restored from, or an image.
    pub parent: String,
    /// When the snapshot was taken.
    pub created_at: Time,
}

/// Parameters of `sandbox.snapshot`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Label of the snapshot. Not blank, at most 256 bytes, without control characters. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// Parameters of `snapshot.list`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotListParams {
    /// UUID of the chat whose snapshots are listed. Default: all chats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_id: Option<String>,
    /// Most snapshots on this page. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u64>,
    /// Snapshot after which the page begins, with older ones: the `next` of the page before. Default: the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Result of `snapshot.list`: one page, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotListResult {
    /// Snapshots of this page.
    pub snapshots: Vec<Snapshot>,
    /// Snapshot to give as `after` for the next page; null on the last page.
    pub next: Option<String>,
}

/// Parameters of `snapshot.delete`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotDeleteParams {
    /// UUID of the snapshot.
    pub snapshot_id: String,
}

/// Result of `snapshot.delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotDeleteResult {
    /// UUID of the snapshot.
    pub snapshot_id: String,
    /// Whether the snapshot existed.
    pub result: Deletion,
}
