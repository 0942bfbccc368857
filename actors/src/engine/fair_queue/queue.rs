//! The pure state of the engine queue: it decides which waiter gets the next permit.
//!
//! - The number of permits in use is bounded, and no permit is free while a waiter could have it.
//! - Each kind of work has its lane. A free permit goes to the lane with the fewest permits in use, and among those to
//!   the lane that was served longest ago. So each waiting lane gets its share, and a lane without a permit in use
//!   waits for at most one permit of each other lane, regardless of the number of waiters there.
//! - Within a lane, tenants are served in rotation. The requests of one tenant keep their order.

use std::collections::VecDeque;

use super::Tenant;

/// The kinds of work at the engine that must not delay each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Starts of containers.
    Start,
    /// Removals and other work that a caller requested.
    Request,
    /// Expiries of sandboxes: there may be hundreds at the same time.
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
    /// The number of permits granted so far.
    granted: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    in_use: usize,
    /// The value of `granted` when this lane got its last permit.
    served: u64,
    /// The next tenant first. Every tenant has at least one waiter.
    tenants: VecDeque<(Tenant, VecDeque<T>)>,
}

impl<T> FairQueue<T> {
    pub(super) fn new(permits: usize) -> Self {
        let lanes = Lane::ALL.map(|_| Waiting { in_use: 0, served: 0, tenants: VecDeque::new() });
        Self { free: permits, lanes, granted: 0 }
    }

    pub(super) fn free(&self) -> usize {
        self.free
    }

    pub(super) fn wait(&mut self, lane: Lane, tenant: Tenant, waiter: T) {
        let tenants = &mut self.lanes[lane as usize].tenants;
        match tenants.iter_mut().find(|(known, _)| *known == tenant) {
            Some((_, waiting)) => waiting.push_back(waiter),
            None => tenants.push_back((tenant, VecDeque::from([waiter]))),
        }
    }

    /// Grants a permit to the lane if one is free and there is no waiter.
    pub(super) fn try_acquire(&mut self, lane: Lane) -> bool {
        if self.free == 0 || self.lanes.iter().any(|lane| !lane.tenants.is_empty()) {
            return false;
        }
        self.grant(lane);
        true
    }

    /// Grants a free permit to the next waiter. Cancelled waiters are skipped.
    pub(super) fn next(&mut self, cancelled: impl Fn(&T) -> bool) -> Option<(Lane, T)> {
        while self.free > 0 {
            let waiting = Lane::ALL.into_iter().filter(|lane| !self.lanes[*lane as usize].tenants.is_empty());
            let rank = |lane: &Lane| {
                let Waiting { in_use, served, .. } = &self.lanes[*lane as usize];
                (*in_use, *served)
            };
            let lane = waiting.min_by_key(rank)?;
            if let Some(waiter) = self.lanes[lane as usize].pop(&cancelled) {
                self.grant(lane);
                return Some((lane, waiter));
            }
        }
        None
    }

    pub(super) fn release(&mut self, lane: Lane) {
        self.lanes[lane as usize].in_use -= 1;
        self.free += 1;
    }

    fn grant(&mut self, lane: Lane) {
        self.granted += 1;
        self.free -= 1;
        let lane = &mut self.lanes[lane as usize];
        (lane.in_use, lane.served) = (lane.in_use + 1, self.granted);
    }
}

impl<T> Waiting<T> {
    /// Removes the next waiter. Its tenant becomes the last one.
    fn pop(&mut self, cancelled: impl Fn(&T) -> bool) -> Option<T> {
        while let Some((tenant, mut waiting)) = self.tenants.pop_front() {
            // Many may have been cancelled at once.
            while waiting.front().is_some_and(&cancelled) {
                waiting.pop_front();
            }
            let next = waiting.pop_front();
            if !waiting.is_empty() {
                self.tenants.push_back((tenant, waiting));
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
