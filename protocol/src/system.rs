//! The service itself: health, facts about it, checks of its host, and reconciliation with the engine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sandbox::Status;
use crate::time::Seconds;
use crate::words::words;

/// Result of `system.health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthResult {
    /// Whether sandboxes can be created and removed.
    pub status: HealthStatus,
    /// Health of the engine.
    pub engine: EngineHealth,
    /// Health of the durable state.
    pub state: StateHealth,
    /// Number of chats that have, are getting, or may have a sandbox.
    pub sandboxes: u64,
}

/// Health of the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineHealth {
    /// Whether the engine replied.
    pub reachable: bool,
    /// Kind of the engine, such as `docker`; null if it is not reachable.
    pub kind: Option<String>,
    /// Version of the engine; null if it is not reachable.
    pub version: Option<String>,
    /// Version of the engine's API; null if it is not reachable.
    pub api_version: Option<String>,
    /// Address of the engine; null if it is not reachable.
    pub host: Option<String>,
    /// Why the engine is not reachable; null if it is.
    pub error: Option<String>,
}

/// Health of the durable state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateHealth {
    /// Whether the last write to the journal succeeded and `state.dir` has room. A failed write is retried every
    /// second.
    pub writable: bool,
    /// Why the state cannot be written; null if it can.
    pub error: Option<String>,
}

/// Result of `system.info`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InfoResult {
    /// Version of the service.
    pub version: String,
    /// Version of the protocol, which rises with every change that breaks a caller.
    pub protocol: u32,
    /// Name of the instance (`instance.name`).
    pub instance: String,
    /// Seconds since the service started.
    pub uptime: Seconds,
    /// The engine; null while it does not reply.
    pub engine: Option<EngineInfo>,
    /// Names that `sandbox.create` accepts as `profile`.
    pub profiles: Vec<String>,
    /// Limits of connections in force.
    pub limits: ConnectionLimits,
}

/// Identity of the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineInfo {
    /// Kind of the engine, such as `docker`.
    pub kind: String,
    /// Version of the engine.
    pub version: String,
    /// Version of the engine's API.
    pub api_version: String,
    /// Address of the engine.
    pub host: String,
}

/// Limits of connections, configured under `[socket]`.
///
/// The service takes memory for a large answer before it asks the sandbox, and frees it as the caller reads. Memory is
/// needed for a file of more than 64 KiB that is not streamed, for a list of files of more than 256 KiB, for output of
/// a command that is kept for its answer (beyond the first 16 KiB), and for a request of more than 4 KiB while many
/// requests of the same connection are under way. Other requests, and streams, never wait for memory.
///
/// While requests wait for `max_memory`, the service disconnects a caller that holds a part of it and reads less than 1
/// MiB within 2 seconds, or does not finish its line. A command whose output finds no memory for 15 seconds continues,
/// and its output is `truncated`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionLimits {
    /// Most connections at a time. A further connection gets one `too_many_connections` error and is closed.
    pub max_connections: u64,
    /// Most bytes in a line. A longer line is skipped and answered with `line_too_long`, with its `id` if that is
    /// within the limit; the connection stays open.
    pub max_line: u64,
    /// Most requests under way on a connection. The service reads no further request until one is answered.
    pub max_in_flight: u64,
    /// Most bytes of answers that the caller of a connection has not read. The service reads no further request until
    /// the caller reads.
    pub max_output: u64,
    /// Most bytes of large requests and answers that are held for all connections together. A request that needs more
    /// waits.
    pub max_memory: u64,
    /// Part of `max_memory` that one connection can hold. A request that needs more waits until its caller has read
    /// earlier answers.
    pub max_memory_per_connection: u64,
}

/// Result of `system.doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorResult {
    /// All checks, always the same ones in the same order.
    pub checks: Vec<Check>,
}

/// A check of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// Name of the check.
    #[schemars(with = "CheckName")]
    pub name: String,
    /// Outcome of the check.
    pub status: CheckStatus,
    /// Finding of the check, for people.
    pub message: String,
    /// Recommended action, for people; null if none is needed.
    pub advice: Option<String>,
}

/// Parameters of `system.reconcile`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReconcileParams {
    /// Whether to report the actions without taking them. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

/// Result of `system.reconcile`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReconcileResult {
    /// Whether the actions were only reported.
    pub dry_run: bool,
    /// Number of containers of this instance on the engine.
    pub containers: u64,
    /// Actions that were, or would be, taken; empty if the engine and the journal agree.
    pub actions: Vec<ReconcileAction>,
}

