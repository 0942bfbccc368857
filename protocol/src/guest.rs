//! Observation of the guest: the log of its program, and its resource usage.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::{Seconds, Time};

/// Parameters of `sandbox.logs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogsParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Number of last lines to send. Default: all lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<u32>,
    /// Time from which on lines are sent, in whole seconds. Default: the start of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Whether to continue with new output until the sandbox ends. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<bool>,
}

/// Result of `sandbox.logs`, after the output has been sent in notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogsResult {
    /// Number of bytes that were sent.
    pub bytes: u64,
}

/// Parameters of `sandbox.stats`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatsParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Seconds between two `sandbox.stats` notifications, at least 0.1. Default: one answer, without notifications.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.1))]
    pub interval: Option<Seconds>,
}

/// Resource usage of a sandbox. A value that this host cannot measure is null, and so is a limit that is not set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// Time of the measurement.
    pub at: Time,
    /// CPU seconds of all processes since the sandbox was started.
    pub cpu_seconds: Option<f64>,
    /// CPU usage since the measurement before, or over 0.1 seconds for the first; 100 is all of one CPU.
    pub cpu_percent: Option<f64>,
    /// Memory in use, without the inactive part of the page cache.
    pub memory_bytes: Option<u64>,
    /// Memory limit of the sandbox.
    pub memory_limit_bytes: Option<u64>,
    /// Number of processes and threads.
    pub pids: Option<u64>,
    /// Limit of processes and threads.
    pub pids_limit: Option<u64>,
    /// Bytes received on all networks except loopback.
    pub received_bytes: Option<u64>,
    /// Bytes sent on all networks except loopback.
    pub sent_bytes: Option<u64>,
    /// Bytes written to disks.
    pub written_bytes: Option<u64>,
}
