//! Decides whether a request may proceed in the current phase: do the work, already done, or refused.

use std::time::Duration;

use super::phase::Phase;
use crate::domain::create_request::CreateRequest;
use crate::domain::ids::SessionId;
use crate::domain::profile::OnExpire;
use crate::domain::sandbox::Reason;
use crate::ports::clock::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission<Work> {
    Do(Work),
    AlreadyDone,
    Refused(Refusal),
}

/// A conflict: the request differs from the sandbox that exists or is being launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub session: SessionId,
    pub fields: Vec<&'static str>,
}

/// The work of a create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateWork {
    /// Discover the chat's container first.
    Discover,
    Launch,
    /// Wait for the launch under way.
    JoinLaunch,
    /// Remove the existing sandbox for this reason, then launch.
    Replace(Reason),
    /// Check first that the sandbox still runs.
    Verify,
    /// Resume the sandbox first: it is paused or being paused.
    Wake,
    /// Launch after the removal under way.
    QueueSuccessor,
    /// Wait for the launch that follows a removal.
    JoinSuccessor,
}

/// The work of a delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteWork {
    Discover,
    /// Cancel the launch under way, then remove its container.
    Cancel,
    Remove,
    /// Wait for the removal under way.
    JoinRemoval,
}

/// Admits a create. `on_expire` is the setting of the existing sandbox.
pub fn create(
    phase: &Phase,
    request: &CreateRequest,
    now: Timestamp,
    trust: Duration,
    on_expire: OnExpire,
) -> Admission<CreateWork> {
    let (fitting, sandbox) = match phase {
        Phase::Unknown(_) => return Admission::Do(CreateWork::Discover),
        Phase::Absent => return Admission::Do(CreateWork::Launch),
        Phase::Failed(failed) => return Admission::Do(CreateWork::Replace(failed.sandbox.reason)),
        Phase::Stopped(sandbox) => return Admission::Do(CreateWork::Replace(sandbox.reason)),
        Phase::Running(running) => {
            if let Some(reason) = running.expiry_reason(now, on_expire) {
                return Admission::Do(CreateWork::Replace(reason));
            }
            let fitting = if !running.is_awake() {
                Admission::Do(CreateWork::Wake)
            } else if running.is_trusted(now, trust) {
                Admission::AlreadyDone
            } else {
                Admission::Do(CreateWork::Verify)
            };
            (fitting, &running.sandbox)
        }
        Phase::Creating(creating) => (Admission::Do(CreateWork::JoinLaunch), &creating.sandbox),
        Phase::Deleting(deleting) => match &deleting.successor {
            None => return Admission::Do(CreateWork::QueueSuccessor),
            Some(successor) => (Admission::Do(CreateWork::JoinSuccessor), &successor.sandbox),
        },
    };
    let fields = request.differences(sandbox);
    if fields.is_empty() { fitting } else { Admission::Refused(Refusal { session: sandbox.session, fields }) }
}

pub fn delete(phase: &Phase) -> Admission<DeleteWork> {
    match phase {
        Phase::Unknown(_) => Admission::Do(DeleteWork::Discover),
        Phase::Absent => Admission::AlreadyDone,
        Phase::Creating(_) => Admission::Do(DeleteWork::Cancel),
        Phase::Running(_) | Phase::Stopped(_) | Phase::Failed(_) => Admission::Do(DeleteWork::Remove),
        Phase::Deleting(_) => Admission::Do(DeleteWork::JoinRemoval),
    }
}

#[cfg(test)]
mod tests;
