//! The actor of a pool. A handler never waits for the engine: slow work is a task that reports back with a message.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::start::{NotStarted, start};
use super::{PoolCounters, Status};
use crate::chat::World;
use crate::domain::container::{late_mount_points, spec_hash};
use crate::domain::ids::{ChatId, ContainerId, SlotId};
use crate::domain::labels::SlotLabels;
use crate::domain::profile::Profile;
use crate::engine::fair_queue::{Lane, Tenant};
use crate::pool::inventory::{Counts, Hinted, Inventory};
use crate::ports::clock::Timestamp;
use crate::ports::engine::{ContainerState, Observed};
use crate::ports::slot::{LateBinding, Slot};

/// The interval at which a pool checks its slots.
const TICK: Duration = Duration::from_millis(250);

/// The interval at which the image is checked for a rebuild. A claim checks for itself.
const IMAGE_CHECK: TimeDelta = TimeDelta::seconds(5);

/// The time without a claim after which slots are replaced, unless they run low.
const QUIET: TimeDelta = TimeDelta::milliseconds(500);

/// A slot that is unknown to this pool may have been claimed before a restart of the pool.
const CLAIM_GRACE: TimeDelta = TimeDelta::minutes(2);

/// The first and the longest delay between two tries to remove a slot.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub enum Message {
    /// Claims a free slot for a chat, if there is a usable one.
    Claim {
        chat: ChatId,
        slot: RpcReplyPort<Option<Slot>>,
    },
    /// The outcome of a claim.
    Settled {
        slot: SlotId,
        container: ContainerId,
        bound: bool,
    },
    /// The outcome of the start of a slot.
    StartEnded {
        slot: SlotId,
        outcome: Result<Slot, String>,
    },
    /// A listed slot is not free. `confirmed`: the host says that it was never prepared, or is taken. Otherwise the
    /// host did not answer.
    NotFree {
        slot: SlotId,
        container: ContainerId,
        confirmed: bool,
    },
    /// The engine reports an event about the container of a slot.
    EngineEvent {
        slot: SlotId,
    },
    /// The listed slots of the profile. The listing may be a moment old.
    Listed {
        slots: Vec<(SlotLabels, Observed)>,
    },
    /// The id of the profile's image.
    Image(String),
    Hint {
        chat: Option<ChatId>,
        ttl: Duration,
        hinted: RpcReplyPort<Result<Hinted, String>>,
    },
    Status(RpcReplyPort<Status>),
    /// Removes every free slot and starts none until [`Message::Fill`]. Replies once none is free or starting.
    Drain(RpcReplyPort<()>),
    /// Starts slots again after a drain.
    Fill,
    /// A slot is removed.
    Removed,
    /// Starts no more slots. Replies once none is starting.
    Settle(RpcReplyPort<()>),
    Tick,
}

#[derive(Debug)]
pub struct Pool;

#[derive(Debug)]
pub struct Arguments {
    pub world: Arc<World>,
    pub profile: Arc<Profile>,
    /// A pool of the same profile has failed before.
    pub is_successor: bool,
    pub is_drained: bool,
}

#[derive(Debug)]
pub struct State {
    world: Arc<World>,
    profile: Arc<Profile>,
    inventory: Inventory,
    late_binding: Result<LateBinding, String>,
    /// The engine has been listed, so existing slots are known.
    is_listed: bool,
    /// The time from which unknown slots are removed.
    unknown_removed_from: Timestamp,
    last_claim: Option<Timestamp>,
    image_checked_at: Option<Timestamp>,
    last_error: Option<String>,
    counters: PoolCounters,
    /// Callers that wait until no slot is starting. No slot is started after that.
    settling: Vec<RpcReplyPort<()>>,
    /// Callers that wait until no free slot is left.
    draining: Vec<RpcReplyPort<()>>,
    /// The number of removals under way.
    removing: usize,
    myself: ActorRef<Message>,
    closed: CancellationToken,
    /// Tasks that end with the actor.
    tasks: JoinSet<()>,
}

