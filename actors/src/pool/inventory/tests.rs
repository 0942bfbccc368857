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
        inventory.started(slot.clone());
    }
    inventory
}

#[test]
fn a_slot_is_claimed_once_and_the_oldest_first() {
    let (old, young) = (slot(after(0)), slot(after(1)));
    let mut inventory = with(targets(2), &[young.clone(), old.clone()]);
    assert_eq!(inventory.claim(chat(), after(2)).slot, Some(old.clone()));
    assert_eq!(inventory.claim(chat(), after(2)).slot, Some(young));
    assert_eq!(inventory.claim(chat(), after(2)).slot, None);
    inventory.remove(old.id);
    assert_eq!(inventory.claim(chat(), after(2)).slot, None);
}

#[test]
fn an_aged_or_stale_slot_is_not_claimed_but_removed() {
    let (aged, usable) = (slot(after(0)), slot(after(500)));
    let mut inventory = with(targets(2), &[aged.clone(), usable.clone()]);
    assert_eq!(inventory.remove_unusable(after(1000)), [(aged, RemovalReason::Aged)]);
    inventory.set_image("rebuilt".into());
    assert_eq!(inventory.claim(chat(), after(1000)).slot, None);
    assert_eq!(inventory.remove_unusable(after(1000)), [(usable, RemovalReason::Stale)]);
    assert_eq!(inventory.counts(), Counts::default());
}

#[test]
fn a_drained_pool_removes_its_slots_and_wants_none_until_it_is_filled() {
    let (free, coming) = (slot(after(0)), slot(after(1)));
    let mut inventory = with(targets(2), std::slice::from_ref(&free));
    inventory.coming(coming.id);
    inventory.hint(None, Duration::from_secs(60), after(1));
    inventory.drain();
    assert_eq!((inventory.target(), inventory.hints()), (0, 0));
    assert_eq!(inventory.remove_unusable(after(2)), [(free, RemovalReason::Surplus)]);
    inventory.started(coming.clone());
    assert_eq!(
        inventory.remove_unusable(after(2)),
        [(coming, RemovalReason::Surplus)],
        "one that was on its way goes as well"
    );
    assert!(!inventory.wants_slot(after(2)));
    inventory.fill();
    assert!(inventory.wants_slot(after(2)) && inventory.target() == 2);
}

#[test]
fn a_successor_is_started_before_a_slot_is_too_old() {
    let (old, new) = (slot(after(0)), slot(after(901)));
    let mut inventory = with(targets(1), std::slice::from_ref(&old));
    assert!(!inventory.wants_slot(after(899)));
    assert!(inventory.wants_slot(after(900)));
    inventory.coming(new.id);
    assert!(!inventory.wants_slot(after(900)), "one at a time");
    assert_eq!(inventory.remove_unusable(after(901)), [], "until the successor is there");
    inventory.started(new);
    assert_eq!(inventory.remove_unusable(after(902)), [(old, RemovalReason::Surplus)]);
}

#[test]
fn a_claimed_slot_is_replaced() {
    let mut inventory = with(targets(1), &[slot(after(0))]);
    assert!(!inventory.wants_slot(after(1)));
    inventory.claim(chat(), after(1));
    assert!(inventory.wants_slot(after(1)), "a claimed slot does not count towards the target");
}

#[test]
fn a_slot_that_does_not_start_is_retried_with_growing_delays() {
    let (mut inventory, mut now) = (Inventory::new(targets(1)), start());
    let mut delays = Vec::new();
    for _ in 0..8 {
        let id = SlotId::random();
        inventory.coming(id);
        inventory.failed(id, now);
        let next = inventory.not_before().unwrap();
        assert!(!inventory.wants_slot(next - TimeDelta::milliseconds(1)) && inventory.wants_slot(next));
        delays.push((next - now).num_seconds());
        now = next;
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
    inventory.started(slot(now));
    assert_eq!(inventory.not_before(), None);
}

#[test]
fn claims_of_the_last_minute_keep_spare_slots() {
    let mut inventory = Inventory::new(PoolTargets { spare: 2, ..targets(1) });
    for _ in 0..5 {
        inventory.claim(chat(), after(0));
    }
    assert_eq!(inventory.target(), 3);
    inventory.remove_unusable(after(60));
    assert_eq!(inventory.target(), 1);
}

#[test]
fn a_hint_keeps_a_slot_until_it_is_used_or_expires() {
    let mut inventory = Inventory::new(targets(0));
    assert!(!inventory.wants_slot(start()));
    assert_eq!(inventory.hint(Some(chat()), Duration::from_secs(10), start()), Hinted::Preparing { until: after(10) });
    assert!(inventory.wants_slot(start()));
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
    assert_eq!(inventory.remove_dead(taken.id), None);
    assert_eq!(inventory.remove_dead(free.id), Some(free.clone()));
    assert_eq!(inventory.remove_dead(free.id), None);
    assert!(inventory.contains(taken.id) && !inventory.contains(free.id));
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
    fn no_slot_is_claimed_twice_stale_or_aged(steps in prop::collection::vec(step(), 0..120)) {
        let mut inventory = Inventory::new(PoolTargets { spare: 1, ..targets(3) });
        let (mut now, mut image) = (start(), 0);
        inventory.set_image(image.to_string());
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
                Step::Start if inventory.wants_slot(now) => {
                    let made = Slot { image_id: image.to_string(), ..slot(now) };
                    inventory.coming(made.id);
                    coming.push(made);
                }
                Step::Come => coming.pop().into_iter().for_each(|slot| inventory.started(slot)),
                Step::Fail => coming.pop().into_iter().for_each(|slot| inventory.failed(slot.id, now)),
                Step::Settle => taken.pop().into_iter().for_each(|slot| inventory.remove(slot)),
                Step::Hint(known) => drop(inventory.hint(known.then(chat), Duration::from_secs(60), now)),
                Step::Rebuild => {
                    image += 1;
                    inventory.set_image(image.to_string());
                }
                Step::Wait(seconds) => {
                    now += TimeDelta::seconds(seconds);
                    inventory.expire_hints(now);
                    inventory.remove_unusable(now);
                    prop_assert!(inventory.counts().free <= inventory.target());
                }
                Step::Start => {}
            }
            prop_assert!(inventory.counts().coming <= 1);
        }
    }
}
