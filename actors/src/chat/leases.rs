//! The holds of a sandbox and their ends.

use std::time::Duration;

use chrono::TimeDelta;

use super::events::Lease;
use crate::domain::ids::LeaseId;
use crate::domain::sandbox::{Hold, Holder, Sandbox};
use crate::ports::clock::Timestamp;

/// The holds of one session. They outlast a restart of the sandbox, because their holders still work.
#[derive(Debug, Clone, Default)]
pub(super) struct Leases(Vec<Hold>);

const DURABLE: Holder = Holder::Lease { durable: true };

impl Leases {
    /// Restores the durable leases of an earlier run. Records of older versions contain only the end of the last lease.
    pub(super) fn from_record(known: Vec<(LeaseId, Timestamp)>, held_until: Option<Timestamp>) -> Self {
        let unknown = held_until.filter(|_| known.is_empty()).map(|until| (None, until));
        let all = known.into_iter().map(|(id, until)| (Some(id), until)).chain(unknown);
        Self(all.map(|(id, until)| Hold { id, holder: DURABLE, until }).collect())
    }

    /// Returns the leases with an id, which can be released.
    pub(super) fn with_ids(&self) -> Vec<(LeaseId, Timestamp)> {
        self.0.iter().filter_map(|held| Some((held.id?, held.until))).collect()
    }

    /// Adds or renews a lease, and removes expired ones.
    pub(super) fn take(&mut self, lease: Lease, now: Timestamp) {
        let id = Some(lease.id);
        self.0.retain(|held| held.until > now && held.id != id);
        self.0.push(Hold { id, holder: lease.holder, until: saturating_add(now, lease.duration) });
    }

    /// Returns whether the lease is held.
    pub(super) fn contains(&self, lease: LeaseId, now: Timestamp) -> bool {
        self.0.iter().any(|held| held.until > now && held.id == Some(lease))
    }

    /// Returns the number of other holds.
    pub(super) fn count_others(&self, lease: LeaseId, now: Timestamp) -> usize {
        self.0.iter().filter(|held| held.until > now && held.id != Some(lease)).count()
    }

    /// Releases a lease. Returns whether it was durable, or `None` if it does not exist.
    pub(super) fn release(&mut self, lease: LeaseId) -> Option<bool> {
        let index = self.0.iter().position(|held| held.id == Some(lease))?;
        Some(self.0.swap_remove(index).holder == DURABLE)
    }

    /// Returns the end of the longest lease of a caller.
    pub(super) fn latest_end(&self) -> Option<Timestamp> {
        longest_lease(&self.0)
    }

    /// Shows the holds on a sandbox. Leases end at most `max_lease` after the sandbox's absolute deadline, however
    /// often they are renewed.
    pub(super) fn apply_to(&self, sandbox: &mut Sandbox, max_lease: Duration) {
        let latest = saturating_add(sandbox.expires_at, max_lease);
        let within = |hold: &Hold| match hold.holder {
            Holder::Lease { .. } => Hold { until: hold.until.min(latest), ..*hold },
            _ => *hold,
        };
        sandbox.held_by = self.0.iter().map(within).collect();
        sandbox.held_until = longest_lease(&sandbox.held_by);
    }

    /// Returns the leases that the journal keeps. A lease that ends with a connection is not kept.
    pub(super) fn durable(&self) -> Self {
        Self(self.0.iter().filter(|held| held.holder == DURABLE).copied().collect())
    }

    /// Restores the durable leases to an earlier state. Other holds stay.
    pub(super) fn restore(&mut self, durable: Leases) {
        self.0.retain(|held| held.holder != DURABLE);
        let restored = durable.0.into_iter().filter(|lost| !self.0.iter().any(|held| held.id == lost.id));
        let restored: Vec<Hold> = restored.collect();
        self.0.extend(restored);
    }

    /// Shifts all ends by a clock step, so that the durations stay.
    pub(super) fn shift(&mut self, by: TimeDelta) {
        for held in &mut self.0 {
            held.until = held.until.checked_add_signed(by).unwrap_or(held.until);
        }
    }
}

fn longest_lease(holds: &[Hold]) -> Option<Timestamp> {
    let leases = holds.iter().filter(|hold| matches!(hold.holder, Holder::Lease { .. }));
    leases.map(|hold| hold.until).max()
}

pub(super) fn saturating_add(now: Timestamp, by: Duration) -> Timestamp {
    TimeDelta::from_std(by).ok().and_then(|by| now.checked_add_signed(by)).unwrap_or(Timestamp::MAX_UTC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_timestamp(seconds, 0).unwrap()
    }

    fn lease(seconds: u64, durable: bool) -> Lease {
        Lease::of_caller(Duration::from_secs(seconds), durable)
    }

    #[test]
    fn the_longest_lease_counts_until_it_is_released() {
        let (short, long) = (lease(10, false), lease(20, true));
        let mut leases = Leases::default();
        leases.take(short, at(0));
        leases.take(long, at(0));
        assert_eq!(leases.latest_end(), Some(at(20)));
        assert_eq!(leases.release(long.id), Some(true));
        assert_eq!(leases.release(long.id), None);
        assert_eq!(leases.latest_end(), Some(at(10)));
        assert_eq!(leases.release(short.id), Some(false));
        assert_eq!(leases.latest_end(), None);
    }

    #[test]
    fn a_renewed_lease_replaces_the_old_one() {
        let mut leases = Leases::default();
        let long = lease(20, true);
        leases.take(long, at(0));
        leases.take(Lease { duration: Duration::from_secs(1), ..long }, at(0));
        assert_eq!(leases.latest_end(), Some(at(1)));
    }

    #[test]
    fn expired_leases_do_not_pile_up() {
        let mut leases = Leases::from_record(Vec::new(), Some(at(5)));
        for now in 0..100 {
            leases.take(lease(1, false), at(now));
        }
        assert_eq!(leases.0.len(), 1);
    }

    #[test]
    fn restored_leases_never_replace_newer_ones() {
        let (first, second) = (lease(20, true), lease(30, false));
        let mut leases = Leases::default();
        leases.take(first, at(0));
        let before = leases.durable();
        leases.take(second, at(0));
        let renewed = Lease { duration: Duration::from_secs(5), holder: Holder::Lease { durable: false }, ..first };
        leases.take(renewed, at(0));
        leases.restore(before);
        assert_eq!(leases.durable().latest_end(), None, "the first one was renewed");
        assert_eq!(leases.latest_end(), Some(at(30)));
    }

    #[test]
    fn a_durable_lease_of_an_earlier_run_can_be_released() {
        let (durable, transient) = (lease(20, true), lease(30, false));
        let mut before = Leases::default();
        before.take(durable, at(0));
        before.take(transient, at(0));
        let saved = before.durable();
        let mut leases = Leases::from_record(saved.with_ids(), saved.latest_end());
        assert_eq!(leases.latest_end(), Some(at(20)));
        assert_eq!(leases.release(transient.id), None);
        assert_eq!(leases.release(durable.id), Some(true));
        assert_eq!(leases.latest_end(), None);
    }

    #[test]
    fn an_endless_lease_does_not_overflow() {
        let mut leases = Leases::default();
        leases.take(Lease { duration: Duration::MAX, ..lease(0, true) }, at(0));
        leases.shift(TimeDelta::MAX);
        assert_eq!(leases.latest_end(), Some(Timestamp::MAX_UTC));
    }
}
