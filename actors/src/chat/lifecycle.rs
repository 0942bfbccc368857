//! The pure state machine of a chat's sandbox: an event goes in, effects come out, without side effects.
//!
//! ```text
//!                           Paused
//!                             ▲ │
//!               paused, idle  │ │ used, resumed
//!         found alive         │ ▼    on disk
//!  Unknown ───────────────▶ Running ◀────────────── Creating ◀──────┐
//!   │ │ │                    │ │ │                   ▲   │          │
//!   │ │ │ found ended or ill │ │ │ seen dead restart │   │          │
//!   │ │ └────────────────────┼─┼─┴───────▶ Failed ───┘   │          │
//!   │ │                      │ │            │ │          │          │
//!   │ │               expired│ │ expired,   │ │ expired, │ failed,  │
//!   │ │               deleted│ │ kept       │ │ deleted, │ deleted  │
//!   │ │                      │ └▶ Stopped ◀─┘ │ created  │          │
//!   │ │                      │       │        │ anew     │          │
//!   │ │ found half made      ▼       ▼        ▼          ▼          │
//!   │ │                    ┌─────────────────────────────────┐      │
//!   │ └──────────────────▶ │            Deleting             ├──────┤ removed, and a create waits
//!   │ found none           └─────────────────────────────────┘      │
//!   ▼                         │ removed                             │
//!  Absent ◀───────────────────┘                                     │
//!   └── create ─────────────────────────────────────────────────────┘
//! ```
//!
//! - One container at a time. A launch starts only in `Absent` or after a removal. A removal starts only when no launch
//!   is under way: a launch under way is cancelled and returns first. A launch without leftovers needs no removal.
//! - Acknowledge only after the journal commit: a sandbox runs for callers once its record is committed, and is gone
//!   once its record is removed. Other writes are unacknowledged and keep the order of the decisions.
//! - Every effect that takes time is answered by exactly one event of the same generation or ticket. An answer of an
//!   older generation is never applied; its container is removed.
//! - Every waiter is answered exactly once.
//! - "Unknown" is never "gone": while the engine does not answer, the chat keeps its state and asks again.
//! - A failed removal is owed: it is retried until it succeeds, even when no caller waits for it.
//! - A paused sandbox is `Running` in every other respect: it is found, checked, renewed, expired and removed like a
//!   running one. A request that uses it waits until it is resumed.
//! - No container is removed, paused or restarted during a commit. A removal that needs a snapshot waits for it.
//! - A running, stopped or failed sandbox always has a deadline, never later than its expiry. A deadline may come too
//!   early; the state at that time decides.

mod adopt;
mod expire;
mod launch;
mod observe;
mod pause;
mod remove;
mod renew;
mod restart;
mod snapshot;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::admission::{self, Admission, CreateWork, DeleteWork};
use super::events::{Effect, Event, Reply, Request, Ticket, Transition, WaiterId};
use super::leases::Leases;
use super::phase::{Origin, Phase, RemovalStep, Unknown};
use crate::domain::create_request::CreateRequest;
use crate::domain::ids::{ChatId, ContainerName, Generation, ProfileName, SessionId, SnapshotId};
use crate::domain::outcome::{Created, Deletion, Launch, Outcome, SandboxError, StartFailure};
use crate::domain::profile::Profile;
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::ports::clock::Timestamp;
use snapshot::{Committing, Failures, Purpose};

#[derive(Debug)]
pub struct Lifecycle {
    chat: ChatId,
    name: ContainerName,
    generation: Generation,
    phase: Phase,
    leases: Leases,
    committing: Option<Committing>,
    failed_snapshots: Failures,
    /// Abandoned create calls that are still followed.
    stragglers: usize,
    last_ticket: Ticket,
    /// An engine event arrived that the check, the discovery or the launch under way may have missed.
    engine_event: bool,
    /// Times shifted by a clock step, not yet persisted. They are saved on request, because all chats at once would be
    /// too many.
    unsaved_clock_shift: bool,
    rules: Rules,
    effects: Vec<Effect>,
}

/// The settings that the decisions of every chat depend on.
#[derive(Debug, Clone)]
pub struct Rules {
    /// How long a sandbox that was seen alive is handed out without a new check.
    pub trust: Duration,
    pub profiles: Arc<BTreeMap<ProfileName, Arc<Profile>>>,
    /// The number of leases that may hold one sandbox.
    pub max_leases: usize,
    /// The time past its absolute deadline that leases may hold a sandbox, in total.
    pub max_lease: Duration,
}

