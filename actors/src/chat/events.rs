//! The events and effects of a chat's lifecycle.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;

use crate::chat::effects::discover::{Found, LiveContainer, Liveness};
use crate::domain::create_request::CreateRequest;
use crate::domain::ids::{ContainerId, Generation, LeaseId, SessionId};
use crate::domain::outcome::{Created, Deletion, Launch, NotSaved, RemovalError, SandboxError, StartFailure};
use crate::domain::sandbox::{Endpoint, Holder, Sandbox, Status};
use crate::domain::snapshot::{Snapshot, SnapshotLabel};
use crate::pool::claims::Claim;
use crate::ports::clock::Timestamp;
use crate::ports::engine::EngineError;

/// The id of a caller that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

/// A request of a caller. `session` is the session id for the case that the create launches a sandbox.
#[derive(Debug, Clone)]
pub enum Request {
    Create {
        waiter: WaiterId,
        request: Box<CreateRequest>,
        session: SessionId,
    },
    Get {
        waiter: WaiterId,
    },
    /// With a snapshot, without one, or (`None`) as the profile says.
    Delete {
        waiter: WaiterId,
        snapshot: Option<bool>,
    },
    /// Saves the sandbox as a snapshot and keeps the sandbox.
    Snapshot {
        waiter: WaiterId,
        label: Option<SnapshotLabel>,
    },
    /// Moves the absolute deadline to `ttl` from now, never to an earlier time.
    Renew {
        waiter: WaiterId,
        ttl: Duration,
    },
    /// Counts as activity. Activity resumes a paused sandbox.
    Touch {
        waiter: WaiterId,
    },
    /// Pauses the sandbox until its next use.
    Pause {
        waiter: WaiterId,
    },
    /// Holds the sandbox for a duration: against idleness and, for a caller's lease, against its absolute deadline.
    Lease {
        waiter: WaiterId,
        lease: Lease,
    },
    Release {
        waiter: WaiterId,
        lease: LeaseId,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    pub duration: Duration,
    pub holder: Holder,
}

impl Lease {
    /// Returns a lease that a caller asked for.
    pub fn of_caller(duration: Duration, durable: bool) -> Self {
        Self { id: LeaseId::random(), duration, holder: Holder::Lease { durable } }
    }

    /// Returns a hold for work in the sandbox. It counts as activity only.
    pub fn of_work(duration: Duration, holder: Holder) -> Self {
        Self { id: LeaseId::random(), duration, holder }
    }

    /// Returns whether the journal keeps the lease.
    pub fn is_durable(&self) -> bool {
        self.holder == Holder::Lease { durable: true }
    }
}

impl Request {
    pub fn waiter(&self) -> WaiterId {
        match self {
            Request::Create { waiter, .. }
            | Request::Get { waiter }
            | Request::Delete { waiter, .. }
            | Request::Snapshot { waiter, .. }
            | Request::Renew { waiter, .. }
            | Request::Touch { waiter }
            | Request::Pause { waiter }
            | Request::Lease { waiter, .. }
            | Request::Release { waiter, .. } => *waiter,
        }
    }
}

#[derive(Debug, Clone)]
pub enum Event {
    Request(Request),
    /// Answers [`Effect::Discover`] with the sandbox as engine and journal describe it. Its status decides how the chat
    /// continues. A running sandbox is already saved.
    Discovered(Result<Option<Box<Sandbox>>, EngineError>),
    /// Answers [`Effect::Launch`].
    Launched {
        generation: Generation,
        result: Result<Launched, LaunchFailure>,
    },
    /// An abandoned create call has ended, and its container is removed.
    StragglerEnded,
    /// Answers [`Effect::Check`].
    Checked {
        generation: Generation,
        liveness: Liveness,
    },
    /// Answers [`Effect::TearDown`].
    TornDown {
        generation: Generation,
        result: Result<(), RemovalError>,
    },
    /// Answers [`Effect::RetryAfter`].
    RetryDue {
        generation: Generation,
        attempt: u32,
    },
    /// Answers [`Effect::Save`] and [`Effect::RemoveRecord`].
    Saved {
        ticket: Ticket,
        result: Result<(), NotSaved>,
    },
    /// A deadline may have passed.
    Due,
    /// Answers [`Effect::Stop`].
    Stopped {
        generation: Generation,
        result: Result<(), EngineError>,
    },
    /// Answers [`Effect::Pause`] and [`Effect::Unpause`].
    Switched {
        generation: Generation,
        result: Result<(), EngineError>,
    },
    /// Answers [`Effect::Commit`].
    Committed {
        generation: Generation,
        result: Result<Box<Snapshot>, EngineError>,
    },
    /// Answers [`Effect::RestartAfter`].
    RestartDue {
        generation: Generation,
    },
    /// The engine reports an event of this container.
    EngineEvent {
        container: ContainerId,
    },
    /// A listing shows this live container of the chat, or none.
    Listed(Option<LiveContainer>),
    /// The wall clock was stepped.
    ClockStepped {
        by: TimeDelta,
    },
}

/// The id of a journal write of a chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ticket(pub u64);

#[derive(Debug, Clone)]
pub enum Launched {
    /// The container runs and is ready.
    Started {
        container: ContainerId,
        endpoint: Option<Endpoint>,
        started_at: Timestamp,
        launch: Launch,
        /// The claim of the container, if it was a slot.
        claim: Option<Arc<Claim>>,
    },
    /// A live, previously unknown sandbox of the chat holds the name. It is saved, unless the launch was cancelled.
    Found(Box<Found>),
}

#[derive(Debug, Clone)]
pub struct LaunchFailure {
    pub failure: StartFailure,
    pub remains: Remains,
}

/// The possible leftovers of a failed launch on the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remains {
    Nothing,
    Container(ContainerId),
    /// A create call was not answered: the container may or may not exist.
    Perhaps,
    /// As `Perhaps`, and the create call is still followed to remove its container. [`Event::StragglerEnded`] reports
    /// its end.
    Straggler,
}

