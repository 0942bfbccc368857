//! Expiry: its effects, and no effects before it.

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);
const STOP_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Sandboxes are stopped at their expiry, and kept.
fn stopped_at_the_end() -> Rules {
    rules_with(OnExpire::Stop, Restart::Never)
}

/// With a sandbox that is being stopped because it expired.
fn stopping() -> Stage {
    let mut stage = Stage::running_under(stopped_at_the_end());
    stage.wait_until_due();
    stage
}

fn stopped() -> Stage {
    let mut stage = stopping();
    stage.stop_succeeds();
    stage
}

#[test]
fn a_sandbox_at_its_absolute_deadline_is_removed_gracefully() {
    let mut stage = Stage::running();
    assert_eq!(stage.deadline, Some(noon() + request().ttl()));
    stage.wait_until_due();
    let sandbox = stage.seen().unwrap();
    assert_eq!((sandbox.status, sandbox.reason), (Status::Deleting, Reason::Expired));
    assert_eq!(stage.on_disk().unwrap().status, Status::Deleting, "should the service end now, the next one goes on");
    let (generation, container, graceful) = stage.tear_down();
    assert_eq!((container, graceful), (sandbox.container, true));
    stage.send(Event::TornDown { generation, result: Ok(()) });
    stage.assert_idle();
}

#[test]
fn an_unused_sandbox_is_removed_as_idle() {
    let mut stage = Stage::absent();
    stage.create_with(CreateRequest { idle_timeout: Some(Duration::from_secs(10)), ..request() });
    stage.launch_succeeds();
    assert_eq!(stage.deadline, Some(noon() + Duration::from_secs(10)));
    stage.wait_until_due();
    assert_eq!(stage.seen().unwrap().reason, Reason::Idle);
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_deadline_that_comes_too_early_is_set_again() {
    let mut stage = Stage::running();
    stage.wait(Duration::from_secs(1));
    stage.due();
    assert_eq!(stage.deadline, Some(noon() + request().ttl()));
    assert_eq!(stage.seen().unwrap().status, Status::Running);
    stage.assert_no_open_effects();
}

#[test]
fn use_puts_the_idle_deadline_off_when_it_comes() {
    let mut stage = Stage::absent();
    stage.create_with(CreateRequest { idle_timeout: Some(Duration::from_secs(10)), ..request() });
    stage.launch_succeeds();
    stage.wait(Duration::from_secs(9));
    stage.touch();
    stage.wait(Duration::from_secs(1));
    stage.due();
    assert_eq!(stage.deadline, Some(noon() + Duration::from_secs(19)));
    assert_eq!(stage.seen().unwrap().status, Status::Running);
}

#[test]
fn a_deadline_without_a_running_sandbox_is_ignored() {
    let creating = {
        let mut stage = Stage::absent();
        stage.create();
        stage
    };
    for mut stage in [Stage::absent(), Stage::unknown(), creating, Stage::deleting(), Stage::owing()] {
        let open = stage.open.len();
        stage.wait(DAY);
        stage.due();
        assert_eq!((stage.open.len(), stage.deadline), (open, None), "{:?}", stage.lifecycle.phase());
    }
}

#[test]
fn creates_that_wait_for_a_check_at_the_end_of_a_sandbox_get_the_next_one() {
    for rules in [rules(), stopped_at_the_end()] {
        let mut stage = Stage::running_under(rules);
        stage.wait(request().ttl() - Duration::from_secs(1));
        let creates = [stage.create(), stage.create()];
        assert!(creates.iter().all(|create| stage.is_waiting(*create)));
        stage.wait_until_due();
        stage.checked(Liveness::Alive);
        stage.tear_down_succeeds();
        stage.launch_succeeds();
        let created = creates.map(|create| stage.created(create));
        assert_eq!(created[0], created[1]);
        assert_eq!(created[0].outcome, Outcome::Replaced);
    }
}

#[test]
fn creates_that_wait_for_a_check_when_the_sandbox_has_stopped_get_the_next_one() {
    let mut stage = Stage::running_under(stopped_at_the_end());
    stage.wait(request().ttl() - Duration::from_secs(1));
    let create = stage.create();
    stage.wait_until_due();
    stage.stop_succeeds();
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Replaced);
    stage.checked(Liveness::Vanished);
    assert_eq!(stage.seen().unwrap().status, Status::Running, "the check was of the old one");
}

