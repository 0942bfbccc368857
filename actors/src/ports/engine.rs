//! The port to a container engine, in the words of the core.
//!
//! An implementation translates; it decides nothing. Three rules keep the core safe on top of any engine:
//!
//! - **Unknown is not gone.** `Ok(None)` from [`Engine::inspect`] means that the engine said so. An engine that could
//!   not be asked is an error.
//! - **A call that did not answer may still happen.** [`EngineError::may_have_happened`] tells the errors after which the
//!   core has to look again.
//! - **The caller sets the deadline.** [`bounded::Bounded`] puts one on every call.

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

#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Asks the engine who it is; the cheapest way to see that it answers.
    async fn identify(&self) -> Result<EngineIdentity, EngineError>;

    /// Makes sure that the network exists, exactly once.
    async fn ensure_network(&self, network: &NetworkSpec) -> Result<(), EngineError>;

    /// Which image the name stands for at the moment; `None` if for none.
    async fn image_id(&self, image: &str) -> Result<Option<String>, EngineError>;

    /// Creates, but does not start. A name that is taken is [`EngineError::NameTaken`].
    async fn create(&self, container: &ContainerSpec) -> Result<ContainerId, EngineError>;

    async fn start(&self, container: &ContainerId) -> Result<(), EngineError>;

    /// Gives a container another name. One that is taken is [`EngineError::NameTaken`].
    async fn rename(&self, container: &ContainerId, name: &ContainerName) -> Result<(), EngineError>;

    /// Looks a container up by id or name, which costs the same however many containers there are.
    async fn inspect(&self, id_or_name: &str) -> Result<Option<Observed>, EngineError>;

    /// Every container of this instance, whatever its state, in one call. Never on a request's path: its cost grows
    /// with the number of containers. What only an inspection tells (exit, start, health) may be missing.
    async fn list(&self, instance: &InstanceName) -> Result<Vec<Observed>, EngineError>;

    /// Lets the container's processes stand still. They keep their memory, and get no processor time.
    async fn pause(&self, container: &ContainerId) -> Result<(), EngineError>;

    /// Lets the processes of a paused container go on.
    async fn unpause(&self, container: &ContainerId) -> Result<(), EngineError>;

    /// Asks the container's first process to end, and ends it after `grace`; one that is paused goes on for that. One
    /// that is gone or stopped is fine.
    async fn stop(&self, container: &ContainerId, grace: Duration) -> Result<(), EngineError>;

    /// Removes by force, with its anonymous volumes. One that is gone already is fine.
    async fn remove(&self, container: &ContainerId) -> Result<(), EngineError>;

    /// Keeps what the container's processes have written outside its mounts as a snapshot of this origin. They stand
    /// still for that long, and go on unless they stood still before. Nothing that was said to this container alone
    /// gets into the snapshot: not its environment, not its labels, not what was started in it.
    async fn commit(&self, container: &ContainerId, origin: &SnapshotOrigin) -> Result<Snapshot, EngineError>;

    /// Looks a snapshot up, which costs the same however many there are.
    async fn snapshot(&self, instance: &InstanceName, id: SnapshotId) -> Result<Option<Snapshot>, EngineError>;

    /// The snapshots of this instance, of one chat or of all, in no particular order and in one call.
    async fn snapshots(&self, instance: &InstanceName, chat: Option<ChatId>) -> Result<Vec<Snapshot>, EngineError>;

    /// Removes a snapshot. One that a container was made from stays as long as that container is there.
    async fn remove_snapshot(&self, instance: &InstanceName, id: SnapshotId) -> Result<SnapshotRemoval, EngineError>;

    /// Removes what commits have left that began before `before` and never ended.
    async fn remove_drafts(&self, instance: &InstanceName, before: Timestamp) -> Result<(), EngineError>;

    /// The last lines of standard output and error, oldest first.
    async fn log_tail(&self, container: &ContainerId, lines: usize) -> Result<Vec<String>, EngineError>;

    /// What the container printed, whether it runs or not, in the order in which the engine got it.
    async fn logs(&self, container: &ContainerId, range: LogRange) -> Result<EngineLogs, EngineError>;

    /// What happens to the containers of this instance, from this call on: nothing that happens after it was answered
    /// is missing, until the stream ends. It ends only with an error, after which events are lost.
    async fn watch(&self, instance: &InstanceName) -> Result<EngineEvents, EngineError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineIdentity {
    /// Such as `docker`.
    pub kind: String,
    pub version: String,
    pub api_version: String,
    /// Where it was found, such as `unix:///var/run/docker.sock`.
    pub host: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSpec {
    pub name: String,
    /// Sandboxes on it cannot reach each other.
    pub isolated: bool,
    /// Which addresses it gets if it has to be created. A network that exists keeps its own.
    pub addresses: AddressRange,
    pub labels: BTreeMap<String, String>,
}

/// What became of a snapshot that was to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotRemoval {
    Removed,
    NotFound,
    /// A container was made from it, and is still there.
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
    /// On whichever network it is attached to.
    pub address: Option<IpAddr>,
    /// Absent where the image has no health check.
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
    /// Ended; how, where the engine told (a listing does not).
    Exited(Option<Exit>),
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    pub code: i64,
    pub oom_killed: bool,
}

impl Exit {
    /// The signal that ended the process, where the exit code follows the shells' convention.
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

/// What can go wrong between the service and its engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// It could not be reached at all: nothing was done.
    #[error("the engine cannot be reached: {message}")]
    Unreachable { message: String },
    /// It was asked, and the answer did not come, or not whole.
    #[error("the engine broke off: {message}")]
    Interrupted { message: String },
    #[error("the engine did not answer {operation} within {limit:?}")]
    TimedOut { operation: Operation, limit: Duration },
    #[error("the name {name} is taken")]
    NameTaken { name: String },
    #[error("the image {image} is not on this engine")]
    ImageNotFound { image: String },
    #[error("there is no container {container}")]
    NoSuchContainer { container: String },
    #[error("the engine refused {operation}: {message}")]
    Refused { operation: Operation, message: String },
    /// It answered something that an engine does not answer.
    #[error("the engine's answer to {operation} makes no sense: {message}")]
    InvalidResponse { operation: Operation, message: String },
}

impl EngineError {
    /// The engine, not the request, is at fault: the same request may succeed later.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Interrupted { .. } | Self::TimedOut { .. } => true,
            // By what it does not show: what it shows is dealt with.
            Self::NameTaken { .. } => true,
            _ => false,
        }
    }

    /// The engine may have done, or may yet do, what it was asked to.
    pub fn may_have_happened(&self) -> bool {
        matches!(self, Self::Interrupted { .. } | Self::TimedOut { .. } | Self::InvalidResponse { .. })
    }

    /// For a metric's label and `error.type`.
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

/// What an engine is asked to do; names metrics, spans and errors.
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
