//! The pools: one for each profile, started again when it fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorCell, ActorId, ActorRef, RpcReplyPort};

use super::kept::Kept;
use crate::chat::World;
use crate::engine::Observed;
use crate::ids::{ProfileName, SlotId};
use crate::labels::SlotLabels;
use crate::pool::Status;
use crate::pool::actor::{Arguments, Message, Pool};
use crate::sandboxes::ask_within;

/// How long a pool may take to describe itself.
const STATUS_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Pools {
    kept: BTreeMap<ProfileName, Kept<Message>>,
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
        let arguments = Arguments { world: Arc::clone(world), profile, is_successor };
        self.kept.entry(name.clone()).or_default().start(Pool, arguments, root).await
    }

    /// What is sent to a pool that is down is lost.
    pub(super) fn cast(&self, profile: &ProfileName, message: Message) {
        if let Some(pool) = self.kept.get(profile) {
            pool.cast(message);
        }
    }

    /// Nobody knows whose it is without asking.
    pub(super) fn stirred(&self, slot: SlotId) {
        for pool in self.kept.values() {
            pool.cast(Message::Stirred { slot });
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
                            world.slots.clear(labels.slot);
                        }
                    });
                }
            }
        }
    }

    /// In the background, as pools answer in their own time.
    pub(super) fn describe(&self, statuses: RpcReplyPort<Vec<Status>>) {
        let pools = self.actors();
        tokio::spawn(async move {
            let described = pools.iter().map(|pool| ask_within(pool, STATUS_LIMIT, Message::Status));
            let described = futures_util::future::join_all(described).await.into_iter().flatten().collect();
            let _ = statuses.send(described);
        });
    }

    pub(super) fn actors(&self) -> Vec<ActorRef<Message>> {
        self.kept.values().filter_map(Kept::actor).collect()
    }

    pub(super) fn ended(&mut self, actor: ActorId) -> Option<(ProfileName, Duration)> {
        self.kept.iter_mut().find_map(|(profile, pool)| Some((profile.clone(), pool.ended(actor)?)))
    }
}
