//! The way back: finding out what the engine holds for a chat, and taking it over.

use super::Lifecycle;
use crate::chat::discovery::{Condition, Found};
use crate::chat::events::{Effect, Request};
use crate::chat::phase::{Phase, Running};
use crate::clock::Timestamp;
use crate::engine::EngineError;
use crate::outcome::SandboxError;

impl Lifecycle {
    /// Looks outside of any event, for a chat that starts with nothing known.
    pub fn looking(mut self) -> (Self, Vec<Effect>) {
        self.look();
        let effects = std::mem::take(&mut self.effects);
        (self, effects)
    }

    /// Adopts outside of any event, for a chat that starts with what a listing found.
    pub fn adopting(mut self, found: &Found, now: Timestamp) -> (Self, Vec<Effect>) {
        self.adopt(found, now);
        if let Phase::Running(running) = &mut self.phase {
            // A listing is a moment old: the first create looks again.
            running.verified_at = Timestamp::MIN_UTC;
        }
        let effects = std::mem::take(&mut self.effects);
        (self, effects)
    }

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

    pub(super) fn looked(&mut self, result: Result<Option<Box<Found>>, EngineError>, now: Timestamp) {
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
            Ok(Some(found)) => {
                self.adopt(&found, now);
                self.replay(waiting, now);
            }
        }
    }

    /// Takes a container that was found for the chat's sandbox.
    pub(super) fn adopt(&mut self, found: &Found, now: Timestamp) {
        self.generation = self.generation.next();
        let sandbox = found.sandbox(now);
        self.publish(&sandbox, None);
        let expiry = sandbox.expiry(now);
        self.phase = match found.condition() {
            Condition::Alive => Phase::Running(Box::new(Running::new(sandbox, now))),
            Condition::Ended | Condition::Unhealthy => Phase::Failed(Box::new(sandbox)),
            Condition::Incomplete => return self.start_removal(sandbox, false),
        };
        if let Some(reason) = expiry {
            self.remove(reason, true);
        }
    }
}
