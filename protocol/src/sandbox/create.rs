//! Parameters and result of `sandbox.create`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Sandbox;
use crate::command::Command;
use crate::time::Seconds;
use crate::words::words;

/// Parameters of `sandbox.create`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateParams {
    /// UUID of the chat that has, or gets, the sandbox.
    pub chat_id: String,
    /// The agent that works in the sandbox, in its environment as `AGENT_ID`. Not blank, at most 256 bytes, without
    /// control characters.
    pub agent_id: String,
    /// UUID of the workspace that the chat belongs to: the chats of one user or tenant, which share
    /// `limits.per_workspace` and a place in the engine queue. A sandbox without a workspace conflicts with a request
    /// that names one. Default: none for a new sandbox, any for an existing one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// Absolute path of a host directory that is mounted read-write into the sandbox. It lies below one of
    /// `volumes.roots`, and is none of them, once symbolic links are resolved. A sandbox without a volume conflicts
    /// with a request that names one. Without a volume, the place of its mount is missing, or empty and read-only, and
    /// files are kept in the chat's directory. Default: none for a new sandbox, any for an existing one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_host_path: Option<String>,
    /// Profile to make the sandbox from, one of the `profiles` of `system.info`. Default: the profile of the snapshot
    /// if it still exists, else `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Snapshot to restore the sandbox from, of this chat or another one. Environment, mounts, limits and deadlines are
    /// those of this request and its profile. A sandbox that was not restored from this snapshot conflicts, also the
    /// one that the snapshot was taken of: delete it first. Default: the image of the profile for a new sandbox, any
    /// origin for an existing one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Environment variables on top of those of the profile. `AGENT_ID` cannot be set. The values are never logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Time to live of the sandbox in seconds. Default: that of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
    /// Seconds that the sandbox lives without being used. Default: those of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Seconds>,
    /// Author and committer of git commits in the sandbox, in its environment as `GIT_AUTHOR_NAME` and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitIdentity>,
    /// Command that brings a new sandbox up to date before any write in it. The service starts the command before it
    /// answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncParams>,
}

/// Author and committer of git commits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GitIdentity {
    /// Name, not blank, without line breaks and angle brackets.
    pub name: String,
    /// Email address, not blank, without line breaks and angle brackets.
    pub email: String,
}

/// A sync: a command that brings a new sandbox up to date, such as to the newest commit of a branch. Exactly one of
/// `command` and `git` is given.
///
/// - While a sync runs, requests that only read, and requests about running commands, proceed at once.
/// - Requests that may write wait: `sandbox.exec`, `sandbox.run_code`, `sandbox.write_file`, `sandbox.make_directory`,
///   `sandbox.move_file`, `sandbox.remove_file` and `sandbox.write_tree`. After the sync, they proceed in the order of
///   their arrival. Commands start in that order and then run side by side.
/// - `sandbox.commands` reports the state of the sync, and `sandbox.attach` sends its output.
/// - A sync fails unless its exit code is 0. The waiting requests are then answered with `sync_failed` and the last
///   line of its standard error. Later requests proceed.
/// - A second sync is `busy` while one runs. A restart of the service ends the waiting, and the command continues.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SyncParams {
    /// Command to run, as for `sandbox.exec`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
    /// Branch to fetch, and to reset its directory to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitBranch>,
    /// Working directory of the command. Default: that of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Seconds after which the command is killed. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
}

/// Branch of a git repository in the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GitBranch {
    /// Directory of the repository in the sandbox.
    pub directory: String,
    /// Name of the branch.
    pub branch: String,
    /// Name of the remote. Default: `origin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
}

/// Result of `sandbox.create`: the sandbox, and how the chat got it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CreatedSandbox {
    /// The sandbox.
    #[serde(flatten)]
    pub sandbox: Sandbox,
    /// How the chat got the sandbox.
    pub outcome: Outcome,
    /// How the container was started for this answer.
    pub launch: Launch,
}

words! {
    /// How a chat got its sandbox.
    enum Outcome {
        /// The chat had no sandbox.
        Created = "created",
        /// The chat had a matching sandbox.
        Reused = "reused",
        /// The chat's sandbox had ended; it was removed and replaced.
        Replaced = "replaced",
        /// The sandbox was made from a snapshot, whether or not the chat had a sandbox before.
        Restored = "restored",
    }

    /// How the container was started for an answer.
    enum Launch {
        /// The sandbox was a slot, started before the request.
        Warm = "warm",
        /// A container was created and started for this answer.
        Cold = "cold",
        /// The sandbox ran already.
        None = "none",
    }
}
