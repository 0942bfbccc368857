//! A pool's mailbox. It never waits for the engine: what takes time is a task that comes back as a message.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::start::{NotStarted, start};
use super::{PoolCounters, Status};
use crate::chat::World;
use crate::domain::container::{places, spec_hash};
use crate::domain::ids::{ChatId, ContainerId, SlotId};
use crate::domain::labels::{SessionLabels, SlotLabels};
use crate::domain::profile::Profile;
use crate::engine::fair_queue::{Lane, Tenant};
use crate::pool::inventory::{Counts, Hinted, Inventory};
use crate::ports::clock::Timestamp;
use crate::ports::engine::{ContainerState, Observed};
use crate::ports::slot::{LateBinding, Slot};

/// How often a pool looks at what it has.
const TICK: Duration = Duration::from_millis(250);

/// How often it is looked whether the image was rebuilt. A claim looks for itself.
const IMAGE_LOOK: TimeDelta = TimeDelta::seconds(5);

/// After a claim, slots are replaced once so long nobody claimed another, unless they run low.
const QUIET: TimeDelta = TimeDelta::milliseconds(500);

/// A slot of which this pool knows nothing may be on its way to a chat, handed out before the pool was started anew.
const CLAIM_GRACE: TimeDelta = TimeDelta::minutes(2);

/// Between two tries to remove a slot, after the first one that failed and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub enum Message {
    /// A chat is going to have a sandbox: takes one of the slots, if there is a good one.
    Claim {
        chat: ChatId,
        slot: RpcReplyPort<Option<Slot>>,
    },
    /// What became of a slot that was handed out.
    Settled {
        slot: SlotId,
        container: ContainerId,
        bound: bool,
    },
    /// A slot came, or did not.
    Came {
        slot: SlotId,
        outcome: Result<Slot, String>,
    },
    /// A slot that was listed is not free. `stray`: it was never furnished, or was taken; otherwise the disk did not say.
    NotFree {
        slot: SlotId,
        container: ContainerId,
        stray: bool,
    },
    /// The engine says that something happened to the container of a slot.
    EngineEvent {
        slot: SlotId,
    },
    /// The engine holds these slots of the profile, or held them a moment ago, and no others.
    Listed {
        slots: Vec<(SlotLabels, Observed)>,
    },
    /// Which image the profile's name stands for.
    Image(String),
    Hint {
        chat: Option<ChatId>,
        ttl: Duration,
        hinted: RpcReplyPort<Result<Hinted, String>>,
    },
    Status(RpcReplyPort<Status>),
    /// Removes every free slot and starts no more until [`Message::Fill`]; answers once none is left or on its way.
    Drain(RpcReplyPort<()>),
    /// Keeps as many slots as ever.
    Fill,
    /// A slot that was to be removed is gone.
    Removed,
    /// Starts no more; answers once nothing is on its way.
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
    /// It is known which slots there are already.
    surveyed: bool,
    /// From then on, a slot of which nothing is known is nobody's.
    strays_from: Timestamp,
    last_claim: Option<Timestamp>,
    image_looked_at: Option<Timestamp>,
    last_error: Option<String>,
    tally: PoolCounters,
    /// Those who wait for the end of what is on its way, after which nothing else is begun.
    settling: Vec<RpcReplyPort<()>>,
    /// Callers that wait until no slot is left.
    draining: Vec<RpcReplyPort<()>>,
    /// Slots whose removal is under way.
    removing: usize,
    myself: ActorRef<Message>,
    closed: CancellationToken,
    /// Ended with the actor.
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
            surveyed: false,
            strays_from: if is_successor { now + CLAIM_GRACE } else { now },
            world,
            profile,
            last_claim: None,
            image_looked_at: None,
            last_error: None,
            tally: PoolCounters::default(),
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
            Message::Came { slot, outcome } => state.came(slot, outcome),
            Message::NotFree { slot, container, stray } => state.not_free(slot, container, stray),
            Message::EngineEvent { slot } => state.engine_event(slot),
            Message::Listed { slots } => {
                state.surveyed = true;
                for (labels, observed) in slots {
                    state.listed(&myself, labels, observed);
                }
            }
            Message::Image(image) => state.inventory.image_is(image),
            Message::Hint { chat, ttl, hinted } => {
                let _ = hinted.send(state.hint(chat, ttl));
                state.keep(&myself);
            }
            Message::Status(status) => drop(status.send(state.status())),
            Message::Drain(reply) => {
                state.inventory.drain();
                state.keep(&myself);
                state.draining.push(reply);
            }
            Message::Fill => state.inventory.fill(),
            Message::Removed => state.removing -= 1,
            Message::Settle(reply) => {
                state.closed.cancel();
                state.settling.push(reply);
            }
            Message::Tick => {
                state.keep(&myself);
                // Armed after the pass: ticks never queue up.
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
        state.publish();
        Ok(())
    }
}

