//! The answers to callers.

use std::time::Duration;

use crate::domain::ended::Ended;
use crate::domain::ids::{ChatId, ContainerId, LeaseId, SessionId, SnapshotId};
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::engine::fair_queue::QueueTimeout;
use crate::ports::chat_directories::DirectoryError;
use crate::ports::engine::{EngineError, Exit};

/// The answer to a create.
#[derive(Debug, Clone, PartialEq)]
pub struct Created {
    pub sandbox: Sandbox,
    pub outcome: Outcome,
    pub launch: Launch,
}

/// How a create was fulfilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The chat had no sandbox.
    Created,
    /// The chat had a sandbox that fits the request.
    Reused,
    /// The chat had an ended sandbox, which was removed first.
    Replaced,
    /// The sandbox was created from a snapshot.
    Restored,
}

impl Outcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Created => "created",
            Outcome::Reused => "reused",
            Outcome::Replaced => "replaced",
            Outcome::Restored => "restored",
        }
    }
}

/// How the sandbox was started for this answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launch {
    /// Its container was a slot.
    Warm,
    /// Its container was created and started.
    Cold,
    /// It was running already.
    None,
}

/// The answer to a delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deletion {
    /// The sandbox is gone.
    Deleted {
        session: SessionId,
        container: Option<ContainerId>,
        /// The snapshot that was taken before the removal.
        snapshot: Option<SnapshotId>,
    },
    NotFound,
}

/// The limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// The limit of all sandboxes.
    Sandboxes,
    /// The limit of the profile.
    Profile,
    /// The limit of the workspace.
    Workspace,
    /// The limit of the agent.
    Agent,
}

impl LimitKind {
    pub const ALL: [LimitKind; 4] = [LimitKind::Sandboxes, LimitKind::Profile, LimitKind::Workspace, LimitKind::Agent];

    pub fn as_str(self) -> &'static str {
        match self {
            LimitKind::Sandboxes => "sandboxes",
            LimitKind::Profile => "profile",
            LimitKind::Workspace => "workspace",
            LimitKind::Agent => "agent",
        }
    }
}

impl std::fmt::Display for LimitKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LimitKind::Sandboxes => "the service has reached its limit of sandboxes,",
            LimitKind::Profile => "its profile has reached its limit of sandboxes,",
            LimitKind::Workspace => "its workspace has reached its limit of sandboxes,",
            LimitKind::Agent => "its agent has reached its limit of sandboxes,",
        })
    }
}

/// Why a request was not fulfilled.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SandboxError {
    #[error("chat {chat} has a sandbox with another {}", fields.join(" and another "))]
    Conflict { chat: ChatId, session: SessionId, fields: Vec<&'static str> },
    #[error("the sandbox of chat {chat} could not be started: {failure}")]
    StartFailed { chat: ChatId, failure: StartFailure },
    /// The removal is owed: it is retried until it succeeds.
    #[error("the sandbox of chat {chat} is not removed yet; the removal is retried: {error}")]
    DeleteOwed { chat: ChatId, error: RemovalError },
    /// The state of the chat at the engine is unknown, so the request had no effect.
    #[error("the sandbox of chat {chat} cannot be looked up: {error}")]
    Unknown { chat: ChatId, error: EngineError },
    /// The engine has not answered since the service started, so the sandboxes are unknown.
    #[error("the containers of the engine are not listed yet")]
    NotListed,
    #[error("chat {chat} has no sandbox")]
    NotFound { chat: ChatId },
    /// The chat has no sandbox any more.
    #[error("chat {chat} has no sandbox: {ended}")]
    Ended { chat: ChatId, ended: Box<Ended> },
    #[error("the sandbox of chat {chat} is {status}, not running")]
    NotRunning { chat: ChatId, status: Status },
    /// The sandbox is unchanged.
    #[error("the sandbox of chat {chat} could not be paused: {error}")]
    NotPaused { chat: ChatId, error: EngineError },
    /// The sandbox is still paused.
    #[error("the sandbox of chat {chat} is paused and could not be resumed: {error}")]
    NotResumed { chat: ChatId, error: EngineError },
    /// The sandbox was not removed.
    #[error("no snapshot of the sandbox of chat {chat} could be taken; the sandbox is unchanged: {error}")]
    SnapshotFailed { chat: ChatId, error: EngineError },
    /// The chat's directory still exists, at least in part.
    #[error("the directory of chat {chat} is not removed: {why}")]
    NotPurged { chat: ChatId, why: NotPurged },
    #[error("the sandbox of chat {chat} has {limit} leases already")]
    TooManyLeases { chat: ChatId, limit: usize },
    #[error("the sandbox of chat {chat} has no lease {lease}")]
    NoSuchLease { chat: ChatId, lease: LeaseId },
    /// The request had no effect.
    #[error("chat {chat}: {error}")]
    NotSaved { chat: ChatId, error: NotSaved },
    /// The chat's actor failed and is being restarted.
    #[error("chat {chat} is being recovered, try again in {retry_after:?}")]
    Recovering { chat: ChatId, retry_after: Duration },
    /// A limit of sandboxes was reached.
    #[error("chat {chat} cannot have a sandbox now: {what} {limit}")]
    AdmissionDenied { chat: ChatId, what: LimitKind, limit: usize, retry_after: Duration },
    #[error("the service is shutting down")]
    ShuttingDown,
    /// A limit that only a defect can exceed.
    #[error("no answer for chat {chat} within {limit:?}")]
    NoAnswer { chat: ChatId, limit: Duration },
}

