//! Warm slots of one profile: kept started for chats to come, handed out once each, replaced in quiet moments.
//!
//! [`inventory`] decides; [`actor`] carries out; [`start`] is how a slot comes into being, and [`claim`] how it becomes a
//! chat's.

pub mod actor;
pub mod claim;
pub mod claims;
pub mod inventory;
mod start;

use crate::domain::ids::ProfileName;
use crate::ports::clock::Timestamp;
use crate::ports::slot::LateBinding;
use inventory::Counts;

/// What is to be known of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub profile: ProfileName,
    /// How many slots are wanted free at the moment.
    pub target: usize,
    pub slots: Counts,
    /// It keeps no slots until it is filled again.
    pub is_drained: bool,
    /// Slots whose removal is under way.
    pub removing: usize,
    /// Hints that may still come true.
    pub hints: usize,
    /// Which image the profile's name stands for, once that is known.
    pub image_id: Option<String>,
    /// How a slot becomes a chat's, or why there cannot be any slots.
    pub late_binding: Result<LateBinding, String>,
    /// Why the last slot did not come, if none has come since.
    pub last_error: Option<String>,
    pub retry_at: Option<Timestamp>,
    pub tally: PoolCounters,
}

/// Since the service started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolCounters {
    /// Claims that got a slot.
    pub hits: u64,
    /// Claims that found none.
    pub misses: u64,
    /// Slots that were handed out and did not become a chat's.
    pub spoiled: u64,
    /// Hints that came true.
    pub hints_hit: u64,
    /// Hints whose time ran out.
    pub hints_wasted: u64,
}
