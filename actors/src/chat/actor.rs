//! The chat's mailbox: feeds the lifecycle and carries out its effects; [`tasks`] are those that take time.
//!
//! A handler never awaits. Whatever takes time runs as a task of this actor and comes back as a message; a task that
//! panics comes back as the failure of what it was doing.

mod gauges;
mod tasks;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use gauges::{CountedDebt, CountedStatus};

use super::World;
use super::events::{Effect, Event, Lease, Reply, Request, Ticket, Transition, WaiterId};
use super::lifecycle::Lifecycle;
use super::phase::Phase;
use crate::chat::effects::discover::{self, Liveness};
use crate::chat::effects::teardown::tear_down;
use crate::domain::create_request::CreateRequest;
use crate::domain::ids::{ChatId, ContainerName, Generation, LeaseId, SessionId};
use crate::domain::outcome::{Created, Deletion, NotSaved, SandboxError};
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::domain::snapshot::{Snapshot, SnapshotLabel};
use crate::journal::{Change, Draft};
use crate::ports::engine::Operation;
use crate::root::{self, limits::LimitKeys};

pub type Answer<T> = RpcReplyPort<Result<T, SandboxError>>;

/// A request, and where its answer goes.
#[derive(Debug)]
pub enum Call {
    Create(Box<CreateRequest>, Answer<Created>),
    Get(Answer<Option<Sandbox>>),
    /// With a snapshot first, or without, or as its profile says.
    Delete(Option<bool>, Answer<Deletion>),
    Snapshot(Option<SnapshotLabel>, Answer<Snapshot>),
    Keep(Keep, Answer<Sandbox>),
    /// Removes the directory of a chat without a sandbox. Answers whether there was one.
    Purge(Answer<bool>),
}

/// A request about how a sandbox is kept, and for how long.
#[derive(Debug, Clone, Copy)]
pub enum Keep {
    Renew(Duration),
    Touch,
    Pause,
    Lease(Lease),
    Release(LeaseId),
}

impl Call {
    /// Answers without asking the chat. A caller that has gone away does not mind.
    pub fn refuse(self, error: SandboxError) {
        match self {
            Call::Create(_, answer) => drop(answer.send(Err(error))),
            Call::Get(answer) => drop(answer.send(Err(error))),
            Call::Delete(_, answer) => drop(answer.send(Err(error))),
            Call::Snapshot(_, answer) => drop(answer.send(Err(error))),
            Call::Keep(_, answer) => drop(answer.send(Err(error))),
            Call::Purge(answer) => drop(answer.send(Err(error))),
        }
    }
}

#[derive(Debug)]
pub enum Message {
    Call(Call),
    /// For a listing. Unlike a call it does not come through root, which therefore must not be told of it.
    Describe(Answer<Option<Sandbox>>),
    /// An effect came back.
    Event(Box<Event>),
    /// The removal of the chat's directory is over.
    Purged,
    /// What nobody waits for is to be written down: answered once the journal has been given it.
    Flush(RpcReplyPort<()>),
    /// The service is about to end: answered once nothing is under way and all activity is written down.
    Settle(RpcReplyPort<()>),
    /// Whoever keeps the deadlines has lost them.
    Rearm,
}

/// What is known of the chat when its actor starts.
#[derive(Debug)]
pub enum Start {
    /// It certainly has no container.
    Absent,
    /// Nothing: the engine has to be asked.
    Unknown,
    /// Engine and journal know of it; its status says how to go on.
    Sandbox(Box<Sandbox>),
}

#[derive(Debug)]
pub struct Arguments {
    pub chat: ChatId,
    pub incarnation: u64,
    pub start: Start,
    pub world: Arc<World>,
    pub root: ActorRef<root::Message>,
}

#[derive(Debug)]
pub struct Chat;

#[derive(Debug)]
pub struct State {
    chat: ChatId,
    incarnation: u64,
    world: Arc<World>,
    root: ActorRef<root::Message>,
    lifecycle: Lifecycle,
    /// Calls of root's handled so far; tells it whether one is still on its way.
    handled: u64,
    callers: HashMap<WaiterId, (Instant, Call)>,
    next_waiter: u64,
    /// Ended with the actor, should it fail.
    tasks: JoinSet<()>,
    launching: Option<(Generation, CancellationToken)>,
    settling: Vec<RpcReplyPort<()>>,
    /// Cancelled once the removal of the chat's directory is over. A launch waits for that.
    purging: Option<CancellationToken>,
    /// What root counts it as.
    share: Option<LimitKeys>,
    counted: CountedStatus,
    owing: CountedDebt,
}

