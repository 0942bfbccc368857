//! Warm slots of one profile: started ahead for future chats, claimed once each, replaced while the engine has capacity
//! to spare.
//!
//! [`inventory`] decides; [`actor`] carries out; [`start`] starts a slot; [`claim`] makes a slot a chat's sandbox.

pub mod actor;
pub mod claim;
pub mod claims;
pub mod inventory;
mod start;

use crate::domain::ids::ProfileName;
use crate::ports::clock::Timestamp;
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
