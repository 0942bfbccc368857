//! Creates: launched, joined, reused, refused, replaced, rolled back.

use super::*;

#[test]
fn create_without_a_sandbox_launches_one() {
    let mut stage = Stage::absent();
    let create = stage.create();
    let container = stage.launch_succeeds();
    let created = stage.created(create);
    assert_eq!((created.outcome, created.launch), (Outcome::Created, Launch::Cold));
    assert_eq!(created.sandbox.container, Some(container));
    assert_eq!((created.sandbox.status, created.sandbox.reason), (Status::Running, Reason::Ready));
    assert_eq!(created.sandbox.expires_at, noon() + request().ttl());
    stage.assert_no_open_effects();
}

#[test]
fn creates_during_a_launch_join_it() {
    let mut stage = Stage::absent();
    let creates = [stage.create(), stage.create(), stage.create()];
    stage.launch_succeeds();
    let created = creates.map(|create| stage.created(create));
    assert!(created.iter().all(|other| *other == created[0]), "{created:?}");
    stage.assert_no_open_effects();
}

#[test]
fn a_create_that_differs_from_the_one_under_way_is_refused() {
    let mut stage = Stage::absent();
    let first = stage.create();
    let other = stage.create_with(from_another_agent());
    assert_eq!(stage.conflict(other), ["agent_id"]);
    stage.launch_succeeds();
    stage.created(first);
    stage.assert_no_open_effects();
}

#[test]
fn create_on_a_running_sandbox_returns_it_and_counts_as_activity() {
    let mut stage = Stage::running();
    let before = stage.seen().unwrap();
    stage.wait(TRUST);
    let create = stage.create();
    let reused = stage.created(create);
    assert_eq!((reused.outcome, reused.launch), (Outcome::Reused, Launch::None));
    assert_eq!(reused.sandbox.session, before.session);
    assert_eq!(reused.sandbox.expires_at, before.expires_at, "only the idle deadline moves");
    assert_eq!(reused.sandbox.last_activity_at, stage.now);
    stage.assert_no_open_effects();
}

#[test]
fn a_conflict_names_every_field_that_differs_and_starts_no_launch() {
    let mut stage = Stage::running();
    let mut other = from_another_agent();
    other.volume = Some(HostPath::from_canonical(Path::new("/data/another")).unwrap());
    let unnamed = stage.create_with(other.clone());
    assert_eq!(stage.conflict(unnamed), ["agent_id", "volume_host_path"]);

    std::sync::Arc::make_mut(&mut other.profile).name = "another".parse().unwrap();
    other.profile_named = true;
    let named = stage.create_with(other);
    assert_eq!(stage.conflict(named), ["agent_id", "volume_host_path", "profile"]);
    stage.assert_no_open_effects();
}

#[test]
fn a_caller_that_names_no_volume_takes_the_sandbox_that_is_there() {
    let mut stage = Stage::running();
    let create = stage.create_with(CreateRequest { volume: None, ..request() });
    assert_eq!(stage.created(create).outcome, Outcome::Reused);
    assert_eq!(stage.seen().unwrap().volume, request().volume);
}

#[test]
fn a_caller_that_names_a_volume_conflicts_with_a_sandbox_that_has_none() {
    let mut stage = Stage::absent();
    let create = stage.create_with(CreateRequest { volume: None, ..request() });
    stage.launch_succeeds();
    stage.created(create);
    assert_eq!(stage.seen().unwrap().volume, None);
    let named = stage.create_with(request());
    assert_eq!(stage.conflict(named), ["volume_host_path"]);
}

#[test]
fn a_caller_that_names_no_profile_takes_the_sandbox_that_is_there() {
    let mut stage = Stage::running();
    let mut other = request();
    std::sync::Arc::make_mut(&mut other.profile).name = "another".parse().unwrap();
    let create = stage.create_with(other);
    assert_eq!(stage.created(create).outcome, Outcome::Reused);
}

#[test]
fn create_past_the_absolute_deadline_replaces() {
    let mut stage = Stage::running();
    let old = stage.seen().unwrap();
    stage.wait(request().ttl());
    let create = stage.create();
    assert_eq!(stage.open.len(), 1, "no launch before the old one is removed: {:?}", stage.open);
    assert_eq!(stage.tear_down_succeeds(), old.container);
    stage.launch_succeeds();
    let created = stage.created(create);
    assert_eq!((created.outcome, created.launch), (Outcome::Replaced, Launch::Cold));
    assert_ne!(created.sandbox.session, old.session);
    let removed = stage.history.iter().find(|t| t.to == Some(Status::Deleting)).unwrap();
    assert_eq!(removed.sandbox.reason, Reason::Expired);
}

