//! Pauses and resumes a sandbox. A paused sandbox keeps its session, files and processes, and resumes on use.
//!
//! The engine stores the paused state, so its change is effective at once. Callers are answered only after the journal
//! commit.

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

/// The delay before a failed pause of an idle sandbox is retried.
const PAUSE_RETRY_DELAY: TimeDelta = TimeDelta::seconds(5);

impl Running {
    pub(super) fn next_deadline(&self) -> Timestamp {
        match self.sandbox.end() {
            // The answer of the engine sets the next deadline.
            (_, Reason::Idle) if self.switching.is_some() => self.sandbox.absolute_end(),
            (at, Reason::Idle) => {
                self.retry_pause_at.map_or(at, |again| again.max(at)).min(self.sandbox.absolute_end())
            }
            (at, _) => at,
        }
    }

    /// Returns whether the sandbox is idle and no pause is under way or delayed.
    pub(super) fn needs_pause(&self, now: Timestamp) -> bool {
        self.sandbox.expiry(now) == Some(Reason::Idle)
            && self.switching.is_none()
            && self.retry_pause_at.is_none_or(|at| now >= at)
    }
}

impl Lifecycle {
    pub(super) fn pause(&mut self, waiter: WaiterId) {
        let Some((running, _)) = self.running(waiter) else { return };
        let (request, awake) = (Request::Pause { waiter }, running.is_awake());
        match &mut running.switching {
            Some(switching) => switching.waiting.push(request),
            None if awake => self.switch(Switch::Pause, Reason::Requested, vec![request]),
            None => self.answer_sandbox(waiter),
        }
    }

    /// Resumes the sandbox and then handles the request.
    pub(super) fn wake(&mut self, request: Request) {
        let Phase::Running(running) = &mut self.phase else { unreachable!("only a running sandbox is resumed") };
        match &mut running.switching {
            Some(switching) => switching.waiting.push(request),
            None => self.switch(Switch::Resume, Reason::Resumed, vec![request]),
        }
    }

    pub(super) fn switch(&mut self, switch: Switch, reason: Reason, waiting: Vec<Request>) {
        let generation = self.generation;
        let Phase::Running(running) = &mut self.phase else {
            unreachable!("only a running sandbox is paused or resumed")
        };
        let container = running.sandbox.container.clone().expect("a running sandbox has a container");
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
        // The check under way may be older than this change.
        self.engine_event |= running.checking;
        if let Err(error) = result {
            running.retry_pause_at = (switch == Switch::Pause).then_some(now + PAUSE_RETRY_DELAY);
            let chat = self.chat;
            let error = match switch {
                Switch::Pause => SandboxError::NotPaused { chat, error },
                Switch::Resume => SandboxError::NotResumed { chat, error },
            };
            self.end_switch(Some(&error), now);
            // The container may have ended or vanished.
            return self.check();
        }
        self.apply_switch(switch, reason, now);
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

    /// Handles the result of the journal write. A failure does not undo the change at the engine.
    pub(super) fn switch_saved(&mut self, result: Result<(), NotSaved>, now: Timestamp) {
        let error = result.err().map(|error| SandboxError::NotSaved { chat: self.chat, error });
        if error.is_some()
            && let Some(sandbox) = self.sandbox().cloned()
        {
            self.save_later(&sandbox);
        }
        self.end_switch(error.as_ref(), now);
    }

    /// Applies a pause or resume by others that a check observed, unless the check is older than our own change. A
    /// container that the engine freezes for a commit is not paused.
    pub(super) fn apply_observed_switch(&mut self, liveness: &Liveness, now: Timestamp) {
        let Phase::Running(running) = &self.phase else { return };
        if self.engine_event || self.is_committing() || running.switching.is_some() || running.stopping.is_some() {
            return;
        }
        let switch = match (liveness, running.is_awake()) {
            (Liveness::Paused, true) => Switch::Pause,
            (Liveness::Alive, false) => Switch::Resume,
            _ => return,
        };
        self.apply_switch(switch, Reason::ByOthers, now);
        if let Some(sandbox) = self.sandbox().cloned() {
            self.save_later(&sandbox);
        }
        self.rearm();
    }

    fn apply_switch(&mut self, switch: Switch, reason: Reason, now: Timestamp) {
        let is_probed = self.sandbox().is_some_and(|sandbox| self.is_probed(sandbox));
        let Phase::Running(running) = &mut self.phase else { return };
        if switch == Switch::Pause || !is_probed {
            running.verified_at = now;
        }
        running.retry_pause_at = None;
        if switch == Switch::Resume {
            // The idle time starts again. Otherwise the sandbox would expire at once.
            running.mark_active(now);
            running.saved_activity = running.sandbox.last_activity_at;
        }
        let mut sandbox = running.sandbox.clone();
        self.enter(&mut sandbox, switch.status(), reason, None);
        if let Phase::Running(running) = &mut self.phase {
            running.sandbox = sandbox;
        }
    }

    /// Ends a pause or resume. After a failure the requests that asked for it are refused; the others are handled
    /// again.
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
