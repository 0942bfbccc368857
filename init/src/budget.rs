//! How much of the sandbox's memory init may use for its streams and for output that is kept.
//!
//! Init's heap and the kernel's buffers of its sockets count against the sandbox's memory limit, so a caller that opens
//! streams and does not read them must not be able to use it up. Every stream starts with a small [`Grant`]. The grant
//! grows while the service keeps reading, out of a pool that all streams share. Beyond a number of streams, no further one
//! is admitted.
//!
//! | part of the budget | used for |
//! |---|---|
//! | a half | the smallest grants, and the open directories of trees |
//! | a quarter | growth of grants |
//! | a quarter | output of commands that is kept while no caller is attached |

use std::cell::Cell;
use std::rc::Rc;

/// The grant of a stream that has not moved yet, in bytes.
const SMALLEST: usize = 4 << 10;

/// The largest grant: more does not make a stream faster.
const LARGEST: usize = 128 << 10;

/// Bytes of memory for each byte of a grant: one in init, and up to three in the socket, whose buffer the kernel doubles,
/// and overruns by one message.
const COST: usize = 4;

/// What a socket can hold in multiples of its grant. A stream that has sent more than that is being read.
const HELD_BY_SOCKET: usize = 4;

const LEAST: u64 = 1 << 20;
const MOST: u64 = 64 << 20;

/// Descriptors that streams leave for commands and everything else.
const SPARE_DESCRIPTORS: u64 = 128;

/// Descriptors of one stream: its socket, its file, and the directory of a tree's last entry.
const DESCRIPTORS: u64 = 3;

/// The budget of one init. Its clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Rc<Pools>);

#[derive(Debug)]
struct Pools {
    admitted: Pool,
    growth: Pool,
    kept: Pool,
}

#[derive(Debug)]
struct Pool {
    most: usize,
    used: Cell<usize>,
}

impl Pool {
    fn new(most: u64) -> Self {
        Self { most: usize::try_from(most).unwrap_or(usize::MAX), used: Cell::new(0) }
    }

    fn take(&self, bytes: usize) -> bool {
        let used = self.used.get() + bytes;
        let fits = used <= self.most;
        if fits {
            self.used.set(used);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        self.used.set(self.used.get().saturating_sub(bytes));
    }
}

impl Budget {
    /// `memory`: the sandbox's limit; `descriptors`: how many this process may have.
    pub(crate) fn new(memory: Option<u64>, descriptors: Option<u64>) -> Self {
        let total = memory.map_or(MOST, |limit| (limit / 4).clamp(LEAST, MOST));
        let streams =
            descriptors.map_or(u64::MAX, |most| (most.saturating_sub(SPARE_DESCRIPTORS) / DESCRIPTORS).max(8));
        let admitted = (total / 2).min(streams.saturating_mul((SMALLEST * COST) as u64));
        let (growth, kept) = (Pool::new(total / 4), Pool::new(total / 4));
        Self(Rc::new(Pools { admitted: Pool::new(admitted), growth, kept }))
    }

    /// The smallest grant. It counts against the budget once it is admitted.
    pub(crate) fn grant(&self) -> Grant {
        Grant { budget: self.clone(), size: SMALLEST, moved: 0, held: 0, pipes: 0 }
    }

    /// Counts output that is kept. It may exceed the budget for the moment; see [`Budget::keeps_too_much`].
    pub(crate) fn keep(&self, bytes: usize) {
        self.0.kept.used.set(self.0.kept.used.get() + bytes);
    }

    pub(crate) fn drop_kept(&self, bytes: usize) {
        self.0.kept.give_back(bytes);
    }

