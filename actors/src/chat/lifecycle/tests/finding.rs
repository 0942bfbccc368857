//! Discovery of unknown sandboxes, and their adoption.

use super::*;

#[test]
fn a_chat_that_starts_unknown_looks_by_itself() {
    let (lifecycle, effects) = Lifecycle::unknown(request().chat, name(), rules()).discovering();
    let mut stage = Stage::with(lifecycle, effects);
    stage.discovered(Ok(None));
    stage.assert_idle();
}

#[test]
fn requests_on_an_unknown_chat_wait_for_one_discovery_and_are_then_handled_in_order() {
    let mut stage = Stage::unknown();
    let (get, delete, create) = (stage.get(), stage.delete(), stage.create());
    assert!([get, delete, create].iter().all(|waiter| stage.is_waiting(*waiter)));
    let found = found(ContainerState::Running);
    stage.discovered(Ok(Some(found.clone())));
    assert_eq!(stage.got(get).unwrap().unwrap().session, found.labels.session);
    stage.tear_down_succeeds();
    assert_eq!(stage.deleted_session(delete), found.labels.session);
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Created);
    stage.assert_no_open_effects();
}

#[test]
fn an_unknown_chat_without_a_container_has_no_sandbox() {
    let mut stage = Stage::unknown();
    let (get, delete) = (stage.get(), stage.delete());
    stage.discovered(Ok(None));
    assert_eq!(stage.got(get), Ok(None));
    assert_eq!(stage.delete_answer(delete), Ok(Deletion::NotFound));
    stage.assert_idle();
}

#[test]
fn while_the_engine_is_silent_requests_get_an_error_and_the_chat_stays_unknown() {
    let mut stage = Stage::unknown();
    let (get, delete, create) = (stage.get(), stage.delete(), stage.create());
    stage.discovered(Err(unreachable()));
    let error = SandboxError::Unknown { chat: request().chat, error: unreachable() };
    assert_eq!(stage.got(get), Err(error.clone()));
    assert_eq!(stage.delete_answer(delete), Err(error.clone()));
    assert_eq!(stage.create_answer(create), Err(error));
    assert!(!stage.lifecycle.is_idle(), "a possible container is still owned");
    assert!(stage.lifecycle.is_settled());
    assert!(stage.history.is_empty());
}

#[test]
fn an_unknown_chat_looks_again_until_the_engine_answers() {
    let mut stage = Stage::unknown();
    stage.get();
    stage.discovered(Err(unreachable()));
    assert_eq!(stage.retry(), Duration::from_millis(250));
    stage.discovered(Err(unreachable()));
    assert_eq!(stage.retry(), Duration::from_millis(500));
    stage.discovered(Ok(None));
    stage.assert_idle();
}

#[test]
fn a_request_does_not_wait_for_the_timer_to_look_again() {
    let mut stage = Stage::unknown();
    stage.get();
    stage.discovered(Err(unreachable()));
    let get = stage.get();
    stage.retry();
    stage.discovered(Ok(None));
    assert_eq!(stage.got(get), Ok(None));
    stage.assert_idle();
}

#[test]
fn a_sandbox_found_alive_is_reused_with_its_session_and_deadlines() {
    let mut stage = Stage::unknown();
    let create = stage.create();
    let found = found(ContainerState::Running);
    stage.discovered(Ok(Some(found.clone())));
    let created = stage.created(create);
    assert_eq!(created.outcome, Outcome::Reused);
    let sandbox = created.sandbox;
    assert_eq!(sandbox.session, found.labels.session);
    assert_eq!(sandbox.expires_at, found.labels.expires_at);
    assert_eq!((sandbox.status, sandbox.reason), (Status::Running, Reason::Adopted));
    stage.assert_no_open_effects();
}

#[test]
fn a_sandbox_found_in_a_listing_is_checked_before_it_is_handed_out() {
    let found = found(ContainerState::Running);
    let mut stage = Stage::adopting(&found);
    let create = stage.create();
    assert!(stage.is_waiting(create));
    stage.checked(Liveness::Alive);
    assert_eq!(stage.created(create).sandbox.session, found.labels.session);
    stage.assert_no_open_effects();
}

#[test]
fn a_sandbox_found_ended_is_shown_as_failed_with_its_cause() {
    let mut stage = Stage::unknown();
    let get = stage.get();
    stage.discovered(Ok(Some(found(ended()))));
    let sandbox = stage.got(get).unwrap().unwrap();
    assert_eq!((sandbox.status, sandbox.reason), (Status::Failed, Reason::OomKilled));
    assert_eq!(sandbox.message.as_deref(), Some("out of memory"));
    stage.assert_no_open_effects();
}

#[test]
fn a_sandbox_found_ill_is_not_handed_out() {
    let mut ill = found(ContainerState::Running);
    ill.container.health = Some(Health::Unhealthy);
    let mut stage = Stage::adopting(&ill);
    let sandbox = stage.seen().unwrap();
    assert_eq!((sandbox.status, sandbox.reason), (Status::Failed, Reason::Unhealthy));
    let create = stage.create();
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Replaced);
}

#[test]
fn a_container_found_half_made_is_removed() {
    for state in [ContainerState::Created, ContainerState::Removing] {
        let mut stage = Stage::adopting(&found(state));
        let sandbox = stage.seen().unwrap();
        assert_eq!((sandbox.status, sandbox.reason), (Status::Deleting, Reason::Incomplete));
        assert_eq!(sandbox.started_at, None);
        assert_eq!(stage.tear_down_succeeds(), Some(ContainerId::new("found")));
        stage.assert_idle();
    }
}

#[test]
fn a_create_that_finds_its_container_half_made_gets_a_new_one() {
    let mut stage = Stage::unknown();
    let create = stage.create();
    stage.discovered(Ok(Some(found(ContainerState::Created))));
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Created);
}

#[test]
fn a_sandbox_found_past_its_deadline_is_removed_alive_or_not() {
    for state in [ContainerState::Running, ended()] {
        let mut stage = Stage::adopting(&found_expired(state));
        stage.wait_until_due();
        let sandbox = stage.seen().unwrap();
        assert_eq!((sandbox.status, sandbox.reason), (Status::Deleting, Reason::Expired));
        stage.tear_down_succeeds();
        stage.assert_idle();
    }
}

#[test]
fn a_create_that_finds_its_sandbox_past_its_deadline_replaces_it() {
    let mut stage = Stage::unknown();
    let create = stage.create();
    stage.discovered(Ok(Some(found_expired(ContainerState::Running))));
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Replaced);
}
