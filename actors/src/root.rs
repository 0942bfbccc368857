//! The supervisor: one actor per chat that has, or is getting, a sandbox, and one actor for each task that serves all
//! chats.
//!
//! Requests reach a chat through root, in mailbox order. No handler waits for the engine.

pub(crate) mod flush;
pub mod limits;
mod message;
mod pools;
mod refusal;
mod routing_table;
mod supervised_child;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::time::Instant;

use crate::addresses::Address;
use crate::builder::{self, Builder, BuilderSetup};
use crate::chat::World;
use crate::chat::actor::{self as chat, Call, Chat, Start};
use crate::chat::events::Event;
use crate::domain::ids::{ChatId, ContainerId, ProfileName};
use crate::domain::outcome::{Deletion, SandboxError};
use crate::journal::Contents;
use crate::ports::clock::Timestamp;
use crate::reaper::{self, Reaper};
use crate::reconciler::{self, Reconciler, Trigger};
use crate::sandboxes::Intervals;
use crate::watcher::{self, Watcher};
use limits::{LimitCounts, LimitKeys};
pub use message::{ActiveActors, Chats, Message, Reconciled, Restart, Routes};
use pools::Pools;
pub(crate) use pools::{DRAIN_LIMIT, statuses};
use routing_table::{Route, RoutingTable};
pub use supervised_child::Child;
use supervised_child::SupervisedChild;

#[derive(Debug)]
pub struct Root;

#[derive(Debug)]
pub struct Arguments {
    pub world: Arc<World>,
    pub contents: Contents,
    pub intervals: Intervals,
    /// Without a setup, the service does not manage images.
    pub builder_setup: Option<Arc<BuilderSetup>>,
}

#[derive(Debug)]
pub struct State {
    world: Arc<World>,
    started_at: Timestamp,
    intervals: Intervals,
    reaper: SupervisedChild<reaper::Message>,
    reconciler: SupervisedChild<reconciler::Message>,
    watcher: SupervisedChild<watcher::Message>,
    pools: Pools,
    builder_setup: Option<Arc<BuilderSetup>>,
    builder: SupervisedChild<builder::Message>,
    routing_table: RoutingTable<ActorRef<chat::Message>>,
    limit_counts: LimitCounts,
    chats: HashMap<ActorId, (ChatId, u64)>,
    /// `Some` until the engine is listed. Only then is a chat without an actor known to have no sandbox.
    unadopted: Option<Unadopted>,
    closed: bool,
}

/// State for chats that have no actor yet.
#[derive(Debug)]
struct Unadopted {
    /// The journal's contents at the start of the service.
    contents: Arc<Contents>,
    /// Engine events that may be newer than the listing.
    engine_events: BTreeMap<ChatId, ContainerId>,
}

