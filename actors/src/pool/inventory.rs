//! What a pool holds, what it hands out, and what it wants done. Pure: times go in, decisions come out.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use chrono::TimeDelta;

use crate::domain::ids::{ChatId, ContainerId, SlotId};
use crate::domain::profile::PoolTargets;
use crate::ports::clock::Timestamp;
use crate::ports::slot::Slot;

/// For so long a claim counts as recent.
const RECENT: TimeDelta = TimeDelta::minutes(1);

/// Between two tries to start a slot, after the first one that failed and at most.
const FIRST_PAUSE: TimeDelta = TimeDelta::seconds(1);
const LONGEST_PAUSE: TimeDelta = TimeDelta::minutes(1);

/// One that is about to be too old is handed out, but its successor is started already: in tenths of its life.
const AGEING: i32 = 9;

#[derive(Debug)]
pub struct Inventory {
    targets: PoolTargets,
    slots: BTreeMap<SlotId, Stage>,
    /// Which image the profile's name stands for, once that is known.
    image: Option<String>,
    claims: VecDeque<Timestamp>,
    hints: Vec<Hint>,
    failures: u32,
    not_before: Option<Timestamp>,
    /// No slot is wanted until the pool is filled again.
    is_drained: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// Being started, or found again and not yet known to wait.
    Coming,
    Free(Slot),
    /// Handed out. What became of it is not known yet.
    Taken(ContainerId),
}

/// A sandbox will be wanted soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hint {
    /// By whoever comes first, if absent.
    chat: Option<ChatId>,
    until: Timestamp,
}

/// What came of a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hinted {
    /// A slot is kept, or being started, beyond those that are kept anyway.
    Preparing { until: Timestamp },
    /// As many hints as are allowed are waiting to come true.
    OverBudget { limit: usize },
}

/// Why a slot is removed without having been used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retired {
    Aged,
    /// The image was rebuilt.
    Stale,
    /// There are more than are wanted.
    Surplus,
}

impl Retired {
    pub fn as_str(self) -> &'static str {
        match self {
            Retired::Aged => "aged",
            Retired::Stale => "stale",
            Retired::Surplus => "surplus",
        }
    }
}

/// How many there are of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub free: usize,
    pub coming: usize,
    pub taken: usize,
}

/// What a claim got, and whether somebody had said that it would come.
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

    /// Wants no more slots; those that are free, and those on their way once they have come, are surplus.
    pub fn drain(&mut self) {
        self.is_drained = true;
        self.hints.clear();
    }

    /// Wants as many slots as ever.
    pub fn fill(&mut self) {
        self.is_drained = false;
        self.not_before = None;
    }

    pub fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// The oldest one that is still good. It is handed out once and for all.
    pub fn claim(&mut self, chat: ChatId, now: Timestamp) -> Claimed {
        self.claims.push_back(now);
        let hint = self.hints.iter().position(|hint| hint.chat == Some(chat));
        let hint = hint.or_else(|| self.hints.iter().position(|hint| hint.chat.is_none()));
        let was_hinted = hint.map(|hint| self.hints.remove(hint)).is_some();
        let good = self.free().filter(|slot| self.verdict(slot, now).is_none());
        let slot = good.min_by_key(|slot| (slot.created_at, slot.id)).cloned();
        if let Some(slot) = &slot {
            self.slots.insert(slot.id, Stage::Taken(slot.container.clone()));
        }
        Claimed { slot, was_hinted }
    }

    /// What was handed out is somebody's by now, or gone.
    pub fn settled(&mut self, slot: SlotId) {
        self.slots.remove(&slot);
    }

    pub fn knows(&self, slot: SlotId) -> bool {
        self.slots.contains_key(&slot)
    }

    /// A slot is being started, or looked at.
    pub fn coming(&mut self, slot: SlotId) {
        self.slots.insert(slot, Stage::Coming);
    }

    pub fn came(&mut self, slot: Slot) {
        self.failures = 0;
        self.not_before = None;
        self.slots.insert(slot.id, Stage::Free(slot));
    }

    /// It did not come. The next try has to wait, longer and longer.
    pub fn failed(&mut self, slot: SlotId, now: Timestamp) {
        self.slots.remove(&slot);
        let pause = FIRST_PAUSE * 2i32.pow(self.failures.min(6));
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + pause.min(LONGEST_PAUSE));
    }

    /// Takes a free slot out, for it has died. Others are not this pool's to judge.
    pub fn died(&mut self, slot: SlotId) -> Option<Slot> {
        match self.slots.get(&slot) {
            Some(Stage::Free(_)) => match self.slots.remove(&slot) {
                Some(Stage::Free(slot)) => Some(slot),
                _ => None,
            },
            _ => None,
        }
    }

    /// Which image the profile's name stands for now.
    pub fn image_is(&mut self, image: String) {
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

    /// Forgets the hints that did not come true in time; answers how many.
    pub fn expire_hints(&mut self, now: Timestamp) -> usize {
        let before = self.hints.len();
        self.hints.retain(|hint| hint.until > now);
        before - self.hints.len()
    }

    pub fn hints(&self) -> usize {
        self.hints.len()
    }

    /// Takes out what must not be handed out any more, and what is too much.
    pub fn retire(&mut self, now: Timestamp) -> Vec<(Slot, Retired)> {
        while self.claims.front().is_some_and(|claim| *claim + RECENT <= now) {
            self.claims.pop_front();
        }
        let mut retired: Vec<_> =
            self.free().filter_map(|slot| Some((slot.clone(), self.verdict(slot, now)?))).collect();
        let mut good: Vec<_> = self.free().filter(|slot| self.verdict(slot, now).is_none()).cloned().collect();
        good.sort_by_key(|slot| slot.created_at);
        // One that is about to be too old makes room for its successor once that has come.
        let surplus = good.len().saturating_sub(self.target());
        retired.extend(good.into_iter().take(surplus).map(|slot| (slot, Retired::Surplus)));
        for (slot, _) in &retired {
            self.slots.remove(&slot.id);
        }
        retired
    }

    /// Whether a slot should be started now. One at a time is enough to catch up, and leaves the engine to those who wait.
    pub fn wants(&self, now: Timestamp) -> bool {
        let Counts { coming, .. } = self.counts();
        let lasting = self.free().filter(|slot| !self.is_ageing(slot, now)).count();
        coming == 0 && lasting < self.target() && self.not_before.is_none_or(|moment| moment <= now)
    }

    /// More than half of what is wanted is missing.
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

    /// When a slot may be started again, after one did not come.
    pub fn not_before(&self) -> Option<Timestamp> {
        self.not_before
    }

    fn free(&self) -> impl Iterator<Item = &Slot> {
        self.slots.values().filter_map(|stage| if let Stage::Free(slot) = stage { Some(slot) } else { None })
    }

    /// Why the slot must not be handed out, if it must not.
    fn verdict(&self, slot: &Slot, now: Timestamp) -> Option<Retired> {
        if self.image.as_ref().is_some_and(|image| *image != slot.image_id) {
            Some(Retired::Stale)
        } else if now - slot.created_at >= self.max_age() {
            Some(Retired::Aged)
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
