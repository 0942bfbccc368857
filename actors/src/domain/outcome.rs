//! What a caller is answered.

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// There was none.
    Created,
    /// There was one, and it fits.
    Reused,
    /// There was one at its end; it was removed first.
    Replaced,
    /// It was made from a snapshot, whatever there was before.
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
    /// It had been started before, for whichever chat would come.
    Warm,
    /// Its container was created and started.
    Cold,
    /// It ran already.
    None,
}

impl Launch {
    pub fn as_str(self) -> &'static str {
        match self {
            Launch::Warm => "warm",
            Launch::Cold => "cold",
            Launch::None => "none",
        }
    }
}

/// The answer to a delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deletion {
    /// It is gone, whoever removed its container.
    Deleted {
        session: SessionId,
        container: Option<ContainerId>,
        /// What it is kept as.
        snapshot: Option<SnapshotId>,
    },
    NotFound,
}

/// Of what there is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// Of all chats together.
    Sandboxes,
    /// Of the profile.
    Profile,
    /// Of the workspace.
    Workspace,
    /// Of the agent.
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
            LimitKind::Sandboxes => "the service has as many sandboxes as it may have,",
            LimitKind::Profile => "its profile has as many sandboxes as it may have,",
            LimitKind::Workspace => "its workspace has as many sandboxes as it may have,",
            LimitKind::Agent => "its agent has as many sandboxes as it may have,",
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
    /// The removal is owed from now on and tried again until it succeeds.
    #[error("the sandbox of chat {chat} is not removed yet and will be tried again: {error}")]
    DeleteOwed { chat: ChatId, error: RemovalError },
    /// What the engine holds for this chat is not known, so nothing was decided.
    #[error("the sandbox of chat {chat} cannot be looked up: {error}")]
    Unknown { chat: ChatId, error: EngineError },
    /// The engine has not answered since the service started, so what there is is not known.
    #[error("the engine has not been listed yet")]
    NotListed,
    #[error("chat {chat} has no sandbox")]
    NotFound { chat: ChatId },
    /// The same, of a chat that had one.
    #[error("chat {chat} has no sandbox: {ended}")]
    Ended { chat: ChatId, ended: Box<Ended> },
    #[error("the sandbox of chat {chat} is {status}, not running")]
    NotRunning { chat: ChatId, status: Status },
    /// It stays as it was.
    #[error("the sandbox of chat {chat} could not be paused: {error}")]
    NotPaused { chat: ChatId, error: EngineError },
    /// It is still paused.
    #[error("the sandbox of chat {chat} is paused and could not be resumed: {error}")]
    NotResumed { chat: ChatId, error: EngineError },
    /// Nothing was removed.
    #[error("no snapshot could be taken of the sandbox of chat {chat}, which stays: {error}")]
    SnapshotFailed { chat: ChatId, error: EngineError },
    /// The chat's directory stays, or what is left of it.
    #[error("the directory of chat {chat} is not removed: {why}")]
    NotPurged { chat: ChatId, why: NotPurged },
    #[error("the sandbox of chat {chat} has {limit} leases already")]
    TooManyLeases { chat: ChatId, limit: usize },
    #[error("the sandbox of chat {chat} has no lease {lease}")]
    NoSuchLease { chat: ChatId, lease: LeaseId },
    /// Nothing was changed.
    #[error("chat {chat}: {error}")]
    NotSaved { chat: ChatId, error: NotSaved },
    /// What serves this chat broke down and comes back by itself.
    #[error("chat {chat} is being recovered, try again in {retry_after:?}")]
    Recovering { chat: ChatId, retry_after: Duration },
    /// There are as many sandboxes as there may be.
    #[error("chat {chat} cannot have a sandbox now: {what} {limit}")]
    AdmissionDenied { chat: ChatId, what: LimitKind, limit: usize, retry_after: Duration },
    #[error("the service is shutting down")]
    ShuttingDown,
    /// A deadline that only a defect can exceed.
    #[error("no answer for chat {chat} within {limit:?}")]
    NoAnswer { chat: ChatId, limit: Duration },
}

/// Why a sandbox did not come up. Nothing of it is left behind.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StartFailure {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the name {name} is taken by container {holder}, {why}")]
    InTheWay { name: String, holder: ContainerId, why: String },
    #[error("it has no address on its network")]
    NoAddress,
    #[error("it was not ready within {limit:?}: {last}")]
    NotReady { limit: Duration, last: String, log_tail: Vec<String> },
    #[error("its image has no health check to wait for")]
    NoHealthCheck,
    #[error("it ended while starting: {0}")]
    Died(Death),
    /// Another directory may have taken the place of its volume since that was checked.
    #[error("volume_host_path: {0}")]
    VolumeChanged(String),
    #[error("its init did not start its program: {0}")]
    NotBegun(String),
    #[error("it was deleted while being created")]
    Deleted,
    #[error("the sandbox before it is not removed yet: {0}")]
    PredecessorRemains(RemovalError),
    /// Nothing was begun.
    #[error(transparent)]
    QueueTimeout(#[from] QueueTimeout),
    /// What is not on disk is not promised.
    #[error(transparent)]
    NotSaved(#[from] NotSaved),
    /// It was a slot once, and is started again.
    #[error("it could not be given its directories again: {0}")]
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

/// Why nothing is gone yet.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RemovalError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Either the removal could not be written down, and the engine was not asked; or the container is gone, and the
    /// journal still says otherwise.
    #[error(transparent)]
    Journal(#[from] NotSaved),
}

/// The journal did not take it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it could not be written to the journal: {0}")]
pub struct NotSaved(pub String);

/// How a container ended, as far as the engine tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    pub exit: Option<Exit>,
    pub memory_limit_bytes: Option<u64>,
    /// Its last output, oldest line first.
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

/// Some sandboxes, in the order of their chats.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    pub sandboxes: Vec<Sandbox>,
    /// Chats that have, or may have, a sandbox that could not be described. An empty list means that the page is complete.
    pub undescribed: Vec<Undescribed>,
    /// Where the next page starts after, unless this was the last.
    pub next: Option<ChatId>,
}

/// A chat that a list could not describe, and why. Its sandbox is not known to be gone.
#[derive(Debug, Clone, PartialEq)]
pub struct Undescribed {
    pub chat: ChatId,
    pub error: SandboxError,
}
