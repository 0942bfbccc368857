//! Pause and resume: their causes, and the end of a paused sandbox.

use super::*;

const PAUSE_RETRY_DELAY: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(10);

fn pausing() -> (Stage, WaiterId) {
    let mut stage = Stage::running();
    let pause = stage.pause();
    (stage, pause)
}

fn paused() -> Stage {
    let (mut stage, pause) = pausing();
    stage.pause_succeeds();
    stage.sandbox_after(pause);
    stage
}

/// With a sandbox that is paused when idle.
fn paused_when_idle() -> Stage {
    let rules = rules_with(OnExpire::Pause, Restart::Never);
    let mut stage = Stage::with(Lifecycle::absent(request().chat, name(), rules), Vec::new());
    stage.create_with(CreateRequest { idle_timeout: Some(IDLE), ..request() });
    stage.launch_succeeds();
    stage
}

fn status(stage: &mut Stage) -> (Status, Reason) {
    let sandbox = stage.seen().expect("there is a sandbox");
    (sandbox.status, sandbox.reason)
}

fn lease() -> Lease {
    Lease::of_caller(Duration::from_secs(60), false)
}

#[test]
fn a_sandbox_is_paused_once_the_engine_says_so_and_it_is_on_disk() {
    let mut stage = Stage::running();
    let before = stage.seen().unwrap();
    let pause = stage.pause();
    assert_eq!(stage.seen(), Some(before.clone()), "not before the engine has done it");
    stage.disk_is(DiskIs::Stuck);
    stage.pause_succeeds();
    assert!(stage.is_waiting(pause));
    stage.disk_is(DiskIs::Fine);
    let sandbox = stage.sandbox_after(pause);
    assert_eq!((sandbox.status, sandbox.reason), (Status::Paused, Reason::Requested));
    assert_eq!((sandbox.session, &sandbox.container), (before.session, &before.container));
    assert_eq!(stage.on_disk(), Some(&sandbox));
    stage.assert_no_open_effects();
}

#[test]
fn pausing_a_paused_sandbox_asks_the_engine_once() {
    let (mut stage, first) = pausing();
    let second = stage.pause();
    stage.pause_succeeds();
    let third = stage.pause();
    for pause in [first, second, third] {
        assert_eq!(stage.sandbox_after(pause).status, Status::Paused);
    }
    stage.assert_no_open_effects();
}

#[test]
fn use_of_a_paused_sandbox_waits_for_the_resume_and_gets_the_same_one() {
    let mut stage = paused();
    let before = stage.seen().unwrap();
    stage.wait(Duration::from_secs(60));
    let (create, touch, lease) = (stage.create(), stage.touch(), stage.lease(lease()));
    assert!([create, touch, lease].iter().all(|waiter| stage.is_waiting(*waiter)));
    assert_eq!(status(&mut stage).0, Status::Paused);
    stage.disk_is(DiskIs::Stuck);
    stage.unpause_succeeds();
    assert!(stage.is_waiting(touch), "not before it is on disk");
    stage.disk_is(DiskIs::Fine);
    let created = stage.created(create);
    assert_eq!((created.outcome, created.launch), (Outcome::Reused, Launch::None));
    assert_eq!((created.sandbox.session, &created.sandbox.container), (before.session, &before.container));
    for waiter in [touch, lease] {
        let sandbox = stage.sandbox_after(waiter);
        assert_eq!((sandbox.status, sandbox.reason), (Status::Running, Reason::Resumed));
        assert_eq!(sandbox.last_activity_at, stage.now);
    }
    assert_eq!(stage.on_disk().unwrap().status, Status::Running);
    assert_eq!(stage.on_disk().unwrap().last_activity_at, stage.now, "or it might be idle after a restart");
    stage.assert_no_open_effects();
}

#[test]
fn a_create_for_another_agent_does_not_wake_it() {
    let mut stage = paused();
    let create = stage.create_with(from_another_agent());
    assert_eq!(stage.conflict(create), ["agent_id"]);
    stage.assert_no_open_effects();
}

#[test]
fn a_renewal_and_existing_leases_do_not_resume_it() {
    let mut stage = Stage::running();
    let lease = lease();
    stage.lease(lease);
    stage.pause();
    stage.pause_succeeds();
    let renewed = stage.renew(Duration::from_secs(3600));
    assert_eq!(stage.sandbox_after(renewed).expires_at, noon() + Duration::from_secs(3600));
    assert_eq!(stage.deadline, Some(noon() + Duration::from_secs(3600)));
    let prolonged = stage.lease(lease);
    assert_eq!(stage.sandbox_after(prolonged).status, Status::Paused);
    let released = stage.release(lease.id);
    assert_eq!(stage.sandbox_after(released).status, Status::Paused);
    assert_eq!(stage.on_disk().unwrap().status, Status::Paused);
    stage.assert_no_open_effects();
}

