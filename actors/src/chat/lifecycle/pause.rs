//! Standing still: what is paused keeps its session, its files and its processes, and goes on when it is used.
//!
//! The engine knows what is paused, so what it has done counts from then on. Whoever waits for it is told once it is on
//! disk.

use chrono::TimeDelta;

use super::Lifecycle;
use crate::chat::effects::discover::Liveness;
use crate::chat::events::{Effect, Request, Ticket, WaiterId};
use crate::chat::phase::{Phase, Running, Switch, Switching};
use crate::domain::ids::Generation;
use crate::domain::outcome::{NotSaved, SandboxError};
use crate::domain::sandbox::Reason;
use crate::ports::clock::Timestamp;
use crate::ports::engine::EngineError;

/// When it is tried again to pause what nobody uses.
const PAUSE_AGAIN: TimeDelta = TimeDelta::seconds(5);

impl Running {
    pub(super) fn next_deadline(&self) -> Timestamp {
        match self.sandbox.end() {
            // Once the engine has answered, there is another.
            (_, Reason::Idle) if self.switching.is_some() => self.sandbox.absolute_end(),
            (at, Reason::Idle) => {
                self.pause_again_at.map_or(at, |again| again.max(at)).min(self.sandbox.absolute_end())
            }
            (at, _) => at,
        }
    }

    /// Nobody uses it, and nothing is being done about that.
    pub(super) fn is_to_be_paused(&self, now: Timestamp) -> bool {
        self.sandbox.expiry(now) == Some(Reason::Idle)
            && self.switching.is_none()
            && self.pause_again_at.is_none_or(|at| now >= at)
    }
}

impl Lifecycle {
    pub(super) fn pause(&mut self, waiter: WaiterId) {
        let Some((running, _)) = self.running(waiter) else { return };
        let (request, awake) = (Request::Pause { waiter }, running.is_awake());
        match &mut running.switching {
            Some(switching) => switching.waiting.push(request),
            None if awake => self.switch(Switch::Pause, Reason::Requested, vec![request]),
            None => self.answer_kept(waiter),
        }
    }

    /// Goes on with this request once the sandbox does.
    pub(super) fn wake(&mut self, request: Request) {
        let Phase::Running(running) = &mut self.phase else { unreachable!("only what runs was paused") };
        match &mut running.switching {
            Some(switching) => switching.waiting.push(request),
            None => self.switch(Switch::Resume, Reason::Resumed, vec![request]),
        }
    }

    pub(super) fn switch(&mut self, switch: Switch, reason: Reason, waiting: Vec<Request>) {
        let generation = self.generation;
        let Phase::Running(running) = &mut self.phase else { unreachable!("only what runs can be paused") };
        let container = running.sandbox.container.clone().expect("what runs has a container");
        running.switching = Some(Switching { switch, reason, saving: None, waiting });
        self.effects.push(match switch {
            Switch::Pause => Effect::Pause { generation, container },
            Switch::Resume => Effect::Unpause { generation, container },
        });
        self.rearm();
    }

    pub(super) fn switched(&mut self, generation: Generation, result: Result<(), EngineError>, now: Timestamp) {
        if generation != self.generation {
            return;
        }
        let Phase::Running(running) = &mut self.phase else { return };
        let Some(Switching { switch, reason, saving: None, .. }) = running.switching else { return };
        // A look that is under way may be older.
        self.engine_event |= running.checking;
        if let Err(error) = result {
            running.pause_again_at = (switch == Switch::Pause).then_some(now + PAUSE_AGAIN);
            let chat = self.chat;
            let error = match switch {
                Switch::Pause => SandboxError::NotPaused { chat, error },
                Switch::Resume => SandboxError::NotResumed { chat, error },
            };
            self.end_switch(Some(&error), now);
            // It may have ended, or be gone.
            return self.check();
        }
        self.be_switched(switch, reason, now);
        let ticket = self.ticket();
        let Phase::Running(running) = &mut self.phase else { return };
        if let Some(switching) = &mut running.switching {
            switching.saving = Some(ticket);
        }
        let sandbox = running.sandbox.clone();
        self.save(ticket, sandbox);
    }

    pub(super) fn is_switch(&self, ticket: Ticket) -> bool {
        let Phase::Running(running) = &self.phase else { return false };
        running.switching.as_ref().is_some_and(|switching| switching.saving == Some(ticket))
    }

    /// It is on disk, or will not be. That does not change what the engine has done.
    pub(super) fn switch_saved(&mut self, result: Result<(), NotSaved>, now: Timestamp) {
        let error = result.err().map(|error| SandboxError::NotSaved { chat: self.chat, error });
        if error.is_some()
            && let Some(sandbox) = self.sandbox().cloned()
        {
            self.note(&sandbox);
        }
        self.end_switch(error.as_ref(), now);
    }

    /// What somebody else did is seen by a look, unless that is older than what was done here. What stands still for a
    /// commit is not paused.
    pub(super) fn note_switch(&mut self, liveness: &Liveness, now: Timestamp) {
        let Phase::Running(running) = &self.phase else { return };
        if self.engine_event || self.is_committing() || running.switching.is_some() || running.stopping.is_some() {
            return;
        }
        let switch = match (liveness, running.is_awake()) {
            (Liveness::Paused, true) => Switch::Pause,
            (Liveness::Alive, false) => Switch::Resume,
            _ => return,
        };
        self.be_switched(switch, Reason::ByOthers, now);
        if let Some(sandbox) = self.sandbox().cloned() {
            self.note(&sandbox);
        }
        self.rearm();
    }

    fn be_switched(&mut self, switch: Switch, reason: Reason, now: Timestamp) {
        let is_probed = self.sandbox().is_some_and(|sandbox| self.is_probed(sandbox));
        let Phase::Running(running) = &mut self.phase else { return };
        if switch == Switch::Pause || !is_probed {
            running.verified_at = now;
        }
        running.pause_again_at = None;
        if switch == Switch::Resume {
            // Its idle time begins anew, or it would be over at once.
            running.use_at(now);
            running.noted_activity = running.sandbox.last_activity_at;
        }
        let mut sandbox = running.sandbox.clone();
        self.enter(&mut sandbox, switch.status(), reason, None);
        if let Phase::Running(running) = &mut self.phase {
            running.sandbox = sandbox;
        }
    }

    /// Refuses those who wanted it, should it have failed; all others find what there is now.
    fn end_switch(&mut self, error: Option<&SandboxError>, now: Timestamp) {
        let Phase::Running(running) = &mut self.phase else { return };
        let Some(Switching { switch, waiting, .. }) = running.switching.take() else { return };
        self.rearm();
        for request in waiting {
            match error {
                Some(error) if switch.is_wanted_by(&request) => self.refuse(request, error),
                _ => self.request(request, now),
            }
        }
    }
}
