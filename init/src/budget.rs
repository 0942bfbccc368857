//! The part of the sandbox's memory that init may use for streams and for buffered output.
//!
//! Init's heap and the kernel's socket buffers count against the sandbox's memory limit, so a caller that opens streams
//! and does not read them must not use it up. Every stream starts with a small [`Grant`]. The grant grows while the
//! service reads, out of a pool that all streams share. Beyond a number of streams, no further stream is admitted.
//!
//! | part of the budget | used for |
//! |---|---|
//! | a half | the smallest grants, and the open directories of trees |
//! | a quarter | growth of grants |
//! | a quarter | output of commands, buffered while no caller is attached |

use std::cell::Cell;
use std::rc::Rc;

/// The grant of a new stream, in bytes.
const MIN_GRANT: usize = 4 << 10;

/// The largest grant. More does not make a stream faster.
const MAX_GRANT: usize = 128 << 10;

/// Bytes of memory for each byte of a grant: one in init, and up to three in the socket, because the kernel doubles its
/// buffer and overruns it by one message.
const COST: usize = 4;

/// The capacity of a socket in multiples of its grant. A stream that has sent more is being read.
const SOCKET_FACTOR: usize = 4;

const MIN_BUDGET: u64 = 1 << 20;
const MAX_BUDGET: u64 = 64 << 20;

/// Descriptors reserved for commands and other uses.
const SPARE_DESCRIPTORS: u64 = 128;

/// Descriptors of one stream: its socket, its file, and the directory of a tree's last entry.
const DESCRIPTORS: u64 = 3;

/// The budget of init. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Rc<Pools>);

#[derive(Debug)]
struct Pools {
    admitted: Pool,
    growth: Pool,
    output: Pool,
}

#[derive(Debug)]
struct Pool {
    limit: usize,
    used: Cell<usize>,
}

impl Pool {
    fn new(limit: u64) -> Self {
        Self { limit: usize::try_from(limit).unwrap_or(usize::MAX), used: Cell::new(0) }
    }

    fn take(&self, bytes: usize) -> bool {
        let used = self.used.get() + bytes;
        let fits = used <= self.limit;
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
    /// Creates a budget. `memory`: the sandbox's limit; `descriptors`: the limit of this process.
    pub(crate) fn new(memory: Option<u64>, descriptors: Option<u64>) -> Self {
        let total = memory.map_or(MAX_BUDGET, |limit| (limit / 4).clamp(MIN_BUDGET, MAX_BUDGET));
        let streams =
            descriptors.map_or(u64::MAX, |limit| (limit.saturating_sub(SPARE_DESCRIPTORS) / DESCRIPTORS).max(8));
        let admitted = (total / 2).min(streams.saturating_mul((MIN_GRANT * COST) as u64));
        let (growth, output) = (Pool::new(total / 4), Pool::new(total / 4));
        Self(Rc::new(Pools { admitted: Pool::new(admitted), growth, output }))
    }

    /// Returns a grant of the smallest size. It counts against the budget once it is admitted.
    pub(crate) fn grant(&self) -> Grant {
        Grant { budget: self.clone(), size: MIN_GRANT, moved: 0, admitted: 0, pipes: 0 }
    }

    /// Counts buffered output. It may exceed the budget for a moment; see [`Budget::is_output_exceeded`].
    pub(crate) fn count_output(&self, bytes: usize) {
        self.0.output.used.set(self.0.output.used.get() + bytes);
    }

    pub(crate) fn release_output(&self, bytes: usize) {
        self.0.output.give_back(bytes);
    }

    pub(crate) fn is_output_exceeded(&self) -> bool {
        self.0.output.used.get() > self.0.output.limit
    }
}

/// The bytes that one stream may buffer: once in init, and several times in its socket.
#[derive(Debug)]
pub(crate) struct Grant {
    budget: Budget,
    size: usize,
    /// Bytes sent since the grant last grew.
    moved: usize,
    /// Bytes taken from the pool of admitted streams.
    admitted: usize,
    /// Bytes taken from the pool for growth, for a command's pipes.
    pipes: usize,
}

impl Grant {
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Counts the stream, and `extra` bytes that it holds beside its buffers. `false`: the budget has no room.
    pub(crate) fn admit(&mut self, extra: usize) -> bool {
        let wanted = MIN_GRANT * COST + extra;
        let pool = &self.budget.0.admitted;
        if wanted <= self.admitted {
            pool.give_back(self.admitted - wanted);
        } else if !pool.take(wanted - self.admitted) {
            return false;
        }
        self.admitted = wanted;
        true
    }

    /// Records sent bytes. `true`: the grant has grown.
    pub(crate) fn sent(&mut self, bytes: usize) -> bool {
        self.moved = self.moved.saturating_add(bytes);
        if self.size >= MAX_GRANT || self.moved <= SOCKET_FACTOR * self.size {
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
    /// Returns whether a pipe that feeds this stream may grow by this many bytes. Only a stream that is read fast gets
    /// it.
    pub(crate) fn widen_pipe(&mut self, bytes: usize) -> bool {
        let is_granted = self.size >= MAX_GRANT && self.budget.0.growth.take(bytes);
        if is_granted {
            self.pipes += bytes;
        }
        is_granted
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.0.admitted.give_back(self.admitted);
        self.budget.0.growth.give_back((self.size - MIN_GRANT) * COST + self.pipes);
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
            // As much as the socket holds.
            assert!(!grant.sent(SOCKET_FACTOR * MIN_GRANT));
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
                grant.sent(MAX_GRANT);
            }
        }
        assert_eq!(grants[0].size(), MAX_GRANT);
        assert_eq!(grants[499].size(), MIN_GRANT, "the pool is used up");
        assert!(grants.iter().map(cost).sum::<usize>() as u64 <= SMALL_SANDBOX / 8);
        grants.clear();
        let mut next = budget.grant();
        assert!((0..10_000).any(|_| next.sent(MAX_GRANT)), "all of it was given back");
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
