//! The phases of a chat. Each phase holds the requests that wait for its end.

use std::time::Duration;

use super::events::{Request, Ticket, WaiterId};
use super::leases::Leases;
use crate::domain::create_request::CreateRequest;
use crate::domain::ids::SnapshotId;
use crate::domain::outcome::{Launch, Outcome, StartFailure};
use crate::domain::profile::OnExpire;
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::ports::clock::Timestamp;

#[derive(Debug)]
pub enum Phase {
    Unknown(Unknown),
    Absent,
    Creating(Box<Creating>),
    /// Running or paused, by its status.
    Running(Box<Running>),
    /// Expired, with its container kept.
    Stopped(Box<Sandbox>),
    Failed(Box<Failed>),
    Deleting(Box<Deleting>),
}

impl Phase {
    /// Returns whether a caller has asked for the removal of a sandbox that has a record.
    pub(super) fn is_requested_deletion_with_record(&self) -> bool {
        matches!(self, Phase::Deleting(deleting) if deleting.recorded && deleting.sandbox.reason == Reason::Requested)
    }

    /// Takes the requests that wait for a check, a pause or a resume.
    pub(super) fn take_waiting(&mut self) -> Vec<Request> {
        match self {
            Phase::Running(running) => running.take_waiting(),
            _ => Vec::new(),
        }
    }
}

#[derive(Debug, Default)]
pub struct Unknown {
    pub(super) discovering: bool,
    pub(super) waiting: Vec<Request>,
    /// Discoveries that the engine did not answer.
    pub(super) attempt: u32,
}

#[derive(Debug)]
pub struct Creating {
    pub sandbox: Sandbox,
    pub(super) origin: Origin,
}

/// The origin of a sandbox that is being started.
#[derive(Debug)]
pub(super) enum Origin {
    Request {
        request: Box<CreateRequest>,
        outcome: Outcome,
        waiters: Vec<WaiterId>,
        /// The sandbox runs, and its record is being written. Callers are answered after the commit.
        saving: Option<Ticket>,
        launch: Launch,
    },
    /// The sandbox ended by itself and is restarted. `attempt` counts restarts in a row. Its session is already saved.
    Restart { attempt: u32, waiting: Vec<Request> },
}

#[derive(Debug)]
pub struct Failed {
    pub sandbox: Sandbox,
    /// Restarts in a row.
    pub(super) restarts: u32,
}

#[derive(Debug)]
pub struct Running {
    pub sandbox: Sandbox,
    /// The time at which the sandbox was last seen alive.
    pub(super) verified_at: Timestamp,
    /// A check is under way.
    pub(super) checking: bool,
    /// Creates that wait for that check.
    pub(super) verifying: Vec<Request>,
    /// A stop because of the expiry. It is final: the sandbox is not handed out any more.
    pub(super) stopping: Option<Stopping>,
    /// A pause or resume under way.
    pub(super) switching: Option<Switching>,
    /// The time at which a failed pause is retried.
    pub(super) retry_pause_at: Option<Timestamp>,
    /// Changes that are not committed yet, oldest first. Callers are answered after the commit.
    pub(super) unsaved: Vec<UnsavedChange>,
    /// The last activity that was saved.
    pub(super) saved_activity: Timestamp,
    /// Restarts in a row before this run.
    pub(super) restarts: u32,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Stopping {
    pub(super) reason: Reason,
    /// The time of the next try; `None` while a try is under way.
    pub(super) retry_at: Option<Timestamp>,
}

impl Stopping {
    pub(super) fn is_under_way(&self) -> bool {
        self.retry_at.is_none()
    }
}

/// A pause or resume under way.
#[derive(Debug)]
pub(super) struct Switching {
    pub(super) switch: Switch,
    pub(super) reason: Reason,
    /// The engine call succeeded, and the record is being written. Callers are answered after the commit.
    pub(super) saving: Option<Ticket>,
    /// Requests for this pause or resume, and later requests, in their order.
    pub(super) waiting: Vec<Request>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    Pause,
    Resume,
}

impl Switch {
    /// Returns the resulting status.
    pub(super) fn status(self) -> Status {
        match self {
            Switch::Pause => Status::Paused,
            Switch::Resume => Status::Running,
        }
    }

