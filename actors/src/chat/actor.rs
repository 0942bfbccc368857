//! The chat's mailbox: feeds the lifecycle and runs its effects. [`tasks`] holds the effects that take time.
//!
//! A handler never awaits. Slow work runs as a task of this actor and returns as a message. A task that panics returns
//! as a failure of its operation.

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
use crate::reaper;
use crate::root::{self, limits::LimitKeys};

pub type Answer<T> = RpcReplyPort<Result<T, SandboxError>>;

/// A request, with the port for its answer.
#[derive(Debug)]
pub enum Call {
    Create(Box<CreateRequest>, Answer<Created>),
    Get(Answer<Option<Sandbox>>),
    /// With a snapshot, without one, or (`None`) as the profile says.
    Delete(Option<bool>, Answer<Deletion>),
    Snapshot(Option<SnapshotLabel>, Answer<Snapshot>),
    /// Moves the absolute deadline.
    Renew(Duration, Answer<Sandbox>),
    Touch(Answer<Sandbox>),
    Pause(Answer<Sandbox>),
    Lease(Lease, Answer<Sandbox>),
    Release(LeaseId, Answer<Sandbox>),
    /// Removes the directory of a chat without a sandbox. Returns whether the directory existed.
    Purge(Answer<bool>),
}

impl Call {
    /// Answers with an error, without asking the chat. A disconnected caller is ignored.
    pub fn refuse(self, error: SandboxError) {
        match self {
            Call::Create(_, answer) => drop(answer.send(Err(error))),
            Call::Get(answer) => drop(answer.send(Err(error))),
            Call::Delete(_, answer) => drop(answer.send(Err(error))),
            Call::Snapshot(_, answer) => drop(answer.send(Err(error))),
            Call::Renew(_, answer)
            | Call::Touch(answer)
            | Call::Pause(answer)
            | Call::Lease(_, answer)
            | Call::Release(_, answer) => drop(answer.send(Err(error))),
            Call::Purge(answer) => drop(answer.send(Err(error))),
        }
    }
}

#[derive(Debug)]
pub enum Message {
    Call(Call),
    /// A get for a listing. It bypasses root, so it does not count as a call of root.
    Describe(Answer<Option<Sandbox>>),
    /// The outcome of an effect.
    Event(Box<Event>),
    /// The removal of the chat's directory has ended.
    Purged,
    /// Hands unsaved times to the journal; answered after the hand-over.
    Flush(RpcReplyPort<()>),
    /// The service is shutting down; answered when no effect is under way and all activity is handed to the journal.
    Settle(RpcReplyPort<()>),
    /// The reaper lost its deadlines; the chat sends its deadline again.
    Rearm,
}

/// The knowledge about a chat when its actor starts.
#[derive(Debug)]
pub enum Start {
    /// The chat has no container.
    Absent,
    /// The chat must ask the engine.
    Unknown,
    /// Engine and journal know the sandbox. Its status decides how the chat continues.
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
    /// The number of root's calls handled so far. Root compares it to detect a call still in the mailbox.
    handled: u64,
    callers: Callers,
    next_waiter: u64,
    /// Aborted when the actor fails.
    tasks: JoinSet<()>,
    launching: Option<(Generation, CancellationToken)>,
    settling: Vec<RpcReplyPort<()>>,
    /// Cancelled when the removal of the chat's directory has ended. A launch waits for it.
    purging: Option<CancellationToken>,
    /// The limit keys that root counts this chat under.
    limit_keys: Option<LimitKeys>,
    counted: CountedStatus,
    owing: CountedDebt,
}

/// The callers that wait for an answer, by the type of the answer.
#[derive(Debug, Default)]
struct Callers {
    /// With the time of the request.
    creates: HashMap<WaiterId, (Instant, Answer<Created>)>,
    gets: HashMap<WaiterId, Answer<Option<Sandbox>>>,
    deletes: HashMap<WaiterId, Answer<Deletion>>,
    snapshots: HashMap<WaiterId, Answer<Snapshot>>,
    sandboxes: HashMap<WaiterId, Answer<Sandbox>>,
}

