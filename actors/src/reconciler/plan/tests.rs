//! The rules of reconciliation: each rule alone, and all of them in any situation.

mod any_situation;

use std::path::Path;
use std::time::Duration;

use chrono::TimeDelta;

use super::*;
use crate::domain::host_path::HostPath;
use crate::domain::ids::{ContainerName, SessionId};
use crate::domain::labels::SessionLabels;
use crate::domain::outcome::Death;
use crate::ports::engine::{ContainerState, Exit, Health};

const GRACE: TimeDelta = TimeDelta::minutes(2);

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn instance() -> InstanceName {
    "default".parse().unwrap()
}

fn chat(n: u8) -> ChatId {
    ChatId::new(uuid::Uuid::from_u128(n.into()))
}

fn session(n: u8) -> SessionId {
    uuid::Uuid::from_u128(n.into()).to_string().parse().unwrap()
}

fn labels(of: ChatId, session: SessionId, created_at: Timestamp) -> SessionLabels {
    SessionLabels {
        instance: instance(),
        chat: of,
        session,
        agent: "agent".parse().unwrap(),
        workspace: None,
        volume: Some(HostPath::from_canonical(Path::new("/data")).unwrap()),
        port: 8080,
        profile: "default".parse().unwrap(),
        spec_hash: "0".into(),
        created_at,
        expires_at: created_at + Duration::from_secs(300),
        idle_timeout: Duration::from_secs(60),
        snapshot: None,
    }
}

/// A container of this instance, older than the grace.
fn container(of: ChatId, session: SessionId, state: ContainerState) -> Observed {
    let labels = labels(of, session, now() - GRACE);
    Observed {
        id: ContainerId::new(format!("{of}-{session}")),
        name: ContainerName::of(&instance(), of).to_string(),
        image: "image".into(),
        labels: labels.encode(),
        state,
        started_at: Some(labels.created_at),
        address: Some([172, 17, 0, 2].into()),
        health: None,
    }
}

/// The record of a sandbox that was renewed and leased since its creation.
fn record(of: ChatId, session: SessionId, status: Status) -> Sandbox {
    let running = container(of, session, ContainerState::Running);
    Sandbox {
        status,
        reason: Reason::Requested,
        last_activity_at: now() - TimeDelta::seconds(7),
        expires_at: now() + TimeDelta::hours(7),
        held_until: Some(now() + TimeDelta::hours(1)),
        held_by: Vec::new(),
        durable_leases: vec![("5a1f3c8e-2b7d-4e90-8c46-d1e7f9b0a352".parse().unwrap(), now() + TimeDelta::hours(1))],
        ..found(running).sandbox(now())
    }
}

fn found(container: Observed) -> Found {
    Found::recognise(container, &instance(), &Claims::default()).unwrap()
}

/// The input of a running service, with only these containers and records.
fn situation(containers: Vec<Observed>, records: Vec<Sandbox>) -> PlanInput {
    let (listed, _, unrecognised) = PlanInput::recognise(&instance(), &Claims::default(), containers);
    let adopted = BTreeSet::new();
    PlanInput {
        listed,
        unrecognised,
        records,
        adopted,
        journal_is_new: false,
        now: now(),
        underway_since: Some(now() - GRACE),
    }
}

/// The only action for a chat with this record and this container.
fn adopted(record: Option<Sandbox>, container: Option<Observed>) -> (Sandbox, Because) {
    adopting(&situation(container.into_iter().collect(), record.into_iter().collect()))
}

fn adopting(situation: &PlanInput) -> (Sandbox, Because) {
    match &plan(situation)[..] {
        [Action::Adopt { sandbox, because }] => ((**sandbox).clone(), *because),
        other => panic!("{other:?}"),
    }
}

fn exited() -> ContainerState {
    ContainerState::Exited(Some(Exit { code: 137, oom_killed: true }))
}

const ALIVE: [ContainerState; 3] = [ContainerState::Running, ContainerState::Paused, ContainerState::Restarting];
const HALF_MADE: [ContainerState; 2] = [ContainerState::Created, ContainerState::Removing];

