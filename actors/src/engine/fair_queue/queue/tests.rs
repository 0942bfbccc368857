//! Property tests of the engine queue, for requests in any order.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn tenant(number: u8) -> Tenant {
    Tenant::Agent(format!("agent-{number}").parse().unwrap())
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Request { lane: Lane, tenant: u8 },
    Release { nth: usize },
    Cancel { nth: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lane = prop::sample::select(Lane::ALL.to_vec());
    let step = prop_oneof![
        5 => (lane, 0u8..4).prop_map(|(lane, tenant)| Step::Request { lane, tenant }),
        4 => (0usize..8).prop_map(|nth| Step::Release { nth }),
        1 => (0usize..40).prop_map(|nth| Step::Cancel { nth }),
    ];
    prop::collection::vec(step, 1..200)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiter {
    id: usize,
    lane: Lane,
    tenant: u8,
}

/// The queue, and a model of its waiters and permits.
struct World {
    permits: usize,
    queue: FairQueue<Waiter>,
    waiting: Vec<Waiter>,
    cancelled: BTreeSet<usize>,
    in_use: Vec<Lane>,
    /// For each lane, the number of permits that other lanes got while it waits without a permit.
    passed_over: [usize; Lane::ALL.len()],
    requested: usize,
}

impl World {
    fn new(permits: usize) -> Self {
        let (waiting, cancelled, in_use) = (Vec::new(), BTreeSet::new(), Vec::new());
        Self { permits, queue: FairQueue::new(permits), waiting, cancelled, in_use, passed_over: [0; 3], requested: 0 }
    }

    fn held(&self, lane: Lane) -> usize {
        self.in_use.iter().filter(|held| **held == lane).count()
    }

    fn waits(&self, lane: Lane) -> bool {
        self.waiting.iter().any(|waiter| waiter.lane == lane)
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Request { lane, tenant: of } => {
                let waiter = Waiter { id: self.requested, lane, tenant: of };
                self.requested += 1;
                if self.queue.try_acquire(lane) {
                    assert!(self.waiting.is_empty(), "{waiter:?} went before {:?}", self.waiting);
                    self.passed_over[lane as usize] = 0;
                    self.in_use.push(lane);
                } else {
                    self.waiting.push(waiter);
                    self.queue.wait(lane, tenant(of), waiter);
                }
            }
            Step::Release { nth } if nth < self.in_use.len() => self.queue.release(self.in_use.swap_remove(nth)),
            Step::Cancel { nth } if nth < self.waiting.len() => {
                self.cancelled.insert(self.waiting.remove(nth).id);
            }
            Step::Release { .. } | Step::Cancel { .. } => {}
        }
        self.grant_free_permits();
        self.check();
    }

    fn grant_free_permits(&mut self) {
        loop {
            let cancelled = &self.cancelled;
            let Some((lane, waiter)) = self.queue.next(|waiter| cancelled.contains(&waiter.id)) else { return };
            assert_eq!(lane, waiter.lane);
            let waiting = Lane::ALL.map(|other| (other, self.waits(other)));
            for (other, _) in waiting.into_iter().filter(|(_, waits)| *waits) {
                assert!(self.held(lane) <= self.held(other), "{other:?} has fewer than {lane:?} and waits");
                if other != lane && self.held(other) == 0 {
                    self.passed_over[other as usize] += 1;
                    assert!(self.passed_over[other as usize] < Lane::ALL.len(), "{other:?} is starved");
                }
            }
            self.passed_over[lane as usize] = 0;
            let first = self.waiting.iter().find(|known| known.lane == lane && known.tenant == waiter.tenant);
            assert_eq!(first, Some(&waiter), "the requests of a tenant keep their order");
            self.waiting.retain(|known| known.id != waiter.id);
            self.in_use.push(lane);
        }
    }

    fn check(&self) {
        assert_eq!(self.in_use.len() + self.queue.free(), self.permits, "permits are neither made nor lost");
        assert!(self.queue.free() == 0 || self.waiting.is_empty(), "a permit is free while {:?} wait", self.waiting);
    }
}

proptest! {
    #[test]
    fn permits_are_bounded_never_idle_and_shared(permits in 1usize..6, steps in steps()) {
        let mut world = World::new(permits);
        for step in steps {
            world.take(step);
        }
        // In the end, every waiter is served.
        while !world.in_use.is_empty() {
            world.take(Step::Release { nth: 0 });
        }
        prop_assert!(world.waiting.is_empty());
    }

    #[test]
    fn no_tenant_is_served_twice_while_another_of_its_lane_waits(requests in prop::collection::vec(0u8..5, 1..60)) {
        let mut queue = FairQueue::new(1);
        prop_assert!(queue.try_acquire(Lane::Expiry));
        let mut waiting = requests.clone();
        for of in requests {
            queue.wait(Lane::Expiry, tenant(of), of);
        }
        let mut round = BTreeSet::new();
        queue.release(Lane::Expiry);
        while let Some((lane, served)) = queue.next(|_| false) {
            let left: BTreeSet<u8> = waiting.iter().copied().collect();
            if !round.insert(served) {
                prop_assert!(left.is_subset(&round), "{served} again, while {left:?} wait");
                round = BTreeSet::from([served]);
            }
            waiting.remove(waiting.iter().position(|of| *of == served).unwrap());
            queue.release(lane);
        }
        prop_assert!(waiting.is_empty());
    }
}
