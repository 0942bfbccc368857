//! Whether a request may go ahead, given what the chat has. Three answers: do it, already so, refused because.

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
    AlreadySo,
    Refused(Refusal),
}

/// The sandbox that is there, or is coming, is another than the one asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub session: SessionId,
    pub fields: Vec<&'static str>,
}

/// What a create has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateWork {
    /// Find out first what the engine holds.
    Look,
    Launch,
    /// Wait for the launch under way.
    JoinLaunch,
    /// Remove what is there, for this reason, and launch.
    Replace(Reason),
    /// See first whether the sandbox still runs.
    Verify,
    /// Let the sandbox go on first, which is paused or about to be.
    Wake,
    /// Launch once the removal under way is done.
    Succeed,
    /// Wait for a launch that follows a removal.
    JoinSuccessor,
}

/// What a delete has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteWork {
    Look,
    /// Stop the launch under way, then remove what it made.
    Cancel,
    Remove,
    /// Wait for the removal under way.
    JoinRemoval,
}

/// `on_expire` is what becomes of the sandbox that is there.
pub fn create(
    phase: &Phase,
    request: &CreateRequest,
    now: Timestamp,
    trust: Duration,
    on_expire: OnExpire,
) -> Admission<CreateWork> {
    let (fitting, sandbox) = match phase {
        Phase::Unknown(_) => return Admission::Do(CreateWork::Look),
        Phase::Absent => return Admission::Do(CreateWork::Launch),
        Phase::Failed(failed) => return Admission::Do(CreateWork::Replace(failed.sandbox.reason)),
        Phase::Stopped(sandbox) => return Admission::Do(CreateWork::Replace(sandbox.reason)),
        Phase::Running(running) => {
            if let Some(reason) = running.is_over(now, on_expire) {
                return Admission::Do(CreateWork::Replace(reason));
            }
            let fitting = if !running.is_awake() {
                Admission::Do(CreateWork::Wake)
            } else if running.is_trusted(now, trust) {
                Admission::AlreadySo
            } else {
                Admission::Do(CreateWork::Verify)
            };
            (fitting, &running.sandbox)
        }
        Phase::Creating(creating) => (Admission::Do(CreateWork::JoinLaunch), &creating.sandbox),
        Phase::Deleting(deleting) => match &deleting.successor {
            None => return Admission::Do(CreateWork::Succeed),
            Some(successor) => (Admission::Do(CreateWork::JoinSuccessor), &successor.sandbox),
        },
    };
    let fields = request.differences(sandbox);
    if fields.is_empty() { fitting } else { Admission::Refused(Refusal { session: sandbox.session, fields }) }
}

pub fn delete(phase: &Phase) -> Admission<DeleteWork> {
    match phase {
        Phase::Unknown(_) => Admission::Do(DeleteWork::Look),
        Phase::Absent => Admission::AlreadySo,
        Phase::Creating(_) => Admission::Do(DeleteWork::Cancel),
        Phase::Running(_) | Phase::Stopped(_) | Phase::Failed(_) => Admission::Do(DeleteWork::Remove),
        Phase::Deleting(_) => Admission::Do(DeleteWork::JoinRemoval),
    }
}

#[cfg(test)]
mod tests;
