//! Events: durable, numbered records of the changes of sandboxes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sandbox::{Reason, Status};
use crate::time::Time;

/// Parameters of `events.watch`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WatchParams {
    /// Number of the last event that the caller knows; 0 requests all events that are kept. Default: only events from
    /// now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// UUID of the chat whose events are sent. Default: all chats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_id: Option<String>,
}

/// Result of `events.watch`, once the watch has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WatchResult {
    /// Number to give as `after` to continue.
    pub last_sequence: u64,
}

/// A change of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Number of the event, one more than that of the event before.
    pub sequence: u64,
    /// When the change happened.
    pub at: Time,
    /// UUID of the chat.
    pub chat_id: String,
    /// UUID of the session.
    pub session_id: String,
    /// The agent of the sandbox.
    pub agent_id: String,
    /// The engine's id of the container; null if there is none.
    pub container_id: Option<String>,
    /// Status before the change; null if there was no sandbox, or if the status is unknown.
    pub from: Option<Status>,
    /// Status after the change; null if the sandbox is gone.
    pub to: Option<Status>,
    /// Why the change happened, for programs.
    pub reason: Reason,
    /// Why the change happened, for people; null where the reason says it all.
    pub message: Option<String>,
}
