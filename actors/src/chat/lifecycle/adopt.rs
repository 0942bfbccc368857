//! The way back: finding out what engine and journal hold for a chat, and going on with it.

use super::Lifecycle;
use crate::chat::events::{Effect, Request};
use crate::chat::leases::Leases;
use crate::chat::phase::{Phase, Running};
use crate::domain::outcome::SandboxError;
use crate::domain::profile::ReadinessCheck;
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::ports::clock::Timestamp;
use crate::ports::engine::EngineError;

impl Lifecycle {
    pub(super) fn wait_for_look(&mut self, request: Request) {
        let Phase::Unknown(unknown) = &mut self.phase else { unreachable!("only the unknown is looked for") };
        unknown.waiting.push(request);
        self.look();
    }

    /// Asks the engine what it holds, unless it is being asked.
    pub(super) fn look(&mut self) {
        if let Phase::Unknown(unknown) = &mut self.phase
            && !std::mem::replace(&mut unknown.looking, true)
        {
            self.effects.push(Effect::Look);
        }
    }

    pub(super) fn looked(&mut self, result: Result<Option<Box<Sandbox>>, EngineError>, now: Timestamp) {
        let Phase::Unknown(unknown) = &mut self.phase else { return };
        unknown.looking = false;
        let waiting = std::mem::take(&mut unknown.waiting);
        match result {
            Err(error) => {
                unknown.attempt = unknown.attempt.saturating_add(1);
                let attempt = unknown.attempt;
                self.retry_after(attempt);
                for request in waiting {
                    self.refuse(request, &SandboxError::Unknown { chat: self.chat, error: error.clone() });
                }
            }
            Ok(None) => {
                self.phase = Phase::Absent;
                self.replay(waiting, now);
            }
            Ok(Some(sandbox)) => {
                self.take_over(*sandbox, now);
                self.replay(waiting, now);
            }
        }
    }

    /// Goes on with a sandbox that was found while serving.
    pub(super) fn take_over(&mut self, sandbox: Sandbox, now: Timestamp) {
        self.publish(&sandbox, None);
        // Its container was seen, and its own service was not: the first create probes that.
        let seen_at = if self.is_probed(&sandbox) { Timestamp::MIN_UTC } else { now };
        self.resume(sandbox, seen_at);
    }

    /// Whether a look at the container alone does not tell that the sandbox is well.
    pub(super) fn is_probed(&self, sandbox: &Sandbox) -> bool {
        let profile = self.rules.profiles.get(&sandbox.profile);
        profile.is_some_and(|profile| profile.readiness.check != ReadinessCheck::None)
    }

    /// Goes on with a sandbox that engine and journal know of, and that was seen then. Its status says how.
    pub(super) fn resume(&mut self, mut sandbox: Sandbox, seen_at: Timestamp) {
        self.generation = self.generation.next();
        self.leases = Leases::inherited(std::mem::take(&mut sandbox.durable_leases), sandbox.held_until);
        self.leases.show_on(&mut sandbox, self.rules.max_lease);
        if sandbox.status != Status::Running || sandbox.reason == Reason::Adopted {
            // It may have had another status when it was last written down, or be another than the one that was.
            self.note(&sandbox);
        }
        match sandbox.status {
            // Its deadlines may have passed meanwhile; the reaper finds that at once.
            Status::Running | Status::Paused => self.run(Running::new(sandbox, seen_at)),
            Status::Failed => self.fail(sandbox, 0),
            Status::Stopped => {
                self.phase = Phase::Stopped(Box::new(sandbox));
                self.rearm();
            }
            Status::Deleting => self.start_removal(sandbox, false, true),
            // Nobody was told of it.
            Status::Creating => {
                self.enter(&mut sandbox, Status::Deleting, Reason::Incomplete, None);
                self.start_removal(sandbox, false, true);
            }
        }
    }

    /// Resumes outside of any event, for a chat that starts with what a listing showed.
    pub fn resuming(mut self, sandbox: Sandbox) -> (Self, Vec<Effect>) {
        if sandbox.status == Status::Running {
            // It ran before the service did: nothing has happened to it.
            self.effects.push(Effect::Count(sandbox.status));
        } else {
            self.publish(&sandbox, None);
        }
        // A listing is a moment old: the first create looks again.
        self.resume(sandbox, Timestamp::MIN_UTC);
        let effects = std::mem::take(&mut self.effects);
        (self, effects)
    }

    /// Looks outside of any event, for a chat that starts with nothing known.
    pub fn looking(mut self) -> (Self, Vec<Effect>) {
        self.look();
        let effects = std::mem::take(&mut self.effects);
        (self, effects)
    }
}
