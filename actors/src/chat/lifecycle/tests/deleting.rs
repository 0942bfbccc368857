//! Deletes, and gets, which are answered in every phase.

use super::*;

#[test]
fn delete_without_a_sandbox_finds_none() {
    let mut stage = Stage::absent();
    let delete = stage.delete();
    assert_eq!(stage.delete_answer(delete), Ok(Deletion::NotFound));
    stage.assert_idle();
}

#[test]
fn delete_ends_a_sandbox_gracefully_and_names_the_container() {
    let mut stage = Stage::running();
    let sandbox = stage.seen().unwrap();
    let delete = stage.delete();
    let (generation, container, graceful) = stage.tear_down();
    assert!(graceful);
    assert_eq!(container, sandbox.container);
    assert!(stage.is_waiting(delete));
    stage.send(Event::TornDown { generation, result: Ok(()) });
    let deleted = Deletion::Deleted { session: sandbox.session, container: sandbox.container, snapshot: None };
    assert_eq!(stage.delete_answer(delete), Ok(deleted));
    stage.assert_idle();
}

#[test]
fn a_failed_sandbox_can_be_deleted() {
    let found = found(ended());
    let mut stage = Stage::adopting(&found);
    let delete = stage.delete();
    stage.tear_down_succeeds();
    assert_eq!(stage.deleted_session(delete), found.labels.session);
    stage.assert_idle();
}

#[test]
fn deletes_join() {
    let mut stage = Stage::running();
    let deletes = [stage.delete(), stage.delete()];
    stage.tear_down_succeeds();
    let sessions = deletes.map(|delete| stage.deleted_session(delete));
    assert_eq!(sessions[0], sessions[1]);
    let again = stage.delete();
    assert_eq!(stage.delete_answer(again), Ok(Deletion::NotFound));
    stage.assert_idle();
}

#[test]
fn delete_during_create_cancels_it_and_removes_its_container() {
    let mut stage = Stage::absent();
    let creates = [stage.create(), stage.create()];
    let planned = stage.seen().unwrap();
    let delete = stage.delete();
    let (launching, _) = stage.launch();
    assert_eq!(stage.cancel(), launching);
    stage.assert_no_open_effects();
    assert_eq!(stage.seen().unwrap().status, Status::Deleting);

    let container = ContainerId::new("half made");
    let remains = Remains::Container(container.clone());
    let cancelled = LaunchFailure { failure: StartFailure::Deleted, remains };
    stage.send(Event::Launched { generation: launching, result: Err(cancelled) });
    assert!(stage.is_waiting(delete));
    let (generation, removed, graceful) = stage.tear_down();
    assert_eq!((removed, graceful), (Some(container), false));
    stage.send(Event::TornDown { generation, result: Ok(()) });
    assert_eq!(creates.map(|create| stage.start_failure(create)), [StartFailure::Deleted, StartFailure::Deleted]);
    assert_eq!(stage.deleted_session(delete), planned.session);
    stage.assert_idle();
}

#[test]
fn delete_during_a_create_without_a_container_ends_with_the_cancellation() {
    let mut stage = Stage::absent();
    let create = stage.create();
    let delete = stage.delete();
    stage.cancel();
    stage.launch_fails(Remains::Nothing);
    assert_eq!(stage.start_failure(create), StartFailure::Deleted);
    assert!(matches!(stage.delete_answer(delete), Ok(Deletion::Deleted { container: None, .. })));
    stage.assert_idle();
}

#[test]
fn a_launch_that_succeeds_in_spite_of_its_cancellation_is_torn_down() {
    let mut stage = Stage::absent();
    let create = stage.create();
    let delete = stage.delete();
    stage.cancel();
    let container = stage.launch_succeeds();
    assert_eq!(stage.tear_down_succeeds(), Some(container.clone()));
    assert_eq!(stage.start_failure(create), StartFailure::Deleted);
    let Ok(Deletion::Deleted { container: deleted, .. }) = stage.delete_answer(delete) else { panic!() };
    assert_eq!(deleted, Some(container));
    stage.assert_idle();
}