impl Actor for Root {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<Message>, arguments: Arguments) -> Result<State, ActorProcessingErr> {
        let Arguments { world, contents, intervals, builder_setup } = arguments;
        let addresses = &world.addresses;
        let mut state = State {
            started_at: world.clock.now(),
            intervals,
            reaper: SupervisedChild::at(&addresses.reaper),
            reconciler: SupervisedChild::at(&addresses.reconciler),
            watcher: SupervisedChild::at(&Address::default()),
            pools: Pools::new(&world),
            builder_setup,
            builder: SupervisedChild::at(&addresses.builder),
            world,
            routing_table: RoutingTable::default(),
            limit_counts: LimitCounts::default(),
            chats: HashMap::new(),
            unadopted: Some(Unadopted { contents: Arc::new(contents), engine_events: BTreeMap::new() }),
            closed: false,
        };
        for child in Child::ALL {
            state.start(&myself, child).await;
        }
        for profile in state.world.rules.profiles.clone().keys() {
            state.start_pool(&myself, profile).await;
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Call { call, .. } if state.closed => call.refuse(SandboxError::ShuttingDown),
            Message::Call { chat, call } => state.route(&myself, chat, call).await,
            Message::Idle { chat, incarnation, handled, retire } => {
                if state.routing_table.has_handled_all(chat, incarnation, handled) {
                    state.limit_counts.remove(chat);
                }
                if retire && let Some(actor) = state.routing_table.retire(chat, incarnation, handled) {
                    state.chats.remove(&actor.get_id());
                    actor.stop(None);
                }
            }
            Message::LimitKeys { chat, incarnation, keys } => {
                if state.routing_table.is_up(chat, incarnation) {
                    state.limit_counts.add(chat, keys);
                }
            }
            Message::Due { chat } => state.send_event(chat, Event::Due),
            Message::ClockStepped { by } => {
                let chats = state.serving();
                for chat in &chats {
                    let _ = chat.cast(chat::Message::Event(Box::new(Event::ClockStepped { by })));
                }
                // Every chat gets the clock step before its next deadline event. The write to disk may take its time.
                tokio::spawn(flush::flush_until_saved(chats, state.world.journal.clone()));
            }
            Message::EngineEvent { chat, container } => state.engine_event(chat, container),
            Message::Reconciled { results, done } => {
                state.reconciled(&myself, results).await;
                let _ = done.send(());
            }
            Message::Chats { after, limit, chats } => {
                let (is_listed, total) = (state.is_listed(), state.routing_table.len());
                let _ = chats.send(Chats { is_listed, total, routes: state.routing_table.page(after, limit) });
            }
            Message::DrainPools { profile, drained, statuses } => {
                state.pools.set_drained(profile.as_ref(), drained, statuses);
            }
            Message::Restart(_) if state.closed => {}
            Message::Restart(Restart::Child(child)) => state.start(&myself, child).await,
            Message::Restart(Restart::Pool(profile)) => state.start_pool(&myself, &profile).await,
            Message::Restart(Restart::Chat { chat, incarnation }) => {
                if state.routing_table.is_down(chat, incarnation) {
                    state.spawn(&myself, chat, Start::Unknown).await;
                }
            }
            Message::Ping(pong) => drop(pong.send(())),
            Message::Close { active } => {
                state.closed = true;
                state.watcher.stop();
                state.reconciler.stop();
                state.builder.stop();
                let _ = active.send(ActiveActors { chats: state.serving(), pools: state.pools.actors() });
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Message>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let (actor, why) = match event {
            SupervisionEvent::ActorFailed(actor, error) => (actor, error.to_string()),
            SupervisionEvent::ActorTerminated(actor, _, reason) => {
                (actor, reason.unwrap_or_else(|| "the actor stopped".to_owned()))
            }
            _ => return Ok(()),
        };
        if let Some((child, delay)) = state.ended(actor.get_id()) {
            if !state.closed {
                restart_after(&myself, delay, child, &why);
            }
            return Ok(());
        }
        if let Some((profile, delay)) = state.pools.ended(actor.get_id()) {
            if !state.closed {
                restart_pool_after(&myself, delay, profile, &why);
            }
            return Ok(());
        }
        // A retired actor is no longer in `chats`.
        if let Some((chat, incarnation)) = state.chats.remove(&actor.get_id())
            && let Some(delay) = state.routing_table.crashed(chat, incarnation, Instant::now())
        {
            tracing::error!(chat.id = %chat, %why, ?delay, "chat actor failed; restarting");
            respawn_after(&myself, delay, chat, incarnation);
        }
        Ok(())
    }
}

impl State {
    async fn route(&mut self, myself: &ActorRef<Message>, chat: ChatId, call: Call) {
        let call = match call {
            Call::Create(request, answer) => match self.limit_counts.admit(chat, &request, self.world.capacity) {
                Ok(()) => Call::Create(request, answer),
                Err(full) => return refusal::answer(chat, full, answer, self.reaper.actor(), &self.world.clock),
            },
            call => call,
        };
        let start = if self.is_listed() { Start::Absent } else { Start::Unknown };
        match self.routing_table.route(chat, Instant::now()) {
            Route::Down { retry_after } => return call.refuse(SandboxError::Recovering { chat, retry_after }),
            Route::Forward => {}
            Route::Spawn => match (call, start) {
                // The chat has no sandbox, so these calls need no actor.
                (Call::Get(answer), Start::Absent) => return drop(answer.send(Ok(None))),
                (Call::Delete(_, answer), Start::Absent) => {
                    metrics::counter!("sandboxd_delete_total", "result" => "not_found").increment(1);
                    return drop(answer.send(Ok(Deletion::NotFound)));
                }
                (Call::Snapshot(_, answer), Start::Absent) => {
                    return drop(answer.send(Err(SandboxError::NotFound { chat })));
                }
                (
                    Call::Renew(_, answer)
                    | Call::Touch(answer)
                    | Call::Pause(answer)
                    | Call::Lease(_, answer)
                    | Call::Release(_, answer),
                    Start::Absent,
                ) => return drop(answer.send(Err(SandboxError::NotFound { chat }))),
                (call, start) => {
                    self.spawn(myself, chat, start).await;
                    return self.forward(chat, call);
                }
            },
        }
        self.forward(chat, call);
    }

    fn forward(&mut self, chat: ChatId, call: Call) {
        // If the actor has just failed, the message and its reply port are dropped, and the caller gets a retry error.
        if let Some(actor) = self.routing_table.forward(chat) {
            let _ = actor.cast(chat::Message::Call(call));
        }
    }

    /// Sends an event to a chat's actor. A chat without an actor has no sandbox for the event to change.
    fn send_event(&self, chat: ChatId, event: Event) {
        if let Some(actor) = self.routing_table.serving(chat) {
            let _ = actor.cast(chat::Message::Event(Box::new(event)));
        }
    }

    fn engine_event(&mut self, chat: ChatId, container: ContainerId) {
        match &mut self.unadopted {
            Some(unadopted) if !self.routing_table.contains(chat) => {
                drop(unadopted.engine_events.insert(chat, container))
            }
            _ => self.send_event(chat, Event::EngineEvent { container }),
        }
    }

