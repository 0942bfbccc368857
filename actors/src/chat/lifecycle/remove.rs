//! Handles removals: cancels a launch, removes a container, retries an owed removal, and starts the successor.

use std::time::Duration;

use super::Lifecycle;
use crate::chat::events::{Effect, LaunchFailure, Launched, Remains, Reply, Request, WaiterId};
use crate::chat::leases::Leases;
use crate::chat::lifecycle::snapshot::Failures;
use crate::chat::phase::{Creating, Deleting, Origin, Phase, RemovalStep, Successor};
use crate::domain::create_request::CreateRequest;
use crate::domain::ended;
use crate::domain::ids::{Generation, SessionId};
use crate::domain::outcome::{Deletion, Outcome, RemovalError, SandboxError, StartFailure};
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::ports::clock::Timestamp;

impl Lifecycle {
    pub(super) fn cancel_launch(&mut self) {
        let Phase::Creating(creating) = std::mem::replace(&mut self.phase, Phase::Absent) else { return };
        let Creating { mut sandbox, origin, .. } = *creating;
        let (waiters, saving, recorded) = match origin {
            Origin::Request { waiters, saving, .. } => (waiters, saving, saving.is_some()),
            Origin::Restart { waiting, .. } => (waiting.iter().map(Request::waiter).collect(), None, true),
        };
        self.enter(&mut sandbox, Status::Deleting, Reason::Requested, None);
        if recorded {
            self.save_later(&sandbox);
        }
        self.leases = Leases::default();
        sandbox.held_by.clear();
        self.phase = Phase::Deleting(Box::new(Deleting {
            sandbox,
            deleters: Vec::new(),
            failed: Some((StartFailure::Deleted, waiters)),
            successor: None,
            step: RemovalStep::Cancelling,
            graceful: false,
            recorded,
            attempt: 0,
            snapshot: None,
        }));
        if saving.is_some() {
            // The launch itself has ended.
            self.tear_down();
        } else {
            self.effects.push(Effect::CancelLaunch { generation: self.generation });
        }
    }

    pub(super) fn cancellation_ended(
        &mut self,
        mut deleting: Deleting,
        result: Result<Launched, LaunchFailure>,
        now: Timestamp,
    ) {
        let remains = match result {
            Ok(Launched::Started { container, .. }) => Remains::Container(container),
            Ok(Launched::Found(found)) => {
                // The delete applies to the found sandbox, too.
                let planned = std::mem::replace(&mut deleting.sandbox, found.sandbox(now));
                self.end_planned(planned);
                self.publish(&deleting.sandbox, None);
                self.enter(&mut deleting.sandbox, Status::Deleting, Reason::Requested, None);
                deleting.graceful = true;
                deleting.recorded = true;
                Remains::Container(found.container.id.clone())
            }
            Err(LaunchFailure { remains, .. }) => remains,
        };
        if remains == Remains::Nothing && deleting.sandbox.container.is_none() {
            return self.container_removed(deleting, now);
        }
        if let Remains::Container(container) = remains {
            deleting.sandbox.container = Some(container);
        }
        self.phase = Phase::Deleting(Box::new(deleting));
        self.tear_down();
    }

    /// Starts the removal of a running, stopped or failed sandbox. After a crash the next service finishes it.
    pub(super) fn remove(&mut self, reason: Reason, graceful: bool) {
        self.abandon_changes(Status::Deleting);
        let mut sandbox = match std::mem::replace(&mut self.phase, Phase::Absent) {
            Phase::Running(running) => running.sandbox,
            Phase::Stopped(sandbox) => *sandbox,
            Phase::Failed(failed) => failed.sandbox,
            other => unreachable!("no sandbox to remove in {other:?}"),
        };
        let message = match sandbox.status {
            Status::Stopped => sandbox.message.take(),
            _ => ended::limit(&sandbox, reason),
        };
        self.enter(&mut sandbox, Status::Deleting, reason, message);
        self.save_later(&sandbox);
        self.effects.push(Effect::Disarm);
        self.failed_snapshots = Failures::default();
        self.start_removal(sandbox, graceful, true);
    }

    pub(super) fn start_removal(&mut self, mut sandbox: Sandbox, graceful: bool, recorded: bool) {
        self.leases = Leases::default();
        sandbox.held_by.clear();
        self.phase = Phase::Deleting(Box::new(Deleting {
            sandbox,
            deleters: Vec::new(),
            failed: None,
            successor: None,
            step: RemovalStep::Removing,
            graceful,
            recorded,
            attempt: 0,
            snapshot: None,
        }));
        self.tear_down();
    }

    pub(super) fn tear_down(&mut self) {
        let generation = self.generation;
        let deleting = self.deleting();
        deleting.step = RemovalStep::Removing;
        let (container, graceful) = (deleting.sandbox.container.clone(), deleting.graceful && deleting.attempt == 0);
        self.effects.push(Effect::TearDown { generation, container, graceful });
    }