impl Actor for Chat {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<Message>, arguments: Arguments) -> Result<State, ActorProcessingErr> {
        let Arguments { chat, incarnation, start, world, root } = arguments;
        let (name, rules) = (ContainerName::of(&world.instance, chat), world.rules.clone());
        let (lifecycle, effects) = match start {
            Start::Absent => (Lifecycle::absent(chat, name, rules), Vec::new()),
            Start::Unknown => Lifecycle::unknown(chat, name, rules).looking(),
            Start::Sandbox(sandbox) => Lifecycle::absent(chat, name, rules).resuming(*sandbox),
        };
        let mut state = State {
            chat,
            incarnation,
            world,
            root,
            lifecycle,
            handled: 0,
            callers: HashMap::new(),
            next_waiter: 0,
            tasks: JoinSet::new(),
            launching: None,
            settling: Vec::new(),
            purging: None,
            share: None,
            counted: CountedStatus::default(),
            owing: CountedDebt::default(),
        };
        state.carry_out(&myself, effects);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Call(Call::Purge(answer)) => {
                state.handled += 1;
                state.purge(&myself, answer);
            }
            Message::Purged => {}
            Message::Call(call) => {
                state.handled += 1;
                let request = state.admit(call);
                state.step(&myself, Event::Request(request));
            }
            Message::Describe(answer) => {
                let request = state.admit(Call::Get(answer));
                state.step(&myself, Event::Request(request));
            }
            Message::Event(event) => state.step(&myself, *event),
            Message::Flush(reply) => {
                state.flush_unsaved(&myself);
                let _ = reply.send(());
            }
            Message::Settle(reply) => {
                state.flush_unsaved(&myself);
                state.settling.push(reply);
            }
            Message::Rearm => {
                let effects = state.lifecycle.rearmed();
                state.carry_out(&myself, effects);
            }
        }
        state.after_message();
        Ok(())
    }
}

impl State {
    fn admit(&mut self, call: Call) -> Request {
        let waiter = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        let request = match &call {
            Call::Create(request, _) => {
                Request::Create { waiter, request: request.clone(), session: SessionId::random() }
            }
            Call::Get(_) => Request::Get { waiter },
            Call::Delete(snapshot, _) => Request::Delete { waiter, snapshot: *snapshot },
            Call::Snapshot(label, _) => Request::Snapshot { waiter, label: label.clone() },
            Call::Keep(Keep::Renew(ttl), _) => Request::Renew { waiter, ttl: *ttl },
            Call::Keep(Keep::Touch, _) => Request::Touch { waiter },
            Call::Keep(Keep::Pause, _) => Request::Pause { waiter },
            Call::Keep(Keep::Lease(lease), _) => Request::Lease { waiter, lease: *lease },
            Call::Keep(Keep::Release(lease), _) => Request::Release { waiter, lease: *lease },
            Call::Purge(_) => unreachable!("a purge is no matter of the lifecycle"),
        };
        self.callers.insert(waiter, (Instant::now(), call));
        request
    }

    fn step(&mut self, myself: &ActorRef<Message>, event: Event) {
        let now = self.world.clock.now();
        let effects = self.lifecycle.handle(event, now);
        self.carry_out(myself, effects);
    }

    fn flush_unsaved(&mut self, myself: &ActorRef<Message>) {
        let unwritten = self.lifecycle.flush();
        self.carry_out(myself, unwritten.into_iter().collect());
    }

    fn after_message(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.owing.set(self.lifecycle.owes_removal());
        if self.lifecycle.is_settled() {
            self.settling.drain(..).for_each(|reply| drop(reply.send(())));
        }
        self.purging.take_if(|purging| purging.is_cancelled());
        if self.lifecycle.is_idle() && self.callers.is_empty() && self.purging.is_none() {
            let (chat, incarnation, handled) = (self.chat, self.incarnation, self.handled);
            self.tell_root(root::Message::Retire { chat, incarnation, handled });
        }
    }