/// Why a sandbox could not be started. It was removed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StartFailure {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the name {name} is taken by container {holder}, {why}")]
    NameConflict { name: String, holder: ContainerId, why: String },
    #[error("it has no address on its network")]
    NoAddress,
    #[error("it was not ready within {limit:?}: {last}")]
    NotReady { limit: Duration, last: String, log_tail: Vec<String> },
    #[error("its image has no health check to wait for")]
    NoHealthCheck,
    #[error("it ended while starting: {0}")]
    Died(Death),
    /// Another directory may have replaced its volume after the check.
    #[error("volume_host_path: {0}")]
    VolumeChanged(String),
    #[error("its init did not start its program: {0}")]
    NotBegun(String),
    #[error("it was deleted while being created")]
    Deleted,
    #[error("the sandbox before it is not removed yet: {0}")]
    PredecessorRemains(RemovalError),
    /// The start was not begun.
    #[error(transparent)]
    QueueTimeout(#[from] QueueTimeout),
    /// The journal could not store the record, so the sandbox was not acknowledged.
    #[error(transparent)]
    NotSaved(#[from] NotSaved),
    /// A restarted slot could not be bound again.
    #[error("its directories could not be mounted again: {0}")]
    NotBound(String),
    /// A defect of the service.
    #[error("the service failed: {0}")]
    Defect(String),
}

/// Why a chat's directory was not removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotPurged {
    #[error("the chat has a sandbox, or may have one")]
    InUse,
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// Why a sandbox is not removed yet.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RemovalError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Either the journal could not store the removal, and the engine was not called; or the container is gone, and the
    /// journal still has its record.
    #[error(transparent)]
    Journal(#[from] NotSaved),
}

/// The journal could not store a change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it could not be written to the journal: {0}")]
pub struct NotSaved(pub String);

/// How a container ended, as far as the engine reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    pub exit: Option<Exit>,
    pub memory_limit_bytes: Option<u64>,
    /// The last lines of its output, oldest first.
    pub log_tail: Vec<String>,
}

impl Death {
    pub fn reason(&self) -> Reason {
        match self.exit {
            Some(Exit { oom_killed: true, .. }) => Reason::OomKilled,
            Some(exit) if exit.signal().is_some() => Reason::Killed,
            _ => Reason::Exited,
        }
    }
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.exit, self.memory_limit_bytes) {
            (Some(Exit { oom_killed: true, .. }), Some(limit)) => {
                write!(f, "out of memory at its limit of {limit} bytes")?;
            }
            (Some(Exit { oom_killed: true, .. }), None) => f.write_str("out of memory")?,
            (Some(exit), _) => match exit.signal() {
                Some(signal) => write!(f, "killed by signal {signal}")?,
                None => write!(f, "exit code {}", exit.code)?,
            },
            (None, _) => f.write_str("exit code unknown")?,
        }
        match self.log_tail.last() {
            Some(line) => write!(f, ", last output: {line}"),
            None => Ok(()),
        }
    }
}

/// A page of sandboxes, in the order of their chats.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    pub sandboxes: Vec<Sandbox>,
    /// Chats that have, or may have, a sandbox that could not be described. If empty, the page is complete.
    pub undescribed: Vec<Undescribed>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<ChatId>,
}

/// A chat that a list could not describe, with the error. Its sandbox may exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Undescribed {
    pub chat: ChatId,
    pub error: SandboxError,
}
