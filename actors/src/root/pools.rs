//! The pools: one for each profile, started again when it fails.

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

/// How long a pool may take to describe itself.
const STATUS_LIMIT: Duration = Duration::from_secs(5);

/// How long the removal of all slots is waited for.
pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Pools {
    kept: BTreeMap<ProfileName, SupervisedChild<Message>>,
    /// Profiles whose pools are to stay empty, also if they have to be started again.
    drained: BTreeSet<ProfileName>,
}

impl Pools {
    /// Starts the profile's pool, or answers why that failed and how long to wait before the next try.
    pub(super) async fn start(
        &mut self,
        world: &Arc<World>,
        name: &ProfileName,
        root: ActorCell,
    ) -> Result<(), (String, Duration)> {
        let Some(profile) = world.rules.profiles.get(name).cloned() else { return Ok(()) };
        let is_successor = self.kept.contains_key(name);
        let is_drained = self.drained.contains(name);
        let arguments = Arguments { world: Arc::clone(world), profile, is_successor, is_drained };
        self.kept.entry(name.clone()).or_default().start(Pool, arguments, root).await
    }

    /// What is sent to a pool that is down is lost.
    pub(super) fn cast(&self, profile: &ProfileName, message: Message) {
        if let Some(pool) = self.kept.get(profile) {
            pool.cast(message);
        }
    }

    /// Nobody knows whose it is without asking.
    pub(super) fn engine_event(&self, slot: SlotId) {
        for pool in self.kept.values() {
            pool.cast(Message::EngineEvent { slot });
        }
    }

    /// Hands each slot to its pool. One whose profile is no more is nobody's.
    pub(super) fn listed(&self, world: &Arc<World>, slots: Vec<(SlotLabels, Observed)>) {
        let mut by_profile: BTreeMap<ProfileName, Vec<_>> =
            self.kept.keys().map(|profile| (profile.clone(), Vec::new())).collect();
        for (labels, observed) in slots {
            by_profile.entry(labels.profile.clone()).or_default().push((labels, observed));
        }
        for (profile, slots) in by_profile {
            match self.kept.get(&profile) {
                Some(pool) => pool.cast(Message::Listed { slots }),
                None => {
                    let world = Arc::clone(world);
                    tokio::spawn(async move {
                        for (labels, observed) in slots {
                            world.engine.discard(&observed.id).await;
                            world.slots.clear(labels.slot).await;
                        }
                    });
                }
            }
        }
    }

    /// Lets the pools, or that of one profile, remove their slots, and answers how all of them are doing once that is done or
    /// takes too long.
    pub(super) fn drain(&mut self, profile: Option<&ProfileName>, statuses: RpcReplyPort<Vec<Status>>) {
        let chosen = self.chosen(profile);
        self.drained.extend(chosen.iter().map(|(profile, _)| profile.clone()));
        let draining: Vec<_> = chosen.into_iter().filter_map(|(_, pool)| pool).collect();
        let pools = self.actors();
        tokio::spawn(async move {
            let drained = draining.iter().map(|pool| ask_within(pool, DRAIN_LIMIT, Message::Drain));
            futures_util::future::join_all(drained).await;
            let _ = statuses.send(described(&pools).await);
        });
    }

    /// Lets the pools, or that of one profile, keep slots again.
    pub(super) fn fill(&mut self, profile: Option<&ProfileName>, statuses: RpcReplyPort<Vec<Status>>) {
        for (profile, pool) in self.chosen(profile) {
            self.drained.remove(&profile);
            if let Some(pool) = pool {
                let _ = pool.cast(Message::Fill);
            }
        }
        self.describe(statuses);
    }

    /// Each chosen profile with its pool, unless that is down.
    fn chosen(&self, profile: Option<&ProfileName>) -> Vec<(ProfileName, Option<ActorRef<Message>>)> {
        let chosen = self.kept.iter().filter(|(name, _)| profile.is_none_or(|profile| profile == *name));
        chosen.map(|(name, pool)| (name.clone(), pool.actor())).collect()
    }

    /// In the background, as pools answer in their own time.
    pub(super) fn describe(&self, statuses: RpcReplyPort<Vec<Status>>) {
        let pools = self.actors();
        tokio::spawn(async move {
            let _ = statuses.send(described(&pools).await);
        });
    }

    pub(super) fn actors(&self) -> Vec<ActorRef<Message>> {
        self.kept.values().filter_map(SupervisedChild::actor).collect()
    }

    pub(super) fn ended(&mut self, actor: ActorId) -> Option<(ProfileName, Duration)> {
        self.kept.iter_mut().find_map(|(profile, pool)| Some((profile.clone(), pool.ended(actor)?)))
    }
}

async fn described(pools: &[ActorRef<Message>]) -> Vec<Status> {
    let described = pools.iter().map(|pool| ask_within(pool, STATUS_LIMIT, Message::Status));
    futures_util::future::join_all(described).await.into_iter().flatten().collect()
}