fn every_state() -> Vec<ContainerState> {
    [&ALIVE[..], &HALF_MADE[..], &[exited(), ContainerState::Dead]].concat()
}

#[test]
fn a_live_sandbox_is_resumed_with_the_times_of_its_record() {
    for state in ALIVE {
        let status = if state == ContainerState::Paused { Status::Paused } else { Status::Running };
        let record = record(chat(1), session(1), status);
        let (sandbox, because) = adopted(Some(record.clone()), Some(container(chat(1), session(1), state)));
        assert_eq!(because, Because::Resumed);
        assert_eq!(sandbox, record);
    }
}

#[test]
fn a_sandbox_that_was_paused_meanwhile_is_resumed_as_such() {
    let record = record(chat(1), session(1), Status::Running);
    let paused = container(chat(1), session(1), ContainerState::Paused);
    let (sandbox, because) = adopted(Some(record.clone()), Some(paused));
    assert_eq!(because, Because::Resumed);
    assert_eq!(sandbox, Sandbox { status: Status::Paused, reason: Reason::Adopted, ..record });
}

#[test]
fn a_sandbox_resumed_at_an_unknown_time_counts_as_used() {
    let record = record(chat(1), session(1), Status::Paused);
    let running = container(chat(1), session(1), ContainerState::Running);
    let (sandbox, because) = adopted(Some(record.clone()), Some(running));
    assert_eq!(because, Because::Resumed);
    let (status, reason) = (Status::Running, Reason::Adopted);
    assert_eq!(sandbox, Sandbox { status, reason, last_activity_at: now(), ..record });
}

#[test]
fn a_sandbox_that_got_another_address_is_resumed_with_it() {
    let mut moved = container(chat(1), session(1), ContainerState::Running);
    moved.address = Some([172, 17, 0, 9].into());
    let (sandbox, _) = adopted(Some(record(chat(1), session(1), Status::Running)), Some(moved));
    assert_eq!(sandbox.endpoint.unwrap().ip.to_string(), "172.17.0.9");
}

#[test]
fn a_sandbox_that_ended_meanwhile_is_failed_with_its_cause() {
    let record = record(chat(1), session(1), Status::Running);
    let mut situation = situation(vec![container(chat(1), session(1), exited())], vec![record.clone()]);
    let exit = Some(Exit { code: 137, oom_killed: true });
    situation.listed[0].death = Some(Death { exit, memory_limit_bytes: None, log_tail: vec![] });
    let (sandbox, because) = adopting(&situation);
    assert_eq!(because, Because::Ended);
    assert_eq!((sandbox.status, sandbox.reason), (Status::Failed, Reason::OomKilled));
    assert_eq!(sandbox.message.as_deref(), Some("out of memory"));
    assert_eq!((sandbox.session, sandbox.expires_at), (record.session, record.expires_at));
}

#[test]
fn a_sandbox_that_fell_ill_meanwhile_is_failed() {
    let mut ill = container(chat(1), session(1), ContainerState::Running);
    ill.health = Some(Health::Unhealthy);
    let (sandbox, because) = adopted(Some(record(chat(1), session(1), Status::Running)), Some(ill));
    assert_eq!(because, Because::Ended);
    assert_eq!((sandbox.status, sandbox.reason), (Status::Failed, Reason::Unhealthy));
}

#[test]
fn a_sandbox_whose_container_is_gone_is_failed_as_vanished() {
    let record = record(chat(1), session(1), Status::Running);
    let (sandbox, because) = adopted(Some(record.clone()), None);
    assert_eq!(because, Because::Vanished);
    assert_eq!((sandbox.status, sandbox.reason), (Status::Failed, Reason::Vanished));
    assert_eq!(sandbox.session, record.session);
}

