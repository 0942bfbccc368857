//! How long a sandbox is kept: use, renewals and leases.

use std::time::Duration;

use chrono::TimeDelta;

use super::Lifecycle;
use crate::chat::events::{Effect, Lease, Reply, Request, Ticket, WaiterId};
use crate::chat::leases::{Leases, later};
use crate::chat::phase::{Origin, Phase, Promise, Running, UnsavedChange};
use crate::domain::ids::LeaseId;
use crate::domain::outcome::{NotSaved, SandboxError};
use crate::domain::sandbox::{Sandbox, Status};
use crate::ports::clock::Timestamp;

/// Activity is written down at most this often per chat: a crash costs a sandbox at most so much of its idle time.
const ACTIVITY_GRAIN: TimeDelta = TimeDelta::seconds(5);

impl Running {
    /// Whoever asks for it uses it.
    pub(super) fn use_at(&mut self, now: Timestamp) {
        self.sandbox.last_activity_at = now.max(self.sandbox.last_activity_at);
    }

    fn promise(&self, leases: &Leases) -> Promise {
        Promise { expires_at: self.sandbox.expires_at, leases: leases.durable() }
    }
}

impl Lifecycle {
    pub(super) fn renew(&mut self, waiter: WaiterId, ttl: Duration, now: Timestamp) {
        let Some((running, leases)) = self.running(waiter) else { return };
        let before = running.promise(leases);
        running.sandbox.expires_at = before.expires_at.max(later(now, ttl));
        self.save_change(waiter, before, now);
    }

    pub(super) fn touch(&mut self, waiter: WaiterId, now: Timestamp) {
        let Some((running, _)) = self.running(waiter) else { return };
        if !running.is_awake() {
            return self.wake(Request::Touch { waiter });
        }
        self.use_now(now);
        self.answer_kept(waiter);
    }

    pub(super) fn lease(&mut self, waiter: WaiterId, lease: Lease, now: Timestamp) {
        let (chat, limit) = (self.chat, self.rules.max_leases);
        let Some((running, leases)) = self.running(waiter) else { return };
        if leases.others(lease.id, now) >= limit {
            return self.answer(waiter, Reply::Kept(Err(SandboxError::TooManyLeases { chat, limit })));
        }
        // Whoever prolongs a lease is at work already, perhaps with what stands still.
        if !running.is_awake() && !leases.hold(lease.id, now) {
            return self.wake(Request::Lease { waiter, lease });
        }
        let before = running.promise(leases);
        leases.take(lease, now);
        if lease.is_durable() {
            return self.save_change(waiter, before, now);
        }
        self.use_now(now);
        self.hold();
        self.answer_kept(waiter);
    }

    /// The end of a lease is use: idle time counts from there. A lease can also be given back on what has failed and
    /// may be started again.
    pub(super) fn release(&mut self, waiter: WaiterId, lease: LeaseId, now: Timestamp) {
        let before = self.leases.durable();
        let Some(durable) = self.leases.give_back(lease) else {
            if self.running(waiter).is_some() {
                let error = SandboxError::NoSuchLease { chat: self.chat, lease };
                self.answer(waiter, Reply::Kept(Err(error)));
            }
            return;
        };
        match &self.phase {
            Phase::Running(running) if durable => {
                let before = running.promise(&before);
                return self.save_change(waiter, before, now);
            }
            Phase::Running(_) => self.use_now(now),
            _ if durable => self.note_kept(),
            _ => {}
        }
        self.hold();
        self.answer_kept(waiter);
    }

    /// Shows on the sandbox who holds it now, and sets its deadline accordingly.
    fn hold(&mut self) {
        let (leases, max_lease) = (self.leases.clone(), self.rules.max_lease);
        if let Some(sandbox) = self.kept() {
            leases.show_on(sandbox, max_lease);
            self.rearm();
        }
    }

    /// Notes when it was used and until when it is held.
    fn note_kept(&mut self) {
        // One that is being restarted is noted when that has ended: on disk, it never was anything but acknowledged.
        if !matches!(self.phase, Phase::Creating(_))
            && let Some(sandbox) = self.kept().cloned()
        {
            self.note(&sandbox);
        }
    }