#[test]
fn create_past_the_idle_deadline_replaces() {
    let mut stage = Stage::absent();
    let briefly = CreateRequest { idle_timeout: Some(Duration::from_secs(10)), ..request() };
    let first = stage.create_with(briefly);
    stage.launch_succeeds();
    stage.created(first);
    stage.wait(Duration::from_secs(10));
    let create = stage.create();
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Replaced);
    let removed = stage.history.iter().find(|t| t.to == Some(Status::Deleting)).unwrap();
    assert_eq!(removed.sandbox.reason, Reason::Idle);
}

#[test]
fn an_expired_sandbox_of_any_agent_is_replaced() {
    let mut stage = Stage::running();
    stage.wait(request().ttl());
    let create = stage.create_with(from_another_agent());
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).sandbox.agent, from_another_agent().agent);
}

#[test]
fn create_on_a_failed_sandbox_replaces() {
    let mut stage = Stage::adopting(&found(ended()));
    let create = stage.create();
    assert_eq!(stage.tear_down_succeeds(), Some(ContainerId::new("found")));
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Replaced);
}

#[test]
fn creates_during_a_replacement_share_the_new_sandbox() {
    let mut stage = Stage::running();
    stage.wait(request().ttl());
    let creates = [stage.create(), stage.create()];
    let other = stage.create_with(from_another_agent());
    assert_eq!(stage.conflict(other), ["agent_id"], "the new one is spoken for");
    assert_eq!(stage.seen().unwrap().status, Status::Creating);
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    let created = creates.map(|create| stage.created(create));
    assert_eq!(created[0], created[1]);
    assert_eq!(created[0].outcome, Outcome::Replaced);
}

#[test]
fn the_life_of_a_sandbox_that_follows_another_begins_with_its_own_launch() {
    let mut stage = Stage::deleting();
    let create = stage.create();
    stage.wait(Duration::from_secs(9));
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    let sandbox = stage.created(create).sandbox;
    assert_eq!(sandbox.created_at, stage.now);
    assert_eq!(sandbox.expires_at, stage.now + request().ttl());
}

#[test]
fn a_failed_launch_without_leftovers_is_answered_at_once() {
    let mut stage = Stage::absent();
    let creates = [stage.create(), stage.create()];
    stage.launch_fails(Remains::Nothing);
    assert_eq!(creates.map(|create| stage.start_failure(create)), [StartFailure::NoAddress, StartFailure::NoAddress]);
    stage.assert_idle();
    let end = stage.history.last().unwrap();
    assert_eq!((end.from, end.to, end.sandbox.reason), (Some(Status::Creating), None, Reason::RolledBack));
}

#[test]
fn a_failed_launch_removes_its_container_before_it_is_answered() {
    let mut stage = Stage::absent();
    let create = stage.create();
    let container = ContainerId::new("half made");
    stage.launch_fails(Remains::Container(container.clone()));
    assert!(stage.is_waiting(create));
    let rolled_back = stage.seen().unwrap();
    assert_eq!((rolled_back.status, rolled_back.reason), (Status::Deleting, Reason::RolledBack));
    assert_eq!(rolled_back.message, Some(StartFailure::NoAddress.to_string()));
    assert_eq!(stage.tear_down_succeeds(), Some(container));
    assert_eq!(stage.start_failure(create), StartFailure::NoAddress);
    stage.assert_idle();
}

#[test]
fn a_failed_launch_with_possible_leftovers_removes_by_name() {
    let mut stage = Stage::absent();
    let create = stage.create();
    stage.launch_fails(Remains::Perhaps);
    assert!(stage.is_waiting(create));
    assert_eq!(stage.tear_down_succeeds(), None);
    assert_eq!(stage.start_failure(create), StartFailure::NoAddress);
    stage.assert_idle();
}

