//! Sandboxes: the state of one, and the parameters and results of the methods that manage it.

mod create;
mod requests;

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::create::*;
pub use self::requests::*;
use crate::time::Time;
use crate::words::words;

/// The sandbox of a chat.
///
/// A sandbox has two deadlines, and the earlier one ends it: the absolute one, `ttl` after it was created or renewed,
/// and the idle one, `idle_timeout` after its last use. Use is `sandbox.create`, `sandbox.renew`, `sandbox.touch`,
/// `sandbox.resume`, the beginning and the end of a lease, and work in the guest; reading its state is none. While a
/// command runs in it, attached or detached, the idle deadline does not pass. The absolute deadline passes all the
/// same, unless a lease postpones it. A paused sandbox has no idle deadline.
///
/// The `on_expire` of the profile decides how the sandbox ends: it is removed; stopped and kept for a day; paused at
/// its idle deadline and removed at its absolute one; or removed after a snapshot of it was taken. If that fails, the
/// sandbox stays, the service retries at growing intervals, and the sandbox can still be renewed.
///
/// A sandbox that is adopted without a record in the journal lives its full `ttl` from then on. If its container does
/// not state its deadlines either, it ends after a day, or after two hours without use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sandbox {
    /// UUID of the session. A chat that gets a new container gets a new session.
    pub session_id: String,
    /// UUID of the chat, in canonical form.
    pub chat_id: String,
    /// The agent that works in the sandbox.
    pub agent_id: String,
    /// UUID of the workspace of the chat, in canonical form; null if the sandbox is in no workspace.
    pub workspace_id: Option<String>,
    /// The host directory that is mounted as the volume, with symbolic links resolved; null if there is no volume.
    pub volume_host_path: Option<String>,
    /// The engine's id of the container; null until the container exists.
    pub container_id: Option<String>,
    /// Name of the container, which follows from the instance and the chat. A sandbox that was a slot gets it a few
    /// milliseconds after the answer.
    pub container_name: String,
    /// Address of the service in the guest; null until the sandbox runs, and where its network is blocked.
    pub endpoint: Option<Endpoint>,
    /// State of the sandbox.
    pub status: Status,
    /// Why the sandbox has that status, for programs.
    pub reason: Reason,
    /// Why the sandbox has that status, for people; null where the reason says it all.
    pub message: Option<String>,
    /// Name of the profile that the sandbox was made from.
    pub profile: String,
    /// Image of the profile, or of the snapshot that the sandbox was restored from.
    pub image: String,
    /// The snapshot that the sandbox was restored from; null if it was made from an image.
    pub snapshot_id: Option<String>,
    /// When the sandbox was created.
    pub created_at: Time,
    /// When the container was started; null until then.
    pub started_at: Option<Time>,
    /// When the sandbox was last used.
    pub last_activity_at: Time,
    /// Absolute deadline of the sandbox, unless it is renewed or leased.
    pub expires_at: Time,
    /// Whole seconds from the answer to `expires_at`; 0 after it.
    pub time_remaining: u64,
    /// Idle deadline of the sandbox: its idle time-out after its last use, or after the end of its last hold.
    pub idle_expires_at: Time,
    /// End of the longest lease, which may be past; at most `leases.max` after `expires_at`. Null without a lease.
    pub held_until: Option<Time>,
    /// Leases and work that keep the sandbox from counting as idle now.
    pub held_by: Vec<Hold>,
    /// When the sandbox ends if it is not used, renewed or leased before.
    pub ends_at: Time,
    /// The deadline that ends the sandbox at `ends_at`.
    pub ends_because: EndsBecause,
    /// Whether the sandbox counts as idle now.
    pub idle: Idle,
}

/// Address of the service in a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endpoint {
    /// Address on the engine's network.
    pub ip: IpAddr,
    /// Port of the profile.
    pub port: u16,
}

