//! Checks whether a sandbox still runs. Hints only trigger a check; the check decides.

use super::Lifecycle;
use crate::chat::effects::discover::{LiveContainer, Liveness};
use crate::chat::events::Effect;
use crate::chat::phase::{Phase, Running};
use crate::domain::ids::{ContainerId, Generation};
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::ports::clock::Timestamp;

impl Lifecycle {
    /// Enters the running phase.
    pub(super) fn run(&mut self, running: Running) {
        self.effects.push(Effect::Arm { at: running.next_deadline() });
        self.phase = Phase::Running(Box::new(running));
        self.check_again();
    }

    /// Checks the running sandbox, unless a check is under way.
    pub(super) fn check(&mut self) {
        if let Phase::Running(running) = &mut self.phase
            && let Some(container) = running.sandbox.container.clone()
            && !std::mem::replace(&mut running.checking, true)
        {
            self.engine_event = false;
            self.effects.push(Effect::Check { generation: self.generation, container });
        }
    }

    /// Handles an engine event. A check finds out its meaning.
    pub(super) fn engine_event(&mut self, container: &ContainerId) {
        self.engine_event = match &self.phase {
            // The container of this phase is not known yet.
            Phase::Unknown(_) | Phase::Creating(_) => true,
            Phase::Running(running) => self.engine_event || running.sandbox.container.as_ref() == Some(container),
            Phase::Absent | Phase::Stopped(_) | Phase::Failed(_) | Phase::Deleting(_) => false,
        };
        self.check_again();
    }

    /// Checks if an engine event arrived that the last check may have missed.
    fn check_again(&mut self) {
        if self.engine_event {
            self.check();
        }
    }

    /// Compares the sandbox with a listing. A listing is older than the state here, so a difference only triggers a
    /// check.
    pub(super) fn listed(&mut self, seen: Option<&LiveContainer>) {
        let differs = |sandbox: &Sandbox| {
            sandbox.container.as_ref() != seen.map(|seen| &seen.container)
                || seen.is_some_and(|seen| seen.paused != (sandbox.status == Status::Paused))
        };
        if self.sandbox().is_some_and(differs) {
            self.check();
        }
    }

    pub(super) fn checked(&mut self, generation: Generation, liveness: Liveness, now: Timestamp) {
        if generation != self.generation {
            return;
        }
        let Phase::Running(running) = &mut self.phase else { return };
        running.checking = false;
        let mut waiting = std::mem::take(&mut running.verifying);
        let (reason, message) = match liveness {
            // Unknown is not gone: the sandbox is handed out in its last seen state.
            Liveness::Alive | Liveness::Paused | Liveness::Unknown(_) => {
                running.verified_at = now;
                self.apply_observed_switch(&liveness, now);
                self.replay(waiting, now);
                return self.check_again();
            }
            // Without a waiting create the sandbox is left alone: its service may be busy, and the next create checks
            // again.
            Liveness::Unhealthy(_) if waiting.is_empty() || running.stopping.is_some() => {
                self.apply_observed_switch(&Liveness::Alive, now);
                self.replay(waiting, now);
                return self.check_again();
            }
            Liveness::Unhealthy(why) => (Reason::Unhealthy, Some(why)),
            Liveness::Ended(death) => match running.stopping {
                None => (death.reason(), Some(death.to_string())),
                // The stop under way ended it, and its answer follows.
                Some(stopping) if stopping.is_under_way() => return self.replay(waiting, now),
                Some(_) => {
                    self.finish_stop();
                    return self.replay(waiting, now);
                }
            },
            Liveness::Vanished => {
                let message = "its container was removed past the service: the engine says that it was destroyed";
                (Reason::Vanished, Some(message.to_owned()))
            }
        };
        waiting.extend(running.take_waiting());
        let restarts = running.restarts_so_far(now);
        let mut sandbox = running.sandbox.clone();
        self.abandon_changes(Status::Failed);
        self.enter(&mut sandbox, Status::Failed, reason, message);
        self.save_later(&sandbox);
        self.fail(sandbox, restarts);
        self.replay(waiting, now);
    }
}
