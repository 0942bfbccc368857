//! What a chat's lifecycle is told, and what it wants done.

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

/// Somebody who waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

/// A request of a caller. The session is the one a create gets, should it start one.
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
    /// With a snapshot first, or without, or as its profile says.
    Delete {
        waiter: WaiterId,
        snapshot: Option<bool>,
    },
    /// Keeps what the sandbox has written, and the sandbox.
    Snapshot {
        waiter: WaiterId,
        label: Option<SnapshotLabel>,
    },
    /// Puts the absolute deadline off, to so long from now. It never comes sooner by this.
    Renew {
        waiter: WaiterId,
        ttl: Duration,
    },
    /// Counts as use, and does nothing else. Use lets a sandbox that is paused go on.
    Touch {
        waiter: WaiterId,
    },
    /// Lets the sandbox's processes stand still until it is used.
    Pause {
        waiter: WaiterId,
    },
    /// Holds the sandbox for so long: against idleness and, if a caller asked for it, against its absolute end.
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
    /// A lease that a caller asked for.
    pub fn of_caller(duration: Duration, durable: bool) -> Self {
        Self { id: LeaseId::random(), duration, holder: Holder::Lease { durable } }
    }

    /// A hold for work in the sandbox, which counts as activity only.
    pub fn of_work(duration: Duration, holder: Holder) -> Self {
        Self { id: LeaseId::random(), duration, holder }
    }

    /// Whether it is written down.
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
    /// Answers [`Effect::Look`]: the sandbox as engine and journal together tell it; its status says how to go on. One
    /// that runs is on disk.
    Looked(Result<Option<Box<Sandbox>>, EngineError>),
    /// Answers [`Effect::Launch`].
    Launched {
        generation: Generation,
        result: Result<Launched, LaunchFailure>,
    },
    /// A creation that was given up has been answered after all, and nothing is left of it.
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
    /// Answers [`Effect::Save`] and [`Effect::Forget`].
    Saved {
        ticket: Ticket,
        result: Result<(), NotSaved>,
    },
    /// A deadline may have come.
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
    /// The engine says that something happened to this container.
    EngineEvent {
        container: ContainerId,
    },
    /// A listing showed this container of the chat alive, or none.
    Seen(Option<LiveContainer>),
    /// The wall clock jumped by so much.
    ClockStepped {
        by: TimeDelta,
    },
}

/// Tells the writes of a chat apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ticket(pub u64);

#[derive(Debug, Clone)]
pub enum Launched {
    /// It runs and is ready.
    Started {
        container: ContainerId,
        endpoint: Option<Endpoint>,
        started_at: Timestamp,
        launch: Launch,
        /// What its container was bound with, if it was a slot.
        claim: Option<Arc<Claim>>,
    },
    /// The chat's name was taken by a live sandbox of the chat that nobody here knew of. It is on disk by now, unless the
    /// launch was cancelled.
    Found(Box<Found>),
}

#[derive(Debug, Clone)]
pub struct LaunchFailure {
    pub failure: StartFailure,
    pub remains: Remains,
}

/// What a failed launch may have left on the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remains {
    Nothing,
    Container(ContainerId),
    /// A creation was asked for and not answered: there may be a container, or none.
    Perhaps,
    /// As `Perhaps`, and the call is still followed to remove what it brings: [`Event::StragglerEnded`] will tell.
    Straggler,
}

#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "the large one is by far the most frequent")]
pub enum Effect {
    Answer {
        waiter: WaiterId,
        reply: Reply,
    },
    Look,
    Launch {
        generation: Generation,
        session: SessionId,
        request: Box<CreateRequest>,
        created_at: Timestamp,
    },
    /// Makes the launch of this generation answer soon, with [`StartFailure::Deleted`].
    CancelLaunch {
        generation: Generation,
    },
    Check {
        generation: Generation,
        container: ContainerId,
    },
    /// Removes the chat's container: this one, or whichever has its name.
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
    /// Writes the sandbox down; somebody waits for it.
    Save {
        ticket: Ticket,
        sandbox: Box<Sandbox>,
        /// Written in the same commit.
        claim: Option<Arc<Claim>>,
    },
    /// Strikes the session out; somebody waits for it.
    Forget {
        ticket: Ticket,
        session: SessionId,
    },
    /// Writes the sandbox down, in its own time.
    SaveLater(Box<Sandbox>),
    SaveActivity {
        session: SessionId,
        at: Timestamp,
    },
    /// Asks for [`Event::Due`] then.
    Arm {
        at: Timestamp,
    },
    Disarm,
    /// Ends the processes of a sandbox and keeps its container.
    Stop {
        generation: Generation,
        container: ContainerId,
    },
    /// Lets the processes of a sandbox stand still.
    Pause {
        generation: Generation,
        container: ContainerId,
    },
    /// Lets them go on.
    Unpause {
        generation: Generation,
        container: ContainerId,
    },
    /// Keeps what the sandbox has written as a snapshot.
    Commit {
        generation: Generation,
        sandbox: Box<Sandbox>,
        label: Option<SnapshotLabel>,
    },
    RestartAfter {
        generation: Generation,
        delay: Duration,
    },
    /// Starts the container of a sandbox that ended again; answered like a launch.
    Relaunch {
        generation: Generation,
        sandbox: Box<Sandbox>,
    },
    /// Removes a container that came too late to be of use.
    Discard {
        container: ContainerId,
    },
    Publish(Transition),
    /// Counts a sandbox of which there is nothing new to tell.
    Count(Status),
}

#[derive(Debug, Clone)]
pub enum Reply {
    Create(Result<Created, SandboxError>),
    Get(Result<Option<Sandbox>, SandboxError>),
    Delete(Result<Deletion, SandboxError>),
    Snapshot(Result<Snapshot, SandboxError>),
    /// To a renew, touch, pause, lease or release: the sandbox after it.
    Kept(Result<Sandbox, SandboxError>),
}

/// A change of state, or something else worth telling of that leaves the state as it is, published once.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// As it is now, or as it was last.
    pub sandbox: Box<Sandbox>,
    pub from: Option<Status>,
    /// `None`: nothing is left of it.
    pub to: Option<Status>,
}
