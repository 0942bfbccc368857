//! Restarts of sandboxes that ended by themselves.

use super::*;

const STEADY_RUN: Duration = Duration::from_secs(60);

fn on_failure() -> Rules {
    rules_with(OnExpire::Delete, Restart::OnFailure)
}

/// With a sandbox that has ended and is to be restarted.
fn ended_once() -> Stage {
    let mut stage = Stage::running_under(on_failure());
    stage.dies();
    stage
}

/// With a sandbox that is being restarted.
fn restarting() -> Stage {
    let mut stage = ended_once();
    stage.restart();
    stage
}

#[test]
fn a_sandbox_that_ended_is_started_again_under_the_same_session() {
    let mut stage = Stage::running_under(on_failure());
    let before = stage.seen().unwrap();
    stage.dies();
    let failed = stage.seen().unwrap();
    assert_eq!((failed.status, failed.reason), (Status::Failed, Reason::OomKilled));
    stage.restart();
    let restarting = stage.seen().unwrap();
    assert_eq!((restarting.status, restarting.reason), (Status::Creating, Reason::Restarting));
    stage.relaunch_succeeds();
    let after = stage.seen().unwrap();
    assert_eq!((after.status, after.reason), (Status::Running, Reason::Ready));
    assert_eq!((after.session, &after.container), (before.session, &before.container));
    assert_eq!((after.created_at, after.expires_at), (before.created_at, before.expires_at));
    assert_eq!(after.started_at, Some(stage.now));
    assert_eq!(stage.on_disk(), Some(&after));
    stage.assert_no_open_effects();
}

#[test]
fn a_sandbox_whose_profile_wants_no_restart_stays_failed() {
    let mut stage = Stage::running();
    stage.dies();
    assert_eq!(stage.seen().unwrap().status, Status::Failed);
    stage.assert_no_open_effects();
}

