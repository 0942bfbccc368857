//! Discovers the sandbox of a chat in engine and journal, and adopts it.

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
    pub(super) fn wait_for_discovery(&mut self, request: Request) {
        let Phase::Unknown(unknown) = &mut self.phase else { unreachable!("only an unknown chat is discovered") };
        unknown.waiting.push(request);
        self.discover();
    }

    /// Asks for the chat's container, unless a discovery is under way.
    pub(super) fn discover(&mut self) {
        if let Phase::Unknown(unknown) = &mut self.phase
            && !std::mem::replace(&mut unknown.discovering, true)
        {
            self.effects.push(Effect::Discover);
        }
    }

    pub(super) fn discovered(&mut self, result: Result<Option<Box<Sandbox>>, EngineError>, now: Timestamp) {
        let Phase::Unknown(unknown) = &mut self.phase else { return };
        unknown.discovering = false;
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
                self.adopt(*sandbox, now);
                self.replay(waiting, now);
            }
        }
    }

    /// Adopts a sandbox that was found while serving.
    pub(super) fn adopt(&mut self, sandbox: Sandbox, now: Timestamp) {
        self.publish(&sandbox, None);
        // The container was seen, but its service was not probed. The first create probes it.
        let seen_at = if self.is_probed(&sandbox) { Timestamp::MIN_UTC } else { now };
        self.resume(sandbox, seen_at);
    }

    /// Returns whether a check of this sandbox probes its service in addition to its container.
    pub(super) fn is_probed(&self, sandbox: &Sandbox) -> bool {
        let profile = self.rules.profiles.get(&sandbox.profile);
        profile.is_some_and(|profile| profile.readiness.check != ReadinessCheck::None)
    }

    /// Continues with a sandbox that engine and journal know and that was seen at `seen_at`. Its status decides how.
    pub(super) fn resume(&mut self, mut sandbox: Sandbox, seen_at: Timestamp) {
        self.generation = self.generation.next();
        self.leases = Leases::from_record(std::mem::take(&mut sandbox.durable_leases), sandbox.held_until);
        self.leases.apply_to(&mut sandbox, self.rules.max_lease);
        if sandbox.status != Status::Running || sandbox.reason == Reason::Adopted {
            // The record may have another status, or describe another sandbox.
            self.save_later(&sandbox);
        }
        match sandbox.status {
            // The deadlines may have passed. The reaper reports that at once.
            Status::Running | Status::Paused => self.run(Running::new(sandbox, seen_at)),
            Status::Failed => self.fail(sandbox, 0),
            Status::Stopped => {
                self.phase = Phase::Stopped(Box::new(sandbox));
                self.rearm();
            }
            Status::Deleting => self.start_removal(sandbox, false, true),
            // The create was never acknowledged.
            Status::Creating => {
                self.enter(&mut sandbox, Status::Deleting, Reason::Incomplete, None);
                self.start_removal(sandbox, false, true);
            }
        }
    }

    /// Resumes outside of an event, for a chat that starts with a listed container.
    pub fn resuming(mut self, sandbox: Sandbox) -> (Self, Vec<Effect>) {
        if sandbox.status == Status::Running {
            // The sandbox ran before this service started, so its state did not change.
            self.effects.push(Effect::Count(sandbox.status));
        } else {
            self.publish(&sandbox, None);
        }
        // A listing is slightly outdated, so the first create checks again.
        self.resume(sandbox, Timestamp::MIN_UTC);
        let effects = std::mem::take(&mut self.effects);
        (self, effects)
    }

    /// Discovers outside of an event, for a chat that starts in the unknown phase.
    pub fn discovering(mut self) -> (Self, Vec<Effect>) {
        self.discover();
        let effects = std::mem::take(&mut self.effects);
        (self, effects)
    }
}