impl Callers {
    fn is_empty(&self) -> bool {
        let Self { creates, gets, deletes, snapshots, sandboxes } = self;
        creates.is_empty() && gets.is_empty() && deletes.is_empty() && snapshots.is_empty() && sandboxes.is_empty()
    }
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
            Start::Unknown => Lifecycle::unknown(chat, name, rules).discovering(),
            Start::Sandbox(sandbox) => Lifecycle::absent(chat, name, rules).resuming(*sandbox),
        };
        let mut state = State {
            chat,
            incarnation,
            world,
            root,
            lifecycle,
            handled: 0,
            callers: Callers::default(),
            next_waiter: 0,
            tasks: JoinSet::new(),
            launching: None,
            settling: Vec::new(),
            purging: None,
            limit_keys: None,
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
            Message::Call(call) => {
                state.handled += 1;
                state.accept(&myself, call);
            }
            Message::Describe(answer) => state.accept(&myself, Call::Get(answer)),
            Message::Purged => {}
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
    fn accept(&mut self, myself: &ActorRef<Message>, call: Call) {
        let waiter = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        let request = match call {
            Call::Create(request, answer) => {
                self.callers.creates.insert(waiter, (Instant::now(), answer));
                Request::Create { waiter, request, session: SessionId::random() }
            }
            Call::Get(answer) => {
                self.callers.gets.insert(waiter, answer);
                Request::Get { waiter }
            }
            Call::Delete(snapshot, answer) => {
                self.callers.deletes.insert(waiter, answer);
                Request::Delete { waiter, snapshot }
            }
            Call::Snapshot(label, answer) => {
                self.callers.snapshots.insert(waiter, answer);
                Request::Snapshot { waiter, label }
            }
            Call::Renew(ttl, answer) => {
                self.callers.sandboxes.insert(waiter, answer);
                Request::Renew { waiter, ttl }
            }
            Call::Touch(answer) => {
                self.callers.sandboxes.insert(waiter, answer);
                Request::Touch { waiter }
            }
            Call::Pause(answer) => {
                self.callers.sandboxes.insert(waiter, answer);
                Request::Pause { waiter }
            }
            Call::Lease(lease, answer) => {
                self.callers.sandboxes.insert(waiter, answer);
                Request::Lease { waiter, lease }
            }
            Call::Release(lease, answer) => {
                self.callers.sandboxes.insert(waiter, answer);
                Request::Release { waiter, lease }
            }
            // The directory is no part of the lifecycle.
            Call::Purge(answer) => return self.purge(myself, answer),
        };
        self.step(myself, Event::Request(request));
    }

    fn step(&mut self, myself: &ActorRef<Message>, event: Event) {
        let now = self.world.clock.now();
        let effects = self.lifecycle.handle(event, now);
        self.carry_out(myself, effects);
    }

    fn flush_unsaved(&mut self, myself: &ActorRef<Message>) {
        let unsaved = self.lifecycle.flush();
        self.carry_out(myself, unsaved.into_iter().collect());
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
            self.send_to_root(root::Message::Idle { chat, incarnation, handled, retire: true });
        }
    }

    fn carry_out(&mut self, myself: &ActorRef<Message>, effects: Vec<Effect>) {
        if self.lifecycle.is_idle() {
            // Root frees the place before the caller is answered: a caller that sees the sandbox removed may create
            // another at once.
            let (chat, incarnation, handled) = (self.chat, self.incarnation, self.handled);
            self.send_to_root(root::Message::Idle { chat, incarnation, handled, retire: false });
        }
        self.report_limit_keys();
        // Entries are written in the order of the decisions. Unacknowledged entries survive a full disk, so they stay
        // separate from acknowledged writes.
        let mut drafts = Vec::new();
        for effect in effects {
            match effect {
                Effect::Answer { waiter, reply } => self.answer(waiter, reply),
                Effect::Publish(transition) => {
                    self.publish(&transition);
                    if transition.to.is_none() {
                        // The mailbox does not wait for the disk. The next start removes a directory that stays.
                        let (world, session) = (Arc::clone(&self.world), transition.sandbox.session);
                        let cleanups = world.cleanups.clone();
                        cleanups.spawn(async move { world.remove_session(session).await });
                    }
                    drafts.push(self.event(&transition));
                }
                Effect::Count(status) => self.counted.move_to(Some(status)),
                Effect::Save { ticket, sandbox, claim } => {
                    self.world.journal.write_later(std::mem::take(&mut drafts));
                    let record = [Draft::Save(sandbox)].into_iter();
                    self.write(myself, ticket, record.chain(claim.map(Draft::Claim)).collect());
                }
                Effect::RemoveRecord { ticket, session } => {
                    self.world.journal.write_later(std::mem::take(&mut drafts));
                    self.write(myself, ticket, vec![Draft::Remove { chat: self.chat, session }]);
                }
                Effect::SaveLater(sandbox) => drafts.push(Draft::Save(sandbox)),
                Effect::SaveActivity { session, at } => {
                    drafts.push(Draft::Activity { chat: self.chat, session, at });
                }
                Effect::Arm { at } => self.world.addresses.reaper.cast(reaper::Message::Arm { chat: self.chat, at }),
                Effect::Disarm => self.world.addresses.reaper.cast(reaper::Message::Disarm { chat: self.chat }),
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
                Effect::Discover => self.discover(myself),
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
                    // The journal commits before the tear-down. Otherwise a service that dies in between takes its own
                    // removal for a failed sandbox. If a caller's delete cannot be saved, the caller gets an error and
                    // the sandbox stays. An expired or failed sandbox is removed anyway, which may free disk space.
                    self.world.journal.write_later(std::mem::take(&mut drafts));
                    let (world, chat, flushed) = (Arc::clone(&self.world), self.chat, self.world.journal.flush());
                    let place = self.place();
                    let must_be_saved = self.lifecycle.phase().is_requested_deletion_with_record();
                    let tear_down = async move {
                        match flushed.await {
                            Err(error) if must_be_saved => Err(NotSaved(error.to_string()).into()),
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
                Effect::RemoveContainer { container } => {
                    // Detached from the actor, so that the removal continues when the actor stops or fails.
                    let engine = self.world.engine.clone();
                    tokio::spawn(
                        async move { engine.remove_until_gone(&container).await }
                            .instrument(self.span("remove_container")),
                    );
                }
            }
        }
        self.world.journal.write_later(drafts);
    }

    /// Reports the limit keys to root if they differ from the request that root counted: an adopted sandbox or a
    /// successor may have other keys.
    fn report_limit_keys(&mut self) {
        let limit_keys = self.lifecycle.sandbox().map(LimitKeys::from);
        if limit_keys == self.limit_keys {
            return;
        }
        self.limit_keys.clone_from(&limit_keys);
        if let Some(limit_keys) = limit_keys {
            let (chat, incarnation) = (self.chat, self.incarnation);
            self.send_to_root(root::Message::LimitKeys { chat, incarnation, keys: limit_keys });
        }
    }

    /// Writes entries and reports the commit with [`Event::Saved`].
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

    /// Sends a message to root. Root outlives its chats, so a failed send means that this actor is about to stop.
    fn send_to_root(&self, message: root::Message) {
        let _ = self.root.cast(message);
    }

    /// Answers a caller. A caller that has disconnected finds its sandbox with its next create.
    fn answer(&mut self, waiter: WaiterId, reply: Reply) {
        match reply {
            Reply::Create(result) => {
                let Some((asked_at, answer)) = self.callers.creates.remove(&waiter) else { return };
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
                let _ = answer.send(result);
            }
            Reply::Get(result) => send(self.callers.gets.remove(&waiter), result),
            Reply::Sandbox(result) => send(self.callers.sandboxes.remove(&waiter), result),
            Reply::Snapshot(result) => {
                if let Err(error) = &result {
                    tracing::warn!(chat.id = %self.chat, %error, "snapshot refused or failed");
                }
                send(self.callers.snapshots.remove(&waiter), result);
            }
            Reply::Delete(result) => {
                let outcome = match &result {
                    Ok(Deletion::Deleted { .. }) => "deleted",
                    Ok(Deletion::NotFound) => "not_found",
                    Err(_) => "error",
                };
                metrics::counter!("sandboxd_delete_total", "result" => outcome).increment(1);
                send(self.callers.deletes.remove(&waiter), result);
            }
        }
    }

    fn publish(&mut self, Transition { sandbox, from, to }: &Transition) {
        self.counted.move_to(*to);
        // A sandbox that is stopped at its expiry and removed later counts as one expiry.
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

/// Sends a result to a waiting caller, if it is still there.
fn send<T: Send + 'static>(caller: Option<RpcReplyPort<T>>, result: T) {
    if let Some(caller) = caller {
        let _ = caller.send(result);
    }
}
