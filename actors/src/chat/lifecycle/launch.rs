//! Handles a launch: the sandbox is saved and acknowledged, or rolled back.

use super::Lifecycle;
use crate::chat::events::{Effect, LaunchFailure, Launched, Remains, Reply, Ticket, WaiterId};
use crate::chat::phase::{Creating, Origin, Phase, RemovalStep, Running};
use crate::domain::create_request::CreateRequest;
use crate::domain::ids::Generation;
use crate::domain::outcome::{Created, Launch, NotSaved, Outcome, StartFailure};
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::ports::clock::Timestamp;

impl Lifecycle {
    pub(super) fn launch(
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
        let origin = Origin::Request { request, outcome, waiters, saving: None, launch: Launch::Cold };
        self.phase = Phase::Creating(Box::new(Creating { sandbox, origin }));
    }

    pub(super) fn launched(&mut self, generation: Generation, result: Result<Launched, LaunchFailure>, now: Timestamp) {
        if let Err(LaunchFailure { remains: Remains::Straggler, .. }) = &result {
            self.stragglers += 1;
        }
        if generation != self.generation {
            if let Ok(Launched::Started { container, .. })
            | Err(LaunchFailure { remains: Remains::Container(container), .. }) = result
            {
                self.effects.push(Effect::RemoveContainer { container });
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

    fn launch_ended(&mut self, mut creating: Creating, result: Result<Launched, LaunchFailure>, now: Timestamp) {
        match result {
            Ok(Launched::Started { container, endpoint, started_at, launch, claim }) => {
                let sandbox = &mut creating.sandbox;
                sandbox.container = Some(container);
                sandbox.endpoint = endpoint;
                sandbox.started_at = Some(started_at);
                match creating.origin {
                    Origin::Request { ref mut saving, launch: ref mut how, .. } => {
                        *how = launch;
                        sandbox.last_activity_at = now;
                        let acknowledged =
                            Sandbox { status: Status::Running, reason: Reason::Ready, ..sandbox.clone() };
                        let ticket = self.ticket();
                        *saving = Some(ticket);
                        let sandbox = self.record(acknowledged);
                        self.effects.push(Effect::Save { ticket, sandbox, claim });
                        self.phase = Phase::Creating(Box::new(creating));
                    }
                    Origin::Restart { attempt, waiting } => {
                        self.restarted(creating.sandbox, attempt, now);
                        self.replay(waiting, now);
                    }
                }
            }
            Ok(Launched::Found(found)) => {
                let Creating { sandbox, origin, .. } = creating;
                let session = sandbox.session;
                self.end_planned(sandbox);
                self.adopt(found.sandbox(now), now);
                match origin {
                    Origin::Request { request, waiters, .. } => {
                        for waiter in waiters {
                            self.create(waiter, request.clone(), session, now);
                        }
                    }
                    Origin::Restart { waiting, .. } => self.replay(waiting, now),
                }
            }
            Err(LaunchFailure { failure, remains }) => match creating.origin {
                Origin::Restart { attempt, waiting } => {
                    self.restart_failed(creating.sandbox, attempt, &failure);
                    self.replay(waiting, now);
                }
                Origin::Request { waiters, .. } => self.roll_back(creating.sandbox, waiters, failure, remains),
            },
        }
    }

    /// Acknowledges a sandbox that runs and is saved.
    fn acknowledge(
        &mut self,
        mut sandbox: Sandbox,
        outcome: Outcome,
        launch: Launch,
        waiters: Vec<WaiterId>,
        now: Timestamp,
    ) {
        self.enter(&mut sandbox, Status::Running, Reason::Ready, None);
        let outcome = if sandbox.snapshot.is_some() { Outcome::Restored } else { outcome };
        for waiter in waiters {
            let created = Created { sandbox: sandbox.clone(), outcome, launch };
            self.answer(waiter, Reply::Create(Ok(created)));
        }
        self.run(Running::new(sandbox, now));
    }

    fn roll_back(&mut self, mut sandbox: Sandbox, waiters: Vec<WaiterId>, failure: StartFailure, remains: Remains) {
        if remains == Remains::Nothing {
            sandbox.reason = Reason::RolledBack;
            sandbox.message = Some(failure.to_string());
            self.publish_end(sandbox);
            return self.answer_failed(waiters, &failure);
        }
        if let Remains::Container(container) = remains {
            sandbox.container = Some(container);
        }
        self.enter(&mut sandbox, Status::Deleting, Reason::RolledBack, Some(failure.to_string()));
        // A failed write may still reach the journal.
        let recorded = matches!(failure, StartFailure::NotSaved(_));
        self.start_removal(sandbox, false, recorded);
        self.deleting().failed = Some((failure, waiters));
    }

    pub(super) fn saved(&mut self, ticket: Ticket, result: Result<(), NotSaved>, now: Timestamp) {
        match std::mem::replace(&mut self.phase, Phase::Absent) {
            Phase::Creating(creating) => match *creating {
                Creating { sandbox, origin: Origin::Request { outcome, waiters, saving, launch, .. } }
                    if saving == Some(ticket) =>
                {
                    match result {
                        Ok(()) => self.acknowledge(sandbox, outcome, launch, waiters, now),
                        Err(error) => {
                            let remains = sandbox.container.clone().map_or(Remains::Perhaps, Remains::Container);
                            self.roll_back(sandbox, waiters, error.into(), remains);
                        }
                    }
                }
                creating => self.phase = Phase::Creating(Box::new(creating)),
            },
            Phase::Deleting(deleting) if deleting.step == RemovalStep::RemovingRecord(ticket) => match result {
                Ok(()) => self.finish_removal(*deleting, now),
                Err(error) => self.removal_failed(*deleting, error.into()),
            },
            other => {
                self.phase = other;
                if self.is_switch(ticket) {
                    self.switch_saved(result, now);
                } else {
                    self.change_saved(ticket, result);
                }
            }
        }
    }
}
