//! Handles activity, renewals and leases, which decide how long a sandbox lives.

use std::time::Duration;

use chrono::TimeDelta;

use super::Lifecycle;
use crate::chat::events::{Effect, Lease, Reply, Request, Ticket, WaiterId};
use crate::chat::leases::{Leases, saturating_add};
use crate::chat::phase::{Lifetime, Origin, Phase, Running, UnsavedChange};
use crate::domain::ids::LeaseId;
use crate::domain::outcome::{NotSaved, SandboxError};
use crate::domain::sandbox::{Sandbox, Status};
use crate::ports::clock::Timestamp;

/// Activity is saved at most this often per chat. A crash costs a sandbox at most this much idle time.
const ACTIVITY_SAVE_INTERVAL: TimeDelta = TimeDelta::seconds(5);

impl Running {
    /// Counts as activity.
    pub(super) fn mark_active(&mut self, now: Timestamp) {
        self.sandbox.last_activity_at = now.max(self.sandbox.last_activity_at);
    }

    fn lifetime(&self, leases: &Leases) -> Lifetime {
        Lifetime { expires_at: self.sandbox.expires_at, leases: leases.durable() }
    }
}

impl Lifecycle {
    pub(super) fn renew(&mut self, waiter: WaiterId, ttl: Duration, now: Timestamp) {
        let Some((running, leases)) = self.running(waiter) else { return };
        let before = running.lifetime(leases);
        running.sandbox.expires_at = before.expires_at.max(saturating_add(now, ttl));
        self.save_change(waiter, before, now);
    }

    pub(super) fn touch(&mut self, waiter: WaiterId, now: Timestamp) {
        let Some((running, _)) = self.running(waiter) else { return };
        if !running.is_awake() {
            return self.wake(Request::Touch { waiter });
        }
        self.record_activity(now);
        self.answer_sandbox(waiter);
    }

    pub(super) fn lease(&mut self, waiter: WaiterId, lease: Lease, now: Timestamp) {
        let (chat, limit) = (self.chat, self.rules.max_leases);
        let Some((running, leases)) = self.running(waiter) else { return };
        if leases.count_others(lease.id, now) >= limit {
            return self.answer(waiter, Reply::Sandbox(Err(SandboxError::TooManyLeases { chat, limit })));
        }
        // A renewed lease does not resume the sandbox: its holder is already at work, perhaps in a paused sandbox.
        if !running.is_awake() && !leases.contains(lease.id, now) {
            return self.wake(Request::Lease { waiter, lease });
        }
        let before = running.lifetime(leases);
        leases.take(lease, now);
        if lease.is_durable() {
            return self.save_change(waiter, before, now);
        }
        self.record_activity(now);
        self.update_holds();
        self.answer_sandbox(waiter);
    }

    /// Releases a lease. Its end is activity: idle time counts from there. A lease can also be released on a failed
    /// sandbox that may restart.
    pub(super) fn release(&mut self, waiter: WaiterId, lease: LeaseId, now: Timestamp) {
        let before = self.leases.durable();
        let Some(durable) = self.leases.release(lease) else {
            if self.running(waiter).is_some() {
                let error = SandboxError::NoSuchLease { chat: self.chat, lease };
                self.answer(waiter, Reply::Sandbox(Err(error)));
            }
            return;
        };
        match &self.phase {
            Phase::Running(running) if durable => {
                let before = running.lifetime(&before);
                return self.save_change(waiter, before, now);
            }
            Phase::Running(_) => self.record_activity(now),
            _ if durable => self.save_holds_later(),
            _ => {}
        }
        self.update_holds();
        self.answer_sandbox(waiter);
    }

    /// Shows the current holds on the sandbox and sets its deadline.
    fn update_holds(&mut self) {
        let (leases, max_lease) = (self.leases.clone(), self.rules.max_lease);
        if let Some(sandbox) = self.leased_sandbox() {
            leases.apply_to(sandbox, max_lease);
            self.rearm();
        }
    }

    /// Saves the activity and the holds without an answer.
    fn save_holds_later(&mut self) {
        // A restarting sandbox is saved at the end of the restart, so that its record stays as acknowledged.
        if !matches!(self.phase, Phase::Creating(_))
            && let Some(sandbox) = self.leased_sandbox().cloned()
        {
            self.save_later(&sandbox);
        }
    }

    /// Returns the sandbox that has leases: one that runs or may run again.
    fn leased_sandbox(&mut self) -> Option<&mut Sandbox> {
        match &mut self.phase {
            Phase::Running(running) => Some(&mut running.sandbox),
            Phase::Failed(failed) => Some(&mut failed.sandbox),
            Phase::Creating(creating) => match creating.origin {
                Origin::Restart { .. } => Some(&mut creating.sandbox),
                Origin::Request { .. } => None,
            },
            Phase::Unknown(_) | Phase::Absent | Phase::Stopped(_) | Phase::Deleting(_) => None,
        }
    }