    async fn reconciled(&mut self, myself: &ActorRef<Message>, results: Reconciled) {
        for (chat, live_container) in results.observed {
            self.send_event(chat, Event::Listed(live_container));
        }
        for sandbox in results.adopted {
            // A chat's actor is newer than a listing made a moment ago.
            if !self.routing_table.contains(sandbox.chat) {
                self.limit_counts.add(sandbox.chat, LimitKeys::from(&*sandbox));
                self.spawn(myself, sandbox.chat, Start::Sandbox(sandbox)).await;
            }
        }
        if results.complete {
            let events = self.unadopted.take().map(|unadopted| unadopted.engine_events).unwrap_or_default();
            for (chat, container) in events {
                self.engine_event(chat, container);
            }
        }
    }

    fn serving(&self) -> Vec<ActorRef<chat::Message>> {
        self.routing_table.page(None, usize::MAX).into_iter().filter_map(|(_, actor)| actor).collect()
    }

    fn is_listed(&self) -> bool {
        self.unadopted.is_none()
    }

    async fn start(&mut self, myself: &ActorRef<Message>, child: Child) {
        let (world, root) = (Arc::clone(&self.world), myself.clone());
        let Intervals { reap, reconcile } = self.intervals;
        let started = match child {
            Child::Reaper => {
                let arguments = reaper::Arguments { root, clock: Arc::clone(&world.clock), tick: reap };
                self.reaper.start(Reaper, arguments, myself.get_cell()).await
            }
            Child::Reconciler => {
                let unadopted = self.unadopted.as_ref().map(|unadopted| Arc::clone(&unadopted.contents));
                let started_at = self.started_at;
                let arguments = reconciler::Arguments { world, root, interval: reconcile, unadopted, started_at };
                self.reconciler.start(Reconciler, arguments, myself.get_cell()).await
            }
            Child::Watcher => self.watcher.start(Watcher, watcher::Arguments { world, root }, myself.get_cell()).await,
            Child::Builder => match &self.builder_setup {
                Some(builder_setup) => self.builder.start(Builder, Arc::clone(builder_setup), myself.get_cell()).await,
                None => Ok(()),
            },
        };
        match started {
            Err((why, delay)) => restart_after(myself, delay, child, &why),
            // A new reaper has no deadlines.
            Ok(()) if child == Child::Reaper => {
                for chat in self.serving() {
                    let _ = chat.cast(chat::Message::Rearm);
                }
            }
            Ok(()) => {}
        }
    }

    async fn start_pool(&mut self, myself: &ActorRef<Message>, profile: &ProfileName) {
        match self.pools.start(&self.world, profile, myself.get_cell()).await {
            Err((why, delay)) => restart_pool_after(myself, delay, profile.clone(), &why),
            // A new pool has no slots.
            Ok(()) => {
                let pass = reconciler::Message::Pass { because: Trigger::Gap, dry_run: false, report: None };
                self.world.addresses.reconciler.cast(pass);
            }
        }
    }

    /// Returns the supervised child that has ended, and the delay before its restart.
    fn ended(&mut self, actor: ActorId) -> Option<(Child, Duration)> {
        Child::ALL.into_iter().find_map(|child| {
            let delay = match child {
                Child::Reaper => self.reaper.ended(actor),
                Child::Reconciler => self.reconciler.ended(actor),
                Child::Watcher => self.watcher.ended(actor),
                Child::Builder => self.builder.ended(actor),
            };
            delay.map(|delay| (child, delay))
        })
    }

    async fn spawn(&mut self, myself: &ActorRef<Message>, chat: ChatId, start: Start) {
        let incarnation = self.routing_table.next_incarnation();
        let arguments =
            chat::Arguments { chat, incarnation, start, world: Arc::clone(&self.world), root: myself.clone() };
        match Actor::spawn_linked(None, Chat, arguments, myself.get_cell()).await {
            Ok((actor, _)) => {
                self.chats.insert(actor.get_id(), (chat, incarnation));
                self.routing_table.admit(chat, incarnation, actor);
            }
            Err(error) => {
                let delay = self.routing_table.mark_down(chat, incarnation, Instant::now());
                tracing::error!(chat.id = %chat, %error, ?delay, "chat actor did not start; retrying");
                respawn_after(myself, delay, chat, incarnation);
            }
        }
    }
}

fn restart_after(root: &ActorRef<Message>, delay: Duration, child: Child, why: &str) {
    metrics::counter!("sandboxd_actor_restarts_total", "actor" => child.as_str()).increment(1);
    tracing::error!(actor = child.as_str(), %why, ?delay, "actor failed; restarting");
    root.send_after(delay, move || Message::Restart(Restart::Child(child)));
}

fn restart_pool_after(root: &ActorRef<Message>, delay: Duration, profile: ProfileName, why: &str) {
    metrics::counter!("sandboxd_actor_restarts_total", "actor" => "pool").increment(1);
    tracing::error!(actor = "pool", %profile, %why, ?delay, "actor failed; restarting");
    root.send_after(delay, move || Message::Restart(Restart::Pool(profile)));
}

fn respawn_after(root: &ActorRef<Message>, delay: Duration, chat: ChatId, incarnation: u64) {
    metrics::counter!("sandboxd_chat_restarts_total").increment(1);
    root.send_after(delay, move || Message::Restart(Restart::Chat { chat, incarnation }));
}