impl Actor for Pool {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<Message>, arguments: Arguments) -> Result<State, ActorProcessingErr> {
        let Arguments { world, profile, is_successor, is_drained } = arguments;
        let now = world.clock.now();
        let mut inventory = Inventory::new(profile.pool);
        if is_drained {
            inventory.drain();
        }
        myself.send_after(TICK, || Message::Tick);
        Ok(State {
            inventory,
            late_binding: late_binding(&world, &profile),
            is_listed: false,
            unknown_removed_from: if is_successor { now + CLAIM_GRACE } else { now },
            world,
            profile,
            last_claim: None,
            image_checked_at: None,
            last_error: None,
            counters: PoolCounters::default(),
            settling: Vec::new(),
            draining: Vec::new(),
            removing: 0,
            myself,
            closed: CancellationToken::new(),
            tasks: JoinSet::new(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Claim { chat, slot } => state.claim(chat, slot),
            Message::Settled { slot, container, bound } => state.settled(slot, container, bound),
            Message::StartEnded { slot, outcome } => state.start_ended(slot, outcome),
            Message::NotFree { slot, container, confirmed } => state.not_free(slot, container, confirmed),
            Message::EngineEvent { slot } => state.engine_event(slot),
            Message::Listed { slots } => {
                state.is_listed = true;
                for (labels, observed) in slots {
                    state.listed(&myself, labels, observed);
                }
            }
            Message::Image(image) => state.inventory.set_image(image),
            Message::Hint { chat, ttl, hinted } => {
                let _ = hinted.send(state.hint(chat, ttl));
                state.maintain(&myself);
            }
            Message::Status(status) => drop(status.send(state.status())),
            Message::Drain(reply) => {
                state.inventory.drain();
                state.maintain(&myself);
                state.draining.push(reply);
            }
            Message::Fill => state.inventory.fill(),
            Message::Removed => state.removing -= 1,
            Message::Settle(reply) => {
                state.closed.cancel();
                state.settling.push(reply);
            }
            Message::Tick => {
                state.maintain(&myself);
                // Armed after the pass, so that ticks never queue up.
                myself.send_after(TICK, || Message::Tick);
            }
        }
        while state.tasks.try_join_next().is_some() {}
        let Counts { free, coming, .. } = state.inventory.counts();
        if free + coming + state.removing == 0 || !state.inventory.is_drained() {
            state.draining.drain(..).for_each(|reply| drop(reply.send(())));
        }
        if coming == 0 {
            state.settling.drain(..).for_each(|reply| drop(reply.send(())));
        }
        state.publish_gauges();
        Ok(())
    }
}

/// Returns how a slot of the profile is bound to a chat, or why it cannot be bound.
fn late_binding(world: &World, profile: &Profile) -> Result<LateBinding, String> {
    if !profile.init {
        return Err("the profile has init = false, but init binds a slot".to_owned());
    }
    if let Some(runtime) = &profile.runtime {
        return Err(format!("the runtime {runtime} cannot mount directories into a running sandbox"));
    }
    world.slots.late_binding()
}

impl State {
    fn now(&self) -> Timestamp {
        self.world.clock.now()
    }

    fn claim(&mut self, chat: ChatId, answer: RpcReplyPort<Option<Slot>>) {
        let now = self.now();
        self.last_claim = Some(now);
        let claimed = self.inventory.claim(chat, now);
        if claimed.was_hinted {
            self.counters.hints_hit += 1;
            self.count("sandboxd_hints_total", "outcome", "hit");
        }
        // A claim at a pool without a target is no miss.
        if claimed.slot.is_some() {
            self.counters.hits += 1;
            self.count("sandboxd_pool_claims_total", "result", "hit");
        } else if self.inventory.target() > 0 {
            self.counters.misses += 1;
            self.count("sandboxd_pool_claims_total", "result", "miss");
        }
        if let Err(Some(slot)) = answer.send(claimed.slot).map_err(undelivered) {
            // The caller is gone. The slot is untouched, but must not be claimed twice.
            self.remove_unbound(slot.id, slot.container);
        }
    }

    fn settled(&mut self, slot: SlotId, container: ContainerId, bound: bool) {
        if bound {
            self.inventory.remove(slot);
        } else {
            self.remove_unbound(slot, container);
        }
    }