/// Action on one container or sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReconcileAction {
    /// Kind of the action.
    pub action: ReconcileActionKind,
    /// UUID of the chat; null if unknown.
    pub chat_id: Option<String>,
    /// UUID of the session; null if unknown.
    pub session_id: Option<String>,
    /// The engine's id of the container; null if there is none.
    pub container_id: Option<String>,
    /// Status that the sandbox continues with: `running` and `paused` are kept, `deleting` is removed, `failed` and
    /// `stopped` are kept for their owner. Null if there is no sandbox.
    pub status: Option<Status>,
    /// Why the action was taken, for programs.
    pub because: ReconcileBecause,
    /// Why the action was taken, for people; null where `because` says it all.
    pub message: Option<String>,
}

words! {
    /// Whether sandboxes can be created and removed.
    enum HealthStatus {
        /// The engine replies and the state is writable.
        Ok = "ok",
        /// The engine does not reply, or the state cannot be written: sandboxes can be neither created nor removed.
        Degraded = "degraded",
    }

    /// Check of the host.
    enum CheckName {
        /// Kind, version and API of the engine. Not ok if the engine does not reply.
        Engine = "engine",
        /// `instance.name`. Not ok if the engine has not replied since the service started, so that the name is not
        /// locked.
        Instance = "instance",
        /// Networks of the profiles. Not ok if one is missing, exists more than once, or lets its sandboxes reach each
        /// other although `engine.network_isolated` is set.
        Network = "network",
        /// Free addresses of these networks. Not ok if one has room for less than a tenth of its sandboxes.
        Addresses = "addresses",
        /// Images of the profiles. Not ok if one is not on the engine.
        Images = "images",
        /// File system of the engine's images. Not ok if it is fuller than `images.gc.high_watermark`.
        ImageDisk = "image_disk",
        /// Limits that the engine enforces. Not ok if memory, cpus or pids are not among them.
        Limits = "limits",
        /// Whether sandboxes survive a restart of the engine. Not ok if they do not.
        LiveRestore = "live_restore",
        /// Binding of slots, and the pools. Not ok if a configured pool is not possible, or its last slot failed to
        /// start.
        WarmSlots = "warm_slots",
        /// The journal. Not ok if it did not reply, or its last write failed.
        Journal = "journal",
        /// `state.dir`. Not ok if it is missing, not writable, on a file system with `noexec`, or has less than 1 GiB
        /// free.
        StateDir = "state_dir",
        /// `chats.root`. Not ok as for `state_dir`.
        ChatsRoot = "chats_root",
        /// `volumes.roots`. Not ok if one is missing.
        Volumes = "volumes",
        /// Limit of open files of the service. Not ok if it is too low for `socket.max_connections` and the maximum
        /// number of sandboxes.
        OpenFiles = "open_files",
        /// Ports of the host that listen beyond loopback. Not ok if a profile gives its sandboxes a network, from which
        /// they reach these ports unless a firewall forbids it; see [security.md](security.md).
        HostServices = "host_services",
        /// Group and mode of the socket. Not ok if a configured user or group cannot open it.
        Callers = "callers",
        /// User of the service. Always ok.
        User = "user",
    }

    /// Outcome of a check.
    enum CheckStatus {
        /// The check passed.
        Ok = "ok",
        /// The subject works with restrictions, or its condition is unknown.
        Warning = "warning",
        /// A configured feature does not work.
        Problem = "problem",
    }

    /// Kind of a reconcile action.
    enum ReconcileActionKind {
        /// The service takes over a sandbox that no actor serves, with the given status.
        Adopt = "adopt",
        /// The service leaves a container as it is.
        Leave = "leave",
    }

    /// Why a reconcile action was taken.
    enum ReconcileBecause {
        /// The journal has the sandbox, and it runs or is paused.
        Resumed = "resumed",
        /// The journal is new, and the labels of the container name its chat.
        AdoptedFromLabels = "adopted_from_labels",
        /// The sandbox ended while the service did not watch it.
        Ended = "ended",
        /// The journal has the sandbox, and its container is gone.
        Vanished = "vanished",
        /// The removal of the sandbox was begun and not completed.
        RemovalUnfinished = "removal_unfinished",
        /// The sandbox was never acknowledged to a caller.
        NeverAcknowledged = "never_acknowledged",
        /// The container does not belong to the service, or is too young to judge; the message states which.
        LeftAlone = "left_alone",
    }
}
