//! Commands in the guest: their ends and outputs, and the parameters of the methods about them.

mod requests;

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::requests::*;
use crate::time::Seconds;
use crate::words::words;

/// Result of `sandbox.exec`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ExecResult {
    /// The command ended.
    Ended(Box<CommandResult>),
    /// The command was started with `detach`.
    Detached(DetachedCommand),
}

/// A command that was started and continues without its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DetachedCommand {
    /// Id of the command in its sandbox.
    pub command_id: u64,
}

/// End of a command and its output: the result of `sandbox.run_code`, `sandbox.attach` and, without `detach`, of
/// `sandbox.exec`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = require_outputs)]
pub struct CommandResult {
    /// Id of the command in its sandbox.
    pub command_id: u64,
    /// How the command ended.
    #[serde(flatten)]
    pub end: CommandEnd,
    /// Bytes of output that were not kept while no caller was attached.
    pub missed: u64,
    /// Standard output of the command.
    // The service leaves the outputs out and writes them piece by piece behind the other fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Output")]
    pub stdout: Option<Output>,
    /// Standard error of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Output")]
    pub stderr: Option<Output>,
}

/// Makes both outputs required in the schema: the type leaves them out only because the service writes them separately.
fn require_outputs(schema: &mut Schema) {
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.extend(["stdout", "stderr"].map(Value::from));
    }
}

/// How a command ended. One of `exit_code` and `signal` is null.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CommandEnd {
    /// Exit code of the command; null if a signal ended it.
    pub exit_code: Option<i32>,
    /// Signal that ended the command; null if it exited.
    pub signal: Option<i32>,
    /// Whether the command exceeded its `timeout`.
    pub timed_out: bool,
    /// Whether the command was killed by `sandbox.kill`, or because its caller disconnected.
    pub killed: bool,
    /// Whether the kernel killed the command, or a process of its shell (then `exit_code` is 137), at the memory limit
    /// of the sandbox. Without an init, `exit_code` is 137 in both cases, and this is known only where the service can
    /// see the control group of the container.
    pub oom_killed: bool,
    /// Seconds that the command ran.
    pub duration: Seconds,
}

/// One of the two outputs of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Output {
    /// Number of bytes that the command printed, returned or not.
    pub bytes: u64,
    /// Whether the command printed more than was returned: more than `max_output`, or more than the service had memory
    /// for.
    pub truncated: bool,
    /// The returned bytes.
    #[serde(flatten)]
    pub content: Content,
}

/// Bytes, as text where they are UTF-8 and text is the shorter form, else in base64. No limit and no end of a
/// notification divides a character. Both are null if the bytes were streamed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Content {
    /// The bytes as text; null if they are in base64, or were streamed.
    pub text: Option<String>,
    /// The bytes in base64; null if they are text, or were streamed.
    pub base64: Option<String>,
}

/// Result of `sandbox.commands`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CommandsResult {
    /// Running commands, and commands whose end was not reported to a caller yet, in the order of their start.
    pub commands: Vec<CommandInfo>,
    /// Last sync of this session; null if there was none.
    pub sync: Option<SyncInfo>,
}

/// A command in a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CommandInfo {
    /// Id of the command in its sandbox.
    pub command_id: u64,
    /// First 512 bytes of the program and its arguments, with replacement characters for bytes that are not UTF-8.
    pub command: Vec<String>,
    /// Seconds since the command was started.
    pub age: Seconds,
    /// Whether a caller is attached to the command.
    pub attached: bool,
    /// Whether the command still runs.
    pub running: bool,
    /// How the command ended; null while it runs.
    pub end: Option<CommandEnd>,
}

/// Progress of a sync.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SyncInfo {
    /// State of the sync.
    pub state: SyncState,
    /// Id of the command that the sync runs; null until it is started.
    pub command_id: Option<u64>,
    /// Why the sync failed, for people; null unless it failed.
    pub message: Option<String>,
}

words! {
    /// State of a sync.
    enum SyncState {
        /// The sync runs.
        Running = "running",
        /// The sync succeeded.
        Done = "done",
        /// The sync failed.
        Failed = "failed",
    }

    /// Output of a process.
    enum Stream {
        /// Standard output.
        Stdout = "stdout",
        /// Standard error.
        Stderr = "stderr",
    }
}
