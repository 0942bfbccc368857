//! The port to a container engine, in the words of the core.
//!
//! An implementation translates and makes no decisions. Three rules keep the core safe on top of any engine:
//!
//! - **Unknown is not gone.** `Ok(None)` from [`Engine::inspect`] means that the engine reported no such container. An
//!   engine that does not answer is an error.
//! - **A call without an answer may still take effect.** [`EngineError::may_have_happened`] identifies the errors after
//!   which the core must inspect again.
//! - **The caller sets the limit.** [`Bounded`](crate::engine::bounded::Bounded) limits every call.

pub mod events;
#[cfg(feature = "fake-engine")]
pub mod fake;
pub mod logs;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::container::ContainerSpec;
use crate::domain::ids::{ChatId, ContainerId, ContainerName, InstanceName, SnapshotId};
use crate::domain::snapshot::{Snapshot, SnapshotOrigin};
use crate::domain::subnet::AddressRange;
use crate::ports::clock::Timestamp;
use events::EngineEvents;
use logs::{EngineLogs, LogRange};

/// A container engine.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Returns the kind and version of the engine. This is the cheapest check that the engine answers.
    async fn identify(&self) -> Result<EngineIdentity, EngineError>;

    /// Creates the network if it does not exist. There is never a second network of the name.
    async fn ensure_network(&self, network: &NetworkSpec) -> Result<(), EngineError>;

    /// Returns the id of the image that has this name now.
    async fn image_id(&self, image: &str) -> Result<Option<String>, EngineError>;

    /// Creates a container without starting it. If the name is in use, fails with [`EngineError::NameTaken`].
    async fn create(&self, container: &ContainerSpec) -> Result<ContainerId, EngineError>;

    async fn start(&self, container: &ContainerId) -> Result<(), EngineError>;

    /// Renames a container. If the name is in use, fails with [`EngineError::NameTaken`].
    async fn rename(&self, container: &ContainerId, name: &ContainerName) -> Result<(), EngineError>;

    /// Looks a container up by id or name. The cost does not depend on the number of containers.
    async fn inspect(&self, id_or_name: &str) -> Result<Option<Observed>, EngineError>;

    /// Returns every container of this instance, in any state, in one call. Never on a request's path: the cost grows
    /// with the number of containers. Details of an inspection (exit, start, health) may be missing.
    async fn list(&self, instance: &InstanceName) -> Result<Vec<Observed>, EngineError>;

    /// Pauses the container's processes. They keep their memory and get no processor time.
    async fn pause(&self, container: &ContainerId) -> Result<(), EngineError>;

    /// Resumes the processes of a paused container.
    async fn unpause(&self, container: &ContainerId) -> Result<(), EngineError>;

    /// Stops the container's first process, by force after `grace`. A paused container is resumed first. Succeeds if
    /// the container is gone or stopped already.
    async fn stop(&self, container: &ContainerId, grace: Duration) -> Result<(), EngineError>;

    /// Removes a container and its anonymous volumes by force. Succeeds if the container is gone already.
    async fn remove(&self, container: &ContainerId) -> Result<(), EngineError>;

    /// Saves the files that the container's processes have written outside its mounts as a snapshot of this origin. The
    /// container is paused meanwhile, and resumed unless it was paused before. The snapshot does not contain the
    /// container's environment, labels or command.
    async fn commit(&self, container: &ContainerId, origin: &SnapshotOrigin) -> Result<Snapshot, EngineError>;

    /// Looks a snapshot up. The cost does not depend on the number of snapshots.
    async fn snapshot(&self, instance: &InstanceName, id: SnapshotId) -> Result<Option<Snapshot>, EngineError>;

    /// Returns the snapshots of this instance, of one chat or of all, in no particular order and in one call.
    async fn snapshots(&self, instance: &InstanceName, chat: Option<ChatId>) -> Result<Vec<Snapshot>, EngineError>;

    /// Removes a snapshot, unless a container that was created from it exists.
    async fn remove_snapshot(&self, instance: &InstanceName, id: SnapshotId) -> Result<SnapshotRemoval, EngineError>;

    /// Removes the drafts of unfinished commits that began before `before`.
    async fn remove_drafts(&self, instance: &InstanceName, before: Timestamp) -> Result<(), EngineError>;

    /// Returns the last lines of standard output and error, oldest first.
    async fn log_tail(&self, container: &ContainerId, lines: usize) -> Result<Vec<String>, EngineError>;

    /// Streams the output of the container, running or not, in the order in which the engine received it.
    async fn logs(&self, container: &ContainerId, range: LogRange) -> Result<EngineLogs, EngineError>;

    /// Streams the events of the containers of this instance. The stream has every event from the answer to this call
    /// on. It ends only with an error, after which events are lost.
    async fn watch(&self, instance: &InstanceName) -> Result<EngineEvents, EngineError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineIdentity {
    /// Such as `docker`.
    pub kind: String,
    pub version: String,
    pub api_version: String,
    /// The address of the engine, such as `unix:///var/run/docker.sock`.
    pub host: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSpec {
    pub name: String,
    /// Sandboxes on this network cannot reach each other.
    pub isolated: bool,
    /// The addresses of a new network. An existing network keeps its own.
    pub addresses: AddressRange,
    pub labels: BTreeMap<String, String>,
}

/// The result of the removal of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotRemoval {
    Removed,
    NotFound,
    /// A container that was created from it exists.
    InUse,
}