/// A lease or work under way that keeps a sandbox from counting as idle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hold {
    /// Kind of the hold.
    pub kind: HoldKind,
    /// Id of the lease, for `sandbox.release`; left out for other holds, and for a lease from an old journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub lease_id: Option<String>,
    /// Whether the lease outlives its connection and a restart of the service; left out for other holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub durable: Option<bool>,
    /// Id of the command; left out for other holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    pub command_id: Option<u64>,
    /// When the hold ends by itself. Work under way extends it again and again.
    pub until: Time,
}

/// Whether a sandbox counts as idle, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Idle {
    /// Whether the sandbox counts as idle now.
    pub is: bool,
    /// Why the sandbox counts as idle, or does not.
    pub because: IdleBecause,
}

words! {
    /// State of a sandbox.
    enum Status {
        /// The sandbox is being created and started, and is not ready yet.
        Creating = "creating",
        /// The sandbox is ready.
        Running = "running",
        /// The processes of the sandbox are frozen until the sandbox is used.
        Paused = "paused",
        /// The sandbox reached its deadline and its profile keeps the container (`on_expire = "stop"`). The container
        /// is removed a day later; the next `sandbox.create` replaces it.
        Stopped = "stopped",
        /// The sandbox is being removed, or its removal is still to be completed.
        Deleting = "deleting",
        /// The sandbox ended, is unhealthy, or is missing, without a request for that. It can be deleted and created
        /// anew.
        Failed = "failed",
    }

    /// Why a sandbox has its status.
    enum Reason {
        /// A caller requested it.
        Requested = "requested",
        /// The sandbox passed its readiness check, or needs none.
        Ready = "ready",
        /// The service found the container on the engine, left by an earlier run of the service.
        Adopted = "adopted",
        /// The absolute deadline passed.
        Expired = "expired",
        /// The sandbox was not used within its idle time-out.
        Idle = "idle",
        /// The first process of the sandbox ended.
        Exited = "exited",
        /// A signal ended the first process of the sandbox.
        Killed = "killed",
        /// The sandbox reached its memory limit.
        OomKilled = "oom_killed",
        /// The sandbox runs, but its health check fails, or its service failed the readiness check of a repeated
        /// create.
        Unhealthy = "unhealthy",
        /// The container was removed externally, as by `docker rm`. The message states whether the service ran at that
        /// time, if known.
        Vanished = "vanished",
        /// The sandbox could not be started and is being removed.
        RolledBack = "rolled_back",
        /// The service found the sandbox only partly created.
        Incomplete = "incomplete",
        /// The sandbox ended by itself and is being restarted under the same session (`restart = "on-failure"`).
        Restarting = "restarting",
        /// The sandbox was paused and is used again.
        Resumed = "resumed",
        /// The sandbox was paused or resumed externally.
        ByOthers = "by_others",
        /// Only in events: a snapshot of the sandbox was taken; the sandbox is unchanged.
        Snapshotted = "snapshotted",
        /// Only in events: a snapshot of the sandbox failed; the sandbox is unchanged.
        SnapshotFailed = "snapshot_failed",
    }

    /// Kind of a hold. A lease postpones both deadlines; every other hold counts as activity and postpones the idle
    /// deadline only.
    enum HoldKind {
        /// A caller leased the sandbox.
        Lease = "lease",
        /// A command runs, attached or detached.
        Command = "command",
        /// A directory tree is being read or written.
        Transfer = "transfer",
        /// A caller follows the log.
        Logs = "logs",
    }

    /// The deadline that ends a sandbox.
    enum EndsBecause {
        /// The absolute deadline.
        Expired = "expired",
        /// The idle deadline.
        Idle = "idle",
    }

    /// Why a sandbox counts as idle, or does not.
    enum IdleBecause {
        /// A lease holds the sandbox: not idle.
        Leased = "leased",
        /// Work is under way in the sandbox: not idle.
        InUse = "in_use",
        /// The sandbox was used within its idle time-out: not idle.
        RecentActivity = "recent_activity",
        /// The sandbox is paused: idle.
        Paused = "paused",
        /// The sandbox was not used within its idle time-out: idle.
        NoActivity = "no_activity",
    }
}