#[test]
fn a_chat_is_not_idle_before_its_abandoned_creation_has_ended() {
    let mut stage = Stage::absent();
    let create = stage.create();
    stage.launch_fails(Remains::Straggler);
    assert_eq!(stage.tear_down_succeeds(), None);
    assert_eq!(stage.start_failure(create), StartFailure::NoAddress, "no caller waits for the straggler");
    assert!(!stage.lifecycle.is_idle());
    assert!(!stage.lifecycle.is_settled());
    stage.send(Event::StragglerEnded);
    stage.assert_idle();
}

#[test]
fn a_create_does_not_wait_for_an_older_creation_that_was_given_up() {
    let mut stage = Stage::absent();
    stage.create();
    stage.launch_fails(Remains::Straggler);
    stage.tear_down_succeeds();
    let create = stage.create();
    stage.launch_succeeds();
    stage.created(create);
    stage.send(Event::StragglerEnded);
    assert_eq!(stage.seen().unwrap().status, Status::Running);
    stage.assert_no_open_effects();
}

#[test]
fn a_roll_back_that_fails_is_owed_and_the_caller_learns_why_the_start_failed() {
    let mut stage = Stage::absent();
    let create = stage.create();
    stage.launch_fails(Remains::Perhaps);
    stage.tear_down_fails();
    assert_eq!(stage.start_failure(create), StartFailure::NoAddress);
    stage.retry();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_create_during_a_roll_back_follows_it() {
    let mut stage = Stage::absent();
    let first = stage.create();
    stage.launch_fails(Remains::Perhaps);
    let second = stage.create();
    stage.tear_down_succeeds();
    assert_eq!(stage.start_failure(first), StartFailure::NoAddress);
    stage.launch_succeeds();
    assert_eq!(stage.created(second).outcome, Outcome::Created);
}

#[test]
fn a_launch_that_finds_a_live_sandbox_of_the_chat_hands_that_one_out() {
    let mut stage = Stage::absent();
    let creates = [stage.create(), stage.create()];
    let found = found(ContainerState::Running);
    stage.launch_finds(found.clone());
    for create in creates {
        let created = stage.created(create);
        assert_eq!((created.outcome, created.launch), (Outcome::Reused, Launch::None));
        assert_eq!(created.sandbox.session, found.labels.session);
    }
    let steps: Vec<_> = stage.history.iter().map(|t| (t.from, t.to)).collect();
    let running = Some(Status::Running);
    assert_eq!(steps, [(None, Some(Status::Creating)), (Some(Status::Creating), None), (None, running)]);
    stage.assert_no_open_effects();
}

#[test]
fn a_launch_that_finds_a_live_sandbox_of_another_agent_is_a_conflict() {
    let mut stage = Stage::absent();
    let create = stage.create_with(from_another_agent());
    stage.launch_finds(found(ContainerState::Running));
    assert_eq!(stage.conflict(create), ["agent_id"]);
    assert_eq!(stage.seen().unwrap().agent, request().agent, "and the found sandbox stays");
    stage.assert_no_open_effects();
}

#[test]
fn a_launch_that_finds_an_expired_sandbox_replaces_it() {
    let mut stage = Stage::absent();
    let creates = [stage.create(), stage.create()];
    stage.launch_finds(found_expired(ContainerState::Running));
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    let created = creates.map(|create| stage.created(create));
    assert_eq!(created[0], created[1]);
    assert_eq!(created[0].outcome, Outcome::Replaced);
}

#[test]
fn a_container_of_an_outdated_launch_is_removed_and_ignored() {
    let mut stage = Stage::absent();
    stage.create();
    let (stale, _) = stage.launch();
    let failed = LaunchFailure { failure: StartFailure::NoAddress, remains: Remains::Nothing };
    stage.send(Event::Launched { generation: stale, result: Err(failed) });
    let create = stage.create();

    let late = stage.started();
    stage.send(Event::Launched { generation: stale, result: late });
    let left = Remains::Container(ContainerId::new("left"));
    let late = LaunchFailure { failure: StartFailure::NoAddress, remains: left };
    stage.send(Event::Launched { generation: stale, result: Err(late) });
    assert!(stage.is_waiting(create));
    for container in ["container-1", "left"] {
        let removed = stage.take("removal", |effect| match effect {
            Effect::RemoveContainer { container } => Some(container.clone()),
            _ => None,
        });
        assert_eq!(removed.as_str(), container);
    }
    stage.launch_succeeds();
    assert_eq!(stage.created(create).sandbox.container, Some(ContainerId::new("container-2")));
    stage.assert_no_open_effects();
}