/// A container as the engine describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    pub id: ContainerId,
    /// Without the leading slash that some engines show.
    pub name: String,
    pub image: String,
    pub labels: BTreeMap<String, String>,
    pub state: ContainerState,
    pub started_at: Option<Timestamp>,
    /// The address on the network that the container is attached to.
    pub address: Option<IpAddr>,
    /// Absent if the image has no health check.
    pub health: Option<Health>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerState {
    /// Never started.
    Created,
    Running,
    Paused,
    Restarting,
    Removing,
    /// Ended. The exit is known from an inspection, not from a listing.
    Exited(Option<Exit>),
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    pub code: i64,
    pub oom_killed: bool,
}

impl Exit {
    /// Returns the signal that ended the process, if the exit code follows the convention of shells.
    pub fn signal(self) -> Option<i64> {
        (129..=192).contains(&self.code).then(|| self.code - 128)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Starting,
    Healthy,
    Unhealthy,
}

/// An error of a call to the engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The connection failed: the call had no effect.
    #[error("the engine cannot be reached: {message}")]
    Unreachable { message: String },
    /// The request was sent, and the response was lost or incomplete.
    #[error("the engine's response was interrupted: {message}")]
    Interrupted { message: String },
    #[error("the engine did not answer {operation} within {limit:?}")]
    TimedOut { operation: Operation, limit: Duration },
    #[error("the container name {name} is in use")]
    NameTaken { name: String },
    #[error("the engine has no image {image}; pull or build it first")]
    ImageNotFound { image: String },
    #[error("the engine has no container {container}")]
    NoSuchContainer { container: String },
    #[error("the engine refused {operation}: {message}")]
    Refused { operation: Operation, message: String },
    /// The response cannot be right.
    #[error("the engine's response to {operation} is invalid: {message}")]
    InvalidResponse { operation: Operation, message: String },
}

impl EngineError {
    /// Whether the fault lies with the engine, not with the request: the same request may succeed later.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Interrupted { .. } | Self::TimedOut { .. } => true,
            // The name is in use by a container that the engine does not show; a visible one is handled elsewhere.
            Self::NameTaken { .. } => true,
            _ => false,
        }
    }

    /// Whether the call may have taken effect or may still do so.
    pub fn may_have_happened(&self) -> bool {
        matches!(self, Self::Interrupted { .. } | Self::TimedOut { .. } | Self::InvalidResponse { .. })
    }

    /// Returns the word for metric labels and `error.type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::Interrupted { .. } => "interrupted",
            Self::TimedOut { .. } => "timed_out",
            Self::NameTaken { .. } => "name_taken",
            Self::ImageNotFound { .. } => "image_not_found",
            Self::NoSuchContainer { .. } => "no_such_container",
            Self::Refused { .. } => "refused",
            Self::InvalidResponse { .. } => "invalid_response",
        }
    }
}

/// The operations of an engine, as named in metrics, spans and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    Identify,
    EnsureNetwork,
    ImageId,
    Create,
    Start,
    Rename,
    Inspect,
    List,
    Pause,
    Unpause,
    Stop,
    Remove,
    Commit,
    Snapshot,
    Snapshots,
    RemoveSnapshot,
    RemoveDrafts,
    LogTail,
    Logs,
    Watch,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Identify => "identify",
            Operation::EnsureNetwork => "ensure_network",
            Operation::ImageId => "image_id",
            Operation::Create => "create",
            Operation::Start => "start",
            Operation::Rename => "rename",
            Operation::Inspect => "inspect",
            Operation::List => "list",
            Operation::Pause => "pause",
            Operation::Unpause => "unpause",
            Operation::Stop => "stop",
            Operation::Remove => "remove",
            Operation::Commit => "commit",
            Operation::Snapshot => "snapshot",
            Operation::Snapshots => "snapshots",
            Operation::RemoveSnapshot => "remove_snapshot",
            Operation::RemoveDrafts => "remove_drafts",
            Operation::LogTail => "log_tail",
            Operation::Logs => "logs",
            Operation::Watch => "watch",
        }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