impl Lifecycle {
    /// Returns a chat without a container.
    pub fn absent(chat: ChatId, name: ContainerName, rules: Rules) -> Self {
        Self::starting_in(Phase::Absent, chat, name, rules)
    }

    /// Returns a chat whose container must be discovered.
    pub fn unknown(chat: ChatId, name: ContainerName, rules: Rules) -> Self {
        Self::starting_in(Phase::Unknown(Unknown::default()), chat, name, rules)
    }

    fn starting_in(phase: Phase, chat: ChatId, name: ContainerName, rules: Rules) -> Self {
        Self {
            chat,
            name,
            generation: Generation::default(),
            phase,
            leases: Leases::default(),
            committing: None,
            failed_snapshots: Failures::default(),
            stragglers: 0,
            last_ticket: Ticket::default(),
            engine_event: false,
            unsaved_clock_shift: false,
            rules,
            effects: Vec::new(),
        }
    }

    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    pub fn sandbox(&self) -> Option<&Sandbox> {
        match &self.phase {
            Phase::Unknown(_) | Phase::Absent => None,
            Phase::Creating(creating) => Some(&creating.sandbox),
            Phase::Running(running) => Some(&running.sandbox),
            Phase::Stopped(sandbox) => Some(sandbox),
            Phase::Failed(failed) => Some(&failed.sandbox),
            // The successor is the chat's sandbox from now on.
            Phase::Deleting(deleting) => Some(deleting.successor.as_ref().map_or(&deleting.sandbox, |s| &s.sandbox)),
        }
    }