#[test]
fn requests_follow_each_other_through_pauses() {
    let (mut stage, first) = pausing();
    let (touch, second) = (stage.touch(), stage.pause());
    stage.pause_succeeds();
    assert_eq!(stage.sandbox_after(first).status, Status::Paused);
    assert!(stage.is_waiting(touch));
    stage.unpause_succeeds();
    assert_eq!(stage.sandbox_after(touch).status, Status::Running);
    assert!(stage.is_waiting(second));
    stage.pause_succeeds();
    assert_eq!(stage.sandbox_after(second).status, Status::Paused);
    stage.assert_no_open_effects();
}

#[test]
fn a_pause_that_fails_leaves_it_running_and_says_why() {
    let (mut stage, pause) = pausing();
    let touch = stage.touch();
    stage.pause_fails();
    let chat = request().chat;
    assert_eq!(stage.sandbox_answer(pause), Err(SandboxError::NotPaused { chat, error: unreachable() }));
    assert_eq!(stage.sandbox_after(touch).status, Status::Running);
    stage.checked(Liveness::Alive);
    assert_eq!(status(&mut stage), (Status::Running, Reason::Ready));
    stage.assert_no_open_effects();
}

#[test]
fn a_resumption_that_fails_leaves_it_paused_and_says_why() {
    let mut stage = paused();
    let (create, touch, pause) = (stage.create(), stage.touch(), stage.pause());
    stage.unpause_fails();
    let chat = request().chat;
    let refused = SandboxError::NotResumed { chat, error: unreachable() };
    assert_eq!(stage.create_answer(create), Err(refused.clone()));
    assert_eq!(stage.sandbox_answer(touch), Err(refused));
    assert_eq!(stage.sandbox_after(pause).status, Status::Paused);
    stage.checked(Liveness::Paused);
    assert_eq!(status(&mut stage), (Status::Paused, Reason::Requested));
    let again = stage.touch();
    stage.unpause_succeeds();
    assert_eq!(stage.sandbox_after(again).status, Status::Running);
}

#[test]
fn a_resume_of_a_dead_sandbox_fails_and_the_next_create_replaces_it() {
    let mut stage = paused();
    let touch = stage.touch();
    stage.unpause_fails();
    assert!(stage.sandbox_answer(touch).is_err());
    stage.checked(Liveness::Vanished);
    assert_eq!(status(&mut stage), (Status::Failed, Reason::Vanished));
    let create = stage.create();
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Replaced);
}

#[test]
fn a_pause_that_cannot_be_saved_is_refused_but_still_applied() {
    let (mut stage, pause) = pausing();
    stage.disk_is(DiskIs::Full);
    stage.pause_succeeds();
    let not_saved = SandboxError::NotSaved { chat: request().chat, error: no_room() };
    assert_eq!(stage.sandbox_answer(pause), Err(not_saved));
    assert_eq!(status(&mut stage).0, Status::Paused);
    stage.disk_is(DiskIs::Fine);
    assert_eq!(stage.on_disk().unwrap().status, Status::Paused, "it is saved when there is room");
}

#[test]
fn an_idle_sandbox_is_paused_where_its_profile_says_so_and_goes_on_with_the_next_create() {
    let mut stage = paused_when_idle();
    let session = stage.seen().unwrap().session;
    assert_eq!(stage.deadline, Some(noon() + IDLE));
    stage.wait_until_due();
    stage.pause_succeeds();
    assert_eq!(status(&mut stage), (Status::Paused, Reason::Idle));
    assert_eq!(stage.deadline, Some(noon() + request().ttl()), "only its absolute deadline ends it now");
    let create = stage.create();
    stage.unpause_succeeds();
    let created = stage.created(create);
    assert_eq!((created.outcome, created.sandbox.session), (Outcome::Reused, session));
    assert_eq!(stage.deadline, Some(stage.now + IDLE));
}

#[test]
fn a_create_that_comes_before_an_idle_sandbox_is_paused_gets_it() {
    let mut stage = paused_when_idle();
    stage.wait(IDLE);
    let create = stage.create();
    stage.checked(Liveness::Alive);
    assert_eq!(stage.created(create).outcome, Outcome::Reused);
    stage.due();
    assert_eq!(stage.deadline, Some(stage.now + IDLE));
    stage.assert_no_open_effects();
}

