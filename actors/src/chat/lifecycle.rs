//! The life of a chat's sandbox, as a pure state machine: an event goes in, effects come out, nothing else happens.
//!
//! ```text
//!             found alive                  ready
//!  Unknown ─────────────────▶ Running ◀──────────────── Creating ◀─┐
//!   │ │ │                      │ │                       │         │
//!   │ │ │ found ended or ill   │ │ seen dead             │         │
//!   │ │ └──────────────────────┼─┴───────▶ Failed        │         │
//!   │ │                        │             │           │         │
//!   │ │ found half made        │ expired,    │ create,   │ failed, │
//!   │ └────────────────────┐   │ delete      │ delete    │ delete  │
//!   │                      ▼   ▼             ▼           ▼         │
//!   │                     ┌─────────────────────────────────┐      │
//!   │                     │            Deleting             ├──────┤ removed, and a create waits
//!   │ found nothing       └─────────────────────────────────┘      │
//!   ▼                       │ removed                              │
//!  Absent ◀─────────────────┘                                      │
//!   └── create ────────────────────────────────────────────────────┘
//! ```
//!
//! - One container at a time. A launch starts only in `Absent`, or when a removal has ended; a removal starts only when
//!   no launch is under way: one that is gets cancelled and answers first. One that left nothing behind needs none.
//! - Every effect that takes time is answered by exactly one event of the same generation. An answer of an older
//!   generation is never applied; a container that it brings is discarded.
//! - Every waiter is answered exactly once.
//! - "Unknown" is never "gone": while the engine does not answer, nothing is forgotten, and it is asked again.
//! - A removal that failed is owed: it is tried again until it succeeds, also when nobody waits for it any more.

mod adoption;
mod removal;

use std::time::Duration;

use super::admission::{self, Admission, CreateWork, DeleteWork};
use super::discovery::Liveness;
use super::events::{Effect, Event, LaunchFailure, Launched, Remains, Reply, Request, Transition, WaiterId};
use super::phase::{Creating, Phase, RemovalStep, Running, Unknown};
use crate::clock::Timestamp;
use crate::ids::{ChatId, ContainerName, Generation, SessionId};
use crate::outcome::{Created, Deletion, Launch, Outcome, SandboxError, StartFailure};
use crate::request::CreateRequest;
use crate::sandbox::{Reason, Sandbox, Status};

#[derive(Debug)]
pub struct Lifecycle {
    chat: ChatId,
    name: ContainerName,
    generation: Generation,
    phase: Phase,
    /// Creations that were given up and are still followed.
    stragglers: usize,
    trust: Duration,
    effects: Vec<Effect>,
}

impl Lifecycle {
    /// A chat that certainly has no container.
    pub fn absent(chat: ChatId, name: ContainerName, trust: Duration) -> Self {
        Self::starting_in(Phase::Absent, chat, name, trust)
    }

    /// A chat of which nothing is known.
    pub fn unknown(chat: ChatId, name: ContainerName, trust: Duration) -> Self {
        Self::starting_in(Phase::Unknown(Unknown::default()), chat, name, trust)
    }

    fn starting_in(phase: Phase, chat: ChatId, name: ContainerName, trust: Duration) -> Self {
        Self { chat, name, generation: Generation::default(), phase, stragglers: 0, trust, effects: Vec::new() }
    }

    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    pub fn sandbox(&self) -> Option<&Sandbox> {
        match &self.phase {
            Phase::Unknown(_) | Phase::Absent => None,
            Phase::Creating(creating) => Some(&creating.sandbox),
            Phase::Running(running) => Some(&running.sandbox),
            Phase::Failed(sandbox) => Some(sandbox),
            // A successor is what the chat has from now on; its predecessor is only on its way out.
            Phase::Deleting(deleting) => Some(deleting.successor.as_ref().map_or(&deleting.sandbox, |s| &s.sandbox)),
        }
    }