    /// Returns whether the chat owns no container and waits for no effect.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Absent) && self.stragglers == 0
    }

    /// Returns whether a removal failed and must be retried.
    pub fn owes_removal(&self) -> bool {
        matches!(&self.phase, Phase::Deleting(deleting) if deleting.attempt > 0)
    }

    /// Returns whether no effect is under way except a timed retry.
    pub fn is_settled(&self) -> bool {
        self.stragglers == 0
            && !self.is_committing()
            && match &self.phase {
                Phase::Unknown(unknown) => !unknown.discovering,
                Phase::Absent | Phase::Stopped(_) | Phase::Failed(_) => true,
                Phase::Running(running) => {
                    let stopping = running.stopping.is_some_and(|stopping| stopping.is_under_way());
                    !running.checking && !stopping && running.switching.is_none() && running.unsaved.is_empty()
                }
                Phase::Creating(_) => false,
                Phase::Deleting(deleting) => deleting.step == RemovalStep::Owed,
            }
    }

    pub fn handle(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        match event {
            Event::Request(request) => self.request(request, now),
            Event::Discovered(result) => self.discovered(result, now),
            Event::Launched { generation, result } => self.launched(generation, result, now),
            Event::StragglerEnded => self.stragglers = self.stragglers.saturating_sub(1),
            Event::Checked { generation, liveness } => self.checked(generation, liveness, now),
            Event::TornDown { generation, result } => self.torn_down(generation, result, now),
            Event::RetryDue { generation, attempt } => self.retry_due(generation, attempt),
            Event::Saved { ticket, result } => self.saved(ticket, result, now),
            Event::Due => self.due(now),
            Event::Stopped { generation, result } => self.stopped(generation, result, now),
            Event::Switched { generation, result } => self.switched(generation, result, now),
            Event::Committed { generation, result } => self.committed(generation, result, now),
            Event::RestartDue { generation } => self.restart_due(generation),
            Event::EngineEvent { container } => self.engine_event(&container),
            Event::Listed(seen) => self.listed(seen.as_ref()),
            Event::ClockStepped { by } => self.clock_stepped(by),
        }
        std::mem::take(&mut self.effects)
    }

    fn request(&mut self, request: Request, now: Timestamp) {
        match request {
            request if self.waits_for_commit(&request, now) => self.wait_for_commit(request),
            // A request is not refused before the discovery.
            Request::Renew { .. }
            | Request::Touch { .. }
            | Request::Pause { .. }
            | Request::Snapshot { .. }
            | Request::Lease { .. }
            | Request::Release { .. }
                if matches!(self.phase, Phase::Unknown(_)) =>
            {
                self.wait_for_discovery(request);
            }
            Request::Get { waiter } => self.get(waiter),
            Request::Create { waiter, request, session } => self.create(waiter, request, session, now),
            Request::Delete { waiter, snapshot } => self.delete(waiter, snapshot, now),
            Request::Snapshot { waiter, label } => self.snapshot(waiter, label, now),
            Request::Renew { waiter, ttl } => self.renew(waiter, ttl, now),
            Request::Touch { waiter } => self.touch(waiter, now),
            Request::Pause { waiter } => self.pause(waiter),
            Request::Lease { waiter, lease } => self.lease(waiter, lease, now),
            Request::Release { waiter, lease } => self.release(waiter, lease, now),
        }
    }

    fn get(&mut self, waiter: WaiterId) {
        if let Phase::Unknown(_) = self.phase {
            self.wait_for_discovery(Request::Get { waiter });
        } else {
            let sandbox = self.acknowledged();
            self.answer(waiter, Reply::Get(Ok(sandbox)));
        }
    }

    fn create(&mut self, waiter: WaiterId, request: Box<CreateRequest>, session: SessionId, now: Timestamp) {
        let on_expire = self.on_expire();
        let work = match admission::create(&self.phase, &request, now, self.rules.trust, on_expire) {
            Admission::Refused(refusal) => {
                let (session, fields) = (refusal.session, refusal.fields);
                let error = SandboxError::Conflict { chat: self.chat, session, fields };
                return self.answer(waiter, Reply::Create(Err(error)));
            }
            Admission::AlreadyDone => return self.answer_reused(waiter, now),
            Admission::Do(work) => work,
        };
        if let CreateWork::Replace(reason) = work
            && self.expires_with_snapshot(now)
        {
            return self.expire_for(Request::Create { waiter, request, session }, reason);
        }
        match (work, &mut self.phase) {
            (CreateWork::Discover, _) => self.wait_for_discovery(Request::Create { waiter, request, session }),
            (CreateWork::Launch, _) => {
                let sandbox = self.planned(&request, session, now);
                self.launch(sandbox, request, Outcome::Created, vec![waiter], now);
            }
            (CreateWork::JoinLaunch, Phase::Creating(creating)) => match &mut creating.origin {
                Origin::Request { waiters, .. } => waiters.push(waiter),
                Origin::Restart { waiting, .. } => waiting.push(Request::Create { waiter, request, session }),
            },
            (CreateWork::Replace(reason), phase) => {
                let waiting = phase.take_waiting();
                self.remove(reason, true);
                // Waiting creates came first. They share the successor with this create.
                self.replay(waiting, now);
                self.create(waiter, request, session, now);
            }
            (CreateWork::Verify, Phase::Running(running)) => {
                // The sandbox must not become idle during the check.
                running.mark_active(now);
                running.verifying.push(Request::Create { waiter, request, session });
                self.check();
            }
            (CreateWork::Wake, _) => self.wake(Request::Create { waiter, request, session }),
            (CreateWork::QueueSuccessor, _) => self.queue_successor(waiter, request, session, now),
            (CreateWork::JoinSuccessor, Phase::Deleting(deleting)) => {
                let successor = deleting.successor.as_mut().expect("admission saw a successor");
                successor.waiters.push(waiter);
                self.retry_removal_now();
            }
            (work, phase) => unreachable!("admission asked for {work:?} in {phase:?}"),
        }
    }

    fn delete(&mut self, waiter: WaiterId, snapshot: Option<bool>, now: Timestamp) {
        let Admission::Do(work) = admission::delete(&self.phase) else {
            return self.answer(waiter, Reply::Delete(Ok(Deletion::NotFound)));
        };
        let keeps = snapshot.unwrap_or_else(|| self.snapshots_on_delete());
        match work {
            DeleteWork::Discover => return self.wait_for_discovery(Request::Delete { waiter, snapshot }),
            DeleteWork::Cancel => {
                if let Phase::Creating(creating) = &mut self.phase
                    && let Origin::Restart { waiting, .. } = &mut creating.origin
                    && (keeps || waiting.iter().any(|request| matches!(request, Request::Delete { .. })))
                {
                    // The container exists already, so a snapshot is taken first if any delete asks for one.
                    return waiting.push(Request::Delete { waiter, snapshot });
                }
                self.cancel_launch();
            }
            DeleteWork::Remove if keeps && self.has_container() => {
                return match &self.phase {
                    Phase::Running(running) if running.switching.is_some() => {
                        self.wait_for_switch(Request::Delete { waiter, snapshot });
                    }
                    _ => self.commit(Purpose::Delete { waiter }, None, Vec::new()),
                };
            }
            DeleteWork::Remove => return self.delete_now(vec![waiter], None, now),
            DeleteWork::JoinRemoval => {
                self.fail_successor(StartFailure::Deleted);
                self.retry_removal_now();
            }
        }
        if let Phase::Deleting(deleting) = &mut self.phase {
            deleting.deleters.push(waiter);
        }
    }

    /// Removes the sandbox. Waiting requests are answered first, in their order.
    fn delete_now(&mut self, mut deleters: Vec<WaiterId>, snapshot: Option<SnapshotId>, now: Timestamp) {
        let awake = matches!(&self.phase, Phase::Running(running) if running.is_awake());
        for request in self.phase.take_waiting() {
            match request {
                // Earlier creates saw the sandbox before this delete.
                Request::Create { waiter, .. } if awake => self.answer_reused(waiter, now),
                Request::Create { waiter, .. } => self.answer_failed(vec![waiter], &StartFailure::Deleted),
                Request::Delete { waiter, .. } => deleters.push(waiter),
                request => {
                    let (chat, status) = (self.chat, Status::Deleting);
                    self.refuse(request, &SandboxError::NotRunning { chat, status });
                }
            }
        }
        self.remove_with_snapshot(Reason::Requested, true, snapshot);
        self.deleting().deleters.extend(deleters);
    }

    fn snapshots_on_delete(&self) -> bool {
        let profile = self.sandbox().and_then(|sandbox| self.rules.profiles.get(&sandbox.profile));
        profile.is_some_and(|profile| profile.snapshot_on_delete)
    }

    fn replay(&mut self, requests: Vec<Request>, now: Timestamp) {
        for request in requests {
            self.request(request, now);
        }
    }

    fn answer_reused(&mut self, waiter: WaiterId, now: Timestamp) {
        self.record_activity(now);
        let sandbox = self.acknowledged().expect("only a running sandbox is reused");
        let created = Created { sandbox, outcome: Outcome::Reused, launch: Launch::None };
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
            Request::Delete { waiter, .. } => self.answer(waiter, Reply::Delete(Err(error.clone()))),
            Request::Snapshot { waiter, .. } => self.answer(waiter, Reply::Snapshot(Err(error.clone()))),
            Request::Renew { waiter, .. }
            | Request::Touch { waiter }
            | Request::Pause { waiter }
            | Request::Lease { waiter, .. }
            | Request::Release { waiter, .. } => self.answer(waiter, Reply::Sandbox(Err(error.clone()))),
        }
    }

    fn answer(&mut self, waiter: WaiterId, reply: Reply) {
        self.effects.push(Effect::Answer { waiter, reply });
    }

    /// Ends a planned sandbox because the chat has another one.
    pub(super) fn end_planned(&mut self, mut sandbox: Sandbox) {
        sandbox.reason = Reason::Adopted;
        sandbox.message = Some("the chat already had a sandbox".to_owned());
        self.publish_end(sandbox);
    }

    /// Returns the sandbox that a launch will create.
    fn planned(&self, request: &CreateRequest, session: SessionId, now: Timestamp) -> Sandbox {
        Sandbox {
            session,
            chat: self.chat,
            agent: request.agent.clone(),
            workspace: request.workspace,
            volume: request.volume.clone(),
            profile: request.profile.name.clone(),
            image: request.profile.image.clone(),
            snapshot: request.snapshot,
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
            held_until: None,
            held_by: Vec::new(),
            durable_leases: Vec::new(),
        }
    }

    /// Moves a sandbox to another status and publishes the change.
    fn enter(&mut self, sandbox: &mut Sandbox, to: Status, reason: Reason, message: Option<String>) {
        let from = std::mem::replace(&mut sandbox.status, to);
        sandbox.reason = reason;
        sandbox.message = message;
        self.publish(sandbox, Some(from));
    }

    /// Returns the journal record of a sandbox.
    fn record(&mut self, sandbox: Sandbox) -> Box<Sandbox> {
        self.unsaved_clock_shift = false;
        let durable = self.leases.durable();
        let (held_until, durable_leases) = (durable.latest_end(), durable.with_ids());
        Box::new(Sandbox { held_until, durable_leases, held_by: Vec::new(), ..sandbox })
    }

    /// Saves the sandbox without an answer.
    fn save_later(&mut self, sandbox: &Sandbox) {
        let record = self.record(sandbox.clone());
        self.effects.push(Effect::SaveLater(record));
    }

    /// Saves the sandbox; answered by [`Event::Saved`].
    fn save(&mut self, ticket: Ticket, sandbox: Sandbox) {
        let sandbox = self.record(sandbox);
        self.effects.push(Effect::Save { ticket, sandbox, claim: None });
    }

    fn ticket(&mut self) -> Ticket {
        self.last_ticket.0 += 1;
        self.last_ticket
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
