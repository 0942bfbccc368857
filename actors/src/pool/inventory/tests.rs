use super::*;

use proptest::prelude::*;

fn targets(size: usize) -> PoolTargets {
    PoolTargets { size, spare: 0, max_age: Duration::from_secs(1000), hints: 2 }
}

fn start() -> Timestamp {
    chrono::DateTime::from_timestamp_nanos(0)
}

fn after(seconds: i64) -> Timestamp {
    start() + TimeDelta::seconds(seconds)
}

fn slot(created_at: Timestamp) -> Slot {
    let id = SlotId::random();
    let container = ContainerId::new(id.to_string());
    Slot { id, container, address: None, image_id: "image".into(), created_at }
}

fn chat() -> ChatId {
    "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().unwrap()
}

fn with(targets: PoolTargets, slots: &[Slot]) -> Shelf {
    let mut shelf = Shelf::new(targets);
    for slot in slots {
        shelf.coming(slot.id);
        shelf.came(slot.clone());
    }
    shelf
}

#[test]
fn a_slot_is_handed_out_once_and_the_oldest_first() {
    let (old, young) = (slot(after(0)), slot(after(1)));
    let mut shelf = with(targets(2), &[young.clone(), old.clone()]);
    assert_eq!(shelf.claim(chat(), after(2)).slot, Some(old.clone()));
    assert_eq!(shelf.claim(chat(), after(2)).slot, Some(young));
    assert_eq!(shelf.claim(chat(), after(2)).slot, None);
    shelf.settled(old.id);
    assert_eq!(shelf.claim(chat(), after(2)).slot, None);
}

#[test]
fn what_is_too_old_or_of_a_rebuilt_image_is_not_handed_out_but_retired() {
    let (aged, good) = (slot(after(0)), slot(after(500)));
    let mut shelf = with(targets(2), &[aged.clone(), good.clone()]);
    assert_eq!(shelf.retire(after(1000)), [(aged, Retired::Aged)]);
    shelf.image_is("rebuilt".into());
    assert_eq!(shelf.claim(chat(), after(1000)).slot, None);
    assert_eq!(shelf.retire(after(1000)), [(good, Retired::Stale)]);
    assert_eq!(shelf.counts(), Counts::default());
}

#[test]
fn a_drained_pool_gives_up_what_it_has_and_wants_no_more_until_it_is_filled() {
    let (free, coming) = (slot(after(0)), slot(after(1)));
    let mut shelf = with(targets(2), std::slice::from_ref(&free));
    shelf.coming(coming.id);
    shelf.hint(None, Duration::from_secs(60), after(1));
    shelf.drain();
    assert_eq!((shelf.target(), shelf.hints()), (0, 0));
    assert_eq!(shelf.retire(after(2)), [(free, Retired::Surplus)]);
    shelf.came(coming.clone());
    assert_eq!(shelf.retire(after(2)), [(coming, Retired::Surplus)], "one that was on its way goes as well");
    assert!(!shelf.wants(after(2)));
    shelf.fill();
    assert!(shelf.wants(after(2)) && shelf.target() == 2);
}

#[test]
fn a_successor_is_started_before_a_slot_is_too_old() {
    let (old, new) = (slot(after(0)), slot(after(901)));
    let mut shelf = with(targets(1), std::slice::from_ref(&old));
    assert!(!shelf.wants(after(899)));
    assert!(shelf.wants(after(900)));
    shelf.coming(new.id);
    assert!(!shelf.wants(after(900)), "one at a time");
    assert_eq!(shelf.retire(after(901)), [], "until the successor is there");
    shelf.came(new);
    assert_eq!(shelf.retire(after(902)), [(old, Retired::Surplus)]);
}

#[test]
fn a_claim_is_made_good() {
    let mut shelf = with(targets(1), &[slot(after(0))]);
    assert!(!shelf.wants(after(1)));
    shelf.claim(chat(), after(1));
    assert!(shelf.wants(after(1)), "what was handed out is not kept");
}

#[test]
fn what_does_not_start_is_tried_less_and_less_often() {
    let (mut shelf, mut now) = (Shelf::new(targets(1)), start());
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let id = SlotId::random();
        shelf.coming(id);
        shelf.failed(id, now);
        let next = shelf.not_before().unwrap();
        assert!(!shelf.wants(next - TimeDelta::milliseconds(1)) && shelf.wants(next));
        pauses.push((next - now).num_seconds());
        now = next;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    shelf.came(slot(now));
    assert_eq!(shelf.not_before(), None);
}

