//! The actor that owns one chat's sandbox, and its decisions.
//!
//! [`lifecycle`] decides without side effects. [`actor`] runs the resulting effects as tasks that return as messages.
//! The mailbox is the only serialisation, and it never waits for the engine.

pub mod actor;
pub mod admission;
pub mod effects;
pub mod events;
mod leases;
pub mod lifecycle;
pub mod phase;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use crate::addresses::Addresses;
use crate::domain::container::MountPoints;
use crate::domain::ids::{InstanceName, SessionId};
use crate::domain::sandbox::Sandbox;
use crate::domain::snapshot::retention::Retention;
use crate::engine::bounded::Bounded;
use crate::engine::fair_queue::{EnginePermit, EngineQueue, Lane, Tenant};
use crate::journal::{Draft, JournalHandle};
use crate::pool::claims::Claims;
use crate::ports::chat_directories::ChatDirectories;
use crate::ports::clock::Clock;
use crate::ports::guest::Guests;
use crate::ports::probe::Probe;
use crate::ports::slot::Slots;
use crate::root::limits::Capacity;

pub use effects::teardown::TeardownLimits;
pub use lifecycle::Rules;

/// The services and settings that every chat uses.
#[derive(Clone)]
pub struct World {
    pub instance: InstanceName,
    pub engine: Bounded,
    pub engine_queue: EngineQueue,
    /// The longest time that a launch waits for a permit.
    pub queue_limit: Duration,
    pub probe: Arc<dyn Probe>,
    pub directories: Arc<dyn ChatDirectories>,
    pub guests: Arc<dyn Guests>,
    pub slots: Arc<dyn Slots>,
    pub claims: Arc<Claims>,
    pub clock: Arc<dyn Clock>,
    pub mounts: MountPoints,
    pub teardown: TeardownLimits,
    pub journal: JournalHandle,
    pub rules: Rules,
    pub capacity: Capacity,
    pub retention: Retention,
    /// Removals of session files, which outlive their chat's actor. A shutdown waits for them.
    pub cleanups: TaskTracker,
    /// Root publishes its children here.
    pub addresses: Addresses,
}

impl World {
    /// Returns the journal entries that adopt a sandbox: its record, and its claim if its container was a slot.
    pub(crate) fn adoption(&self, sandbox: Box<Sandbox>) -> impl Iterator<Item = Draft> + use<> {
        let claim = self.claims.of_session(sandbox.session);
        [Draft::Save(sandbox)].into_iter().chain(claim.map(Draft::Claim))
    }

    /// Removes the guest files and the claim of a session whose container is removed.
    pub(crate) async fn remove_session(&self, session: SessionId) {
        self.guests.clear(session).await;
        self.claims.remove(session);
    }
}

/// A place in the engine queue.
#[derive(Debug, Clone)]
pub struct Place {
    pub lane: Lane,
    pub tenant: Tenant,
}

impl Place {
    async fn permit(self, world: &World) -> EnginePermit {
        world.engine_queue.acquire(self.lane, self.tenant).await
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("instance", &self.instance).finish_non_exhaustive()
    }
}
