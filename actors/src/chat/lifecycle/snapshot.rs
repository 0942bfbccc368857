//! Keeping what a sandbox has written: on request, before it is deleted, and at its end.
//!
//! One commit at a time, in any phase that has a container. What would end, pause or restart the sandbox waits for it, so
//! that nothing is ever removed under a commit; what only uses a sandbox that runs goes on meanwhile. A commit that is to
//! be followed by the removal decides: while it is under way everybody but a get waits, and if it fails the sandbox stays.

use chrono::TimeDelta;

use super::Lifecycle;
use crate::chat::events::{Effect, Reply, Request, WaiterId};
use crate::chat::phase::Phase;
use crate::domain::ids::{Generation, SnapshotId};
use crate::domain::outcome::SandboxError;
use crate::domain::profile::OnExpire;
use crate::domain::sandbox::{Reason, Sandbox};
use crate::domain::snapshot::{Snapshot, SnapshotLabel};
use crate::ports::clock::Timestamp;
use crate::ports::engine::EngineError;

/// Between two tries at the end of a sandbox.
const FIRST_DELAY: TimeDelta = TimeDelta::seconds(5);
const LONGEST_DELAY: TimeDelta = TimeDelta::seconds(300);

/// A commit under way.
#[derive(Debug)]
pub(super) struct Committing {
    purpose: Purpose,
    /// Requests that came meanwhile and cannot go ahead, in their order.
    waiting: Vec<Request>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Requested {
        waiter: WaiterId,
    },
    /// It is deleted once it is kept.
    Delete {
        waiter: WaiterId,
    },
    /// It ends once it is kept.
    End {
        reason: Reason,
        graceful: bool,
    },
}

/// Snapshots at the end of this sandbox that failed.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: u32,
    pub(super) again_at: Option<Timestamp>,
}

impl Lifecycle {
    /// Whether the commit under way is for its end, and not for a caller.
    pub(super) fn is_kept_because_it_ends(&self) -> bool {
        self.committing.as_ref().is_some_and(|committing| {
            matches!(committing.purpose, Purpose::End { .. }) && committing.waiting.is_empty()
        })
    }

    pub(super) fn snapshot(&mut self, waiter: WaiterId, label: Option<SnapshotLabel>, now: Timestamp) {
        let error = match &self.phase {
            Phase::Running(running) if running.switching.is_some() => {
                return self.wait_for_switch(Request::Snapshot { waiter, label });
            }
            Phase::Running(_) | Phase::Stopped(_) | Phase::Failed(_) if self.has_container() => None,
            _ => self.sandbox().map(|sandbox| sandbox.status),
        };
        match (error, self.sandbox()) {
            (None, Some(_)) => {
                if matches!(&self.phase, Phase::Running(running) if running.is_awake()) {
                    self.use_now(now);
                }
                self.commit(Purpose::Requested { waiter }, label, Vec::new());
            }
            (Some(status), _) => {
                let error = SandboxError::NotRunning { chat: self.chat, status };
                self.answer(waiter, Reply::Snapshot(Err(error)));
            }
            (None, None) => {
                let error = SandboxError::NotFound { chat: self.chat };
                self.answer(waiter, Reply::Snapshot(Err(error)));
            }
        }
    }

    /// Goes on with the request once the sandbox is paused or resumed.
    pub(super) fn wait_for_switch(&mut self, request: Request) {
        let Phase::Running(running) = &mut self.phase else { unreachable!("only what runs is paused or resumed") };
        let switching = running.switching.as_mut().expect("it was seen to be under way");
        switching.waiting.push(request);
    }

    /// Whether there is something to be kept.
    pub(super) fn has_container(&self) -> bool {
        let there = |sandbox: &Sandbox| sandbox.container.is_some() && sandbox.reason != Reason::Vanished;
        self.sandbox().is_some_and(there)
    }

    /// Whether what is there is removed at its end only once it is kept.
    pub(super) fn is_kept_at_its_end(&self) -> bool {
        self.on_expire() == OnExpire::Snapshot && self.has_container()
    }

    /// Whether what has to make way is at its end, and to be kept before it goes.
    pub(super) fn ends_with_a_snapshot(&self, now: Timestamp) -> bool {
        let over = match &self.phase {
            Phase::Running(_) | Phase::Stopped(_) => true,
            Phase::Failed(failed) => failed.sandbox.expiry(now).is_some(),
            _ => false,
        };
        over && self.is_kept_at_its_end()
    }

    /// Ends what is at its end because this create wants its place.
    pub(super) fn end_for(&mut self, create: Request, reason: Reason) {
        match &self.phase {
            Phase::Running(running) if running.switching.is_some() => self.wait_for_switch(create),
            _ => self.commit(Purpose::End { reason, graceful: true }, None, vec![create]),
        }
    }

    pub(super) fn is_committing(&self) -> bool {
        self.committing.is_some()
    }

