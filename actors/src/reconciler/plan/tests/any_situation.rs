//! One pass reconciles any combination of containers, records and actors.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
struct World {
    containers: Vec<Observed>,
    records: BTreeMap<ChatId, Sandbox>,
    adopted: BTreeSet<ChatId>,
    journal_is_new: bool,
    underway_since: Option<Timestamp>,
}

/// The container, the record and the actor of a chat.
fn chats(n: u8) -> impl Strategy<Value = (Option<Observed>, Option<Sandbox>, bool)> {
    let state = prop::sample::select(every_state());
    let health = prop::option::weighted(0.3, prop::sample::select(vec![Health::Healthy, Health::Unhealthy]));
    let container = (1..3u8, state, health, prop::bool::weighted(0.2)).prop_map(move |(s, state, health, young)| {
        let created_at = if young { now() - TimeDelta::seconds(1) } else { now() - TimeDelta::hours(1) };
        let labels = labels(chat(n), session(s), created_at).encode();
        Observed { health, labels, ..container(chat(n), session(s), state) }
    });
    let record = (1..3u8, prop::sample::select(&Status::ALL[..]))
        .prop_map(move |(s, status)| record(chat(n), session(s), status));
    (prop::option::weighted(0.8, container), prop::option::weighted(0.7, record), prop::bool::weighted(0.3))
}

/// A foreign container that resembles one of a chat.
fn foreign() -> impl Strategy<Value = Observed> {
    (0..6u8, 0..4u8, any::<u8>()).prop_map(|(n, kind, id)| {
        let ours = container(chat(n), session(1), ContainerState::Running);
        let mut foreign = Observed { id: ContainerId::new(format!("foreign-{id}")), ..ours };
        match kind {
            0 => foreign.name = format!("copy-{id}"),
            1 => foreign.labels.clear(),
            2 => drop(foreign.labels.insert("sandboxd.schema".into(), "999".into())),
            _ => {
                let elsewhere =
                    SessionLabels { instance: "another".parse().unwrap(), ..labels(chat(n), session(1), now()) };
                foreign.labels = elsewhere.encode();
            }
        }
        foreign
    })
}

fn worlds() -> impl Strategy<Value = World> {
    let chats = (chats(0), chats(1), chats(2), chats(3), chats(4), chats(5));
    let foreign = prop::collection::vec(foreign(), 0..4);
    (chats, foreign, prop::bool::weighted(0.3), any::<bool>()).prop_map(|(chats, foreign, journal_is_new, graceful)| {
        let (a, b, c, d, e, f) = chats;
        let mut world = World {
            containers: foreign,
            records: BTreeMap::new(),
            adopted: BTreeSet::new(),
            journal_is_new,
            underway_since: graceful.then(|| now() - GRACE),
        };
        for (n, (container, record, adopted)) in (0..).zip([a, b, c, d, e, f]) {
            world.containers.extend(container);
            world.records.extend(record.map(|record| (chat(n), record)));
            world.adopted.extend(adopted.then(|| chat(n)));
        }
        world
    })
}

impl World {
    fn situation(&self) -> PlanInput {
        let (listed, _, unrecognised) = PlanInput::recognise(&instance(), &Claims::default(), self.containers.clone());
        PlanInput {
            listed,
            unrecognised,
            records: self.records.values().cloned().collect(),
            adopted: self.adopted.clone(),
            journal_is_new: self.journal_is_new,
            now: now(),
            underway_since: self.underway_since,
        }
    }

    /// Carries out a plan as root, the chats and the journal do.
    fn carry_out(&mut self, planned: Vec<Action>) {
        for action in planned {
            let Action::Adopt { sandbox, .. } = action else { continue };
            let chat = sandbox.chat;
            self.records.insert(chat, (*sandbox).clone());
            if sandbox.status == Status::Deleting {
                self.containers.retain(|container| Some(&container.id) != sandbox.container.as_ref());
                self.records.remove(&chat);
            } else {
                self.adopted.insert(chat);
            }
        }
        self.journal_is_new = false;
    }

    fn foreign(&self) -> Vec<Observed> {
        let foreign = |container: &&Observed| session_labels(container, &instance(), &Claims::default()).is_err();
        self.containers.iter().filter(foreign).cloned().collect()
    }

    fn ours(&self) -> BTreeMap<ChatId, Found> {
        self.situation().listed.into_iter().map(|found| (found.labels.chat, found)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn every_chat_gets_at_most_one_action(world in worlds()) {
        let ours = world.ours();
        let mut seen = BTreeSet::new();
        for action in plan(&world.situation()) {
            let chat = match action {
                Action::Adopt { sandbox, .. } => Some(sandbox.chat),
                Action::Tell { chat, .. } => Some(chat),
                Action::Leave { container, .. } => {
                    ours.values().find(|found| found.container.id == container).map(|found| found.labels.chat)
                }
            };
            if let Some(chat) = chat {
                prop_assert!(seen.insert(chat), "two actions for {chat}");
            }
        }
    }

    #[test]
    fn a_chat_that_has_an_actor_is_only_notified(world in worlds()) {
        for action in plan(&world.situation()) {
            if let Action::Adopt { sandbox, .. } = action {
                prop_assert!(!world.adopted.contains(&sandbox.chat));
            }
        }
    }

    #[test]
    fn foreign_containers_are_not_touched(mut world in worlds()) {
        let foreign = world.foreign();
        let planned = plan(&world.situation());
        for action in &planned {
            if let Action::Adopt { sandbox, .. } = action {
                prop_assert!(foreign.iter().all(|foreign| Some(&foreign.id) != sandbox.container.as_ref()));
            }
        }
        world.carry_out(planned);
        prop_assert_eq!(world.foreign(), foreign);
    }

    #[test]
    fn a_live_acknowledged_sandbox_keeps_its_record(mut world in worlds()) {
        let alive = |world: &World| {
            let ours = world.ours();
            let mut alive = world.records.clone();
            alive.retain(|chat, record| {
                record.status == Status::Running
                    && ours.get(chat).is_some_and(|found| {
                        found.labels.session == record.session && found.condition() == Condition::Alive
                    })
            });
            alive
        };
        let before = alive(&world);
        world.carry_out(plan(&world.situation()));
        let after = alive(&world);
        for (chat, promised) in before {
            prop_assert_eq!(after.get(&chat), Some(&promised));
            prop_assert!(world.adopted.contains(&chat));
        }
    }

    #[test]
    fn one_pass_is_enough(mut world in worlds()) {
        world.carry_out(plan(&world.situation()));
        let again = plan(&world.situation());
        prop_assert!(
            again.iter().all(|action| matches!(action, Action::Tell { .. } | Action::Leave { .. })),
            "a second pass would {again:?}"
        );
        for chat in world.records.keys() {
            prop_assert!(world.adopted.contains(chat), "the record of {chat} has no actor");
        }
        for (chat, found) in world.ours() {
            let young = world.underway_since.is_some_and(|since| found.labels.created_at > since);
            prop_assert!(young || world.adopted.contains(&chat), "no actor for {found:?}");
        }
        let before = world.clone();
        world.carry_out(again);
        prop_assert_eq!(world.containers, before.containers);
        prop_assert_eq!(world.records, before.records);
        prop_assert_eq!(world.adopted, before.adopted);
    }
}
