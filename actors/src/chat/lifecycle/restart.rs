//! A sandbox that ended by itself and is started again, under the same session and less and less eagerly.

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

/// One that ran this long did not end because of how it was started.
const STEADY: TimeDelta = TimeDelta::seconds(60);

impl Running {
    /// Restarts in a row, this run included.
    pub(super) fn restarts_so_far(&self, now: Timestamp) -> u32 {
        let steady = self.sandbox.started_at.is_some_and(|started| now - started >= STEADY);
        if steady { 0 } else { self.restarts }
    }
}

impl Lifecycle {
    /// Keeps what failed, so that somebody can ask why, and plans its restart where its profile wants one.
    pub(super) fn fail(&mut self, sandbox: Sandbox, restarts: u32) {
        let profile = self.rules.profiles.get(&sandbox.profile);
        let restart = profile.map(|profile| profile.restart).unwrap_or_default();
        // A container that is gone cannot be started.
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

    /// It runs again. Nothing new is promised: its session is on disk, and is found running should this not get there.
    /// Nobody has used it by that, either.
    pub(super) fn restarted(&mut self, mut sandbox: Sandbox, attempt: u32, now: Timestamp) {
        self.enter(&mut sandbox, Status::Running, Reason::Ready, None);
        self.note(&sandbox);
        self.run(Running { restarts: attempt, ..Running::new(sandbox, now) });
    }

    pub(super) fn restart_failed(&mut self, mut sandbox: Sandbox, attempt: u32, failure: &StartFailure) {
        let reason = match failure {
            StartFailure::Died(death) => death.reason(),
            StartFailure::Engine(EngineError::NoSuchContainer { .. }) => Reason::Vanished,
            _ => Reason::Restarting,
        };
        self.enter(&mut sandbox, Status::Failed, reason, Some(failure.to_string()));
        self.note(&sandbox);
        self.fail(sandbox, attempt);
    }
}
