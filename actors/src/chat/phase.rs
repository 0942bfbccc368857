//! What a chat has at a moment. Each phase holds who waits for it to end.

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
    /// Or paused: its status tells.
    Running(Box<Running>),
    /// Expired, its container kept.
    Stopped(Box<Sandbox>),
    Failed(Box<Failed>),
    Deleting(Box<Deleting>),
}

impl Phase {
    /// Whether a caller has asked for the removal of a sandbox that has a record.
    pub(super) fn is_recorded_deletion_of_a_caller(&self) -> bool {
        matches!(self, Phase::Deleting(deleting) if deleting.recorded && deleting.sandbox.reason == Reason::Requested)
    }

    /// The requests that wait for a look at what runs, or until it is paused or resumed.
    pub(super) fn take_waiting(&mut self) -> Vec<Request> {
        match self {
            Phase::Running(running) => running.take_waiting(),
            _ => Vec::new(),
        }
    }
}

#[derive(Debug, Default)]
pub struct Unknown {
    pub(super) looking: bool,
    pub(super) waiting: Vec<Request>,
    /// Looks that the engine did not answer.
    pub(super) attempt: u32,
}

#[derive(Debug)]
pub struct Creating {
    pub sandbox: Sandbox,
    pub(super) origin: Origin,
}

/// What a sandbox that is being started comes from.
#[derive(Debug)]
pub(super) enum Origin {
    Request {
        request: Box<CreateRequest>,
        outcome: Outcome,
        waiters: Vec<WaiterId>,
        /// It runs, and waits to be on disk before anybody is told.
        saving: Option<Ticket>,
        launch: Launch,
    },
    /// It ended by itself and is started again, for the so-many-th time in a row. Its session is on disk already.
    Restart { attempt: u32, waiting: Vec<Request> },
}

#[derive(Debug)]
pub struct Failed {
    pub sandbox: Sandbox,
    /// Restarts that were tried in a row.
    pub(super) restarts: u32,
}

#[derive(Debug)]
pub struct Running {
    pub sandbox: Sandbox,
    /// When it was last seen alive.
    pub(super) verified_at: Timestamp,
    /// A look at it is under way.
    pub(super) checking: bool,
    /// Creates that wait for that look.
    pub(super) verifying: Vec<Request>,
    /// Its processes are to end because it expired. That is settled: it is not handed out any more.
    pub(super) stopping: Option<Stopping>,
    /// It is being paused or resumed.
    pub(super) switching: Option<Switching>,
    /// When it is tried again to pause it, after that failed.
    pub(super) pause_again_at: Option<Timestamp>,
    /// Changes that wait to be on disk before anybody is told, oldest first.
    pub(super) unsaved: Vec<UnsavedChange>,
    /// The last activity that was written down.
    pub(super) noted_activity: Timestamp,
    /// Restarts in a row before this run.
    pub(super) restarts: u32,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Stopping {
    pub(super) reason: Reason,
    /// When it is tried again; `None` while a try is under way.
    pub(super) again_at: Option<Timestamp>,
}

impl Stopping {
    pub(super) fn is_under_way(&self) -> bool {
        self.again_at.is_none()
    }
}

/// The engine was asked to pause a sandbox, or to let it go on.
#[derive(Debug)]
pub(super) struct Switching {
    pub(super) switch: Switch,
    pub(super) reason: Reason,
    /// The engine has done it, and it waits to be on disk before anybody is told.
    pub(super) saving: Option<Ticket>,
    /// Requests for it, and those that came meanwhile, in their order.
    pub(super) waiting: Vec<Request>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    Pause,
    Resume,
}

impl Switch {
    /// Where it leads to.
    pub(super) fn status(self) -> Status {
        match self {
            Switch::Pause => Status::Paused,
            Switch::Resume => Status::Running,
        }
    }

    /// Whether this request wants the sandbox to be so. Whoever wants neither wants to use it, or is only waiting.
    pub(super) fn is_wanted_by(self, request: &Request) -> bool {
        match request {
            Request::Pause { .. } => self == Switch::Pause,
            Request::Delete { .. } | Request::Snapshot { .. } => false,
            _ => self == Switch::Resume,
        }
    }
}

/// A change that was made and is not on disk yet.
#[derive(Debug)]
pub(super) struct UnsavedChange {
    pub(super) ticket: Ticket,
    pub(super) waiter: WaiterId,
    /// What to go back to, should it not get there.
    pub(super) before: Promise,
}

/// How long a sandbox was promised to be kept.
#[derive(Debug)]
pub(super) struct Promise {
    pub(super) expires_at: Timestamp,
    pub(super) leases: Leases,
}

impl Running {
    pub(super) fn new(sandbox: Sandbox, verified_at: Timestamp) -> Self {
        let noted_activity = sandbox.last_activity_at;
        Self {
            sandbox,
            verified_at,
            checking: false,
            verifying: Vec::new(),
            stopping: None,
            switching: None,
            pause_again_at: None,
            unsaved: Vec::new(),
            noted_activity,
            restarts: 0,
        }
    }

    /// Past its end, or on its way there. One that is to be paused when nobody uses it does not end by that.
    pub fn is_over(&self, now: Timestamp, on_expire: OnExpire) -> Option<Reason> {
        let expired = || match self.sandbox.expiry(now) {
            Some(Reason::Idle) if on_expire == OnExpire::Pause => {
                (now >= self.sandbox.absolute_end()).then_some(Reason::Expired)
            }
            over => over,
        };
        self.stopping.map(|stopping| stopping.reason).or_else(expired)
    }

    /// Whether it can be used as it is: it is neither paused nor about to be.
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

    /// Whether it was seen alive recently. A clock that went backwards ends the trust.
    pub fn is_trusted(&self, now: Timestamp, trust: Duration) -> bool {
        (now - self.verified_at).to_std().is_ok_and(|age| age <= trust)
    }
}

#[derive(Debug)]
pub struct Deleting {
    pub sandbox: Sandbox,
    pub(super) deleters: Vec<WaiterId>,
    /// Creates that are answered with this failure once the removal was tried.
    pub(super) failed: Option<(StartFailure, Vec<WaiterId>)>,
    /// Launched once the removal is done.
    pub successor: Option<Successor>,
    pub(super) step: RemovalStep,
    pub(super) graceful: bool,
    /// The journal knows of it and has to be told when it is gone.
    pub(super) recorded: bool,
    pub(super) attempt: u32,
    /// What it is kept as.
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
    /// The launch has been cancelled and has not answered yet.
    Cancelling,
    Removing,
    /// Nothing is left of it but its record.
    Forgetting(Ticket),
    /// The last try failed; the next one is timed.
    Owed,
}
