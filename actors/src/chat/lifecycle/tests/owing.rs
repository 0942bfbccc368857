//! Owed removals: retried until they succeed.

use super::*;

#[test]
fn a_delete_is_answered_when_the_removal_fails_and_the_removal_is_owed() {
    let mut stage = Stage::running();
    let delete = stage.delete();
    stage.tear_down_fails();
    assert!(matches!(stage.delete_answer(delete), Err(SandboxError::DeleteOwed { .. })));
    let owed = stage.seen().unwrap();
    assert_eq!(owed.status, Status::Deleting);
    assert!(owed.message.unwrap().contains("connection refused"));
    assert!(!stage.lifecycle.is_idle());
    assert!(stage.lifecycle.is_settled(), "no effect is under way");
}

#[test]
fn an_owed_removal_is_tried_again_with_growing_delay_until_it_succeeds() {
    let mut stage = Stage::owing();
    let mut delays = Vec::new();
    for _ in 0..9 {
        delays.push(stage.retry().as_millis());
        stage.tear_down_fails();
    }
    assert_eq!(delays, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    stage.retry();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn the_end_of_an_owed_removal_says_that_it_is_removed() {
    let mut stage = Stage::owing();
    assert!(stage.lifecycle.owes_removal());
    assert!(stage.seen().unwrap().message.unwrap().contains("not removed yet"));
    stage.retry();
    stage.tear_down_succeeds();
    assert!(!stage.lifecycle.owes_removal());
    let end = stage.history.last().unwrap();
    assert_eq!(end.to, None);
    assert_eq!(end.sandbox.message.as_deref(), Some("removed after one failed try"));
}

#[test]
fn only_the_first_try_is_graceful() {
    let mut stage = Stage::running();
    stage.delete();
    let (generation, _, graceful) = stage.tear_down();
    assert!(graceful);
    stage.send(Event::TornDown { generation, result: Err(unreachable().into()) });
    stage.retry();
    let (_, _, graceful) = stage.tear_down();
    assert!(!graceful);
}

#[test]
fn a_delete_hurries_an_owed_removal() {
    let mut stage = Stage::owing();
    let delete = stage.delete();
    assert!(stage.is_waiting(delete));
    stage.tear_down_succeeds();
    stage.deleted_session(delete);
    assert!(stage.lifecycle.is_idle());
    stage.retry();
    stage.assert_idle();
}

#[test]
fn a_create_hurries_an_owed_removal_and_follows_it() {
    let mut stage = Stage::owing();
    let create = stage.create();
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    stage.created(create);
    stage.retry();
    stage.assert_no_open_effects();
}

#[test]
fn a_create_is_told_at_the_first_failure_that_its_predecessor_remains() {
    let mut stage = Stage::owing();
    let creates = [stage.create(), stage.create()];
    stage.tear_down_fails();
    for create in creates {
        assert_eq!(stage.start_failure(create), StartFailure::PredecessorRemains(unreachable().into()));
    }
    assert_eq!(stage.seen().unwrap().status, Status::Deleting);
}

#[test]
fn a_timer_that_rings_during_a_hurried_try_starts_no_second_one() {
    let mut stage = Stage::owing();
    stage.delete();
    let (generation, ..) = stage.tear_down();
    stage.retry();
    stage.assert_no_open_effects();
    stage.send(Event::TornDown { generation, result: Err(unreachable().into()) });
    assert_eq!(stage.retry(), Duration::from_millis(500), "and the next delay goes on growing");
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn an_answer_to_a_removal_of_another_time_is_not_taken_for_this_one() {
    let mut stage = Stage::deleting();
    let (stale, ..) = stage.tear_down();
    let create = stage.create();
    stage.send(Event::TornDown { generation: stale, result: Ok(()) });
    stage.launch_succeeds();
    stage.created(create);
    let delete = stage.delete();
    stage.send(Event::TornDown { generation: stale, result: Ok(()) });
    assert!(stage.is_waiting(delete));
    stage.tear_down_succeeds();
    stage.deleted_session(delete);
    stage.assert_idle();
}
