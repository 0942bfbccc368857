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

fn with(targets: PoolTargets, slots: &[Slot]) -> Inventory {
    let mut inventory = Inventory::new(targets);
    for slot in slots {
        inventory.coming(slot.id);
        inventory.came(slot.clone());
    }
    inventory
}

#[test]
fn a_slot_is_handed_out_once_and_the_oldest_first() {
    let (old, young) = (slot(after(0)), slot(after(1)));
    let mut inventory = with(targets(2), &[young.clone(), old.clone()]);
    assert_eq!(inventory.claim(chat(), after(2)).slot, Some(old.clone()));
    assert_eq!(inventory.claim(chat(), after(2)).slot, Some(young));
    assert_eq!(inventory.claim(chat(), after(2)).slot, None);
    inventory.settled(old.id);
    assert_eq!(inventory.claim(chat(), after(2)).slot, None);
}

#[test]
fn what_is_too_old_or_of_a_rebuilt_image_is_not_handed_out_but_retired() {
    let (aged, good) = (slot(after(0)), slot(after(500)));
    let mut inventory = with(targets(2), &[aged.clone(), good.clone()]);
    assert_eq!(inventory.retire(after(1000)), [(aged, Retired::Aged)]);
    inventory.image_is("rebuilt".into());
    assert_eq!(inventory.claim(chat(), after(1000)).slot, None);
    assert_eq!(inventory.retire(after(1000)), [(good, Retired::Stale)]);
    assert_eq!(inventory.counts(), Counts::default());
}

#[test]
fn a_drained_pool_gives_up_what_it_has_and_wants_no_more_until_it_is_filled() {
    let (free, coming) = (slot(after(0)), slot(after(1)));
    let mut inventory = with(targets(2), std::slice::from_ref(&free));
    inventory.coming(coming.id);
    inventory.hint(None, Duration::from_secs(60), after(1));
    inventory.drain();
    assert_eq!((inventory.target(), inventory.hints()), (0, 0));
    assert_eq!(inventory.retire(after(2)), [(free, Retired::Surplus)]);
    inventory.came(coming.clone());
    assert_eq!(inventory.retire(after(2)), [(coming, Retired::Surplus)], "one that was on its way goes as well");
    assert!(!inventory.wants(after(2)));
    inventory.fill();
    assert!(inventory.wants(after(2)) && inventory.target() == 2);
}

#[test]
fn a_successor_is_started_before_a_slot_is_too_old() {
    let (old, new) = (slot(after(0)), slot(after(901)));
    let mut inventory = with(targets(1), std::slice::from_ref(&old));
    assert!(!inventory.wants(after(899)));
    assert!(inventory.wants(after(900)));
    inventory.coming(new.id);
    assert!(!inventory.wants(after(900)), "one at a time");
    assert_eq!(inventory.retire(after(901)), [], "until the successor is there");
    inventory.came(new);
    assert_eq!(inventory.retire(after(902)), [(old, Retired::Surplus)]);
}

#[test]
fn a_claim_is_made_good() {
    let mut inventory = with(targets(1), &[slot(after(0))]);
    assert!(!inventory.wants(after(1)));
    inventory.claim(chat(), after(1));
    assert!(inventory.wants(after(1)), "what was handed out is not kept");
}

#[test]
fn what_does_not_start_is_tried_less_and_less_often() {
    let (mut inventory, mut now) = (Inventory::new(targets(1)), start());
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let id = SlotId::random();
        inventory.coming(id);
        inventory.failed(id, now);
        let next = inventory.not_before().unwrap();
        assert!(!inventory.wants(next - TimeDelta::milliseconds(1)) && inventory.wants(next));
        pauses.push((next - now).num_seconds());
        now = next;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    inventory.came(slot(now));
    assert_eq!(inventory.not_before(), None);
}

#[test]
fn claims_of_the_last_minute_keep_spare_slots() {
    let mut inventory = Inventory::new(PoolTargets { spare: 2, ..targets(1) });
    for _ in 0..5 {
        inventory.claim(chat(), after(0));
    }
    assert_eq!(inventory.target(), 3);
    inventory.retire(after(60));
    assert_eq!(inventory.target(), 1);
}

#[test]
fn a_hint_keeps_a_slot_until_it_comes_true_or_its_time_is_over() {
    let mut inventory = Inventory::new(targets(0));
    assert!(!inventory.wants(start()));
    assert_eq!(inventory.hint(Some(chat()), Duration::from_secs(10), start()), Hinted::Preparing { until: after(10) });
    assert!(inventory.wants(start()));
    assert_eq!(
        inventory.hint(Some(chat()), Duration::from_secs(20), start()),
        Hinted::Preparing { until: after(20) },
        "the same chat is not prepared for twice"
    );
    assert_eq!(inventory.target(), 1);
    inventory.hint(None, Duration::from_secs(5), start());
    assert_eq!(inventory.hint(None, Duration::from_secs(5), start()), Hinted::OverBudget { limit: 2 });
    assert_eq!(inventory.expire_hints(after(5)), 1);
    assert!(inventory.claim(chat(), after(6)).was_hinted);
    assert_eq!((inventory.hints(), inventory.expire_hints(after(60))), (0, 0));
}

#[test]
fn only_a_free_slot_can_die_here() {
    let (free, taken) = (slot(after(1)), slot(after(0)));
    let mut inventory = with(targets(2), &[free.clone(), taken.clone()]);
    assert_eq!(inventory.claim(chat(), after(1)).slot, Some(taken.clone()));
    assert_eq!(inventory.died(taken.id), None);
    assert_eq!(inventory.died(free.id), Some(free.clone()));
    assert_eq!(inventory.died(free.id), None);
    assert!(inventory.knows(taken.id) && !inventory.knows(free.id));
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
        let mut inventory = Inventory::new(PoolTargets { spare: 1, ..targets(3) });
        let (mut now, mut image) = (start(), 0);
        inventory.image_is(image.to_string());
        let (mut coming, mut taken, mut handed_out) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Claim => {
                    if let Some(slot) = inventory.claim(chat(), now).slot {
                        prop_assert!(!handed_out.contains(&slot.id));
                        prop_assert_eq!(&slot.image_id, &image.to_string());
                        prop_assert!(now - slot.created_at < TimeDelta::seconds(1000));
                        handed_out.push(slot.id);
                        taken.push(slot.id);
                    }
                }
                Step::Start if inventory.wants(now) => {
                    let made = Slot { image_id: image.to_string(), ..slot(now) };
                    inventory.coming(made.id);
                    coming.push(made);
                }
                Step::Come => coming.pop().into_iter().for_each(|slot| inventory.came(slot)),
                Step::Fail => coming.pop().into_iter().for_each(|slot| inventory.failed(slot.id, now)),
                Step::Settle => taken.pop().into_iter().for_each(|slot| inventory.settled(slot)),
                Step::Hint(known) => drop(inventory.hint(known.then(chat), Duration::from_secs(60), now)),
                Step::Rebuild => {
                    image += 1;
                    inventory.image_is(image.to_string());
                }
                Step::Wait(seconds) => {
                    now += TimeDelta::seconds(seconds);
                    inventory.expire_hints(now);
                    inventory.retire(now);
                    prop_assert!(inventory.counts().free <= inventory.target());
                }
                Step::Start => {}
            }
            prop_assert!(inventory.counts().coming <= 1);
        }
    }
}