    fn carry_out(&mut self, myself: &ActorRef<Message>, effects: Vec<Effect>) {
        if self.lifecycle.is_idle() {
            // Before anybody is answered: whoever hears that a sandbox is gone may count on its place.
            let (chat, incarnation, handled) = (self.chat, self.incarnation, self.handled);
            self.tell_root(root::Message::Left { chat, incarnation, handled });
        }
        self.tell_share();
        // What one step decided is handed over in its order. What nobody waits for is kept through a full disk, so it is
        // not tied to what somebody does.
        let mut drafts = Vec::new();
        for effect in effects {
            match effect {
                Effect::Answer { waiter, reply } => self.answer(waiter, reply),
                Effect::Publish(transition) => {
                    self.publish(&transition);
                    if transition.to.is_none() {
                        // A mailbox does not wait for the disk. A directory that stays is removed by the next start.
                        let (world, session) = (Arc::clone(&self.world), transition.sandbox.session);
                        tokio::spawn(async move { world.clear(session).await });
                    }
                    drafts.push(self.event(&transition));
                }
                Effect::Count(status) => self.counted.move_to(Some(status)),
                Effect::Save { ticket, sandbox, claim } => {
                    self.world.journal.write_later(std::mem::take(&mut drafts));
                    let record = [Draft::Save(sandbox)].into_iter();
                    self.write(myself, ticket, record.chain(claim.map(Draft::Claim)).collect());
                }
                Effect::Forget { ticket, session } => {
                    self.world.journal.write_later(std::mem::take(&mut drafts));
                    self.write(myself, ticket, vec![Draft::Forget { chat: self.chat, session }]);
                }
                Effect::SaveLater(sandbox) => drafts.push(Draft::Save(sandbox)),
                Effect::SaveActivity { session, at } => {
                    drafts.push(Draft::Activity { chat: self.chat, session, at });
                }
                Effect::Arm { at } => self.tell_root(root::Message::Arm { chat: self.chat, at }),
                Effect::Disarm => self.tell_root(root::Message::Disarm { chat: self.chat }),
                Effect::Stop { generation, container } => self.stop(myself, generation, container),
                Effect::Pause { generation, container } => {
                    self.switch(myself, generation, container, Operation::Pause);
                }
                Effect::Unpause { generation, container } => {
                    self.switch(myself, generation, container, Operation::Unpause);
                }
                Effect::Commit { generation, sandbox, label } => self.commit(myself, generation, *sandbox, label),
                Effect::RestartAfter { generation, delay } => {
                    myself.send_after(delay, move || Message::Event(Box::new(Event::RestartDue { generation })));
                }
                Effect::Relaunch { generation, sandbox } => self.relaunch(myself, generation, *sandbox),
                Effect::Look => self.look(myself),
                Effect::Launch { generation, session, request, created_at } => {
                    self.launch(myself, generation, session, request, created_at);
                }
                Effect::CancelLaunch { generation } => self.cancel_launch(generation),
                Effect::Check { generation, container } => {
                    let world = Arc::clone(&self.world);
                    let profile = self.lifecycle.sandbox().map(|sandbox| sandbox.profile.clone());
                    let check = async move {
                        let profile = profile.and_then(|profile| world.rules.profiles.get(&profile));
                        discover::is_alive(&world, &container, profile.map(|profile| &**profile)).await
                    };
                    self.run(myself, "check", check, move |outcome| Event::Checked {
                        generation,
                        liveness: outcome.unwrap_or_else(|defect| Liveness::Unknown(defect.during(Operation::Inspect))),
                    });
                }
                Effect::TearDown { generation, container, graceful } => {
                    // On disk before the engine is asked, or a service that dies in between would take a sandbox that
                    // it has ended itself for one that failed. A caller whose delete cannot be written down is told so,
                    // and its sandbox stays. One that has expired or failed is removed all the same, which may make
                    // room on the disk.
                    self.world.journal.write_later(std::mem::take(&mut drafts));
                    let (world, chat, noted) = (Arc::clone(&self.world), self.chat, self.world.journal.flush());
                    let place = self.place();
                    let must_be_noted = self.lifecycle.phase().is_recorded_deletion_of_a_caller();
                    let tear_down = async move {
                        match noted.await {
                            Err(error) if must_be_noted => Err(NotSaved(error.to_string()).into()),
                            _ => Ok(tear_down(&world, chat, container, graceful, place).await?),
                        }
                    };
                    self.run(myself, "tear_down", tear_down, move |outcome| Event::TornDown {
                        generation,
                        result: outcome.unwrap_or_else(|defect| Err(defect.during(Operation::Remove).into())),
                    });
                }
                Effect::RetryAfter { generation, attempt, delay } => {
                    if let Phase::Deleting(_) = self.lifecycle.phase() {
                        metrics::counter!("sandboxd_owed_tear_down_retries_total").increment(1);
                    }
                    let due = move || Message::Event(Box::new(Event::RetryDue { generation, attempt }));
                    myself.send_after(delay, due);
                }
                Effect::Discard { container } => {
                    // Not a task of the actor: it goes on when the actor has nothing left to own, or fails.
                    let engine = self.world.engine.clone();
                    tokio::spawn(async move { engine.discard(&container).await }.instrument(self.span("discard")));
                }
            }
        }
        self.world.journal.write_later(drafts);
    }

