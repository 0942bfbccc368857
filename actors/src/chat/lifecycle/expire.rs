//! Handles the expiry of a sandbox.

use chrono::TimeDelta;

use super::Lifecycle;
use crate::chat::events::Effect;
use crate::chat::leases::Leases;
use crate::chat::lifecycle::snapshot::{Failures, Purpose};
use crate::chat::phase::{Phase, Stopping, Switch};
use crate::domain::ended;
use crate::domain::ids::Generation;
use crate::domain::profile::OnExpire;
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::ports::clock::Timestamp;
use crate::ports::engine::EngineError;

/// How long a stopped sandbox is kept. The limit keeps stopped sandboxes from filling the disk.
const KEEP_STOPPED_FOR: TimeDelta = TimeDelta::hours(24);

/// The delay before a failed stop is retried.
const STOP_RETRY_DELAY: TimeDelta = TimeDelta::seconds(5);

impl Lifecycle {
    /// Sets the deadline outside of an event.
    pub fn rearmed(&mut self) -> Vec<Effect> {
        self.rearm();
        std::mem::take(&mut self.effects)
    }

    /// Returns whether the sandbox has expired and no caller waits for the resulting work.
    pub fn is_expiring(&self) -> bool {
        let at_its_end = |reason| matches!(reason, Reason::Expired | Reason::Idle);
        match &self.phase {
            Phase::Running(running) => {
                let pausing = running.switching.as_ref().is_some_and(|switching| switching.reason == Reason::Idle);
                running.stopping.is_some() || pausing || self.is_expiry_commit()
            }
            Phase::Deleting(deleting) => {
                at_its_end(deleting.sandbox.reason) && deleting.successor.is_none() && deleting.deleters.is_empty()
            }
            _ => self.is_expiry_commit(),
        }
    }

    /// Sets the next deadline.
    pub(super) fn rearm(&mut self) {
        let at = match &self.phase {
            Phase::Running(running) => match running.stopping {
                None => running.next_deadline(),
                Some(Stopping { retry_at: Some(at), .. }) => at,
                // The end of the stop under way decides.
                Some(Stopping { retry_at: None, .. }) => return,
            },
            Phase::Failed(failed) => failed.sandbox.end().0,
            Phase::Stopped(sandbox) => removal_time(sandbox),
            Phase::Unknown(_) | Phase::Absent | Phase::Creating(_) | Phase::Deleting(_) => return,
        };
        let at = self.failed_snapshots.retry_at.map_or(at, |again| again.max(at));
        self.effects.push(Effect::Arm { at });
    }

    /// Handles a deadline with the current state: the request that reached the mailbox first wins.
    pub(super) fn due(&mut self, now: Timestamp) {
        let on_expire = self.on_expire();
        let keeps = on_expire == OnExpire::Stop;
        if self.is_committing() {
            // The end of the commit sets the deadline again.
            return;
        }
        if self.failed_snapshots.retry_at.is_some_and(|again| now < again) {
            return self.rearm();
        }
        match &mut self.phase {
            Phase::Running(running) => match running.expiry_reason(now, on_expire) {
                Some(reason) => self.expire(reason, now),
                None => {
                    // The deadline was moved in the meantime.
                    self.failed_snapshots = Failures::default();
                    let idle = running.needs_pause(now);
                    if idle { self.switch(Switch::Pause, Reason::Idle, Vec::new()) } else { self.rearm() }
                }
            },
            Phase::Failed(failed) => match failed.sandbox.expiry(now) {
                None => self.rearm(),
                // Its processes have already ended, so only its container is kept.
                Some(reason) if keeps && failed.sandbox.reason != Reason::Vanished => {
                    let sandbox = failed.sandbox.clone();
                    self.enter_stopped(sandbox, reason);
                }
                Some(_) => self.end(Reason::Expired, false, now),
            },
            Phase::Stopped(sandbox) if now >= removal_time(sandbox) => self.end(Reason::Expired, false, now),
            Phase::Stopped(_) => self.rearm(),
            Phase::Unknown(_) | Phase::Absent | Phase::Creating(_) | Phase::Deleting(_) => {}
        }
    }

    fn expire(&mut self, reason: Reason, now: Timestamp) {
        let on_expire = self.on_expire();
        let Phase::Running(running) = &mut self.phase else { return };
        match (on_expire, running.sandbox.container.clone()) {
            (OnExpire::Stop, Some(container)) => {
                let before = running.stopping.replace(Stopping { reason, retry_at: None });
                if !before.is_some_and(|stopping| stopping.is_under_way()) {
                    self.effects.push(Effect::Stop { generation: self.generation, container });
                }
            }
            _ => self.end(reason, true, now),
        }
    }

    /// Removes an expired sandbox, after a snapshot if the profile asks for one.
    fn end(&mut self, reason: Reason, graceful: bool, now: Timestamp) {
        if self.snapshots_at_expiry() {
            return match &self.phase {
                // The end of the pause or resume sets the deadline again.
                Phase::Running(running) if running.switching.is_some() => {}
                _ => self.commit(Purpose::End { reason, graceful }, None, Vec::new()),
            };
        }
        let waiting = self.phase.take_waiting();
        self.remove(reason, graceful);
        self.replay(waiting, now);
    }

    pub(super) fn stopped(&mut self, generation: Generation, result: Result<(), EngineError>, now: Timestamp) {
        if generation != self.generation {
            return;
        }
        let Phase::Running(running) = &mut self.phase else { return };
        let Some(stopping) = &mut running.stopping else { return };
        if result.is_err() {
            stopping.retry_at = Some(now + STOP_RETRY_DELAY);
            self.rearm();
            // The container may have ended or vanished, and then no stop is needed.
            return self.check();
        }
        let waiting = self.phase.take_waiting();
        self.finish_stop();
        self.replay(waiting, now);
    }

    /// Returns the expiry setting of the current sandbox.
    pub(super) fn on_expire(&self) -> OnExpire {
        let profile = self.sandbox().and_then(|sandbox| self.rules.profiles.get(&sandbox.profile));
        profile.map(|profile| profile.on_expire).unwrap_or_default()
    }

    /// Finishes a stop after the processes have ended.
    pub(super) fn finish_stop(&mut self) {
        self.abandon_changes(Status::Stopped);
        if let Phase::Running(running) = &self.phase {
            let reason = running.stopping.map_or(Reason::Expired, |stopping| stopping.reason);
            self.enter_stopped(running.sandbox.clone(), reason);
        }
    }

    /// Keeps the container of an expired sandbox for a while.
    fn enter_stopped(&mut self, mut sandbox: Sandbox, reason: Reason) {
        let message = ended::limit(&sandbox, reason);
        self.enter(&mut sandbox, Status::Stopped, reason, message);
        self.save_later(&sandbox);
        self.leases = Leases::default();
        sandbox.held_by.clear();
        self.phase = Phase::Stopped(Box::new(sandbox));
        self.rearm();
    }
}

/// Returns the time at which a stopped sandbox is removed.
fn removal_time(stopped: &Sandbox) -> Timestamp {
    stopped.end().0.checked_add_signed(KEEP_STOPPED_FOR).unwrap_or(Timestamp::MAX_UTC)
}
