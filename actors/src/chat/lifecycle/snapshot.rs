//! Saves a sandbox as a snapshot: on request, before a delete, and at its expiry.
//!
//! One commit at a time, in any phase that has a container. A request that would end, pause or restart the sandbox
//! waits for the commit, so that no container is removed under it. A request that only uses a running sandbox proceeds.
//! During a commit before a removal every request except a get waits. If that commit fails, the sandbox stays.

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

/// The delays between two tries at the expiry of a sandbox.
const FIRST_DELAY: TimeDelta = TimeDelta::seconds(5);
const LONGEST_DELAY: TimeDelta = TimeDelta::seconds(300);

/// A commit under way.
#[derive(Debug)]
pub(super) struct Committing {
    purpose: Purpose,
    /// Requests that wait for the commit, in their order.
    waiting: Vec<Request>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Requested {
        waiter: WaiterId,
    },
    /// The sandbox is deleted after the snapshot.
    Delete {
        waiter: WaiterId,
    },
    /// The sandbox is removed after the snapshot, because it has expired.
    End {
        reason: Reason,
        graceful: bool,
    },
}

/// Failed snapshots at the expiry of this sandbox.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: u32,
    pub(super) retry_at: Option<Timestamp>,
}

impl Lifecycle {
    /// Returns whether the commit under way is for the expiry and no caller waits for it.
    pub(super) fn is_expiry_commit(&self) -> bool {
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
                    self.record_activity(now);
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

    /// Handles the request after the pause or resume under way.
    pub(super) fn wait_for_switch(&mut self, request: Request) {
        let Phase::Running(running) = &mut self.phase else {
            unreachable!("only a running sandbox is paused or resumed")
        };
        let switching = running.switching.as_mut().expect("the caller checked that it is under way");
        switching.waiting.push(request);
    }

    /// Returns whether a container exists that a snapshot can be taken of.
    pub(super) fn has_container(&self) -> bool {
        let there = |sandbox: &Sandbox| sandbox.container.is_some() && sandbox.reason != Reason::Vanished;
        self.sandbox().is_some_and(there)
    }

    /// Returns whether the sandbox is removed at its expiry only after a snapshot.
    pub(super) fn snapshots_at_expiry(&self) -> bool {
        self.on_expire() == OnExpire::Snapshot && self.has_container()
    }

    /// Returns whether the sandbox to be replaced has expired and must be saved as a snapshot first.
    pub(super) fn expires_with_snapshot(&self, now: Timestamp) -> bool {
        let over = match &self.phase {
            Phase::Running(_) | Phase::Stopped(_) => true,
            Phase::Failed(failed) => failed.sandbox.expiry(now).is_some(),
            _ => false,
        };
        over && self.snapshots_at_expiry()
    }

    /// Ends an expired sandbox in favour of this create.
    pub(super) fn expire_for(&mut self, create: Request, reason: Reason) {
        match &self.phase {
            Phase::Running(running) if running.switching.is_some() => self.wait_for_switch(create),
            _ => self.commit(Purpose::End { reason, graceful: true }, None, vec![create]),
        }
    }

    pub(super) fn is_committing(&self) -> bool {
        self.committing.is_some()
    }

    pub(super) fn commit(&mut self, purpose: Purpose, label: Option<SnapshotLabel>, waiting: Vec<Request>) {
        let Some(sandbox) = self.sandbox().cloned() else { unreachable!("no sandbox to save in {:?}", self.phase) };
        self.committing = Some(Committing { purpose, waiting });
        self.effects.push(Effect::Commit { generation: self.generation, sandbox: Box::new(sandbox), label });
    }

    /// Returns whether a request must wait for the commit under way.
    pub(super) fn waits_for_commit(&self, request: &Request, now: Timestamp) -> bool {
        let Some(committing) = &self.committing else { return false };
        let asleep = matches!(&self.phase, Phase::Running(running) if !running.is_awake());
        let over = match &self.phase {
            Phase::Running(running) => running.expiry_reason(now, self.on_expire()).is_some(),
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

    /// Queues the request by its number: a create that waited for a check may be older than the queued requests.
    pub(super) fn wait_for_commit(&mut self, request: Request) {
        let committing = self.committing.as_mut().expect("the caller checked that it is under way");
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
            // The check under way may have seen the container frozen for the commit.
            self.engine_event |= running.checking;
        }
        match result {
            Ok(snapshot) => {
                self.publish_snapshot(Reason::Snapshotted, format!("saved as snapshot {}", snapshot.origin.id));
                self.commit_succeeded(*snapshot, purpose, now);
                self.rearm();
                self.replay(waiting, now);
            }
            Err(error) => {
                self.publish_snapshot(Reason::SnapshotFailed, error.to_string());
                self.commit_failed(&error, purpose, now);
                self.rearm();
                self.replay_or_refuse(waiting, purpose, &error, now);
                // The container may have vanished.
                self.check();
            }
        }
    }

    fn commit_succeeded(&mut self, snapshot: Snapshot, purpose: Purpose, now: Timestamp) {
        let id = snapshot.origin.id;
        match purpose {
            Purpose::Requested { waiter } => self.answer(waiter, Reply::Snapshot(Ok(snapshot))),
            Purpose::Delete { waiter } => self.delete_now(vec![waiter], Some(id), now),
            Purpose::End { reason, graceful } => {
                let waiting = self.phase.take_waiting();
                self.remove_with_snapshot(reason, graceful, Some(id));
                self.replay(waiting, now);
            }
        }
    }

    /// Handles a failed commit: the sandbox stays. A snapshot at the expiry is retried with growing delays.
    fn commit_failed(&mut self, error: &EngineError, purpose: Purpose, now: Timestamp) {
        let failed = SandboxError::SnapshotFailed { chat: self.chat, error: error.clone() };
        match purpose {
            Purpose::Requested { waiter } => self.answer(waiter, Reply::Snapshot(Err(failed))),
            Purpose::Delete { waiter } => self.answer(waiter, Reply::Delete(Err(failed))),
            Purpose::End { .. } => {
                let Failures { count, retry_at } = &mut self.failed_snapshots;
                let delay = FIRST_DELAY.checked_mul(1 << (*count).min(10)).unwrap_or(LONGEST_DELAY);
                *retry_at = now.checked_add_signed(delay.min(LONGEST_DELAY));
                *count = count.saturating_add(1);
            }
        }
    }

    /// Refuses a create that would replace an expired sandbox. All other requests are handled again.
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

    /// Publishes the outcome of a snapshot. The sandbox keeps its state.
    fn publish_snapshot(&mut self, reason: Reason, message: String) {
        if let Some(sandbox) = self.sandbox().cloned() {
            let status = sandbox.status;
            self.publish(&Sandbox { reason, message: Some(message), ..sandbox }, Some(status));
        }
    }

    /// Starts the removal of a sandbox and remembers its snapshot for the answer.
    pub(super) fn remove_with_snapshot(&mut self, reason: Reason, graceful: bool, snapshot: Option<SnapshotId>) {
        self.remove(reason, graceful);
        self.deleting().snapshot = snapshot;
    }
}