#[test]
fn restarts_come_less_and_less_eagerly() {
    let mut stage = Stage::running_under(on_failure());
    let mut delays = Vec::new();
    for _ in 0..10 {
        stage.dies();
        delays.push(stage.restart().as_secs());
        stage.relaunch_succeeds();
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
}

#[test]
fn restarts_that_fail_count_like_those_that_do_not_last() {
    let mut stage = restarting();
    stage.relaunch_fails(StartFailure::NoAddress);
    assert_eq!(stage.seen().unwrap().status, Status::Failed);
    assert_eq!(stage.restart(), Duration::from_secs(2));
    stage.relaunch_fails(StartFailure::Died(death()));
    assert_eq!(stage.seen().unwrap().reason, Reason::OomKilled);
    assert_eq!(stage.restart(), Duration::from_secs(4));
    stage.relaunch_succeeds();
    stage.dies();
    assert_eq!(stage.restart(), Duration::from_secs(8));
}

#[test]
fn after_a_steady_run_a_restart_is_as_quick_as_the_first() {
    let mut stage = ended_once();
    for (run, delay) in [(STEADY_RUN - Duration::from_secs(1), 2), (STEADY_RUN, 1), (STEADY_RUN, 1)] {
        stage.restart();
        stage.relaunch_succeeds();
        stage.wait(run);
        stage.dies();
        let planned = stage.open.iter().find_map(|effect| match effect {
            Effect::RestartAfter { delay, .. } => Some(*delay),
            _ => None,
        });
        assert_eq!(planned, Some(Duration::from_secs(delay)));
    }
}

#[test]
fn a_create_during_a_restart_waits_for_it_and_gets_the_same_sandbox() {
    let mut stage = restarting();
    let session = stage.seen().unwrap().session;
    let creates = [stage.create(), stage.create()];
    assert!(creates.iter().all(|create| stage.is_waiting(*create)));
    stage.relaunch_succeeds();
    for create in creates {
        let created = stage.created(create);
        assert_eq!((created.outcome, created.sandbox.session), (Outcome::Reused, session));
    }
    stage.assert_no_open_effects();
}

#[test]
fn a_create_that_does_not_match_the_restarting_sandbox_is_refused() {
    let mut stage = restarting();
    let create = stage.create_with(from_another_agent());
    assert_eq!(stage.conflict(create), ["agent_id"]);
}

#[test]
fn creates_during_a_restart_that_fails_get_a_new_sandbox() {
    let mut stage = restarting();
    let old = stage.seen().unwrap().session;
    let creates = [stage.create(), stage.create()];
    stage.relaunch_fails(StartFailure::NoAddress);
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    let created = creates.map(|create| stage.created(create));
    assert_eq!(created[0], created[1]);
    assert_eq!(created[0].outcome, Outcome::Replaced);
    assert_ne!(created[0].sandbox.session, old);
}

#[test]
fn a_create_does_not_wait_for_a_restart_that_is_only_planned() {
    let mut stage = ended_once();
    let create = stage.create();
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    let session = stage.created(create).sandbox.session;
    stage.restart();
    let sandbox = stage.seen().unwrap();
    assert_eq!((sandbox.status, sandbox.session), (Status::Running, session), "the plan was for the old one");
    stage.assert_no_open_effects();
}

#[test]
fn delete_while_restarting_cancels_it_and_removes_everything() {
    let mut stage = Stage::running_under(on_failure());
    let lease = Lease::of_caller(STEADY_RUN, false);
    stage.lease(lease);
    stage.dies();
    stage.restart();
    let before = stage.seen().unwrap();
    let create = stage.create();
    let delete = stage.delete();
    let release = stage.release(lease.id);
    assert!(matches!(stage.sandbox_answer(release), Err(SandboxError::NotRunning { .. })), "it went with the sandbox");
    let (relaunching, _) = stage.relaunch();
    assert_eq!(stage.cancel(), relaunching);
    assert_eq!(stage.on_disk().unwrap().status, Status::Deleting, "should the service end now, the next one goes on");
    let remains = Remains::Container(before.container.clone().unwrap());
    let cancelled = LaunchFailure { failure: StartFailure::Deleted, remains };
    stage.send(Event::Launched { generation: relaunching, result: Err(cancelled) });
    assert_eq!(stage.tear_down_succeeds(), before.container);
    assert_eq!(stage.deleted_session(delete), before.session);
    assert_eq!(stage.start_failure(create), StartFailure::Deleted);
    stage.assert_idle();
}

#[test]
fn a_restart_that_succeeds_in_spite_of_a_delete_is_torn_down() {
    let mut stage = restarting();
    let container = stage.seen().unwrap().container;
    let delete = stage.delete();
    stage.cancel();
    stage.relaunch_succeeds();
    assert_eq!(stage.tear_down_succeeds(), container);
    stage.deleted_session(delete);
    stage.assert_idle();
}

#[test]
fn delete_before_a_planned_restart_wins() {
    let mut stage = ended_once();
    let delete = stage.delete();
    stage.restart();
    stage.tear_down_succeeds();
    stage.deleted_session(delete);
    stage.assert_idle();
}

#[test]
fn a_sandbox_that_vanished_is_not_started_again() {
    let mut stage = Stage::running_under(on_failure());
    stage.engine_event();
    stage.checked(Liveness::Vanished);
    assert_eq!(stage.seen().unwrap().reason, Reason::Vanished);
    stage.assert_no_open_effects();
}

#[test]
fn a_sandbox_that_vanishes_before_its_restart_is_not_tried_again() {
    let mut stage = restarting();
    let gone = EngineError::NoSuchContainer { container: "container-1".into() };
    stage.relaunch_fails(gone.into());
    let sandbox = stage.seen().unwrap();
    assert_eq!((sandbox.status, sandbox.reason), (Status::Failed, Reason::Vanished));
    assert_eq!(stage.on_disk(), Some(&sandbox));
    stage.assert_no_open_effects();
}

#[test]
fn a_restart_is_no_use_of_the_sandbox() {
    let mut stage = Stage::running_under(on_failure());
    let used = stage.seen().unwrap().last_activity_at;
    stage.wait(Duration::from_secs(100));
    stage.dies();
    stage.restart();
    stage.relaunch_succeeds();
    assert_eq!(stage.seen().unwrap().last_activity_at, used);
}

#[test]
fn a_full_disk_does_not_cost_a_restarted_sandbox() {
    let mut stage = restarting();
    stage.disk_is(DiskIs::Full);
    let create = stage.create();
    stage.relaunch_succeeds();
    let created = stage.created(create);
    assert_eq!(created.sandbox.status, Status::Running);
    let on_disk = stage.on_disk().unwrap();
    assert_eq!((on_disk.session, on_disk.status), (created.sandbox.session, Status::Failed), "as it was acknowledged");
    stage.disk_is(DiskIs::Fine);
    assert_eq!(stage.on_disk().unwrap().status, Status::Running);
    stage.assert_no_open_effects();
}

#[test]
fn a_failed_sandbox_at_its_end_is_removed_though_a_restart_is_planned() {
    let mut stage = ended_once();
    stage.wait_until_due();
    stage.restart();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn there_is_no_deadline_while_a_sandbox_is_being_restarted() {
    let mut stage = ended_once();
    assert!(stage.deadline.is_some());
    stage.restart();
    assert_eq!(stage.deadline, None);
    stage.relaunch_succeeds();
    let ends_at = stage.seen().unwrap().expires_at;
    assert_eq!(stage.deadline, Some(ends_at));
}

#[test]
fn a_restart_that_was_planned_for_an_earlier_sandbox_does_not_hurry_this_one() {
    let mut stage = ended_once();
    let plan = |stage: &mut Stage| {
        stage.take("planned restart", |effect| match effect {
            Effect::RestartAfter { generation, .. } => Some(*generation),
            _ => None,
        })
    };
    let earlier = plan(&mut stage);
    stage.create();
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    stage.dies();
    stage.send(Event::RestartDue { generation: earlier });
    assert_eq!(stage.seen().unwrap().status, Status::Failed);
    let generation = plan(&mut stage);
    stage.send(Event::RestartDue { generation });
    stage.relaunch_succeeds();
}