    fn remove_unbound(&mut self, slot: SlotId, container: ContainerId) {
        self.inventory.remove(slot);
        self.counters.spoiled += 1;
        self.count("sandboxd_pool_claims_total", "result", "spoiled");
        self.remove(slot, container);
    }

    fn start_ended(&mut self, slot: SlotId, outcome: Result<Slot, String>) {
        match outcome {
            Ok(slot) => {
                tracing::debug!(
                    slot.id = %slot.id, container.id = %slot.container, profile = %self.profile.name, "slot ready"
                );
                self.count("sandboxd_pool_slots_started_total", "result", "ok");
                self.last_error = None;
                self.inventory.started(slot);
            }
            Err(error) => {
                tracing::warn!(slot.id = %slot, profile = %self.profile.name, %error, "slot did not start");
                self.count("sandboxd_pool_slots_started_total", "result", "failed");
                self.last_error = Some(error);
                let now = self.now();
                self.inventory.failed(slot, now);
            }
        }
    }

    fn engine_event(&mut self, slot: SlotId) {
        if let Some(slot) = self.inventory.remove_dead(slot) {
            tracing::info!(slot.id = %slot.id, profile = %self.profile.name, "slot exited or was modified externally");
            self.count_removal("died");
            self.remove(slot.id, slot.container);
        }
    }

    /// Adopts an unknown slot if it is usable. A known slot only has to be still running.
    fn listed(&mut self, myself: &ActorRef<Message>, labels: SlotLabels, observed: Observed) {
        let slot = labels.slot;
        if self.inventory.contains(slot) {
            if observed.state != ContainerState::Running {
                self.engine_event(slot);
            }
            return;
        }
        let same = labels.spec_hash == spec_hash(&self.profile, &self.world.mounts);
        let running = observed.state == ContainerState::Running;
        if same && running && self.late_binding.is_ok() {
            self.inventory.coming(slot);
            let (world, myself) = (Arc::clone(&self.world), myself.clone());
            self.tasks.spawn(async move {
                let is_free = world.slots.is_free(slot).await;
                if !matches!(is_free, Ok(true)) {
                    let (container, confirmed) = (observed.id, is_free.is_ok());
                    let _ = myself.cast(Message::NotFree { slot, container, confirmed });
                    return;
                }
                let SlotLabels { image_id, created_at, .. } = labels;
                let ready = world.slots.wait(slot, &late_mount_points(&world.mounts)).await;
                let container = observed.id.clone();
                let found = Slot { id: slot, container: observed.id, address: observed.address, image_id, created_at };
                let outcome = ready.map(|()| found).map_err(|error| error.to_string());
                if outcome.is_err() {
                    remove_slot(&world, slot, container).await;
                }
                let _ = myself.cast(Message::StartEnded { slot, outcome });
            });
        } else {
            self.remove_unknown(slot, observed.id);
        }
    }

    fn not_free(&mut self, slot: SlotId, container: ContainerId, confirmed: bool) {
        self.inventory.remove(slot);
        if confirmed {
            self.remove_unknown(slot, container);
        }
    }

    fn remove_unknown(&mut self, slot: SlotId, container: ContainerId) {
        if self.now() >= self.unknown_removed_from {
            self.count_removal("stray");
            self.remove(slot, container);
        }
    }

    fn hint(&mut self, chat: Option<ChatId>, ttl: Duration) -> Result<Hinted, String> {
        if let Err(why) = &self.late_binding {
            return Err(why.clone());
        }
        if self.inventory.is_drained() {
            return Err("the pool is drained; call pool.fill to start slots again".to_owned());
        }
        let hinted = self.inventory.hint(chat, ttl, self.now());
        if let Hinted::OverBudget { .. } = hinted {
            self.count("sandboxd_hints_total", "outcome", "refused");
        }
        Ok(hinted)
    }