#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "the large one is by far the most frequent")]
pub enum Effect {
    Answer {
        waiter: WaiterId,
        reply: Reply,
    },
    Discover,
    Launch {
        generation: Generation,
        session: SessionId,
        request: Box<CreateRequest>,
        created_at: Timestamp,
    },
    /// Makes the launch of this generation return soon, with [`StartFailure::Deleted`].
    CancelLaunch {
        generation: Generation,
    },
    Check {
        generation: Generation,
        container: ContainerId,
    },
    /// Removes the chat's container: the given one, or the one under the chat's name.
    TearDown {
        generation: Generation,
        container: Option<ContainerId>,
        graceful: bool,
    },
    RetryAfter {
        generation: Generation,
        attempt: u32,
        delay: Duration,
    },
    /// Saves the sandbox; answered by [`Event::Saved`].
    Save {
        ticket: Ticket,
        sandbox: Box<Sandbox>,
        /// Written in the same commit.
        claim: Option<Arc<Claim>>,
    },
    /// Removes the session's record; answered by [`Event::Saved`].
    RemoveRecord {
        ticket: Ticket,
        session: SessionId,
    },
    /// Saves the sandbox without an answer.
    SaveLater(Box<Sandbox>),
    SaveActivity {
        session: SessionId,
        at: Timestamp,
    },
    /// Asks for [`Event::Due`] at a time.
    Arm {
        at: Timestamp,
    },
    Disarm,
    /// Stops the processes of a sandbox and keeps its container.
    Stop {
        generation: Generation,
        container: ContainerId,
    },
    /// Pauses the processes of a sandbox.
    Pause {
        generation: Generation,
        container: ContainerId,
    },
    /// Resumes the processes of a sandbox.
    Unpause {
        generation: Generation,
        container: ContainerId,
    },
    /// Saves the sandbox as a snapshot.
    Commit {
        generation: Generation,
        sandbox: Box<Sandbox>,
        label: Option<SnapshotLabel>,
    },
    RestartAfter {
        generation: Generation,
        delay: Duration,
    },
    /// Starts the container of an ended sandbox again; answered like a launch.
    Relaunch {
        generation: Generation,
        sandbox: Box<Sandbox>,
    },
    /// Removes a container of an outdated launch.
    RemoveContainer {
        container: ContainerId,
    },
    Publish(Transition),
    /// Counts a sandbox without publishing an event.
    Count(Status),
}

#[derive(Debug, Clone)]
pub enum Reply {
    Create(Result<Created, SandboxError>),
    Get(Result<Option<Sandbox>, SandboxError>),
    Delete(Result<Deletion, SandboxError>),
    Snapshot(Result<Snapshot, SandboxError>),
    /// The answer to a renew, touch, pause, lease or release: the sandbox afterwards.
    Sandbox(Result<Sandbox, SandboxError>),
}

/// A change of state, or another reportable event without a change of state. Published once.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// The current or last state of the sandbox.
    pub sandbox: Box<Sandbox>,
    pub from: Option<Status>,
    /// `None`: the sandbox is removed.
    pub to: Option<Status>,
}