#[test]
fn a_paused_sandbox_is_removed_at_its_absolute_deadline() {
    let mut stage = paused_when_idle();
    stage.wait_until_due();
    stage.pause_succeeds();
    stage.wait_until_due();
    assert_eq!(stage.now, noon() + request().ttl());
    assert_eq!(status(&mut stage), (Status::Deleting, Reason::Expired));
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_pause_of_an_idle_sandbox_that_fails_is_tried_again_and_does_not_outlast_its_end() {
    let mut stage = paused_when_idle();
    stage.wait_until_due();
    stage.pause_fails();
    stage.checked(Liveness::Alive);
    assert_eq!(stage.deadline, Some(noon() + IDLE + PAUSE_RETRY_DELAY));
    stage.due();
    stage.assert_no_open_effects();
    stage.wait_until_due();
    assert_eq!(stage.deadline, Some(noon() + request().ttl()), "its end comes also if the engine does not answer");
    stage.wait_until_due();
    assert_eq!(status(&mut stage), (Status::Deleting, Reason::Expired));
    stage.pause_succeeds();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn waiting_callers_of_an_expired_sandbox_get_the_next_one_or_an_error() {
    let mut stage = paused();
    stage.wait(request().ttl() - Duration::from_secs(1));
    let (create, touch) = (stage.create(), stage.touch());
    stage.wait_until_due();
    let gone = SandboxError::NotRunning { chat: request().chat, status: Status::Creating };
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Replaced);
    assert_eq!(stage.sandbox_answer(touch), Err(gone));
    stage.unpause_succeeds();
    assert_eq!(status(&mut stage), (Status::Running, Reason::Ready), "the resumption was of the old one");
}

#[test]
fn a_paused_sandbox_can_be_deleted_and_waiting_callers_are_answered() {
    let mut stage = paused();
    let (create, touch) = (stage.create(), stage.touch());
    let delete = stage.delete();
    assert_eq!(stage.start_failure(create), StartFailure::Deleted);
    let gone = SandboxError::NotRunning { chat: request().chat, status: Status::Deleting };
    assert_eq!(stage.sandbox_answer(touch), Err(gone));
    stage.tear_down_succeeds();
    stage.deleted_session(delete);
    stage.unpause_fails();
    stage.assert_idle();
}

#[test]
fn a_pause_or_resume_by_others_is_observed() {
    let mut stage = Stage::running();
    stage.engine_event();
    stage.checked(Liveness::Paused);
    assert_eq!(status(&mut stage), (Status::Paused, Reason::ByOthers));
    assert_eq!(stage.on_disk().unwrap().status, Status::Paused);
    stage.wait(Duration::from_secs(60));
    stage.engine_event();
    stage.checked(Liveness::Alive);
    assert_eq!(status(&mut stage), (Status::Running, Reason::ByOthers));
    assert_eq!(stage.on_disk().unwrap().last_activity_at, stage.now, "its idle time begins anew");
    stage.assert_no_open_effects();
}

#[test]
fn a_listing_that_differs_triggers_a_check() {
    let mut stage = paused();
    let container = stage.seen().unwrap().container.unwrap();
    stage.send(Event::Listed(Some(LiveContainer { container: container.clone(), paused: true })));
    stage.assert_no_open_effects();
    stage.send(Event::Listed(Some(LiveContainer { container, paused: false })));
    stage.checked(Liveness::Alive);
    assert_eq!(status(&mut stage).0, Status::Running);
}

#[test]
fn a_check_that_is_older_than_a_pause_does_not_undo_it() {
    let mut stage = Stage::running();
    stage.engine_event();
    let pause = stage.pause();
    stage.pause_succeeds();
    stage.sandbox_after(pause);
    stage.checked(Liveness::Alive);
    assert_eq!(status(&mut stage), (Status::Paused, Reason::Requested));
    stage.checked(Liveness::Paused);
    stage.assert_no_open_effects();
}

#[test]
fn a_paused_sandbox_stays_paused_after_a_restart_of_the_service() {
    let record = Sandbox { reason: Reason::Idle, ..found(ContainerState::Paused).sandbox(noon()) };
    assert_eq!(record.status, Status::Paused);
    let mut stage = Stage::resuming(record.clone());
    assert_eq!(stage.seen(), Some(record.clone()));
    assert_eq!(stage.deadline, Some(record.expires_at));
    let create = stage.create();
    stage.unpause_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Reused);
}

#[test]
fn only_a_running_sandbox_can_be_paused() {
    let mut stage = Stage::absent();
    let pause = stage.pause();
    assert_eq!(stage.sandbox_answer(pause), Err(SandboxError::NotFound { chat: request().chat }));
    let mut stage = Stage::deleting();
    let pause = stage.pause();
    let status = Status::Deleting;
    assert_eq!(stage.sandbox_answer(pause), Err(SandboxError::NotRunning { chat: request().chat, status }));
}
