//! Records and events are read back unchanged.

use std::net::IpAddr;

use chrono::DateTime;
use proptest::prelude::*;
use proptest::sample::select;
use sandboxd_actors::domain::ids::{LeaseId, SnapshotId, WorkspaceId};
use sandboxd_actors::domain::sandbox::Endpoint;

use super::*;

fn any_moment() -> impl Strategy<Value = Timestamp> {
    let (first, last) = (Timestamp::MIN_UTC.timestamp(), Timestamp::MAX_UTC.timestamp());
    let anywhere = (first..=last, 0u32..1_000_000_000).prop_map(|(s, n)| DateTime::from_timestamp(s, n).unwrap());
    prop_oneof![8 => anywhere, 1 => Just(Timestamp::MAX_UTC), 1 => Just(Timestamp::MIN_UTC)]
}

fn any_id() -> impl Strategy<Value = u128> {
    prop_oneof![any::<u128>(), Just(0), Just(u128::MAX)]
}

prop_compose! {
    fn any_sandbox()(
        (chat_number, session_number) in (any_id(), any_id()),
        agent in "[^\\p{C}]{0,20}[a-z']",
        workspace in prop::option::of(any_id()),
        volume in prop::option::of("/[^\\p{C}:/.][^\\p{C}:/]{0,20}"),
        profile in "[a-z0-9][a-z0-9-]{0,20}",
        (image, container, message) in any::<(String, Option<String>, Option<String>)>(),
        restored: bool,
        endpoint in any::<Option<(IpAddr, u16)>>(),
        (status, reason) in (select(&Status::ALL), select(&Reason::ALL)),
        (created_at, started_at) in (any_moment(), prop::option::of(any_moment())),
        (last_activity_at, expires_at) in (any_moment(), any_moment()),
        held_until in prop::option::of(any_moment()),
        durable_leases in prop::collection::vec(any_moment().prop_map(|until| (LeaseId::random(), until)), 0..3),
        (seconds, nanos) in (any::<u64>(), prop_oneof![Just(0), 0u32..1_000_000_000]),
    ) -> Sandbox {
        Sandbox {
            agent: agent.parse().unwrap(),
            workspace: workspace.map(|number| WorkspaceId::new(uuid::Uuid::from_u128(number))),
            volume: volume.map(|volume| HostPath::from_canonical(Path::new(&volume)).unwrap()),
            profile: profile.parse().unwrap(),
            image,
            snapshot: restored.then(SnapshotId::next),
            container: container.map(ContainerId::new),
            endpoint: endpoint.map(|(ip, port)| Endpoint { ip, port }),
            status,
            reason,
            message,
            created_at,
            started_at,
            last_activity_at,
            expires_at,
            idle_timeout: Duration::new(seconds, nanos),
            held_until,
            held_by: Vec::new(),
            durable_leases,
            ..sandbox(chat_number, session_number)
        }
    }
}

prop_compose! {
    fn any_change()(
        sandbox in any_sandbox(),
        at in any_moment(),
        from in prop::option::of(select(&Status::ALL)),
        to in prop::option::of(select(&Status::ALL)),
    ) -> Change {
        let Sandbox { chat, session, agent, container, reason, message, .. } = sandbox;
        Change { at, chat, session, agent, container, from, to, reason, message }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn saved_sandboxes_are_loaded_unchanged(saved in prop::collection::vec(any_sandbox(), 0..8)) {
        let place = Place::new();
        let entries: Vec<_> = saved.iter().cloned().map(|sandbox| Entry::Save(Box::new(sandbox))).collect();
        place.opened().commit(&entries).unwrap();
        let expected: BTreeMap<_, _> = saved.into_iter().map(|sandbox| (sandbox.chat, sandbox)).collect();
        prop_assert_eq!(sandboxes(&mut place.opened()), expected.into_values().collect::<Vec<_>>());
    }

    #[test]
    fn a_claim_is_loaded_unchanged_and_goes_with_its_session(
        labels in any::<BTreeMap<String, String>>(),
        environment in any::<BTreeMap<String, String>>(),
        mounts in prop::collection::btree_map(any::<String>(), "/[^\\p{C}:/.][^\\p{C}:/]{0,20}", 0..3),
    ) {
        let place = Place::new();
        let mounts = mounts.into_iter().map(|(target, source)| {
            (target, HostPath::from_canonical(Path::new(&source)).unwrap())
        });
        let mounts = mounts.collect();
        let kept = sandbox(1, 1);
        let claim = Claim { labels, environment: Environment::recorded(environment), mounts, ..claim(&kept) };
        let of_another = Claim { session: sandbox(1, 2).session, ..claim.clone() };
        let entries = [
            Entry::Save(Box::new(kept.clone())),
            Entry::Claim(Arc::new(claim.clone())),
            Entry::Claim(Arc::new(of_another)),
            Entry::Save(Box::new(kept)),
        ];
        place.opened().commit(&entries).unwrap();
        prop_assert_eq!(place.opened().load().unwrap().claims, vec![Arc::new(claim.clone())]);

        let removed = Entry::Remove { chat: claim.chat, session: claim.session };
        place.opened().commit(&[removed]).unwrap();
        prop_assert_eq!(place.opened().load().unwrap().claims, vec![]);

        let replaced = [entries[0].clone(), Entry::Claim(Arc::new(claim)), Entry::Save(Box::new(sandbox(1, 2)))];
        place.opened().commit(&replaced).unwrap();
        prop_assert_eq!(place.opened().load().unwrap().claims, vec![]);
    }

    #[test]
    fn recorded_events_are_read_unchanged(changes in prop::collection::vec(any_change(), 0..8)) {
        let place = Place::new();
        let mut journal = place.opened();
        let numbered = (journal.event_range.last + 1..).zip(changes);
        let events: Vec<_> = numbered.map(|(sequence, change)| LifecycleEvent { sequence, change }).collect();
        let entries: Vec<_> = events.iter().cloned().map(|event| Entry::Event(Box::new(event))).collect();
        journal.commit(&entries).unwrap();
        drop(journal);
        prop_assert_eq!(place.opened().events(0, None, 100).unwrap().events, events);
    }
}
