//! What a chat's lifecycle is told, and what it wants done.

use std::time::Duration;

use super::discovery::{Found, Liveness};
use crate::clock::Timestamp;
use crate::engine::EngineError;
use crate::ids::{ContainerId, Generation, SessionId};
use crate::outcome::{Created, Deletion, SandboxError, StartFailure};
use crate::request::CreateRequest;
use crate::sandbox::{Endpoint, Sandbox, Status};

/// Somebody who waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

/// A request of a caller. The session is the one a create gets, should it start one.
#[derive(Debug, Clone)]
pub enum Request {
    Create { waiter: WaiterId, request: Box<CreateRequest>, session: SessionId },
    Get { waiter: WaiterId },
    Delete { waiter: WaiterId },
}

impl Request {
    pub fn waiter(&self) -> WaiterId {
        match self {
            Request::Create { waiter, .. } | Request::Get { waiter } | Request::Delete { waiter } => *waiter,
        }
    }
}

#[derive(Debug, Clone)]
pub enum Event {
    Request(Request),
    /// Answers [`Effect::Look`].
    Looked(Result<Option<Box<Found>>, EngineError>),
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
        result: Result<(), EngineError>,
    },
    /// Answers [`Effect::RetryAfter`].
    RetryDue {
        generation: Generation,
        attempt: u32,
    },
}

#[derive(Debug, Clone)]
pub enum Launched {
    /// It runs and is ready.
    Started { container: ContainerId, endpoint: Option<Endpoint>, started_at: Timestamp },
    /// The chat's name was taken by a live sandbox of the chat that nobody here knew of.
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
    /// Removes a container that came too late to be of use.
    Discard {
        container: ContainerId,
    },
    Publish(Transition),
}

#[derive(Debug, Clone)]
pub enum Reply {
    Create(Result<Created, SandboxError>),
    Get(Result<Option<Sandbox>, SandboxError>),
    Delete(Result<Deletion, SandboxError>),
}

/// A change of state, published once.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// As it is now, or as it was last.
    pub sandbox: Box<Sandbox>,
    pub from: Option<Status>,
    /// `None`: nothing is left of it.
    pub to: Option<Status>,
}