#[test]
fn a_failed_or_stopped_sandbox_stays_so() {
    for status in [Status::Failed, Status::Stopped] {
        for state in [ContainerState::Running, exited(), ContainerState::Dead] {
            let record = record(chat(1), session(1), status);
            let (sandbox, because) = adopted(Some(record.clone()), Some(container(chat(1), session(1), state)));
            assert_eq!((sandbox, because), (record, Because::Ended));
        }
        let record = record(chat(1), session(1), status);
        assert_eq!(adopted(Some(record.clone()), None), (record, Because::Ended));
    }
}

#[test]
fn an_unfinished_removal_is_finished_in_any_container_state() {
    let record = record(chat(1), session(1), Status::Deleting);
    for state in every_state() {
        let (sandbox, because) = adopted(Some(record.clone()), Some(container(chat(1), session(1), state)));
        assert_eq!((sandbox, because), (record.clone(), Because::RemovalUnfinished));
    }
    assert_eq!(adopted(Some(record.clone()), None), (record, Because::RemovalUnfinished));
}

#[test]
fn a_record_of_an_unfinished_create_is_no_promise() {
    let record = record(chat(1), session(1), Status::Creating);
    let states = every_state().into_iter().map(Some).chain([None]);
    for container in states.map(|state| state.map(|state| container(chat(1), session(1), state))) {
        let (sandbox, because) = adopted(Some(record.clone()), container);
        assert_eq!((sandbox.status, sandbox.reason), (Status::Deleting, Reason::Incomplete));
        assert_eq!(because, Because::NeverAcknowledged);
    }
}

#[test]
fn a_half_made_container_is_removed_with_any_record() {
    for status in [Status::Running, Status::Failed, Status::Stopped] {
        for state in HALF_MADE {
            let half_made = container(chat(1), session(1), state);
            let (sandbox, because) = adopted(Some(record(chat(1), session(1), status)), Some(half_made.clone()));
            assert_eq!((sandbox.status, because), (Status::Deleting, Because::NeverAcknowledged));
            assert_eq!(sandbox.container, Some(half_made.id));
        }
    }
}

#[test]
fn a_container_of_another_session_than_the_record_was_never_acknowledged() {
    for status in Status::ALL {
        for state in every_state() {
            let other = container(chat(1), session(2), state);
            let (sandbox, because) = adopted(Some(record(chat(1), session(1), status)), Some(other.clone()));
            assert_eq!(because, Because::NeverAcknowledged);
            assert_eq!((sandbox.status, sandbox.session), (Status::Deleting, session(2)));
            assert_eq!(sandbox.container, Some(other.id), "only that container is removed");
        }
    }
}

/// The action for a container while the journal has no history.
fn rebuilding(container: Observed) -> (Sandbox, Because) {
    adopting(&PlanInput { journal_is_new: true, ..situation(vec![container], vec![]) })
}

#[test]
fn while_the_journal_is_new_a_live_container_is_adopted_from_its_labels() {
    for state in ALIVE {
        let (sandbox, because) = rebuilding(container(chat(1), session(1), state));
        assert_eq!(because, Because::AdoptedFromLabels);
        let status = if state == ContainerState::Paused { Status::Paused } else { Status::Running };
        assert_eq!((sandbox.status, sandbox.reason), (status, Reason::Adopted));
        let labels = labels(chat(1), session(1), now() - GRACE);
        let full = now() + (labels.expires_at - labels.created_at);
        assert_eq!((sandbox.session, sandbox.expires_at), (labels.session, full), "it may have been renewed");
        assert_eq!(sandbox.last_activity_at, now(), "a late expiry is better than an early one");
    }
}

#[test]
fn while_the_journal_is_new_an_ended_container_is_adopted_as_failed() {
    for state in [exited(), ContainerState::Dead] {
        let (sandbox, because) = rebuilding(container(chat(1), session(1), state));
        assert_eq!((sandbox.status, because), (Status::Failed, Because::Ended));
    }
}

#[test]
fn while_the_journal_is_new_a_half_made_container_is_removed_all_the_same() {
    for state in HALF_MADE {
        let (sandbox, because) = rebuilding(container(chat(1), session(1), state));
        assert_eq!((sandbox.status, because), (Status::Deleting, Because::NeverAcknowledged));
    }
}