    /// What has leases: a sandbox that runs, or may run again.
    fn kept(&mut self) -> Option<&mut Sandbox> {
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

    /// Idle time is time in which somebody could have come: what the clock skipped does not count. An absolute deadline
    /// is a time of day and stays.
    pub(super) fn clock_stepped(&mut self, by: TimeDelta) {
        let shifted = |at: Timestamp| at.checked_add_signed(by).unwrap_or(at);
        self.leases.shift(by);
        if let Phase::Running(running) = &mut self.phase {
            running.noted_activity = shifted(running.sandbox.last_activity_at);
            running.unsaved.iter_mut().for_each(|change| change.before.leases.shift(by));
            running.pause_again_at = running.pause_again_at.map(shifted);
            if let Some(stopping) = &mut running.stopping {
                stopping.again_at = stopping.again_at.map(shifted);
            }
        }
        self.failed_snapshots.again_at = self.failed_snapshots.again_at.map(shifted);
        if let Some(sandbox) = self.kept() {
            sandbox.last_activity_at = shifted(sandbox.last_activity_at);
            self.unwritten = true;
        }
        self.hold();
    }

    /// A change is on disk, or will not be.
    pub(super) fn change_saved(&mut self, ticket: Ticket, result: Result<(), NotSaved>) {
        let Phase::Running(running) = &mut self.phase else { return };
        let Some(index) = running.unsaved.iter().position(|change| change.ticket == ticket) else { return };
        let Err(error) = result else {
            // What is written is the whole sandbox, so the changes before this one are on disk, too.
            let saved: Vec<UnsavedChange> = running.unsaved.drain(..=index).collect();
            return saved.into_iter().for_each(|change| self.answer_kept(change.waiter));
        };
        // What was built on it goes with it, and so does whatever of them gets to the disk after all.
        let mut undone = running.unsaved.split_off(index).into_iter();
        let Some(UnsavedChange { waiter, before, .. }) = undone.next() else { return };
        running.sandbox.expires_at = before.expires_at;
        let sandbox = running.sandbox.clone();
        self.leases.restore(before.leases);
        self.hold();
        self.note(&sandbox);
        for waiter in std::iter::once(waiter).chain(undone.map(|change| change.waiter)) {
            let error = SandboxError::NotSaved { chat: self.chat, error: error.clone() };
            self.answer(waiter, Reply::Kept(Err(error)));
        }
    }

    /// Answers who waits for a change of a sandbox that is no longer running.
    pub(super) fn abandon_changes(&mut self, status: Status) {
        let Phase::Running(running) = &mut self.phase else { return };
        let unsaved = std::mem::take(&mut running.unsaved);
        let chat = self.chat;
        for change in unsaved {
            self.answer(change.waiter, Reply::Kept(Err(SandboxError::NotRunning { chat, status })));
        }
    }

    /// What nobody waits for and is not written down yet: after the clock was set, or before the service ends.
    pub fn flush(&mut self) -> Option<Effect> {
        let mut activity = None;
        if let Phase::Running(running) = &mut self.phase {
            let (session, at) = (running.sandbox.session, running.sandbox.last_activity_at);
            let unnoted = std::mem::replace(&mut running.noted_activity, at) != at;
            activity = unnoted.then_some(Effect::SaveActivity { session, at });
        }
        if !self.unwritten {
            return activity;
        }
        self.note_kept();
        self.effects.pop()
    }

    /// What runs, and who holds it; or an answer that nothing does.
    pub(super) fn running(&mut self, waiter: WaiterId) -> Option<(&mut Running, &mut Leases)> {
        let chat = self.chat;
        let error = match &self.phase {
            Phase::Running(running) if running.stopping.is_none() => None,
            // Its end came first.
            Phase::Running(_) => Some(SandboxError::NotRunning { chat, status: Status::Stopped }),
            _ => Some(match self.sandbox() {
                None => SandboxError::NotFound { chat },
                Some(sandbox) => SandboxError::NotRunning { chat, status: sandbox.status },
            }),
        };
        if let Some(error) = error {
            self.answer(waiter, Reply::Kept(Err(error)));
            return None;
        }
        match &mut self.phase {
            Phase::Running(running) => Some((running, &mut self.leases)),
            _ => None,
        }
    }

    pub(super) fn use_now(&mut self, now: Timestamp) {
        let Phase::Running(running) = &mut self.phase else { return };
        running.use_at(now);
        let (session, at) = (running.sandbox.session, running.sandbox.last_activity_at);
        if at - running.noted_activity >= ACTIVITY_GRAIN {
            running.noted_activity = at;
            self.effects.push(Effect::SaveActivity { session, at });
        }
    }

    /// Writes down what was just changed, and that it is being used.
    fn save_change(&mut self, waiter: WaiterId, before: Promise, now: Timestamp) {
        let ticket = self.ticket();
        let Phase::Running(running) = &mut self.phase else { return };
        running.use_at(now);
        running.noted_activity = running.sandbox.last_activity_at;
        running.unsaved.push(UnsavedChange { ticket, waiter, before });
        let sandbox = running.sandbox.clone();
        self.save(ticket, sandbox);
        self.hold();
    }

    pub(super) fn answer_kept(&mut self, waiter: WaiterId) {
        if let Some(sandbox) = self.promised() {
            self.answer(waiter, Reply::Kept(Ok(sandbox)));
        }
    }

    /// The sandbox as it may be told: without the changes that are not on disk yet.
    pub(super) fn promised(&self) -> Option<Sandbox> {
        let mut sandbox = self.sandbox()?.clone();
        if let Phase::Running(running) = &self.phase
            && let Some(UnsavedChange { before, .. }) = running.unsaved.first()
        {
            let mut leases = self.leases.clone();
            leases.restore(before.leases.clone());
            sandbox.expires_at = before.expires_at;
            leases.show_on(&mut sandbox, self.rules.max_lease);
        }
        Some(sandbox)
    }
}