    /// Returns whether the request asks for this switch. A delete or snapshot asks for neither and only waits.
    pub(super) fn is_wanted_by(self, request: &Request) -> bool {
        match request {
            Request::Pause { .. } => self == Switch::Pause,
            Request::Delete { .. } | Request::Snapshot { .. } => false,
            _ => self == Switch::Resume,
        }
    }
}

/// A change that is not committed yet.
#[derive(Debug)]
pub(super) struct UnsavedChange {
    pub(super) ticket: Ticket,
    pub(super) waiter: WaiterId,
    /// The state to restore if the write fails.
    pub(super) before: Lifetime,
}

/// The deadline and the durable leases of a sandbox.
#[derive(Debug)]
pub(super) struct Lifetime {
    pub(super) expires_at: Timestamp,
    pub(super) leases: Leases,
}

impl Running {
    pub(super) fn new(sandbox: Sandbox, verified_at: Timestamp) -> Self {
        let saved_activity = sandbox.last_activity_at;
        Self {
            sandbox,
            verified_at,
            checking: false,
            verifying: Vec::new(),
            stopping: None,
            switching: None,
            retry_pause_at: None,
            unsaved: Vec::new(),
            saved_activity,
            restarts: 0,
        }
    }

    /// Returns the reason if the sandbox has expired or is being stopped. Idleness does not end a sandbox that is
    /// paused when idle.
    pub fn expiry_reason(&self, now: Timestamp, on_expire: OnExpire) -> Option<Reason> {
        let expired = || match self.sandbox.expiry(now) {
            Some(Reason::Idle) if on_expire == OnExpire::Pause => {
                (now >= self.sandbox.absolute_end()).then_some(Reason::Expired)
            }
            over => over,
        };
        self.stopping.map(|stopping| stopping.reason).or_else(expired)
    }

    /// Returns whether the sandbox is neither paused nor being paused.
    pub fn is_awake(&self) -> bool {
        self.sandbox.status == Status::Running && self.switching.is_none()
    }

    pub(super) fn take_waiting(&mut self) -> Vec<Request> {
        let mut waiting = std::mem::take(&mut self.verifying);
        if let Some(switching) = &mut self.switching {
            waiting.append(&mut switching.waiting);
        }
        waiting
    }

    /// Returns whether the sandbox was seen alive recently. A clock that went backwards ends the trust.
    pub fn is_trusted(&self, now: Timestamp, trust: Duration) -> bool {
        (now - self.verified_at).to_std().is_ok_and(|age| age <= trust)
    }
}

#[derive(Debug)]
pub struct Deleting {
    pub sandbox: Sandbox,
    pub(super) deleters: Vec<WaiterId>,
    /// Creates that are answered with this failure after the first removal attempt.
    pub(super) failed: Option<(StartFailure, Vec<WaiterId>)>,
    /// Launched after the removal.
    pub successor: Option<Successor>,
    pub(super) step: RemovalStep,
    pub(super) graceful: bool,
    /// The journal has a record of the sandbox, which must be removed.
    pub(super) recorded: bool,
    pub(super) attempt: u32,
    /// The snapshot that was taken before the removal.
    pub(super) snapshot: Option<SnapshotId>,
}

#[derive(Debug)]
pub struct Successor {
    pub sandbox: Sandbox,
    pub(super) request: Box<CreateRequest>,
    pub(super) waiters: Vec<WaiterId>,
    pub(super) outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalStep {
    /// The launch is cancelled and has not returned yet.
    Cancelling,
    Removing,
    /// The container is removed; the removal of the record is being written.
    RemovingRecord(Ticket),
    /// The last try failed; the next one is timed.
    Owed,
}