#[test]
fn a_container_without_a_record_was_never_acknowledged() {
    for state in every_state() {
        let unrecorded = container(chat(1), session(1), state);
        let (sandbox, because) = adopted(None, Some(unrecorded.clone()));
        assert_eq!((sandbox.status, sandbox.reason), (Status::Deleting, Reason::Incomplete));
        assert_eq!(because, Because::NeverAcknowledged);
        assert_eq!(sandbox.container, Some(unrecorded.id));
    }
}

#[test]
fn a_young_container_without_a_record_is_left_alone() {
    for state in every_state() {
        for age in [GRACE - TimeDelta::seconds(1), TimeDelta::seconds(-5)] {
            let mut young = container(chat(1), session(1), state);
            young.labels = labels(chat(1), session(1), now() - age).encode();
            let planned = plan(&situation(vec![young.clone()], vec![]));
            assert!(matches!(&planned[..], [Action::Leave { container, .. }] if *container == young.id), "{planned:?}");
        }
    }
}

#[test]
fn without_creates_under_way_even_a_container_from_the_future_is_removed() {
    let mut young = container(chat(1), session(1), ContainerState::Running);
    young.labels = labels(chat(1), session(1), now() + TimeDelta::hours(1)).encode();
    let (sandbox, because) = adopting(&PlanInput { underway_since: None, ..situation(vec![young], vec![]) });
    assert_eq!((sandbox.status, because), (Status::Deleting, Because::NeverAcknowledged));
}

#[test]
fn a_chat_that_has_an_actor_is_only_notified_of_its_live_container() {
    for (state, alive) in every_state().into_iter().map(|state| (state, ALIVE.contains(&state))) {
        let container = container(chat(1), session(1), state);
        for record in [None, Some(record(chat(1), session(2), Status::Deleting))] {
            let mut situation = situation(vec![container.clone()], record.into_iter().collect());
            situation.adopted.insert(chat(1));
            let paused = state == ContainerState::Paused;
            let seen = alive.then(|| LiveContainer { container: container.id.clone(), paused });
            assert_eq!(plan(&situation), [Action::Tell { chat: chat(1), seen }]);
        }
    }
}

#[test]
fn a_chat_that_has_an_actor_is_notified_that_its_container_is_gone() {
    let mut situation = situation(vec![], vec![record(chat(1), session(1), Status::Running)]);
    situation.adopted.insert(chat(1));
    assert_eq!(plan(&situation), [Action::Tell { chat: chat(1), seen: None }]);
}

#[test]
fn an_unrecognised_container_is_left_alone_and_named() {
    let ours = container(chat(1), session(1), ContainerState::Running);
    let mut elsewhere = labels(chat(1), session(1), now() - GRACE);
    elsewhere.instance = "another".parse().unwrap();
    let of_another_instance = Observed { labels: elsewhere.encode(), ..ours.clone() };
    let of_another_name = Observed { name: "copy".into(), ..ours.clone() };
    let of_another_schema = {
        let mut later = ours.clone();
        later.labels.insert("sandboxd.schema".into(), "999".into());
        later
    };
    let unreadable = Observed { labels: BTreeMap::new(), ..ours };
    for foreign in [of_another_instance, of_another_name, of_another_schema, unreadable] {
        let planned = plan(&situation(vec![foreign.clone()], vec![]));
        assert!(matches!(&planned[..], [Action::Leave { container, .. }] if *container == foreign.id), "{planned:?}");
    }
}

#[test]
fn a_foreign_container_does_not_stand_in_for_a_sandbox_that_is_gone() {
    let mut copy = container(chat(1), session(1), ContainerState::Running);
    copy.name = "copy".into();
    let planned = plan(&situation(vec![copy], vec![record(chat(1), session(1), Status::Running)]));
    assert!(matches!(&planned[..], [Action::Adopt { because: Because::Vanished, .. }, Action::Leave { .. }]));
}