    /// Nothing to own and nothing to wait for.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Absent) && self.stragglers == 0
    }

    /// No effect is under way but a timed retry.
    pub fn is_settled(&self) -> bool {
        self.stragglers == 0
            && match &self.phase {
                Phase::Unknown(unknown) => !unknown.looking,
                Phase::Absent | Phase::Failed(_) => true,
                Phase::Running(running) => running.verifying.is_empty(),
                Phase::Creating(_) => false,
                Phase::Deleting(deleting) => deleting.step == RemovalStep::Owed,
            }
    }

    pub fn handle(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        match event {
            Event::Request(request) => self.request(request, now),
            Event::Looked(result) => self.looked(result, now),
            Event::Launched { generation, result } => self.launched(generation, result, now),
            Event::StragglerEnded => self.stragglers = self.stragglers.saturating_sub(1),
            Event::Checked { generation, liveness } => self.checked(generation, liveness, now),
            Event::TornDown { generation, result } => self.torn_down(generation, result, now),
            Event::RetryDue { generation, attempt } => self.retry_due(generation, attempt),
        }
        std::mem::take(&mut self.effects)
    }

    fn request(&mut self, request: Request, now: Timestamp) {
        match request {
            Request::Get { waiter } => self.get(waiter),
            Request::Create { waiter, request, session } => self.create(waiter, request, session, now),
            Request::Delete { waiter } => self.delete(waiter, now),
        }
    }

    fn get(&mut self, waiter: WaiterId) {
        if let Phase::Unknown(_) = self.phase {
            self.wait_for_look(Request::Get { waiter });
        } else {
            let sandbox = self.sandbox().cloned();
            self.answer(waiter, Reply::Get(Ok(sandbox)));
        }
    }

    fn create(&mut self, waiter: WaiterId, request: Box<CreateRequest>, session: SessionId, now: Timestamp) {
        let work = match admission::create(&self.phase, &request, now, self.trust) {
            Admission::Refused(refusal) => {
                let (session, fields) = (refusal.session, refusal.fields);
                let error = SandboxError::Conflict { chat: self.chat, session, fields };
                return self.answer(waiter, Reply::Create(Err(error)));
            }
            Admission::AlreadySo => return self.answer_reused(waiter, now),
            Admission::Do(work) => work,
        };
        match (work, &mut self.phase) {
            (CreateWork::Look, _) => self.wait_for_look(Request::Create { waiter, request, session }),
            (CreateWork::Launch, _) => {
                let sandbox = self.planned(&request, session, now);
                self.launch(sandbox, request, Outcome::Created, vec![waiter], now);
            }
            (CreateWork::JoinLaunch, Phase::Creating(creating)) => creating.waiters.push(waiter),
            (CreateWork::Replace(reason), phase) => {
                let waiting = phase.take_verifying();
                self.remove(reason, true);
                // Creates that waited for a look came first. Together with this one, they get what comes next.
                self.replay(waiting, now);
                self.create(waiter, request, session, now);
            }
            (CreateWork::Verify, Phase::Running(running)) => {
                let first = running.verifying.is_empty();
                running.verifying.push(Request::Create { waiter, request, session });
                if let (true, Some(container)) = (first, running.sandbox.container.clone()) {
                    self.effects.push(Effect::Check { generation: self.generation, container });
                }
            }
            (CreateWork::Succeed, _) => self.succeed(waiter, request, session, now),
            (CreateWork::JoinSuccessor, Phase::Deleting(deleting)) => {
                let successor = deleting.successor.as_mut().expect("admission saw a successor");
                successor.waiters.push(waiter);
                self.hurry_removal();
            }
            (work, phase) => unreachable!("admission asked for {work:?} in {phase:?}"),
        }
    }

    fn delete(&mut self, waiter: WaiterId, now: Timestamp) {
        let Admission::Do(work) = admission::delete(&self.phase) else {
            return self.answer(waiter, Reply::Delete(Ok(Deletion::NotFound)));
        };
        match work {
            DeleteWork::Look => return self.wait_for_look(Request::Delete { waiter }),
            DeleteWork::Cancel => self.cancel_launch(),
            DeleteWork::Remove => {
                // Creates that came first saw the sandbox before this request did.
                for request in self.phase.take_verifying() {
                    self.answer_reused(request.waiter(), now);
                }
                self.remove(Reason::Requested, true);
            }
            DeleteWork::JoinRemoval => {
                self.fail_successor(StartFailure::Deleted);
                self.hurry_removal();
            }
        }
        if let Phase::Deleting(deleting) = &mut self.phase {
            deleting.deleters.push(waiter);
        }
    }

    fn launch(
        &mut self,
        sandbox: Sandbox,
        request: Box<CreateRequest>,
        outcome: Outcome,
        waiters: Vec<WaiterId>,
        now: Timestamp,
    ) {
        self.generation = self.generation.next();
        self.publish(&sandbox, None);
        self.effects.push(Effect::Launch {
            generation: self.generation,
            session: sandbox.session,
            request: request.clone(),
            created_at: now,
        });
        self.phase = Phase::Creating(Box::new(Creating { sandbox, request, outcome, waiters }));
    }

    fn launched(&mut self, generation: Generation, result: Result<Launched, LaunchFailure>, now: Timestamp) {
        if let Err(LaunchFailure { remains: Remains::Straggler, .. }) = &result {
            self.stragglers += 1;
        }
        if generation != self.generation {
            if let Ok(Launched::Started { container, .. })
            | Err(LaunchFailure { remains: Remains::Container(container), .. }) = result
            {
                self.effects.push(Effect::Discard { container });
            }
            return;
        }
        match std::mem::replace(&mut self.phase, Phase::Absent) {
            Phase::Creating(creating) => self.launch_ended(*creating, result, now),
            Phase::Deleting(deleting) if deleting.step == RemovalStep::Cancelling => {
                self.cancellation_ended(*deleting, result, now);
            }
            other => self.phase = other,
        }
    }

    fn launch_ended(&mut self, creating: Creating, result: Result<Launched, LaunchFailure>, now: Timestamp) {
        let Creating { mut sandbox, request, outcome, waiters } = creating;
        match result {
            Ok(Launched::Started { container, endpoint, started_at }) => {
                sandbox.container = Some(container);
                sandbox.endpoint = endpoint;
                sandbox.started_at = Some(started_at);
                sandbox.last_activity_at = now;
                self.enter(&mut sandbox, Status::Running, Reason::Ready, None);
                for waiter in waiters {
                    let created = Created { sandbox: sandbox.clone(), outcome, launch: Launch::Cold };
                    self.answer(waiter, Reply::Create(Ok(created)));
                }
                self.phase = Phase::Running(Box::new(Running::new(sandbox, now)));
            }
            Ok(Launched::Found(found)) => {
                let session = sandbox.session;
                self.give_way(sandbox);
                self.adopt(&found, now);
                for waiter in waiters {
                    self.create(waiter, request.clone(), session, now);
                }
            }
            Err(LaunchFailure { failure, remains: Remains::Nothing }) => {
                sandbox.reason = Reason::RolledBack;
                sandbox.message = Some(failure.to_string());
                self.publish_end(sandbox);
                self.answer_failed(waiters, &failure);
            }
            Err(LaunchFailure { failure, remains }) => {
                if let Remains::Container(container) = remains {
                    sandbox.container = Some(container);
                }
                self.enter(&mut sandbox, Status::Deleting, Reason::RolledBack, Some(failure.to_string()));
                self.start_removal(sandbox, false);
                self.deleting().failed = Some((failure, waiters));
            }
        }
    }

    fn checked(&mut self, generation: Generation, liveness: Liveness, now: Timestamp) {
        if generation != self.generation {
            return;
        }
        let Phase::Running(running) = &mut self.phase else { return };
        let waiting = std::mem::take(&mut running.verifying);
        let (reason, message) = match liveness {
            // Unknown is not gone: the sandbox is handed out as what it was when it was last seen.
            Liveness::Alive | Liveness::Unknown(_) => {
                running.verified_at = now;
                return self.replay(waiting, now);
            }
            Liveness::Ended(death) => (death.reason(), Some(death.to_string())),
            Liveness::Vanished => (Reason::Vanished, Some("its container was removed by somebody else".to_owned())),
        };
        let mut sandbox = running.sandbox.clone();
        self.enter(&mut sandbox, Status::Failed, reason, message);
        self.phase = Phase::Failed(Box::new(sandbox));
        self.replay(waiting, now);
    }

    fn replay(&mut self, requests: Vec<Request>, now: Timestamp) {
        for request in requests {
            self.request(request, now);
        }
    }

    fn answer_reused(&mut self, waiter: WaiterId, now: Timestamp) {
        let Phase::Running(running) = &mut self.phase else { unreachable!("only what runs is reused") };
        running.sandbox.last_activity_at = now.max(running.sandbox.last_activity_at);
        let created = Created { sandbox: running.sandbox.clone(), outcome: Outcome::Reused, launch: Launch::None };
        self.answer(waiter, Reply::Create(Ok(created)));
    }

    fn answer_failed(&mut self, waiters: Vec<WaiterId>, failure: &StartFailure) {
        for waiter in waiters {
            let error = SandboxError::StartFailed { chat: self.chat, failure: failure.clone() };
            self.answer(waiter, Reply::Create(Err(error)));
        }
    }

    fn refuse(&mut self, request: Request, error: &SandboxError) {
        match request {
            Request::Create { waiter, .. } => self.answer(waiter, Reply::Create(Err(error.clone()))),
            Request::Get { waiter } => self.answer(waiter, Reply::Get(Err(error.clone()))),
            Request::Delete { waiter } => self.answer(waiter, Reply::Delete(Err(error.clone()))),
        }
    }

    fn answer(&mut self, waiter: WaiterId, reply: Reply) {
        self.effects.push(Effect::Answer { waiter, reply });
    }

    /// Ends a sandbox that was never made, because the chat has another.
    pub(super) fn give_way(&mut self, mut sandbox: Sandbox) {
        sandbox.reason = Reason::Adopted;
        sandbox.message = Some("the chat had a sandbox already".to_owned());
        self.publish_end(sandbox);
    }

    /// The sandbox that a launch is going to make.
    fn planned(&self, request: &CreateRequest, session: SessionId, now: Timestamp) -> Sandbox {
        Sandbox {
            session,
            chat: self.chat,
            agent: request.agent.clone(),
            volume: request.volume.clone(),
            profile: request.profile.name.clone(),
            image: request.profile.image.clone(),
            container_name: self.name.clone(),
            container: None,
            endpoint: None,
            status: Status::Creating,
            reason: Reason::Requested,
            message: None,
            created_at: now,
            started_at: None,
            last_activity_at: now,
            expires_at: request.expires_at(now),
            idle_timeout: request.idle_timeout(),
        }
    }

    /// Moves a sandbox on to another status and publishes it.
    fn enter(&mut self, sandbox: &mut Sandbox, to: Status, reason: Reason, message: Option<String>) {
        let from = std::mem::replace(&mut sandbox.status, to);
        sandbox.reason = reason;
        sandbox.message = message;
        self.publish(sandbox, Some(from));
    }

    fn publish(&mut self, sandbox: &Sandbox, from: Option<Status>) {
        let to = Some(sandbox.status);
        self.effects.push(Effect::Publish(Transition { sandbox: Box::new(sandbox.clone()), from, to }));
    }

    fn publish_end(&mut self, sandbox: Sandbox) {
        let from = Some(sandbox.status);
        self.effects.push(Effect::Publish(Transition { sandbox: Box::new(sandbox), from, to: None }));
    }
}

#[cfg(test)]
mod tests;
