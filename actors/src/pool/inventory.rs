//! The pure state of a pool: slots, claims and hints. Times go in, decisions come out.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use chrono::TimeDelta;

use crate::domain::ids::{ChatId, ContainerId, SlotId};
use crate::domain::profile::PoolTargets;
use crate::ports::clock::Timestamp;
use crate::ports::slot::Slot;

/// The time for which a claim counts as recent.
const RECENT: TimeDelta = TimeDelta::minutes(1);

/// The first and the longest delay between two tries to start a slot.
const FIRST_DELAY: TimeDelta = TimeDelta::seconds(1);
const LONGEST_DELAY: TimeDelta = TimeDelta::minutes(1);

/// The age, in tenths of the maximum age, from which a slot's successor is started. The slot can still be claimed.
const AGEING: i32 = 9;

#[derive(Debug)]
pub struct Inventory {
    targets: PoolTargets,
    slots: BTreeMap<SlotId, Stage>,
    /// The id of the profile's image, once it is known.
    image: Option<String>,
    claims: VecDeque<Timestamp>,
    hints: Vec<Hint>,
    failures: u32,
    not_before: Option<Timestamp>,
    /// The pool wants no slots until it is filled again.
    is_drained: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// The slot is being started, or was listed and is not yet known to be free.
    Coming,
    Free(Slot),
    /// The slot is claimed, and the outcome of the claim is not known yet.
    Taken(ContainerId),
}

/// An announcement that a sandbox will be requested soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hint {
    /// Any chat, if absent.
    chat: Option<ChatId>,
    until: Timestamp,
}

/// The outcome of a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hinted {
    /// A slot is kept, or started, in addition to the usual number.
    Preparing { until: Timestamp },
    /// The allowed number of hints is reached.
    OverBudget { limit: usize },
}

/// The reason for the removal of an unused slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalReason {
    Aged,
    /// The image was rebuilt.
    Stale,
    /// There are more slots than the target.
    Surplus,
}

impl RemovalReason {
    pub fn as_str(self) -> &'static str {
        match self {
            RemovalReason::Aged => "aged",
            RemovalReason::Stale => "stale",
            RemovalReason::Surplus => "surplus",
        }
    }
}

/// The number of slots in each stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub free: usize,
    pub coming: usize,
    pub taken: usize,
}

/// The slot of a claim, and whether a hint announced the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    pub slot: Option<Slot>,
    pub was_hinted: bool,
}

impl Inventory {
    pub fn new(targets: PoolTargets) -> Self {
        Self {
            targets,
            slots: BTreeMap::new(),
            image: None,
            claims: VecDeque::new(),
            hints: Vec::new(),
            failures: 0,
            not_before: None,
            is_drained: false,
        }
    }

    /// Stops wanting slots. Free slots become surplus, and starting slots do so once they have started.
    pub fn drain(&mut self) {
        self.is_drained = true;
        self.hints.clear();
    }

    /// Wants slots again.
    pub fn fill(&mut self) {
        self.is_drained = false;
        self.not_before = None;
    }

    pub fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Claims the oldest usable slot. A slot is never claimed twice.
    pub fn claim(&mut self, chat: ChatId, now: Timestamp) -> Claimed {
        self.claims.push_back(now);
        let hint = self.hints.iter().position(|hint| hint.chat == Some(chat));
        let hint = hint.or_else(|| self.hints.iter().position(|hint| hint.chat.is_none()));
        let was_hinted = hint.map(|hint| self.hints.remove(hint)).is_some();
        let usable = self.free().filter(|slot| self.removal_reason(slot, now).is_none());
        let slot = usable.min_by_key(|slot| (slot.created_at, slot.id)).cloned();
        if let Some(slot) = &slot {
            self.slots.insert(slot.id, Stage::Taken(slot.container.clone()));
        }
        Claimed { slot, was_hinted }
    }

    /// Removes a slot that is bound or gone.
    pub fn remove(&mut self, slot: SlotId) {
        self.slots.remove(&slot);
    }

    pub fn contains(&self, slot: SlotId) -> bool {
        self.slots.contains_key(&slot)
    }

    /// Adds a slot that is being started or checked.
    pub fn coming(&mut self, slot: SlotId) {
        self.slots.insert(slot, Stage::Coming);
    }

    pub fn started(&mut self, slot: Slot) {
        self.failures = 0;
        self.not_before = None;
        self.slots.insert(slot.id, Stage::Free(slot));
    }

