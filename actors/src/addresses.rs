//! The addresses of root's supervised children. Root restarts a child that fails, so a sender reads the address for each
//! message instead of keeping it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ractor::{ActorRef, RpcReplyPort};
use tokio::sync::watch;

use crate::domain::ids::ProfileName;
use crate::sandboxes::ask;
use crate::{builder, pool, reaper, reconciler};

/// The address of one supervised child. Clones share it.
#[derive(Debug)]
pub struct Address<M>(Arc<watch::Sender<Option<ActorRef<M>>>>);

impl<M> Default for Address<M> {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl<M> Clone for Address<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: ractor::Message> Address<M> {
    /// Returns the child, or `None` while it is down.
    pub(crate) fn actor(&self) -> Option<ActorRef<M>> {
        self.0.borrow().clone()
    }

    /// Sends a message to the child. A child that is down loses it.
    pub(crate) fn cast(&self, message: M) {
        if let Some(actor) = self.actor() {
            let _ = actor.cast(message);
        }
    }

    /// Calls the child. Returns `None` if the child is down or does not answer.
    pub(crate) async fn ask<T: Send + 'static>(&self, message: impl FnOnce(RpcReplyPort<T>) -> M) -> Option<T> {
        ask(&self.actor()?, message).await
    }

    /// Publishes the child's actor, or that it is down.
    pub(crate) fn publish(&self, actor: Option<ActorRef<M>>) {
        self.0.send_replace(actor);
    }
}

/// The addresses that chats, callers and children send to without a detour through root.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    pub(crate) reaper: Address<reaper::Message>,
    pub(crate) reconciler: Address<reconciler::Message>,
    pub(crate) builder: Address<builder::Message>,
    pools: Arc<watch::Sender<Pools>>,
}

type Pools = Arc<BTreeMap<ProfileName, Address<pool::actor::Message>>>;

impl Addresses {
    /// Returns the pool of each profile.
    pub(crate) fn pools(&self) -> Pools {
        Arc::clone(&self.pools.borrow())
    }

    /// Returns the pool of a profile.
    pub(crate) fn pool(&self, profile: &ProfileName) -> Option<Address<pool::actor::Message>> {
        self.pools.borrow().get(profile).cloned()
    }

    /// Publishes the pools, of which there is one for each profile from the start on.
    pub(crate) fn publish_pools(&self, pools: BTreeMap<ProfileName, Address<pool::actor::Message>>) {
        self.pools.send_replace(Arc::new(pools));
    }
}