    /// Root counted what a caller asked for, if one did. What was found, or takes the place of another, may differ.
    fn tell_share(&mut self) {
        let share = self.lifecycle.sandbox().map(LimitKeys::from);
        if share == self.share {
            return;
        }
        self.share.clone_from(&share);
        if let Some(share) = share {
            let (chat, incarnation) = (self.chat, self.incarnation);
            self.tell_root(root::Message::Counts { chat, incarnation, share });
        }
    }

    /// Writes down what somebody waits for.
    fn write(&mut self, myself: &ActorRef<Message>, ticket: Ticket, drafts: Vec<Draft>) {
        let write = self.world.journal.write(drafts);
        let myself = myself.clone();
        let saved = async move {
            let result = write.await.map_err(|error| NotSaved(error.to_string()));
            let _ = myself.cast(Message::Event(Box::new(Event::Saved { ticket, result })));
        };
        self.tasks.spawn(saved.instrument(self.span("save")));
    }

    fn event(&self, Transition { sandbox, from, to }: &Transition) -> Draft {
        Draft::Event(Box::new(Change {
            at: self.world.clock.now(),
            chat: sandbox.chat,
            session: sandbox.session,
            agent: sandbox.agent.clone(),
            container: sandbox.container.clone(),
            from: *from,
            to: *to,
            reason: sandbox.reason,
            message: sandbox.message.clone(),
        }))
    }

    /// Root outlives its chats; if it is gone, so is this actor in a moment.
    fn tell_root(&self, message: root::Message) {
        let _ = self.root.cast(message);
    }

    fn answer(&mut self, waiter: WaiterId, reply: Reply) {
        let Some((asked_at, call)) = self.callers.remove(&waiter) else { return };
        match (call, reply) {
            (Call::Create(_, answer), Reply::Create(result)) => {
                let outcome = match &result {
                    Ok(created) => created.outcome.as_str(),
                    Err(SandboxError::Conflict { .. }) => "conflict",
                    Err(_) => "error",
                };
                metrics::counter!("sandboxd_create_total", "outcome" => outcome).increment(1);
                metrics::histogram!("sandboxd_create_duration_seconds", "outcome" => outcome)
                    .record(asked_at.elapsed().as_secs_f64());
                if let Err(error) = &result {
                    tracing::warn!(chat.id = %self.chat, %error, "create refused or failed");
                }
                // A caller that has gone away finds its sandbox with its next create.
                let _ = answer.send(result);
            }
            (Call::Get(answer), Reply::Get(result)) => drop(answer.send(result)),
            (Call::Keep(_, answer), Reply::Kept(result)) => drop(answer.send(result)),
            (Call::Snapshot(_, answer), Reply::Snapshot(result)) => {
                if let Err(error) = &result {
                    tracing::warn!(chat.id = %self.chat, %error, "no snapshot was taken");
                }
                let _ = answer.send(result);
            }
            (Call::Delete(_, answer), Reply::Delete(result)) => {
                let outcome = match &result {
                    Ok(Deletion::Deleted { .. }) => "deleted",
                    Ok(Deletion::NotFound) => "not_found",
                    Err(_) => "error",
                };
                metrics::counter!("sandboxd_delete_total", "result" => outcome).increment(1);
                let _ = answer.send(result);
            }
            (call, reply) => unreachable!("{reply:?} does not answer {call:?}"),
        }
    }

    fn publish(&mut self, Transition { sandbox, from, to }: &Transition) {
        self.counted.move_to(*to);
        // One that was stopped at its end and is removed later has expired once.
        if matches!(sandbox.reason, Reason::Expired | Reason::Idle)
            && matches!(to, Some(Status::Deleting | Status::Stopped))
            && *from != Some(Status::Stopped)
        {
            metrics::counter!("sandboxd_expiries_total", "reason" => sandbox.reason.as_str()).increment(1);
        }
        metrics::counter!("sandboxd_transitions_total",
            "to" => to.map_or("absent", Status::as_str), "reason" => sandbox.reason.as_str())
        .increment(1);
        tracing::info!(
            chat.id = %sandbox.chat,
            session.id = %sandbox.session,
            agent.id = %sandbox.agent,
            workspace.id = sandbox.workspace.as_ref().map(tracing::field::display),
            container.id = sandbox.container.as_ref().map(tracing::field::display),
            endpoint = sandbox.endpoint.map(|endpoint| format!("{}:{}", endpoint.ip, endpoint.port)),
            from = from.map_or("absent", Status::as_str),
            to = to.map_or("absent", Status::as_str),
            reason = sandbox.reason.as_str(),
            detail = sandbox.message,
            "sandbox changed"
        );
    }
}
