//! Parameters of the methods that run commands in the guest.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::Seconds;
use crate::words::words;

/// A line for `/bin/sh -c`, or a program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a line for the shell, or an array of arguments")]
pub enum Command {
    /// Line for `/bin/sh -c`.
    Line(String),
    /// Program and its arguments, passed on unchanged.
    Arguments(Vec<String>),
}

/// Parameters of `sandbox.exec`. At most one of `stdin`, `stdin_base64` and `stdin_follows` is given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Command to run. With `env`, at most 131072 bytes.
    pub command: Command,
    /// User that the command runs as: a name of the image or a number, optionally followed by a colon and a group. Init
    /// cannot become another user, so the engine starts the command, with the restrictions of a sandbox
    /// [without init](operations.md#sandboxes-without-init). Root has no further rights in the sandbox, except on its
    /// own files. Default: the user of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Working directory of the command. Default: that of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment variables on top of those of the sandbox. The values are never logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Whole standard input of the command, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Whole standard input of the command, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// Whether the standard input follows with `sandbox.input`. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_follows: Option<bool>,
    /// Seconds after which the command and all processes that it has started are killed. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
    /// Most bytes of each output to return, at most 16777216 unless the output is streamed. Default: 1048576, and
    /// unlimited if the output is streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output: Option<u64>,
    /// Whether the output is sent in notifications as it is printed, instead of in the result. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Fate of the command if the connection ends first. Default: `kill`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_disconnect: Option<OnDisconnect>,
    /// Whether to answer as soon as the command has been started. It then has no standard input. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detach: Option<bool>,
    /// Whether the command is a sync: it brings the sandbox up to date, and requests that may write wait for its end,
    /// as `SyncParams` describes. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<bool>,
    /// Size of a terminal that the command gets instead of pipes. All output is then `stdout`. Default: no terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Terminal {
    /// Number of rows.
    pub rows: u16,
    /// Number of columns.
    pub columns: u16,
}

/// Parameters of `sandbox.run_code`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCodeParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Language of the code, one of those of the profile. Default: `python`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Code to run. With `env`, at most 131072 bytes, unless the language reads its code from standard input.
    pub code: String,
    /// User that the interpreter runs as, as for `sandbox.exec`. Default: the user of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Working directory of the interpreter. Default: that of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment variables on top of those of the sandbox. The values are never logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Whole standard input of the code, as text; not for a language that reads its code from standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Seconds after which the interpreter is killed, as for `sandbox.exec`. Default: those of the language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
    /// Most bytes of each output to return, as for `sandbox.exec`. Default: those of the language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output: Option<u64>,
    /// Whether the output is sent in notifications, as for `sandbox.exec`. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Fate of the interpreter if the connection ends first. Default: `kill`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_disconnect: Option<OnDisconnect>,
}

/// Parameters of `sandbox.attach`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Id of the command, as `sandbox.exec`, `sandbox.started` or `sandbox.commands` reported it.
    pub command_id: u64,
    /// Most bytes of each output to return, as for `sandbox.exec`. Default: 1048576, and unlimited if the output is
    /// streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output: Option<u64>,
    /// Whether the output is sent in notifications, as for `sandbox.exec`. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Fate of the command if the connection ends first. Default: `detach`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_disconnect: Option<OnDisconnect>,
}

/// Parameters of `sandbox.kill`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KillParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Id of the command.
    pub command_id: u64,
    /// Number of a signal to send instead. Default: kill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31))]
    pub signal: Option<i32>,
}

/// Parameters of `sandbox.input`. At most one of `text` and `base64` is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InputParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Id of the command, or of the transfer to a file or tree, as `sandbox.started` reported it.
    pub command_id: u64,
    /// Bytes to send, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Bytes to send, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// Whether these are the last bytes. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<bool>,
}

/// Parameters of `sandbox.resize`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Id of a command that a caller is attached to.
    pub command_id: u64,
    /// Number of rows.
    pub rows: u16,
    /// Number of columns.
    pub columns: u16,
}

words! {
    /// Fate of a command whose connection ends.
    enum OnDisconnect {
        /// The command and all processes that it has started are killed.
        Kill = "kill",
        /// The command continues.
        Detach = "detach",
    }
}
