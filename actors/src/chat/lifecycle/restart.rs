//! Restarts a sandbox that ended by itself, under the same session and with growing delays.

use std::time::Duration;

use chrono::TimeDelta;

use super::Lifecycle;
use crate::chat::events::Effect;
use crate::chat::phase::{Creating, Failed, Origin, Phase, Running};
use crate::domain::ids::Generation;
use crate::domain::outcome::StartFailure;
use crate::domain::profile::Restart;
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::ports::clock::Timestamp;
use crate::ports::engine::EngineError;

const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(300);

/// A sandbox that ran this long did not end because of its start.
const STEADY_RUN: TimeDelta = TimeDelta::seconds(60);

impl Running {
    /// Returns the number of restarts in a row, including this run.
    pub(super) fn restarts_so_far(&self, now: Timestamp) -> u32 {
        let steady = self.sandbox.started_at.is_some_and(|started| now - started >= STEADY_RUN);
        if steady { 0 } else { self.restarts }
    }
}

impl Lifecycle {
    /// Keeps a failed sandbox, so that callers can ask for the cause, and plans its restart if the profile asks for
    /// one.
    pub(super) fn fail(&mut self, sandbox: Sandbox, restarts: u32) {
        let profile = self.rules.profiles.get(&sandbox.profile);
        let restart = profile.map(|profile| profile.restart).unwrap_or_default();
        // A vanished container cannot be started.
        if restart == Restart::OnFailure && sandbox.reason != Reason::Vanished {
            let delay = FIRST_DELAY.saturating_mul(2u32.saturating_pow(restarts)).min(LONGEST_DELAY);
            self.effects.push(Effect::RestartAfter { generation: self.generation, delay });
        }
        self.phase = Phase::Failed(Box::new(Failed { sandbox, restarts }));
        self.rearm();
    }

    pub(super) fn restart_due(&mut self, generation: Generation) {
        if generation != self.generation || !matches!(self.phase, Phase::Failed(_)) {
            return;
        }
        if self.is_committing() {
            return self.effects.push(Effect::RestartAfter { generation, delay: FIRST_DELAY });
        }
        let Phase::Failed(failed) = std::mem::replace(&mut self.phase, Phase::Absent) else { return };
        let Failed { mut sandbox, restarts } = *failed;
        self.generation = self.generation.next();
        self.enter(&mut sandbox, Status::Creating, Reason::Restarting, None);
        self.effects.push(Effect::Disarm);
        self.effects.push(Effect::Relaunch { generation: self.generation, sandbox: Box::new(sandbox.clone()) });
        let origin = Origin::Restart { attempt: restarts.saturating_add(1), waiting: Vec::new() };
        self.phase = Phase::Creating(Box::new(Creating { sandbox, origin }));
    }

    /// Handles a successful restart. The session is already saved, and would be found running if this write were lost.
    /// A restart is no activity.
    pub(super) fn restarted(&mut self, mut sandbox: Sandbox, attempt: u32, now: Timestamp) {
        self.enter(&mut sandbox, Status::Running, Reason::Ready, None);
        self.save_later(&sandbox);
        self.run(Running { restarts: attempt, ..Running::new(sandbox, now) });
    }

    pub(super) fn restart_failed(&mut self, mut sandbox: Sandbox, attempt: u32, failure: &StartFailure) {
        let reason = match failure {
            StartFailure::Died(death) => death.reason(),
            StartFailure::Engine(EngineError::NoSuchContainer { .. }) => Reason::Vanished,
            _ => Reason::Restarting,
        };
        self.enter(&mut sandbox, Status::Failed, reason, Some(failure.to_string()));
        self.save_later(&sandbox);
        self.fail(sandbox, attempt);
    }
}