    /// Shifts times by a clock step. Skipped time is not idle time, because no caller could have come. An absolute
    /// deadline is a time of day and stays.
    pub(super) fn clock_stepped(&mut self, by: TimeDelta) {
        let shifted = |at: Timestamp| at.checked_add_signed(by).unwrap_or(at);
        self.leases.shift(by);
        if let Phase::Running(running) = &mut self.phase {
            running.saved_activity = shifted(running.sandbox.last_activity_at);
            running.unsaved.iter_mut().for_each(|change| change.before.leases.shift(by));
            running.retry_pause_at = running.retry_pause_at.map(shifted);
            if let Some(stopping) = &mut running.stopping {
                stopping.retry_at = stopping.retry_at.map(shifted);
            }
        }
        self.failed_snapshots.retry_at = self.failed_snapshots.retry_at.map(shifted);
        if let Some(sandbox) = self.leased_sandbox() {
            sandbox.last_activity_at = shifted(sandbox.last_activity_at);
            self.unsaved_clock_shift = true;
        }
        self.update_holds();
    }

    /// Handles the result of the write of a change.
    pub(super) fn change_saved(&mut self, ticket: Ticket, result: Result<(), NotSaved>) {
        let Phase::Running(running) = &mut self.phase else { return };
        let Some(index) = running.unsaved.iter().position(|change| change.ticket == ticket) else { return };
        let Err(error) = result else {
            // A write contains the whole sandbox, so the earlier changes are saved, too.
            let saved: Vec<UnsavedChange> = running.unsaved.drain(..=index).collect();
            return saved.into_iter().for_each(|change| self.answer_sandbox(change.waiter));
        };
        // Later changes build on the failed one and are undone with it, even if they reach the journal.
        let mut undone = running.unsaved.split_off(index).into_iter();
        let Some(UnsavedChange { waiter, before, .. }) = undone.next() else { return };
        running.sandbox.expires_at = before.expires_at;
        let sandbox = running.sandbox.clone();
        self.leases.restore(before.leases);
        self.update_holds();
        self.save_later(&sandbox);
        for waiter in std::iter::once(waiter).chain(undone.map(|change| change.waiter)) {
            let error = SandboxError::NotSaved { chat: self.chat, error: error.clone() };
            self.answer(waiter, Reply::Sandbox(Err(error)));
        }
    }

    /// Answers the callers that wait for a change of a sandbox that no longer runs.
    pub(super) fn abandon_changes(&mut self, status: Status) {
        let Phase::Running(running) = &mut self.phase else { return };
        let unsaved = std::mem::take(&mut running.unsaved);
        let chat = self.chat;
        for change in unsaved {
            self.answer(change.waiter, Reply::Sandbox(Err(SandboxError::NotRunning { chat, status })));
        }
    }

    /// Returns the unsaved times: after a clock step, or before the service ends.
    pub fn flush(&mut self) -> Option<Effect> {
        let mut activity = None;
        if let Phase::Running(running) = &mut self.phase {
            let (session, at) = (running.sandbox.session, running.sandbox.last_activity_at);
            let is_unsaved = std::mem::replace(&mut running.saved_activity, at) != at;
            activity = is_unsaved.then_some(Effect::SaveActivity { session, at });
        }
        if !self.unsaved_clock_shift {
            return activity;
        }
        self.save_holds_later();
        self.effects.pop()
    }

    /// Returns the running sandbox and its leases, or answers the waiter with an error.
    pub(super) fn running(&mut self, waiter: WaiterId) -> Option<(&mut Running, &mut Leases)> {
        let chat = self.chat;
        let error = match &self.phase {
            Phase::Running(running) if running.stopping.is_none() => None,
            // The expiry came first.
            Phase::Running(_) => Some(SandboxError::NotRunning { chat, status: Status::Stopped }),
            _ => Some(match self.sandbox() {
                None => SandboxError::NotFound { chat },
                Some(sandbox) => SandboxError::NotRunning { chat, status: sandbox.status },
            }),
        };
        if let Some(error) = error {
            self.answer(waiter, Reply::Sandbox(Err(error)));
            return None;
        }
        match &mut self.phase {
            Phase::Running(running) => Some((running, &mut self.leases)),
            _ => None,
        }
    }

    pub(super) fn record_activity(&mut self, now: Timestamp) {
        let Phase::Running(running) = &mut self.phase else { return };
        running.mark_active(now);
        let (session, at) = (running.sandbox.session, running.sandbox.last_activity_at);
        if at - running.saved_activity >= ACTIVITY_SAVE_INTERVAL {
            running.saved_activity = at;
            self.effects.push(Effect::SaveActivity { session, at });
        }
    }

    /// Saves a change together with the activity of its request.
    fn save_change(&mut self, waiter: WaiterId, before: Lifetime, now: Timestamp) {
        let ticket = self.ticket();
        let Phase::Running(running) = &mut self.phase else { return };
        running.mark_active(now);
        running.saved_activity = running.sandbox.last_activity_at;
        running.unsaved.push(UnsavedChange { ticket, waiter, before });
        let sandbox = running.sandbox.clone();
        self.save(ticket, sandbox);
        self.update_holds();
    }

    pub(super) fn answer_sandbox(&mut self, waiter: WaiterId) {
        if let Some(sandbox) = self.acknowledged() {
            self.answer(waiter, Reply::Sandbox(Ok(sandbox)));
        }
    }

    /// Returns the sandbox without its unsaved changes, as callers may see it.
    pub(super) fn acknowledged(&self) -> Option<Sandbox> {
        let mut sandbox = self.sandbox()?.clone();
        if let Phase::Running(running) = &self.phase
            && let Some(UnsavedChange { before, .. }) = running.unsaved.first()
        {
            let mut leases = self.leases.clone();
            leases.restore(before.leases.clone());
            sandbox.expires_at = before.expires_at;
            leases.apply_to(&mut sandbox, self.rules.max_lease);
        }
        Some(sandbox)
    }
}