/// How a slot of the profile becomes a chat's, or why none can.
fn late_binding(world: &World, profile: &Profile) -> Result<LateBinding, String> {
    if !profile.init {
        return Err("the profile has init = false, and a slot is bound by its init".to_owned());
    }
    if let Some(runtime) = &profile.runtime {
        return Err(format!("nothing can be mounted later into a sandbox of the runtime {runtime}"));
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
            self.tally.hints_hit += 1;
            self.count("sandboxd_hints_total", "outcome", "hit");
        }
        // A pool that keeps nothing has nothing to miss.
        if claimed.slot.is_some() {
            self.tally.hits += 1;
            self.count("sandboxd_pool_claims_total", "result", "hit");
        } else if self.inventory.target() > 0 {
            self.tally.misses += 1;
            self.count("sandboxd_pool_claims_total", "result", "miss");
        }
        if let Err(Some(slot)) = answer.send(claimed.slot).map_err(lost) {
            // Whoever asked is gone, and the slot was never touched; but it is not handed out a second time.
            self.spoil(slot.id, slot.container);
        }
    }

    fn settled(&mut self, slot: SlotId, container: ContainerId, bound: bool) {
        if bound {
            self.inventory.settled(slot);
        } else {
            self.spoil(slot, container);
        }
    }

    fn spoil(&mut self, slot: SlotId, container: ContainerId) {
        self.inventory.settled(slot);
        self.tally.spoiled += 1;
        self.count("sandboxd_pool_claims_total", "result", "spoiled");
        self.discard(slot, container);
    }

    fn came(&mut self, slot: SlotId, outcome: Result<Slot, String>) {
        match outcome {
            Ok(slot) => {
                tracing::debug!(slot.id = %slot.id, container.id = %slot.container, profile = %self.profile.name, "a slot is ready");
                self.count("sandboxd_pool_slots_started_total", "result", "ok");
                self.last_error = None;
                self.inventory.came(slot);
            }
            Err(error) => {
                tracing::warn!(slot.id = %slot, profile = %self.profile.name, %error, "a slot did not start");
                self.count("sandboxd_pool_slots_started_total", "result", "failed");
                self.last_error = Some(error);
                let now = self.now();
                self.inventory.failed(slot, now);
            }
        }
    }

    fn engine_event(&mut self, slot: SlotId) {
        if let Some(slot) = self.inventory.died(slot) {
            tracing::info!(slot.id = %slot.id, profile = %self.profile.name, "a slot ended by itself or was meddled with");
            self.retired("died");
            self.discard(slot.id, slot.container);
        }
    }

    /// A slot that is known is dealt with already. Another one is taken over, if it is as good as a new one.
    fn listed(&mut self, myself: &ActorRef<Message>, labels: SlotLabels, observed: Observed) {
        let slot = labels.slot;
        if self.inventory.knows(slot) {
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
                    let (container, stray) = (observed.id, is_free.is_ok());
                    let _ = myself.cast(Message::NotFree { slot, container, stray });
                    return;
                }
                let SlotLabels { image_id, created_at, .. } = labels;
                let waits = world.slots.wait(slot, &places(&world.mounts)).await;
                let container = observed.id.clone();
                let found = Slot { id: slot, container: observed.id, address: observed.address, image_id, created_at };
                let outcome = waits.map(|()| found).map_err(|error| error.to_string());
                if outcome.is_err() {
                    discard(&world, slot, container).await;
                }
                let _ = myself.cast(Message::Came { slot, outcome });
            });
        } else {
            self.stray(slot, observed.id);
        }
    }

    fn not_free(&mut self, slot: SlotId, container: ContainerId, stray: bool) {
        self.inventory.settled(slot);
        if stray {
            self.stray(slot, container);
        }
    }

    fn stray(&mut self, slot: SlotId, container: ContainerId) {
        if self.now() >= self.strays_from {
            self.retired("stray");
            self.discard(slot, container);
        }
    }

    fn hint(&mut self, chat: Option<ChatId>, ttl: Duration) -> Result<Hinted, String> {
        if let Err(why) = &self.late_binding {
            return Err(why.clone());
        }
        if self.inventory.is_drained() {
            return Err("the pool is drained (pool.fill ends that)".to_owned());
        }
        let hinted = self.inventory.hint(chat, ttl, self.now());
        if let Hinted::OverBudget { .. } = hinted {
            self.count("sandboxd_hints_total", "outcome", "refused");
        }
        Ok(hinted)
    }

    /// Brings what there is towards what is wanted, one step.
    fn keep(&mut self, myself: &ActorRef<Message>) {
        let now = self.now();
        for _ in 0..self.inventory.expire_hints(now) {
            self.tally.hints_wasted += 1;
            self.count("sandboxd_hints_total", "outcome", "wasted");
        }
        for (slot, why) in self.inventory.retire(now) {
            self.retired(why.as_str());
            self.discard(slot.id, slot.container);
        }
        let quiet = self.last_claim.is_none_or(|claim| now - claim >= QUIET) || self.inventory.is_low();
        if self.late_binding.is_ok()
            && self.surveyed
            && !self.closed.is_cancelled()
            && quiet
            && self.inventory.wants(now)
        {
            let slot = SlotId::random();
            self.inventory.coming(slot);
            let (world, profile, myself) = (Arc::clone(&self.world), Arc::clone(&self.profile), myself.clone());
            let closed = self.closed.clone();
            self.tasks.spawn(async move {
                let outcome = start(&world, &profile, slot, &closed).await.map_err(|NotStarted(why)| why);
                let _ = myself.cast(Message::Came { slot, outcome });
            });
        }
        let is_kept = self.inventory.target() + self.inventory.counts().free > 0 && self.late_binding.is_ok();
        if is_kept && self.image_looked_at.is_none_or(|looked| now - looked >= IMAGE_LOOK) {
            self.image_looked_at = Some(now);
            let (world, profile, myself) = (Arc::clone(&self.world), Arc::clone(&self.profile), myself.clone());
            self.tasks.spawn(async move {
                if let Ok(Some(image)) = world.engine.image_id(&profile.image).await {
                    let _ = myself.cast(Message::Image(image));
                }
            });
        }
    }

    /// In the background, and not with the actor: it is tried until it succeeds.
    fn discard(&mut self, slot: SlotId, container: ContainerId) {
        let (world, myself) = (Arc::clone(&self.world), self.myself.clone());
        self.removing += 1;
        tokio::spawn(async move {
            discard(&world, slot, container).await;
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
            tally: self.tally,
        }
    }

    fn retired(&self, why: &'static str) {
        self.count("sandboxd_pool_slots_retired_total", "why", why);
    }

    fn count(&self, counter: &'static str, label: &'static str, value: &'static str) {
        metrics::counter!(counter, "profile" => self.profile.name.to_string(), label => value).increment(1);
    }

    fn publish(&self) {
        let counts = self.inventory.counts();
        for (state, count) in [("free", counts.free), ("coming", counts.coming), ("taken", counts.taken)] {
            metrics::gauge!("sandboxd_pool_slots", "profile" => self.profile.name.to_string(), "state" => state)
                .set(count as f64);
        }
    }
}

/// Removes what is left of a slot, unless it has become a chat's since it was seen.
async fn discard(world: &World, slot: SlotId, container: ContainerId) {
    let mut pause = FIRST_PAUSE;
    loop {
        // A drain removes hundreds at once, and callers wait for the same engine. Each try has a turn of its own: slots
        // that cannot be removed would keep all turns for ever.
        let turn = world.turns.take(Lane::Expiry, Tenant::Service).await;
        let is_gone = match world.engine.inspect(container.as_str()).await {
            // What is a chat's by now is shown with the chat's labels.
            Ok(Some(seen)) if SessionLabels::decode(&seen.labels).is_ok() => return,
            Ok(Some(_)) => world.engine.try_to_discard(&container).await,
            Ok(None) => true,
            // It may be a chat's.
            Err(_) => false,
        };
        drop(turn);
        if is_gone {
            break;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    world.slots.clear(slot).await;
}

/// What was not delivered.
fn lost(error: ractor::MessagingErr<Option<Slot>>) -> Option<Slot> {
    match error {
        ractor::MessagingErr::SendErr(slot) => slot,
        _ => None,
    }
}
