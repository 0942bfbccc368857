//! Who holds a sandbox, and until when.

use std::time::Duration;

use chrono::TimeDelta;

use super::events::Lease;
use crate::domain::ids::LeaseId;
use crate::domain::sandbox::{Hold, Holder, Sandbox};
use crate::ports::clock::Timestamp;

/// The holds of one session, each as long as it was asked for. They outlast a restart of the sandbox, for whoever took
/// them is still at work.
#[derive(Debug, Clone, Default)]
pub(super) struct Leases(Vec<Hold>);

const DURABLE: Holder = Holder::Lease { durable: true };

impl Leases {
    /// The durable leases of an earlier run, of which an old one left only the end of the last.
    pub(super) fn inherited(known: Vec<(LeaseId, Timestamp)>, held_until: Option<Timestamp>) -> Self {
        let unknown = held_until.filter(|_| known.is_empty()).map(|until| (None, until));
        let all = known.into_iter().map(|(id, until)| (Some(id), until)).chain(unknown);
        Self(all.map(|(id, until)| Hold { id, holder: DURABLE, until }).collect())
    }

    /// Those that somebody can give back.
    pub(super) fn known(&self) -> Vec<(LeaseId, Timestamp)> {
        self.0.iter().filter_map(|held| Some((held.id?, held.until))).collect()
    }

    /// Takes a lease, or takes it anew. Those that are over go.
    pub(super) fn take(&mut self, lease: Lease, now: Timestamp) {
        let id = Some(lease.id);
        self.0.retain(|held| held.until > now && held.id != id);
        self.0.push(Hold { id, holder: lease.holder, until: later(now, lease.duration) });
    }

    /// Whether this one is among them.
    pub(super) fn hold(&self, lease: LeaseId, now: Timestamp) -> bool {
        self.0.iter().any(|held| held.until > now && held.id == Some(lease))
    }

    /// How many hold the sandbox beside this one.
    pub(super) fn others(&self, lease: LeaseId, now: Timestamp) -> usize {
        self.0.iter().filter(|held| held.until > now && held.id != Some(lease)).count()
    }

    /// Gives a lease back; answers whether it was durable, if it was there at all.
    pub(super) fn give_back(&mut self, lease: LeaseId) -> Option<bool> {
        let index = self.0.iter().position(|held| held.id == Some(lease))?;
        Some(self.0.swap_remove(index).holder == DURABLE)
    }

    /// The end of the longest lease of a caller.
    pub(super) fn until(&self) -> Option<Timestamp> {
        longest_lease(&self.0)
    }

    /// Shows on a sandbox who holds it. However often leases are taken anew, they end at most `max_lease` after the
    /// sandbox's absolute deadline.
    pub(super) fn show_on(&self, sandbox: &mut Sandbox, max_lease: Duration) {
        let latest = later(sandbox.expires_at, max_lease);
        let within = |hold: &Hold| match hold.holder {
            Holder::Lease { .. } => Hold { until: hold.until.min(latest), ..*hold },
            _ => *hold,
        };
        sandbox.held_by = self.0.iter().map(within).collect();
        sandbox.held_until = longest_lease(&sandbox.held_by);
    }

    /// Those that are written down. One that ends with a connection is nothing to come back to.
    pub(super) fn durable(&self) -> Self {
        Self(self.0.iter().filter(|held| held.holder == DURABLE).copied().collect())
    }

    /// Goes back to durable leases as they were; the others stay as they are.
    pub(super) fn restore(&mut self, durable: Leases) {
        self.0.retain(|held| held.holder != DURABLE);
        let restored = durable.0.into_iter().filter(|lost| !self.0.iter().any(|held| held.id == lost.id));
        let restored: Vec<Hold> = restored.collect();
        self.0.extend(restored);
    }

    /// The wall clock jumped: leases last as long as they would have.
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

pub(super) fn later(now: Timestamp, by: Duration) -> Timestamp {
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
    fn the_longest_lease_counts_until_it_is_given_back() {
        let (short, long) = (lease(10, false), lease(20, true));
        let mut leases = Leases::default();
        leases.take(short, at(0));
        leases.take(long, at(0));
        assert_eq!(leases.until(), Some(at(20)));
        assert_eq!(leases.give_back(long.id), Some(true));
        assert_eq!(leases.give_back(long.id), None);
        assert_eq!(leases.until(), Some(at(10)));
        assert_eq!(leases.give_back(short.id), Some(false));
        assert_eq!(leases.until(), None);
    }

    #[test]
    fn a_lease_that_is_taken_anew_takes_the_place_of_the_old_one() {
        let mut leases = Leases::default();
        let long = lease(20, true);
        leases.take(long, at(0));
        leases.take(Lease { duration: Duration::from_secs(1), ..long }, at(0));
        assert_eq!(leases.until(), Some(at(1)));
    }

    #[test]
    fn leases_that_are_over_do_not_pile_up() {
        let mut leases = Leases::inherited(Vec::new(), Some(at(5)));
        for now in 0..100 {
            leases.take(lease(1, false), at(now));
        }
        assert_eq!(leases.0.len(), 1);
    }

    #[test]
    fn what_is_restored_never_replaces_what_was_taken_since() {
        let (first, second) = (lease(20, true), lease(30, false));
        let mut leases = Leases::default();
        leases.take(first, at(0));
        let before = leases.durable();
        leases.take(second, at(0));
        let anew = Lease { duration: Duration::from_secs(5), holder: Holder::Lease { durable: false }, ..first };
        leases.take(anew, at(0));
        leases.restore(before);
        assert_eq!(leases.durable().until(), None, "the first one was taken anew");
        assert_eq!(leases.until(), Some(at(30)));
    }

    #[test]
    fn a_durable_lease_of_an_earlier_run_can_be_given_back() {
        let (durable, passing) = (lease(20, true), lease(30, false));
        let mut before = Leases::default();
        before.take(durable, at(0));
        before.take(passing, at(0));
        let written = before.durable();
        let mut leases = Leases::inherited(written.known(), written.until());
        assert_eq!(leases.until(), Some(at(20)));
        assert_eq!(leases.give_back(passing.id), None);
        assert_eq!(leases.give_back(durable.id), Some(true));
        assert_eq!(leases.until(), None);
    }

    #[test]
    fn an_endless_lease_does_not_overflow() {
        let mut leases = Leases::default();
        leases.take(Lease { duration: Duration::MAX, ..lease(0, true) }, at(0));
        leases.shift(TimeDelta::MAX);
        assert_eq!(leases.until(), Some(Timestamp::MAX_UTC));
    }
}