    pub(crate) fn keeps_too_much(&self) -> bool {
        self.0.kept.used.get() > self.0.kept.most
    }
}

/// How much one stream may buffer: in init once, in its socket a few times.
#[derive(Debug)]
pub(crate) struct Grant {
    budget: Budget,
    size: usize,
    /// Sent since the grant last grew.
    moved: usize,
    /// Taken from the pool of admitted streams.
    held: usize,
    /// Taken from the pool for growth, for a command's pipes.
    pipes: usize,
}

impl Grant {
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Counts the stream, and `extra` bytes that it holds beside its buffers. `false`: the budget has no room for it.
    pub(crate) fn admit(&mut self, extra: usize) -> bool {
        let wanted = SMALLEST * COST + extra;
        let pool = &self.budget.0.admitted;
        if wanted <= self.held {
            pool.give_back(self.held - wanted);
        } else if !pool.take(wanted - self.held) {
            return false;
        }
        self.held = wanted;
        true
    }

    /// Notes that so much was sent. `true`: the grant has grown.
    pub(crate) fn sent(&mut self, bytes: usize) -> bool {
        self.moved = self.moved.saturating_add(bytes);
        if self.size >= LARGEST || self.moved <= HELD_BY_SOCKET * self.size {
            return false;
        }
        self.moved = 0;
        let grows = self.budget.0.growth.take(self.size * COST);
        if grows {
            self.size *= 2;
        }
        grows
    }
}

impl Grant {
    /// Whether a pipe that feeds this stream may become larger by so much: only of one that is read fast.
    pub(crate) fn widen_pipe(&mut self, bytes: usize) -> bool {
        let widens = self.size >= LARGEST && self.budget.0.growth.take(bytes);
        if widens {
            self.pipes += bytes;
        }
        widens
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.0.admitted.give_back(self.held);
        self.budget.0.growth.give_back((self.size - SMALLEST) * COST + self.pipes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL_SANDBOX: u64 = 128 << 20;

    fn cost(grant: &Grant) -> usize {
        grant.size() * COST
    }

    #[test]
    fn streams_that_are_not_read_stay_small_and_are_limited_in_number() {
        let budget = Budget::new(Some(SMALL_SANDBOX), None);
        let mut grants = Vec::new();
        loop {
            let mut grant = budget.grant();
            if !grant.admit(0) {
                break;
            }
            // As much as its socket takes.
            assert!(!grant.sent(HELD_BY_SOCKET * SMALLEST));
            grants.push(grant);
        }
        assert_eq!(grants.len(), 1024);
        assert!(grants.iter().map(cost).sum::<usize>() as u64 <= SMALL_SANDBOX / 8);
        grants.pop();
        assert!(budget.grant().admit(0), "a place is free again");
    }

    #[test]
    fn streams_that_are_read_grow_within_the_budget() {
        let budget = Budget::new(Some(SMALL_SANDBOX), None);
        let mut grants: Vec<Grant> = (0..500).map(|_| budget.grant()).collect();
        for grant in &mut grants {
            assert!(grant.admit(0));
            for _ in 0..10_000 {
                grant.sent(LARGEST);
            }
        }
        assert_eq!(grants[0].size(), LARGEST);
        assert_eq!(grants[499].size(), SMALLEST, "the pool is used up");
        assert!(grants.iter().map(cost).sum::<usize>() as u64 <= SMALL_SANDBOX / 8);
        grants.clear();
        let mut next = budget.grant();
        assert!((0..10_000).any(|_| next.sent(LARGEST)), "all of it was given back");
    }

    #[test]
    fn deep_trees_and_few_descriptors_count_too() {
        let budget = Budget::new(Some(SMALL_SANDBOX), None);
        let mut deep = budget.grant();
        assert!(deep.admit(15 << 20) && !budget.grant().admit(2 << 20));
        assert!(deep.admit(0) && budget.grant().admit(2 << 20), "it went up again");
        let few = Budget::new(None, Some(1024));
        let mut admitted: Vec<Grant> = (0..1024).map(|_| few.grant()).collect();
        assert_eq!(admitted.iter_mut().filter_map(|grant| grant.admit(0).then_some(())).count(), 298);
    }
}