#[test]
fn a_failed_sandbox_is_removed_at_its_end() {
    let mut stage = Stage::running();
    stage.dies();
    assert_eq!(stage.deadline, Some(noon() + request().ttl()));
    stage.due();
    assert_eq!(stage.seen().unwrap().status, Status::Failed, "not before");
    stage.wait_until_due();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_sandbox_that_is_stopped_at_its_end_keeps_its_session_and_its_container() {
    let mut stage = Stage::running_under(stopped_at_the_end());
    let before = stage.seen().unwrap();
    stage.wait_until_due();
    assert_eq!(stage.seen().unwrap(), before, "it runs until the engine says otherwise");
    assert_eq!(Some(stage.stop_succeeds()), before.container);
    let sandbox = stage.seen().unwrap();
    assert_eq!((sandbox.status, sandbox.reason), (Status::Stopped, Reason::Expired));
    assert_eq!((sandbox.session, &sandbox.container), (before.session, &before.container));
    assert_eq!(stage.on_disk(), Some(&sandbox));
    stage.assert_no_open_effects();
}

#[test]
fn a_create_replaces_a_stopped_sandbox() {
    let mut stage = stopped();
    let old = stage.seen().unwrap();
    let create = stage.create_with(from_another_agent());
    assert_eq!(stage.tear_down_succeeds(), old.container);
    stage.launch_succeeds();
    let created = stage.created(create);
    assert_eq!(created.outcome, Outcome::Replaced);
    assert_ne!(created.sandbox.session, old.session);
}

#[test]
fn a_stopped_sandbox_can_be_deleted() {
    let mut stage = stopped();
    let session = stage.seen().unwrap().session;
    let delete = stage.delete();
    stage.tear_down_succeeds();
    assert_eq!(stage.deleted_session(delete), session);
    stage.assert_idle();
}

#[test]
fn a_stopped_sandbox_is_removed_a_day_after_its_end() {
    let mut stage = stopped();
    assert_eq!(stage.deadline, Some(noon() + request().ttl() + DAY));
    stage.due();
    assert_eq!(stage.seen().unwrap().status, Status::Stopped, "not before");
    stage.wait_until_due();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_stop_that_fails_is_tried_again() {
    let mut stage = stopping();
    stage.stop_fails();
    stage.checked(Liveness::Unknown(unreachable()));
    assert_eq!(stage.deadline, Some(stage.now + STOP_RETRY_DELAY));
    assert_eq!(stage.seen().unwrap().status, Status::Running);
    stage.wait_until_due();
    stage.stop_succeeds();
    assert_eq!(stage.seen().unwrap().status, Status::Stopped);
    stage.assert_no_open_effects();
}

#[test]
fn a_stop_is_retried_as_soon_after_a_clock_step() {
    let mut stage = stopping();
    stage.stop_fails();
    stage.checked(Liveness::Alive);
    stage.now -= DAY;
    stage.send(Event::ClockStepped { by: -chrono::TimeDelta::from_std(DAY).unwrap() });
    assert_eq!(stage.deadline, Some(stage.now + STOP_RETRY_DELAY));
    stage.wait_until_due();
    stage.stop_succeeds();
    assert_eq!(stage.seen().unwrap().status, Status::Stopped, "its end stands");
}

#[test]
fn a_stop_that_succeeded_without_an_answer_is_observed() {
    let mut stage = stopping();
    stage.stop_fails();
    stage.checked(Liveness::Ended(death()));
    let sandbox = stage.seen().unwrap();
    assert_eq!((sandbox.status, sandbox.reason), (Status::Stopped, Reason::Expired), "its end is no failure");
    stage.assert_no_open_effects();
}

#[test]
fn a_deadline_during_a_stop_starts_no_second_one() {
    let mut stage = stopping();
    stage.due();
    stage.stop_succeeds();
    stage.assert_no_open_effects();
}

#[test]
fn the_end_of_a_stopping_sandbox_is_no_failure() {
    let mut stage = Stage::running_under(rules_with(OnExpire::Stop, Restart::OnFailure));
    stage.wait_until_due();
    stage.dies();
    assert_eq!(stage.seen().unwrap().status, Status::Running);
    stage.stop_succeeds();
    assert_eq!(stage.seen().unwrap().status, Status::Stopped);
    stage.assert_no_open_effects();
}

#[test]
fn a_container_that_vanishes_while_it_is_being_stopped_is_a_failure() {
    let mut stage = stopping();
    stage.engine_event();
    stage.checked(Liveness::Vanished);
    assert_eq!(stage.seen().unwrap().reason, Reason::Vanished);
    stage.stop_succeeds();
    assert_eq!(stage.seen().unwrap().status, Status::Failed);
    stage.wait_until_due();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_stopping_sandbox_is_neither_handed_out_nor_renewed() {
    let mut stage = stopping();
    let held = Lease::of_caller(DAY, false);
    for waiter in [stage.renew(DAY), stage.touch(), stage.lease(held)] {
        let refused = SandboxError::NotRunning { chat: request().chat, status: Status::Stopped };
        assert_eq!(stage.sandbox_answer(waiter), Err(refused), "its end came first");
    }
    // As if the idle time had been shorter.
    stage.send(Event::ClockStepped { by: chrono::TimeDelta::hours(10) });
    let create = stage.create();
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Replaced);
    stage.stop_succeeds();
    assert_eq!(stage.seen().unwrap().status, Status::Running, "the stop was of the old one");
}

#[test]
fn delete_during_a_stop_removes() {
    let mut stage = stopping();
    let delete = stage.delete();
    stage.tear_down_succeeds();
    stage.deleted_session(delete);
    stage.stop_succeeds();
    stage.assert_idle();
}

#[test]
fn a_failed_sandbox_whose_container_is_to_be_kept_is_kept_at_its_end() {
    let mut stage = Stage::running_under(stopped_at_the_end());
    stage.dies();
    stage.wait_until_due();
    let sandbox = stage.seen().unwrap();
    assert_eq!((sandbox.status, sandbox.reason), (Status::Stopped, Reason::Expired));
    stage.wait_until_due();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_sandbox_whose_profile_is_no_more_is_removed_at_its_end() {
    let without_profiles = Rules { profiles: Arc::default(), ..rules() };
    let mut stage = Stage::running_under(without_profiles);
    stage.wait_until_due();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn lost_deadlines_are_set_again() {
    for (mut stage, deadline) in [
        (Stage::running(), Some(noon() + request().ttl())),
        (stopped(), Some(noon() + request().ttl() + DAY)),
        (Stage::absent(), None),
        (Stage::deleting(), None),
    ] {
        stage.deadline = None;
        let effects = stage.lifecycle.rearmed();
        stage.receive(effects);
        assert_eq!(stage.deadline, deadline, "{:?}", stage.lifecycle.phase());
    }
}
