//! The pools: one supervised child per profile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorCell, ActorId, ActorRef, RpcReplyPort};

use crate::addresses::Address;
use crate::chat::World;
use crate::domain::ids::ProfileName;
use crate::pool::Status;
use crate::pool::actor::{Arguments, Message, Pool};
use crate::root::supervised_child::SupervisedChild;
use crate::sandboxes::ask_within;

/// The time limit for a pool to report its status.
const STATUS_LIMIT: Duration = Duration::from_secs(5);

/// The time limit for the removal of all free slots.
pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Pools {
    children: BTreeMap<ProfileName, SupervisedChild<Message>>,
    /// Profiles whose pool has been started before.
    started: BTreeSet<ProfileName>,
    /// Profiles whose pools stay empty, also across a restart of the pool.
    drained: BTreeSet<ProfileName>,
}

impl Pools {
    /// Returns a pool for each profile, not started yet, and publishes their addresses.
    pub(super) fn new(world: &World) -> Self {
        let addresses: BTreeMap<_, _> =
            world.rules.profiles.keys().map(|name| (name.clone(), Address::default())).collect();
        let children = addresses.iter().map(|(name, address)| (name.clone(), SupervisedChild::at(address))).collect();
        world.addresses.publish_pools(addresses);
        Self { children, started: BTreeSet::new(), drained: BTreeSet::new() }
    }

    /// Starts the profile's pool. Returns the cause of a failure, and the delay before the next try.
    pub(super) async fn start(
        &mut self,
        world: &Arc<World>,
        name: &ProfileName,
        root: ActorCell,
    ) -> Result<(), (String, Duration)> {
        let Some(profile) = world.rules.profiles.get(name).cloned() else { return Ok(()) };
        let Some(child) = self.children.get_mut(name) else { return Ok(()) };
        let is_successor = !self.started.insert(name.clone());
        let is_drained = self.drained.contains(name);
        let arguments = Arguments { world: Arc::clone(world), profile, is_successor, is_drained };
        child.start(Pool, arguments, root).await
    }

    /// Drains the pools, or the pool of one profile, or lets them start slots again. Replies with the status of all pools:
    /// of drained ones once their slots are gone, or after [`DRAIN_LIMIT`].
    pub(super) fn set_drained(
        &mut self,
        profile: Option<&ProfileName>,
        drained: bool,
        reply: RpcReplyPort<Vec<Status>>,
    ) {
        let mut draining = Vec::new();
        for (name, pool) in self.children.iter().filter(|(name, _)| profile.is_none_or(|profile| profile == *name)) {
            if drained {
                self.drained.insert(name.clone());
                draining.extend(pool.actor());
            } else {
                self.drained.remove(name);
                pool.actor().map(|pool| pool.cast(Message::Fill));
            }
        }
        let pools = self.actors();
        // Root must not wait for the pools.
        tokio::spawn(async move {
            let drained = draining.iter().map(|pool| ask_within(pool, DRAIN_LIMIT, Message::Drain));
            futures_util::future::join_all(drained).await;
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

/// Returns the status of every pool that answers.
pub(crate) async fn statuses(pools: &[ActorRef<Message>]) -> Vec<Status> {
    let answers = pools.iter().map(|pool| ask_within(pool, STATUS_LIMIT, Message::Status));
    futures_util::future::join_all(answers).await.into_iter().flatten().collect()
}