#[test]
fn claims_of_the_last_minute_keep_spare_slots() {
    let mut shelf = Shelf::new(PoolTargets { spare: 2, ..targets(1) });
    for _ in 0..5 {
        shelf.claim(chat(), after(0));
    }
    assert_eq!(shelf.target(), 3);
    shelf.retire(after(60));
    assert_eq!(shelf.target(), 1);
}

#[test]
fn a_hint_keeps_a_slot_until_it_comes_true_or_its_time_is_over() {
    let mut shelf = Shelf::new(targets(0));
    assert!(!shelf.wants(start()));
    assert_eq!(shelf.hint(Some(chat()), Duration::from_secs(10), start()), Hinted::Preparing { until: after(10) });
    assert!(shelf.wants(start()));
    assert_eq!(
        shelf.hint(Some(chat()), Duration::from_secs(20), start()),
        Hinted::Preparing { until: after(20) },
        "the same chat is not prepared for twice"
    );
    assert_eq!(shelf.target(), 1);
    shelf.hint(None, Duration::from_secs(5), start());
    assert_eq!(shelf.hint(None, Duration::from_secs(5), start()), Hinted::OverBudget { limit: 2 });
    assert_eq!(shelf.expire_hints(after(5)), 1);
    assert!(shelf.claim(chat(), after(6)).was_hinted);
    assert_eq!((shelf.hints(), shelf.expire_hints(after(60))), (0, 0));
}

#[test]
fn only_a_free_slot_can_die_here() {
    let (free, taken) = (slot(after(1)), slot(after(0)));
    let mut shelf = with(targets(2), &[free.clone(), taken.clone()]);
    assert_eq!(shelf.claim(chat(), after(1)).slot, Some(taken.clone()));
    assert_eq!(shelf.died(taken.id), None);
    assert_eq!(shelf.died(free.id), Some(free.clone()));
    assert_eq!(shelf.died(free.id), None);
    assert!(shelf.knows(taken.id) && !shelf.knows(free.id));
}

#[derive(Debug, Clone)]
enum Step {
    Claim,
    Start,
    Come,
    Fail,
    Settle,
    Hint(bool),
    Rebuild,
    Wait(i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Claim),
        3 => Just(Step::Start),
        3 => Just(Step::Come),
        1 => Just(Step::Fail),
        1 => Just(Step::Settle),
        1 => any::<bool>().prop_map(Step::Hint),
        1 => Just(Step::Rebuild),
        2 => (0i64..400).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_no_slot_is_handed_out_twice_stale_or_aged(steps in prop::collection::vec(step(), 0..120)) {
        let mut shelf = Shelf::new(PoolTargets { spare: 1, ..targets(3) });
        let (mut now, mut image) = (start(), 0);
        shelf.image_is(image.to_string());
        let (mut coming, mut taken, mut handed_out) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Claim => {
                    if let Some(slot) = shelf.claim(chat(), now).slot {
                        prop_assert!(!handed_out.contains(&slot.id));
                        prop_assert_eq!(&slot.image_id, &image.to_string());
                        prop_assert!(now - slot.created_at < TimeDelta::seconds(1000));
                        handed_out.push(slot.id);
                        taken.push(slot.id);
                    }
                }
                Step::Start if shelf.wants(now) => {
                    let made = Slot { image_id: image.to_string(), ..slot(now) };
                    shelf.coming(made.id);
                    coming.push(made);
                }
                Step::Come => coming.pop().into_iter().for_each(|slot| shelf.came(slot)),
                Step::Fail => coming.pop().into_iter().for_each(|slot| shelf.failed(slot.id, now)),
                Step::Settle => taken.pop().into_iter().for_each(|slot| shelf.settled(slot)),
                Step::Hint(known) => drop(shelf.hint(known.then(chat), Duration::from_secs(60), now)),
                Step::Rebuild => {
                    image += 1;
                    shelf.image_is(image.to_string());
                }
                Step::Wait(seconds) => {
                    now += TimeDelta::seconds(seconds);
                    shelf.expire_hints(now);
                    shelf.retire(now);
                    prop_assert!(shelf.counts().free <= shelf.target());
                }
                Step::Start => {}
            }
            prop_assert!(shelf.counts().coming <= 1);
        }
    }
}
