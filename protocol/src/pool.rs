//! Pools of slots: sandboxes that are started before a chat needs them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::Time;
use crate::words::words;

/// Parameters of `pool.drain` and `pool.fill`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolParams {
    /// Profile whose pool is meant. Default: all pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
}

/// Result of `pool.status`, `pool.drain` and `pool.fill`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolsResult {
    /// All pools, one for each profile.
    pub pools: Vec<Pool>,
}

/// The pool of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pool {
    /// Name of the profile.
    pub profile: String,
    /// Number of free slots that the pool maintains now: `pool.size`, one for each hint, and `pool.spare` under load.
    pub target: u64,
    /// Number of free slots.
    pub free: u64,
    /// Number of slots that are being started.
    pub coming: u64,
    /// Number of claimed slots that are being bound to their chats.
    pub taken: u64,
    /// Number of slots that are being removed.
    pub removing: u64,
    /// Whether the pool was drained and maintains no slots.
    pub drained: bool,
    /// Number of pending hints.
    pub hints: u64,
    /// Id of the image that the profile's image name refers to; null if unknown. Slots of another image are replaced.
    pub image_id: Option<String>,
    /// How the directories of a chat are mounted into a slot; null if the profile cannot have slots.
    pub late_binding: Option<LateBinding>,
    /// Why the directories are not injected; null if they are, or if the profile cannot have slots.
    pub late_binding_because: Option<String>,
    /// Why the profile cannot have slots, so that each sandbox is started on request; null if it can.
    pub unavailable: Option<String>,
    /// Why the last slot failed to start; null after a slot has started.
    pub last_error: Option<String>,
    /// When the pool tries again to start a slot; null if no attempt is due.
    pub retry_at: Option<Time>,
    /// Claims of slots since the service started.
    pub claims: ClaimCounts,
    /// Hints since the service started.
    pub hinted: HintCounts,
}

/// Number of claims of slots, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimCounts {
    /// Creates that claimed a slot.
    pub hits: u64,
    /// Creates that found no free slot.
    pub misses: u64,
    /// Claimed slots that could not be bound to a chat and were removed.
    pub spoiled: u64,
}

/// Number of hints, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HintCounts {
    /// Hints that a create fulfilled.
    pub hits: u64,
    /// Hints that expired.
    pub wasted: u64,
}

words! {
    /// How the directories of a chat are mounted into a slot.
    enum LateBinding {
        /// The service mounts them in the mount namespace of the slot.
        Injected = "injected",
        /// The service mounts them on the host at a place that the slot shares.
        Propagated = "propagated",
    }
}