    /// Removes a slot that did not start. The delay before the next start grows with each failure.
    pub fn failed(&mut self, slot: SlotId, now: Timestamp) {
        self.slots.remove(&slot);
        let delay = FIRST_DELAY * 2i32.pow(self.failures.min(6));
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + delay.min(LONGEST_DELAY));
    }

    /// Removes a dead slot if it is free. Claimed and starting slots are not judged here.
    pub fn remove_dead(&mut self, slot: SlotId) -> Option<Slot> {
        match self.slots.get(&slot) {
            Some(Stage::Free(_)) => match self.slots.remove(&slot) {
                Some(Stage::Free(slot)) => Some(slot),
                _ => None,
            },
            _ => None,
        }
    }

    /// Sets the id of the profile's image.
    pub fn set_image(&mut self, image: String) {
        self.image = Some(image);
    }

    pub fn image(&self) -> Option<&str> {
        self.image.as_deref()
    }

    pub fn hint(&mut self, chat: Option<ChatId>, ttl: Duration, now: Timestamp) -> Hinted {
        let until = TimeDelta::from_std(ttl).ok().and_then(|ttl| now.checked_add_signed(ttl));
        let until = until.unwrap_or(Timestamp::MAX_UTC);
        // The same user goes on typing.
        if let Some(hint) = self.hints.iter_mut().find(|hint| chat.is_some() && hint.chat == chat) {
            hint.until = hint.until.max(until);
            return Hinted::Preparing { until: hint.until };
        }
        if self.hints.len() >= self.targets.hints {
            return Hinted::OverBudget { limit: self.targets.hints };
        }
        self.hints.push(Hint { chat, until });
        Hinted::Preparing { until }
    }

    /// Removes the expired hints. Returns their number.
    pub fn expire_hints(&mut self, now: Timestamp) -> usize {
        let before = self.hints.len();
        self.hints.retain(|hint| hint.until > now);
        before - self.hints.len()
    }

    pub fn hints(&self) -> usize {
        self.hints.len()
    }

    /// Removes the free slots that must not be claimed, and the surplus.
    pub fn remove_unusable(&mut self, now: Timestamp) -> Vec<(Slot, RemovalReason)> {
        while self.claims.front().is_some_and(|claim| *claim + RECENT <= now) {
            self.claims.pop_front();
        }
        let mut removed: Vec<_> =
            self.free().filter_map(|slot| Some((slot.clone(), self.removal_reason(slot, now)?))).collect();
        let mut usable: Vec<_> = self.free().filter(|slot| self.removal_reason(slot, now).is_none()).cloned().collect();
        usable.sort_by_key(|slot| slot.created_at);
        // An ageing slot is removed once its successor has started.
        let surplus = usable.len().saturating_sub(self.target());
        removed.extend(usable.into_iter().take(surplus).map(|slot| (slot, RemovalReason::Surplus)));
        for (slot, _) in &removed {
            self.slots.remove(&slot.id);
        }
        removed
    }

    /// Returns whether a slot should be started now. One at a time is enough to catch up, and leaves the engine to
    /// waiting callers.
    pub fn wants_slot(&self, now: Timestamp) -> bool {
        let Counts { coming, .. } = self.counts();
        let fresh = self.free().filter(|slot| !self.is_ageing(slot, now)).count();
        coming == 0 && fresh < self.target() && self.not_before.is_none_or(|moment| moment <= now)
    }

    /// Returns whether more than half of the target is missing.
    pub fn is_low(&self) -> bool {
        self.counts().free * 2 < self.target()
    }

    pub fn target(&self) -> usize {
        if self.is_drained {
            return 0;
        }
        self.targets.size + self.hints.len() + self.targets.spare.min(self.claims.len())
    }

    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for stage in self.slots.values() {
            match stage {
                Stage::Coming => counts.coming += 1,
                Stage::Free(_) => counts.free += 1,
                Stage::Taken(_) => counts.taken += 1,
            }
        }
        counts
    }

    /// Returns the time before which no slot is started, after a failed start.
    pub fn not_before(&self) -> Option<Timestamp> {
        self.not_before
    }

    fn free(&self) -> impl Iterator<Item = &Slot> {
        self.slots.values().filter_map(|stage| if let Stage::Free(slot) = stage { Some(slot) } else { None })
    }

    /// Returns why the slot must not be claimed.
    fn removal_reason(&self, slot: &Slot, now: Timestamp) -> Option<RemovalReason> {
        if self.image.as_ref().is_some_and(|image| *image != slot.image_id) {
            Some(RemovalReason::Stale)
        } else if now - slot.created_at >= self.max_age() {
            Some(RemovalReason::Aged)
        } else {
            None
        }
    }

    fn is_ageing(&self, slot: &Slot, now: Timestamp) -> bool {
        now - slot.created_at >= self.max_age() / 10 * AGEING
    }

    fn max_age(&self) -> TimeDelta {
        TimeDelta::from_std(self.targets.max_age).unwrap_or(TimeDelta::MAX)
    }
}

#[cfg(test)]
mod tests;
