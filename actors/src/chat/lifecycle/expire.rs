//! When a sandbox ends, and what happens then.

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

/// A stopped sandbox is kept for this long, lest stopped ones fill the disk.
const STOPPED_FOR: TimeDelta = TimeDelta::hours(24);

/// When a stop that failed is tried again.
const STOP_AGAIN: TimeDelta = TimeDelta::seconds(5);

impl Lifecycle {
    /// Rearms outside of any event.
    pub fn rearmed(&mut self) -> Vec<Effect> {
        self.rearm();
        std::mem::take(&mut self.effects)
    }

    /// Whether its time is over and no caller waits for the work that this brings.
    pub fn is_expiring(&self) -> bool {
        let at_its_end = |reason| matches!(reason, Reason::Expired | Reason::Idle);
        match &self.phase {
            Phase::Running(running) => {
                let pausing = running.switching.as_ref().is_some_and(|switching| switching.reason == Reason::Idle);
                running.stopping.is_some() || pausing || self.is_kept_because_it_ends()
            }
            Phase::Deleting(deleting) => {
                at_its_end(deleting.sandbox.reason) && deleting.successor.is_none() && deleting.deleters.is_empty()
            }
            _ => self.is_kept_because_it_ends(),
        }
    }

    /// Asks to be told again when the next deadline comes.
    pub(super) fn rearm(&mut self) {
        let at = match &self.phase {
            Phase::Running(running) => match running.stopping {
                None => running.next_deadline(),
                Some(Stopping { again_at: Some(at), .. }) => at,
                // The end of the try under way decides.
                Some(Stopping { again_at: None, .. }) => return,
            },
            Phase::Failed(failed) => failed.sandbox.end().0,
            Phase::Stopped(sandbox) => kept_until(sandbox),
            Phase::Unknown(_) | Phase::Absent | Phase::Creating(_) | Phase::Deleting(_) => return,
        };
        let at = self.failed_snapshots.again_at.map_or(at, |again| again.max(at));
        self.effects.push(Effect::Arm { at });
    }

    /// What is decided here is decided with what is known now: whoever reached the mailbox first has won.
    pub(super) fn due(&mut self, now: Timestamp) {
        let on_expire = self.on_expire();
        let keeps = on_expire == OnExpire::Stop;
        if self.is_committing() {
            // Its end decides, and sets the deadline again.
            return;
        }
        if self.failed_snapshots.again_at.is_some_and(|again| now < again) {
            return self.rearm();
        }
        match &mut self.phase {
            Phase::Running(running) => match running.is_over(now, on_expire) {
                Some(reason) => self.expire(reason, now),
                None => {
                    // Its end was put off since.
                    self.failed_snapshots = Failures::default();
                    let idle = running.is_to_be_paused(now);
                    if idle { self.switch(Switch::Pause, Reason::Idle, Vec::new()) } else { self.rearm() }
                }
            },
            Phase::Failed(failed) => match failed.sandbox.expiry(now) {
                None => self.rearm(),
                // Its processes have ended already; what is to be kept is its container.
                Some(reason) if keeps && failed.sandbox.reason != Reason::Vanished => {
                    let sandbox = failed.sandbox.clone();
                    self.rest(sandbox, reason);
                }
                Some(_) => self.end(Reason::Expired, false, now),
            },
            Phase::Stopped(sandbox) if now >= kept_until(sandbox) => self.end(Reason::Expired, false, now),
            Phase::Stopped(_) => self.rearm(),
            Phase::Unknown(_) | Phase::Absent | Phase::Creating(_) | Phase::Deleting(_) => {}
        }
    }

    fn expire(&mut self, reason: Reason, now: Timestamp) {
        let on_expire = self.on_expire();
        let Phase::Running(running) = &mut self.phase else { return };
        match (on_expire, running.sandbox.container.clone()) {
            (OnExpire::Stop, Some(container)) => {
                let before = running.stopping.replace(Stopping { reason, again_at: None });
                if !before.is_some_and(|stopping| stopping.is_under_way()) {
                    self.effects.push(Effect::Stop { generation: self.generation, container });
                }
            }
            _ => self.end(reason, true, now),
        }
    }

    /// Removes what is at its end, once it is kept where it is to be.
    fn end(&mut self, reason: Reason, graceful: bool, now: Timestamp) {
        if self.is_kept_at_its_end() {
            return match &self.phase {
                // The end of that sets the deadline again.
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
            stopping.again_at = Some(now + STOP_AGAIN);
            self.rearm();
            // It may have ended all the same, or be gone, and then nothing is left to be stopped.
            return self.check();
        }
        let waiting = self.phase.take_waiting();
        self.come_to_rest();
        self.replay(waiting, now);
    }

    /// What becomes of the sandbox that is there at its end.
    pub(super) fn on_expire(&self) -> OnExpire {
        let profile = self.sandbox().and_then(|sandbox| self.rules.profiles.get(&sandbox.profile));
        profile.map(|profile| profile.on_expire).unwrap_or_default()
    }

    /// The processes of what was to be stopped have ended.
    pub(super) fn come_to_rest(&mut self) {
        self.abandon_changes(Status::Stopped);
        if let Phase::Running(running) = &self.phase {
            let reason = running.stopping.map_or(Reason::Expired, |stopping| stopping.reason);
            self.rest(running.sandbox.clone(), reason);
        }
    }

    /// Keeps the container of a sandbox at its end for a while.
    fn rest(&mut self, mut sandbox: Sandbox, reason: Reason) {
        let message = ended::limit(&sandbox, reason);
        self.enter(&mut sandbox, Status::Stopped, reason, message);
        self.note(&sandbox);
        self.leases = Leases::default();
        sandbox.held_by.clear();
        self.phase = Phase::Stopped(Box::new(sandbox));
        self.rearm();
    }
}

/// When a stopped sandbox goes.
fn kept_until(stopped: &Sandbox) -> Timestamp {
    stopped.end().0.checked_add_signed(STOPPED_FOR).unwrap_or(Timestamp::MAX_UTC)
}
