//! Parameters and results of the methods that manage sandboxes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Sandbox, Status};
use crate::error::ErrorKind;
use crate::time::{Seconds, Time};
use crate::words::words;

/// Parameters of a method that takes only a chat.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
}

/// Result of `sandbox.lease`: the sandbox, and its new lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LeasedSandbox {
    /// The sandbox.
    #[serde(flatten)]
    pub sandbox: Sandbox,
    /// UUID of the lease, for `sandbox.release`.
    pub lease_id: String,
    /// When the lease ends by itself.
    pub lease_until: Time,
}

/// Parameters of `sandbox.list`. Only sandboxes that match all given filters are listed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListParams {
    /// Most sandboxes to examine for this page. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u64>,
    /// Chat after which the page begins: the `next` of the page before. Default: the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Only sandboxes of this profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Only sandboxes of this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Only sandboxes of this workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// Only sandboxes with this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// Result of `sandbox.list`: one page, in the order of the chat ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListResult {
    /// Sandboxes of this page.
    pub sandboxes: Vec<Sandbox>,
    /// Chats whose sandbox could not be described, and may still exist. The list is complete if this is empty on every
    /// page.
    pub undescribed: Vec<Undescribed>,
    /// Chat to give as `after` for the next page; null on the last page.
    pub next: Option<String>,
}

/// A chat whose sandbox could not be described, and may still exist.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Undescribed {
    /// UUID of the chat.
    pub chat_id: String,
    /// Kind of the error that `sandbox.get` would answer.
    pub kind: ErrorKind,
    /// Message of the error that `sandbox.get` would answer.
    pub message: String,
}

/// Parameters of `sandbox.renew`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Seconds from now to the new absolute deadline. A later deadline stays as it is.
    pub ttl: Seconds,
}

/// Parameters of `sandbox.lease`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Seconds that the lease lasts at most, up to `leases.max`.
    pub duration: Seconds,
    /// Whether the lease outlives its connection and a restart of the service. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<bool>,
}

/// Parameters of `sandbox.release`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Id of the lease, as `sandbox.lease` answered it.
    pub lease_id: String,
}

/// Parameters of `sandbox.delete`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Whether to take a snapshot of the sandbox first. Default: `snapshot_on_delete` of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<bool>,
    /// Whether to remove the chat's directory as well. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purge: Option<bool>,
}

/// Result of `sandbox.delete`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeleteResult {
    /// UUID of the chat.
    pub chat_id: String,
    /// Whether the chat had a sandbox.
    pub result: Deletion,
    /// Session of the removed sandbox; null if the chat had none.
    pub session_id: Option<String>,
    /// Container of the removed sandbox; null if it had none yet.
    pub container_id: Option<String>,
    /// Snapshot that was taken of the sandbox; null if none was taken.
    pub snapshot_id: Option<String>,
    /// Whether a directory of the chat was removed.
    pub purged: bool,
}

/// Parameters of `sandbox.hint`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HintParams {
    /// Profile of the sandbox that will be requested. Default: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// UUID of the chat that will request the sandbox. A repeated hint for the chat extends the first one. Default: the
    /// next chat that claims a slot fulfils the hint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_id: Option<String>,
    /// Seconds that a slot is kept for the hint. Default: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
}

/// Result of `sandbox.hint`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HintResult {
    /// Profile of the hint.
    pub profile: String,
    /// Chat of the hint; null if the hint names none.
    pub chat_id: Option<String>,
    /// Whether a slot is prepared.
    pub outcome: HintOutcome,
    /// Until when the slot is kept for the hint; null if none is prepared.
    pub until: Option<Time>,
    /// Why no slot is prepared, for people; null if one is.
    pub message: Option<String>,
}

words! {
    /// Whether the object of a deletion existed.
    enum Deletion {
        /// It existed and is removed.
        Deleted = "deleted",
        /// It did not exist.
        NotFound = "not_found",
    }

    /// Whether a slot is prepared for a hint.
    enum HintOutcome {
        /// A slot is being prepared or is ready.
        Preparing = "preparing",
        /// Too many hints are pending.
        OverBudget = "over_budget",
        /// The profile has no slots.
        Unavailable = "unavailable",
    }
}
