//! The promises of the queue, whoever asks for what in whatever order.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn tenant(number: u8) -> Tenant {
    Tenant::Agent(format!("agent-{number}").parse().unwrap())
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Ask { lane: Lane, tenant: u8 },
    GiveBack { nth: usize },
    GiveUp { nth: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lane = prop::sample::select(Lane::ALL.to_vec());
    let step = prop_oneof![
        5 => (lane, 0u8..4).prop_map(|(lane, tenant)| Step::Ask { lane, tenant }),
        4 => (0usize..8).prop_map(|nth| Step::GiveBack { nth }),
        1 => (0usize..40).prop_map(|nth| Step::GiveUp { nth }),
    ];
    prop::collection::vec(step, 1..200)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiter {
    id: usize,
    lane: Lane,
    tenant: u8,
}

/// The queue, and who was told what.
struct World {
    turns: usize,
    queue: FairQueue<Waiter>,
    waiting: Vec<Waiter>,
    gone: BTreeSet<usize>,
    in_hand: Vec<Lane>,
    /// For each lane, how many turns others got since it waits without one in hand.
    passed_over: [usize; Lane::ALL.len()],
    asked: usize,
}

impl World {
    fn new(turns: usize) -> Self {
        let (waiting, gone, in_hand) = (Vec::new(), BTreeSet::new(), Vec::new());
        Self { turns, queue: FairQueue::new(turns), waiting, gone, in_hand, passed_over: [0; 3], asked: 0 }
    }

    fn held(&self, lane: Lane) -> usize {
        self.in_hand.iter().filter(|held| **held == lane).count()
    }

    fn waits(&self, lane: Lane) -> bool {
        self.waiting.iter().any(|waiter| waiter.lane == lane)
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Ask { lane, tenant: of } => {
                let waiter = Waiter { id: self.asked, lane, tenant: of };
                self.asked += 1;
                if self.queue.take_at_once(lane) {
                    assert!(self.waiting.is_empty(), "{waiter:?} went before {:?}", self.waiting);
                    self.passed_over[lane as usize] = 0;
                    self.in_hand.push(lane);
                } else {
                    self.waiting.push(waiter);
                    self.queue.wait(lane, tenant(of), waiter);
                }
            }
            Step::GiveBack { nth } if nth < self.in_hand.len() => self.queue.give_back(self.in_hand.swap_remove(nth)),
            Step::GiveUp { nth } if nth < self.waiting.len() => drop(self.gone.insert(self.waiting.remove(nth).id)),
            Step::GiveBack { .. } | Step::GiveUp { .. } => {}
        }
        self.hand_out();
        self.check();
    }

    fn hand_out(&mut self) {
        loop {
            let gone = &self.gone;
            let Some((lane, waiter)) = self.queue.next(|waiter| gone.contains(&waiter.id)) else { return };
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
            assert_eq!(first, Some(&waiter), "within a tenant, who came first goes first");
            self.waiting.retain(|known| known.id != waiter.id);
            self.in_hand.push(lane);
        }
    }

    fn check(&self) {
        assert_eq!(self.in_hand.len() + self.queue.free(), self.turns, "turns are neither made nor lost");
        assert!(self.queue.free() == 0 || self.waiting.is_empty(), "a turn is free, and {:?} wait", self.waiting);
    }
}

proptest! {
    #[test]
    fn turns_are_bounded_never_idle_and_shared(turns in 1usize..6, steps in steps()) {
        let mut world = World::new(turns);
        for step in steps {
            world.take(step);
        }
        // In the end, everybody is served.
        while !world.in_hand.is_empty() {
            world.take(Step::GiveBack { nth: 0 });
        }
        prop_assert!(world.waiting.is_empty());
    }

    #[test]
    fn no_party_is_served_twice_while_another_of_its_lane_waits(asked in prop::collection::vec(0u8..5, 1..60)) {
        let mut queue = FairQueue::new(1);
        prop_assert!(queue.take_at_once(Lane::Expiry));
        let mut waiting = asked.clone();
        for of in asked {
            queue.wait(Lane::Expiry, tenant(of), of);
        }
        let mut round = BTreeSet::new();
        queue.give_back(Lane::Expiry);
        while let Some((lane, served)) = queue.next(|_| false) {
            let left: BTreeSet<u8> = waiting.iter().copied().collect();
            if !round.insert(served) {
                prop_assert!(left.is_subset(&round), "{served} again, while {left:?} wait");
                round = BTreeSet::from([served]);
            }
            waiting.remove(waiting.iter().position(|of| *of == served).unwrap());
            queue.give_back(lane);
        }
        prop_assert!(waiting.is_empty());
    }
}
