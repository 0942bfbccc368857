//! What a chat has at a moment. Each phase holds who waits for it to end.

use std::time::Duration;

use super::events::{Request, WaiterId};
use crate::clock::Timestamp;
use crate::outcome::{Outcome, StartFailure};
use crate::request::CreateRequest;
use crate::sandbox::Sandbox;

#[derive(Debug)]
pub enum Phase {
    Unknown(Unknown),
    Absent,
    Creating(Box<Creating>),
    Running(Box<Running>),
    Failed(Box<Sandbox>),
    Deleting(Box<Deleting>),
}

impl Phase {
    /// The creates that wait for a look at what runs.
    pub(super) fn take_verifying(&mut self) -> Vec<Request> {
        match self {
            Phase::Running(running) => std::mem::take(&mut running.verifying),
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
    pub(super) request: Box<CreateRequest>,
    pub(super) outcome: Outcome,
    pub(super) waiters: Vec<WaiterId>,
}

#[derive(Debug)]
pub struct Running {
    pub sandbox: Sandbox,
    /// When it was last seen alive.
    pub(super) verified_at: Timestamp,
    /// Creates that wait for a look at it; not empty while one is under way.
    pub(super) verifying: Vec<Request>,
}

impl Running {
    pub(super) fn new(sandbox: Sandbox, verified_at: Timestamp) -> Self {
        Self { sandbox, verified_at, verifying: Vec::new() }
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
    pub(super) attempt: u32,
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
    /// The last try failed; the next one is timed.
    Owed,
}