    pub(super) fn commit(&mut self, purpose: Purpose, label: Option<SnapshotLabel>, waiting: Vec<Request>) {
        let Some(sandbox) = self.sandbox().cloned() else { unreachable!("nothing to be kept in {:?}", self.phase) };
        self.committing = Some(Committing { purpose, waiting });
        self.effects.push(Effect::Commit { generation: self.generation, sandbox: Box::new(sandbox), label });
    }

    /// Whether a request has to wait for the commit under way.
    pub(super) fn waits_for_commit(&self, request: &Request, now: Timestamp) -> bool {
        let Some(committing) = &self.committing else { return false };
        let asleep = matches!(&self.phase, Phase::Running(running) if !running.is_awake());
        let over = match &self.phase {
            Phase::Running(running) => running.is_over(now, self.on_expire()).is_some(),
            _ => true,
        };
        match request {
            Request::Get { .. } => false,
            _ if !matches!(committing.purpose, Purpose::Requested { .. }) => true,
            Request::Delete { .. } | Request::Snapshot { .. } | Request::Pause { .. } => true,
            Request::Create { .. } => asleep || over,
            Request::Touch { .. } | Request::Lease { .. } => asleep,
            Request::Renew { .. } | Request::Release { .. } => false,
        }
    }

    /// Where it belongs by its number: a create may have waited for a look at the sandbox before, and come first.
    pub(super) fn wait_for_commit(&mut self, request: Request) {
        let committing = self.committing.as_mut().expect("it was seen to be under way");
        let place = committing.waiting.partition_point(|other| other.waiter() < request.waiter());
        committing.waiting.insert(place, request);
    }

    pub(super) fn committed(
        &mut self,
        generation: Generation,
        result: Result<Box<Snapshot>, EngineError>,
        now: Timestamp,
    ) {
        if generation != self.generation {
            return;
        }
        let Some(Committing { purpose, waiting }) = self.committing.take() else { return };
        if let Phase::Running(running) = &self.phase {
            // A look that is under way may have seen it stand still for the commit.
            self.engine_event |= running.checking;
        }
        match result {
            Ok(snapshot) => {
                self.publish_snapshot(Reason::Snapshotted, format!("it is kept as snapshot {}", snapshot.origin.id));
                self.kept_as(*snapshot, purpose, now);
                self.rearm();
                self.replay(waiting, now);
            }
            Err(error) => {
                self.publish_snapshot(Reason::SnapshotFailed, error.to_string());
                self.not_kept(&error, purpose, now);
                self.rearm();
                self.replay_or_refuse(waiting, purpose, &error, now);
                // It may be gone.
                self.check();
            }
        }
    }

    fn kept_as(&mut self, snapshot: Snapshot, purpose: Purpose, now: Timestamp) {
        let id = snapshot.origin.id;
        match purpose {
            Purpose::Requested { waiter } => self.answer(waiter, Reply::Snapshot(Ok(snapshot))),
            Purpose::Delete { waiter } => self.delete_now(vec![waiter], Some(id), now),
            Purpose::End { reason, graceful } => {
                let waiting = self.phase.take_waiting();
                self.remove_kept(reason, graceful, Some(id));
                self.replay(waiting, now);
            }
        }
    }

    /// Nothing is lost: the sandbox stays. At its end it is tried again, less and less eagerly.
    fn not_kept(&mut self, error: &EngineError, purpose: Purpose, now: Timestamp) {
        let failed = SandboxError::SnapshotFailed { chat: self.chat, error: error.clone() };
        match purpose {
            Purpose::Requested { waiter } => self.answer(waiter, Reply::Snapshot(Err(failed))),
            Purpose::Delete { waiter } => self.answer(waiter, Reply::Delete(Err(failed))),
            Purpose::End { .. } => {
                let Failures { count, again_at } = &mut self.failed_snapshots;
                let delay = FIRST_DELAY.checked_mul(1 << (*count).min(10)).unwrap_or(LONGEST_DELAY);
                *again_at = now.checked_add_signed(delay.min(LONGEST_DELAY));
                *count = count.saturating_add(1);
            }
        }
    }

    /// A create that wants the place of a sandbox at its end cannot have it. Everybody else finds what there is.
    fn replay_or_refuse(&mut self, waiting: Vec<Request>, purpose: Purpose, error: &EngineError, now: Timestamp) {
        for request in waiting {
            match (purpose, &request) {
                (Purpose::End { .. }, Request::Create { .. }) if !self.is_committing() => {
                    let (chat, error) = (self.chat, error.clone());
                    self.refuse(request, &SandboxError::SnapshotFailed { chat, error });
                }
                _ => self.request(request, now),
            }
        }
    }

    /// Tells of a snapshot; the sandbox itself stays as it is.
    fn publish_snapshot(&mut self, reason: Reason, message: String) {
        if let Some(sandbox) = self.sandbox().cloned() {
            let status = sandbox.status;
            self.publish(&Sandbox { reason, message: Some(message), ..sandbox }, Some(status));
        }
    }

    /// Begins to remove what is kept, and says as what.
    pub(super) fn remove_kept(&mut self, reason: Reason, graceful: bool, snapshot: Option<SnapshotId>) {
        self.remove(reason, graceful);
        self.deleting().snapshot = snapshot;
    }
}
