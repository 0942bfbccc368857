//! Who is next: the rule of the turns, without waiting and without an engine.
//!
//! - No more turns are in hand than there are, and none is free while a waiter could have it.
//! - Work of different kinds waits in different lanes. A free turn goes to the lane with the fewest turns in hand, and
//!   among those to the one that was served longest ago. So each lane that waits gets its share, and one with no turn in
//!   hand waits for at most one turn of each other lane, however many others wait there.
//! - Within a lane, parties are served in rotation, and within a party the order is that of the requests.

use std::collections::VecDeque;

use super::Tenant;

/// The kinds of work at the engine that may not hold each other up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Containers that are started for somebody.
    Start,
    /// Removals and other work that a caller asked for.
    Request,
    /// Sandboxes that came to their end: hundreds may do so at the same time.
    Expiry,
}

impl Lane {
    pub(super) const ALL: [Lane; 3] = [Lane::Start, Lane::Request, Lane::Expiry];
}

#[derive(Debug)]
pub(super) struct FairQueue<T> {
    free: usize,
    /// In the order of [`Lane::ALL`].
    lanes: [Waiting<T>; Lane::ALL.len()],
    /// Turns that were given so far.
    given: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    in_hand: usize,
    /// The count of turns when this lane got its last one.
    served: u64,
    /// The next party first. None is empty.
    parties: VecDeque<(Tenant, VecDeque<T>)>,
}

impl<T> FairQueue<T> {
    pub(super) fn new(turns: usize) -> Self {
        let lanes = Lane::ALL.map(|_| Waiting { in_hand: 0, served: 0, parties: VecDeque::new() });
        Self { free: turns, lanes, given: 0 }
    }

    pub(super) fn free(&self) -> usize {
        self.free
    }

    pub(super) fn wait(&mut self, lane: Lane, tenant: Tenant, waiter: T) {
        let parties = &mut self.lanes[lane as usize].parties;
        match parties.iter_mut().find(|(known, _)| *known == tenant) {
            Some((_, waiting)) => waiting.push_back(waiter),
            None => parties.push_back((tenant, VecDeque::from([waiter]))),
        }
    }

    /// Gives a turn to the lane if one is free and no waiter has a claim to it.
    pub(super) fn take_at_once(&mut self, lane: Lane) -> bool {
        if self.free == 0 || self.lanes.iter().any(|lane| !lane.parties.is_empty()) {
            return false;
        }
        self.give(lane);
        true
    }

    /// Gives a free turn to the waiter who is next. Those that gave up are passed over.
    pub(super) fn next(&mut self, gave_up: impl Fn(&T) -> bool) -> Option<(Lane, T)> {
        while self.free > 0 {
            let waiting = Lane::ALL.into_iter().filter(|lane| !self.lanes[*lane as usize].parties.is_empty());
            let rank = |lane: &Lane| {
                let Waiting { in_hand, served, .. } = &self.lanes[*lane as usize];
                (*in_hand, *served)
            };
            let lane = waiting.min_by_key(rank)?;
            if let Some(waiter) = self.lanes[lane as usize].pop(&gave_up) {
                self.give(lane);
                return Some((lane, waiter));
            }
        }
        None
    }

    pub(super) fn give_back(&mut self, lane: Lane) {
        self.lanes[lane as usize].in_hand -= 1;
        self.free += 1;
    }

    fn give(&mut self, lane: Lane) {
        self.given += 1;
        self.free -= 1;
        let lane = &mut self.lanes[lane as usize];
        (lane.in_hand, lane.served) = (lane.in_hand + 1, self.given);
    }
}

impl<T> Waiting<T> {
    /// The one who is next, and whose party is last from then on.
    fn pop(&mut self, gave_up: impl Fn(&T) -> bool) -> Option<T> {
        while let Some((tenant, mut waiting)) = self.parties.pop_front() {
            // Many may have given up at once.
            while waiting.front().is_some_and(&gave_up) {
                waiting.pop_front();
            }
            let next = waiting.pop_front();
            if !waiting.is_empty() {
                self.parties.push_back((tenant, waiting));
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