    /// Moves the pool one step towards its target: expires hints, removes slots, starts a slot, checks the image.
    fn maintain(&mut self, myself: &ActorRef<Message>) {
        let now = self.now();
        for _ in 0..self.inventory.expire_hints(now) {
            self.counters.hints_wasted += 1;
            self.count("sandboxd_hints_total", "outcome", "wasted");
        }
        for (slot, why) in self.inventory.remove_unusable(now) {
            self.count_removal(why.as_str());
            self.remove(slot.id, slot.container);
        }
        let quiet = self.last_claim.is_none_or(|claim| now - claim >= QUIET) || self.inventory.is_low();
        if self.late_binding.is_ok()
            && self.is_listed
            && !self.closed.is_cancelled()
            && quiet
            && self.inventory.wants_slot(now)
        {
            let slot = SlotId::random();
            self.inventory.coming(slot);
            let (world, profile, myself) = (Arc::clone(&self.world), Arc::clone(&self.profile), myself.clone());
            let closed = self.closed.clone();
            self.tasks.spawn(async move {
                let outcome = start(&world, &profile, slot, &closed).await.map_err(|NotStarted(why)| why);
                let _ = myself.cast(Message::StartEnded { slot, outcome });
            });
        }
        let has_slots = self.inventory.target() + self.inventory.counts().free > 0 && self.late_binding.is_ok();
        if has_slots && self.image_checked_at.is_none_or(|checked| now - checked >= IMAGE_CHECK) {
            self.image_checked_at = Some(now);
            let (world, profile, myself) = (Arc::clone(&self.world), Arc::clone(&self.profile), myself.clone());
            self.tasks.spawn(async move {
                if let Ok(Some(image)) = world.engine.image_id(&profile.image).await {
                    let _ = myself.cast(Message::Image(image));
                }
            });
        }
    }

    /// Removes a slot in a background task that outlives the actor, because the removal is retried until it succeeds.
    fn remove(&mut self, slot: SlotId, container: ContainerId) {
        let (world, myself) = (Arc::clone(&self.world), self.myself.clone());
        self.removing += 1;
        tokio::spawn(async move {
            remove_slot(&world, slot, container).await;
            let _ = myself.cast(Message::Removed);
        });
    }

    fn status(&self) -> Status {
        Status {
            profile: self.profile.name.clone(),
            target: self.inventory.target(),
            slots: self.inventory.counts(),
            is_drained: self.inventory.is_drained(),
            removing: self.removing,
            hints: self.inventory.hints(),
            image_id: self.inventory.image().map(str::to_owned),
            late_binding: self.late_binding.clone(),
            last_error: self.last_error.clone(),
            retry_at: self.inventory.not_before(),
            counters: self.counters,
        }
    }

    fn count_removal(&self, why: &'static str) {
        self.count("sandboxd_pool_slots_retired_total", "why", why);
    }

    fn count(&self, counter: &'static str, label: &'static str, value: &'static str) {
        metrics::counter!(counter, "profile" => self.profile.name.to_string(), label => value).increment(1);
    }

    fn publish_gauges(&self) {
        let counts = self.inventory.counts();
        for (state, count) in [("free", counts.free), ("coming", counts.coming), ("taken", counts.taken)] {
            metrics::gauge!("sandboxd_pool_slots", "profile" => self.profile.name.to_string(), "state" => state)
                .set(count as f64);
        }
    }
}

/// Removes a slot, unless it has become a chat's sandbox since it was observed.
async fn remove_slot(world: &World, slot: SlotId, container: ContainerId) {
    let mut delay = FIRST_DELAY;
    loop {
        // A drain removes hundreds of slots at once, while callers wait for the same engine. Each try takes a permit of
        // its own: slots that cannot be removed would hold all permits for ever.
        let permit = world.engine_queue.acquire(Lane::Expiry, Tenant::Service).await;
        let is_gone = match world.engine.inspect(container.as_str()).await {
            Ok(Some(_)) if world.claims.of_slot(slot).is_some() => return,
            Ok(Some(_)) => world.engine.try_remove(&container).await,
            Ok(None) => true,
            // The container may belong to a chat.
            Err(_) => false,
        };
        drop(permit);
        if is_gone {
            break;
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(LONGEST_DELAY);
    }
    world.slots.clear(slot).await;
}

/// Returns the slot that was not delivered.
fn undelivered(error: ractor::MessagingErr<Option<Slot>>) -> Option<Slot> {
    match error {
        ractor::MessagingErr::SendErr(slot) => slot,
        _ => None,
    }
}
