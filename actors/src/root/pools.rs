//! The pools: one supervised child per profile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorCell, ActorId, ActorRef, RpcReplyPort};

use crate::chat::World;
use crate::domain::ids::{ProfileName, SlotId};
use crate::domain::labels::SlotLabels;
use crate::pool::Status;
use crate::pool::actor::{Arguments, Message, Pool};
use crate::ports::engine::Observed;
use crate::root::supervised_child::SupervisedChild;
use crate::sandboxes::ask_within;

/// The time limit for a pool to report its status.
const STATUS_LIMIT: Duration = Duration::from_secs(5);

/// The time limit for the removal of all free slots.
pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Pools {
    children: BTreeMap<ProfileName, SupervisedChild<Message>>,
    /// Profiles whose pools stay empty, also across a restart of the pool.
    drained: BTreeSet<ProfileName>,
}

impl Pools {
    /// Starts the profile's pool. Returns the cause of a failure, and the delay before the next try.
    pub(super) async fn start(
        &mut self,
        world: &Arc<World>,
        name: &ProfileName,
        root: ActorCell,
    ) -> Result<(), (String, Duration)> {
        let Some(profile) = world.rules.profiles.get(name).cloned() else { return Ok(()) };
        let is_successor = self.children.contains_key(name);
        let is_drained = self.drained.contains(name);
        let arguments = Arguments { world: Arc::clone(world), profile, is_successor, is_drained };
        self.children.entry(name.clone()).or_default().start(Pool, arguments, root).await
    }

    /// Sends a message to a pool. A pool that is down loses it.
    pub(super) fn cast(&self, profile: &ProfileName, message: Message) {
        if let Some(pool) = self.children.get(profile) {
            pool.cast(message);
        }
    }

    /// Sends the event to every pool, because the event does not name the slot's profile.
    pub(super) fn engine_event(&self, slot: SlotId) {
        for pool in self.children.values() {
            pool.cast(Message::EngineEvent { slot });
        }
    }

    /// Sends each slot to its pool. Slots of profiles that no longer exist are removed.
    pub(super) fn listed(&self, world: &Arc<World>, slots: Vec<(SlotLabels, Observed)>) {
        let mut by_profile: BTreeMap<ProfileName, Vec<_>> =
            self.children.keys().map(|profile| (profile.clone(), Vec::new())).collect();
        for (labels, observed) in slots {
            by_profile.entry(labels.profile.clone()).or_default().push((labels, observed));
        }
        for (profile, slots) in by_profile {
            match self.children.get(&profile) {
                Some(pool) => pool.cast(Message::Listed { slots }),
                None => {
                    let world = Arc::clone(world);
                    tokio::spawn(async move {
                        for (labels, observed) in slots {
                            world.engine.remove_until_gone(&observed.id).await;
                            world.slots.clear(labels.slot).await;
                        }
                    });
                }
            }
        }
    }

    /// Drains the pools, or the pool of one profile. Replies with the status of all pools once their slots are gone, or
    /// after [`DRAIN_LIMIT`].
    pub(super) fn drain(&mut self, profile: Option<&ProfileName>, reply: RpcReplyPort<Vec<Status>>) {
        let chosen = self.chosen(profile);
        self.drained.extend(chosen.iter().map(|(profile, _)| profile.clone()));
        let draining: Vec<_> = chosen.into_iter().filter_map(|(_, pool)| pool).collect();
        let pools = self.actors();
        tokio::spawn(async move {
            let drained = draining.iter().map(|pool| ask_within(pool, DRAIN_LIMIT, Message::Drain));
            futures_util::future::join_all(drained).await;
            let _ = reply.send(statuses(&pools).await);
        });
    }

    /// Lets the pools, or the pool of one profile, start slots again.
    pub(super) fn fill(&mut self, profile: Option<&ProfileName>, reply: RpcReplyPort<Vec<Status>>) {
        for (profile, pool) in self.chosen(profile) {
            self.drained.remove(&profile);
            if let Some(pool) = pool {
                let _ = pool.cast(Message::Fill);
            }
        }
        self.describe(reply);
    }

    /// Returns each chosen profile with its pool, or `None` for a pool that is down.
    fn chosen(&self, profile: Option<&ProfileName>) -> Vec<(ProfileName, Option<ActorRef<Message>>)> {
        let chosen = self.children.iter().filter(|(name, _)| profile.is_none_or(|profile| profile == *name));
        chosen.map(|(name, pool)| (name.clone(), pool.actor())).collect()
    }

    /// Replies with the status of all pools, from a background task, because root must not wait for the pools.
    pub(super) fn describe(&self, reply: RpcReplyPort<Vec<Status>>) {
        let pools = self.actors();
        tokio::spawn(async move {
            let _ = reply.send(statuses(&pools).await);
        });
    }

    pub(super) fn actors(&self) -> Vec<ActorRef<Message>> {
        self.children.values().filter_map(SupervisedChild::actor).collect()
    }

    pub(super) fn ended(&mut self, actor: ActorId) -> Option<(ProfileName, Duration)> {
        self.children.iter_mut().find_map(|(profile, pool)| Some((profile.clone(), pool.ended(actor)?)))
    }
}

async fn statuses(pools: &[ActorRef<Message>]) -> Vec<Status> {
    let answers = pools.iter().map(|pool| ask_within(pool, STATUS_LIMIT, Message::Status));
    futures_util::future::join_all(answers).await.into_iter().flatten().collect()
}