    /// Retries an owed removal now: its time has come, or a caller waits for it.
    pub(super) fn retry_removal_now(&mut self) {
        if self.deleting().step == RemovalStep::Owed {
            self.tear_down();
        }
    }

    pub(super) fn torn_down(&mut self, generation: Generation, result: Result<(), RemovalError>, now: Timestamp) {
        if generation != self.generation {
            return;
        }
        match std::mem::replace(&mut self.phase, Phase::Absent) {
            Phase::Deleting(deleting) if deleting.step == RemovalStep::Removing => match result {
                Ok(()) => self.container_removed(*deleting, now),
                Err(error) => self.removal_failed(*deleting, error),
            },
            other => self.phase = other,
        }
    }

    /// Handles the end of a tear-down. The record is removed before callers are answered.
    pub(super) fn container_removed(&mut self, mut deleting: Deleting, now: Timestamp) {
        if !deleting.recorded {
            return self.finish_removal(deleting, now);
        }
        let ticket = self.ticket();
        self.effects.push(Effect::RemoveRecord { ticket, session: deleting.sandbox.session });
        deleting.step = RemovalStep::RemovingRecord(ticket);
        self.phase = Phase::Deleting(Box::new(deleting));
    }

    pub(super) fn finish_removal(&mut self, deleting: Deleting, now: Timestamp) {
        let Deleting { mut sandbox, deleters, failed, successor, attempt, snapshot, .. } = deleting;
        if attempt > 0 {
            let tries = if attempt == 1 { "one failed try" } else { "several failed tries" };
            sandbox.message = Some(format!("removed after {tries}"));
        }
        for waiter in deleters {
            let (session, container) = (sandbox.session, sandbox.container.clone());
            let deleted = Deletion::Deleted { session, container, snapshot };
            self.answer(waiter, Reply::Delete(Ok(deleted)));
        }
        self.publish_end(sandbox);
        if let Some((failure, waiters)) = failed {
            self.answer_failed(waiters, &failure);
        }
        if let Some(Successor { request, waiters, sandbox: planned, outcome }) = successor {
            let sandbox = self.planned(&request, planned.session, now);
            self.launch(sandbox, request, outcome, waiters, now);
        }
    }

    pub(super) fn removal_failed(&mut self, mut deleting: Deleting, error: RemovalError) {
        deleting.attempt = deleting.attempt.saturating_add(1);
        deleting.step = RemovalStep::Owed;
        deleting.sandbox.message = Some(format!("not removed yet, the removal is retried: {error}"));
        self.retry_after(deleting.attempt);
        for waiter in std::mem::take(&mut deleting.deleters) {
            let owed = SandboxError::DeleteOwed { chat: self.chat, error: error.clone() };
            self.answer(waiter, Reply::Delete(Err(owed)));
        }
        if let Some((failure, waiters)) = deleting.failed.take() {
            self.answer_failed(waiters, &failure);
        }
        self.phase = Phase::Deleting(Box::new(deleting));
        self.fail_successor(StartFailure::PredecessorRemains(error));
    }

    pub(super) fn retry_due(&mut self, generation: Generation, attempt: u32) {
        if generation != self.generation {
            return;
        }
        match &self.phase {
            Phase::Unknown(unknown) if unknown.attempt == attempt => self.discover(),
            Phase::Deleting(deleting) if deleting.attempt == attempt => self.retry_removal_now(),
            _ => {}
        }
    }

    pub(super) fn retry_after(&mut self, attempt: u32) {
        let (generation, delay) = (self.generation, retry_delay(attempt));
        self.effects.push(Effect::RetryAfter { generation, attempt, delay });
    }

    /// Queues the create that follows the removal under way.
    pub(super) fn queue_successor(
        &mut self,
        waiter: WaiterId,
        request: Box<CreateRequest>,
        session: SessionId,
        now: Timestamp,
    ) {
        let sandbox = self.planned(&request, session, now);
        let deleting = self.deleting();
        let outcome = match deleting.sandbox.reason {
            Reason::Requested | Reason::RolledBack | Reason::Incomplete => Outcome::Created,
            // A delete followed by a create is no replacement, even for an expired sandbox.
            _ if !deleting.deleters.is_empty() => Outcome::Created,
            _ => Outcome::Replaced,
        };
        deleting.successor = Some(Successor { sandbox, request, waiters: vec![waiter], outcome });
        self.retry_removal_now();
    }

    pub(super) fn fail_successor(&mut self, failure: StartFailure) {
        if let Some(successor) = self.deleting().successor.take() {
            self.answer_failed(successor.waiters, &failure);
        }
    }

    pub(super) fn deleting(&mut self) -> &mut Deleting {
        match &mut self.phase {
            Phase::Deleting(deleting) => deleting,
            other => unreachable!("not deleting but {other:?}"),
        }
    }
}

/// Returns the delay before a retry: short at first, at most half a minute.
fn retry_delay(attempt: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(250);
    const LONGEST: Duration = Duration::from_secs(30);
    FIRST.saturating_mul(2u32.saturating_pow(attempt.saturating_sub(1))).min(LONGEST)
}