#[test]
fn a_cancelled_launch_that_finds_a_live_sandbox_deletes_that_one() {
    let mut stage = Stage::absent();
    let create = stage.create();
    let delete = stage.delete();
    stage.cancel();
    let found = found(ContainerState::Running);
    stage.launch_finds(found.clone());
    let (generation, container, graceful) = stage.tear_down();
    assert_eq!((container, graceful), (Some(found.container.id), true));
    stage.send(Event::TornDown { generation, result: Ok(()) });
    assert_eq!(stage.start_failure(create), StartFailure::Deleted);
    assert_eq!(stage.deleted_session(delete), found.labels.session);
    stage.assert_idle();
}

#[test]
fn a_cancelled_creation_that_is_still_under_way_is_followed() {
    let mut stage = Stage::absent();
    stage.create();
    let delete = stage.delete();
    stage.cancel();
    stage.launch_fails(Remains::Straggler);
    assert_eq!(stage.tear_down_succeeds(), None);
    stage.deleted_session(delete);
    assert!(!stage.lifecycle.is_idle());
    stage.send(Event::StragglerEnded);
    stage.assert_idle();
}

#[test]
fn create_during_delete_follows_it() {
    let mut stage = Stage::running();
    let old = stage.seen().unwrap();
    let delete = stage.delete();
    let create = stage.create_with(from_another_agent());
    assert_eq!(stage.open.len(), 1, "one thing at a time: {:?}", stage.open);
    stage.tear_down_succeeds();
    assert_eq!(stage.deleted_session(delete), old.session);
    stage.launch_succeeds();
    let created = stage.created(create);
    assert_eq!(created.outcome, Outcome::Created);
    assert_ne!(created.sandbox.session, old.session);
    stage.assert_no_open_effects();
}

#[test]
fn a_create_after_a_delete_of_an_expired_sandbox_is_no_replacement() {
    let mut stage = Stage::adopting(&found_expired(ContainerState::Running));
    stage.wait_until_due();
    let delete = stage.delete();
    let create = stage.create();
    stage.tear_down_succeeds();
    stage.deleted_session(delete);
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Created);
}

#[test]
fn delete_create_delete_in_a_row_removes_everything() {
    let mut stage = Stage::running();
    let first = stage.delete();
    let create = stage.create();
    let second = stage.delete();
    assert_eq!(stage.start_failure(create), StartFailure::Deleted);
    stage.tear_down_succeeds();
    stage.deleted_session(first);
    stage.deleted_session(second);
    stage.assert_idle();
}

#[test]
fn create_delete_create_in_a_row_gives_a_second_sandbox() {
    let mut stage = Stage::absent();
    let first = stage.create();
    let planned = stage.seen().unwrap();
    let delete = stage.delete();
    let second = stage.create();
    stage.cancel();
    stage.launch_fails(Remains::Perhaps);
    stage.tear_down_succeeds();
    assert_eq!(stage.start_failure(first), StartFailure::Deleted);
    stage.deleted_session(delete);
    stage.launch_succeeds();
    assert_ne!(stage.created(second).sandbox.session, planned.session);
    stage.assert_no_open_effects();
}

#[test]
fn get_is_answered_in_every_phase() {
    let expired = {
        let mut stage = Stage::running();
        stage.wait(request().ttl());
        stage.create();
        stage
    };
    let creating = {
        let mut stage = Stage::absent();
        stage.create();
        stage
    };
    let cancelling = {
        let mut stage = Stage::absent();
        stage.create();
        stage.delete();
        stage
    };
    let failed = Stage::adopting(&found(ended()));
    for (mut stage, status) in [
        (Stage::absent(), None),
        (creating, Some(Status::Creating)),
        (cancelling, Some(Status::Deleting)),
        (Stage::running(), Some(Status::Running)),
        (failed, Some(Status::Failed)),
        (Stage::deleting(), Some(Status::Deleting)),
        (Stage::owing(), Some(Status::Deleting)),
        (expired, Some(Status::Creating)),
    ] {
        let before = stage.open.len();
        assert_eq!(stage.seen().map(|sandbox| sandbox.status), status, "{:?}", stage.lifecycle.phase());
        assert_eq!(stage.open.len(), before, "a get asks nothing of the engine");
    }
}
