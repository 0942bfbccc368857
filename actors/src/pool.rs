//! Warm slots of one profile: started ahead for future chats, claimed once each, replaced while the engine has capacity
//! to spare.
//!
//! [`inventory`] decides; [`actor`] carries out; [`start`] starts a slot; [`claim`] makes a slot a chat's sandbox.

pub mod actor;
pub mod claim;
pub mod claims;
pub mod inventory;
mod start;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::chat::World;
use crate::domain::ids::ProfileName;
use crate::domain::labels::SlotLabels;
use crate::ports::clock::Timestamp;
use crate::ports::engine::Observed;
use crate::ports::slot::LateBinding;
use inventory::Counts;

/// The status of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub profile: ProfileName,
    /// The number of free slots that the pool aims for at the moment.
    pub target: usize,
    pub slots: Counts,
    /// The pool keeps no slots until it is filled again.
    pub is_drained: bool,
    /// Slots whose removal is under way.
    pub removing: usize,
    /// Hints that have neither been used nor expired.
    pub hints: usize,
    /// The id of the profile's image, once it is known.
    pub image_id: Option<String>,
    /// How a slot is bound to a chat, or why the pool can have no slots.
    pub late_binding: Result<LateBinding, String>,
    /// The cause of the last failed start, unless a slot has started since.
    pub last_error: Option<String>,
    pub retry_at: Option<Timestamp>,
    pub counters: PoolCounters,
}

/// Counters since the start of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolCounters {
    /// Claims that got a slot.
    pub hits: u64,
    /// Claims that got no slot.
    pub misses: u64,
    /// Claimed slots that were removed because they were not bound.
    pub spoiled: u64,
    /// Hints that were followed by a claim.
    pub hints_hit: u64,
    /// Hints that expired.
    pub hints_wasted: u64,
}

/// Sends each listed slot to its pool. Slots of profiles that no longer exist are removed.
pub(crate) fn distribute(world: &Arc<World>, slots: Vec<(SlotLabels, Observed)>) {
    let pools = world.addresses.pools();
    let mut by_profile: BTreeMap<ProfileName, Vec<_>> =
        pools.keys().map(|profile| (profile.clone(), Vec::new())).collect();
    for (labels, observed) in slots {
        by_profile.entry(labels.profile.clone()).or_default().push((labels, observed));
    }
    for (profile, slots) in by_profile {
        match pools.get(&profile) {
            Some(pool) => pool.cast(actor::Message::Listed { slots }),
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
