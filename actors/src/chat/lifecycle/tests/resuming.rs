//! What the service had before it was started again: each status goes on in its own way.

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A sandbox as the journal holds it, with a container that may be there or not.
fn recorded(status: Status, reason: Reason) -> Sandbox {
    Sandbox { status, reason, ..found(ContainerState::Running).sandbox(noon()) }
}

#[test]
fn what_runs_goes_on_with_its_session_and_times_and_is_no_news() {
    let record = Sandbox { expires_at: noon() + DAY, ..recorded(Status::Running, Reason::Ready) };
    let mut stage = Stage::resuming(record.clone());
    assert_eq!(stage.seen(), Some(record.clone()));
    assert_eq!((stage.history.len(), &stage.counted[..]), (0, &[Status::Running][..]));
    assert_eq!(stage.deadline, Some(record.end().0));
    stage.assert_nothing_is_open();
}

#[test]
fn what_runs_is_looked_at_before_it_is_handed_out() {
    let mut stage = Stage::resuming(recorded(Status::Running, Reason::Ready));
    let create = stage.create();
    assert!(stage.is_waiting(create));
    stage.checked(Liveness::Alive);
    assert_eq!(stage.created(create).outcome, Outcome::Reused);
}

#[test]
fn what_ran_past_its_end_while_nobody_looked_is_over_at_once() {
    let mut stage = Stage::resuming(Sandbox { expires_at: noon(), ..recorded(Status::Running, Reason::Ready) });
    assert_eq!(stage.deadline, Some(noon()));
    stage.due();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn what_failed_stays_failed_until_its_end_and_is_written_down_as_such() {
    let record = recorded(Status::Failed, Reason::OomKilled);
    let mut stage = Stage::resuming(record.clone());
    assert_eq!(stage.seen(), Some(record.clone()));
    assert_eq!(stage.on_disk(), Some(&record));
    assert_eq!(stage.history.len(), 1, "that it failed is news");
    assert_eq!(stage.deadline, Some(record.end().0));
    stage.assert_nothing_is_open();
}

#[test]
fn what_failed_is_started_again_where_its_profile_says_so() {
    let rules = rules_with(OnExpire::Delete, Restart::OnFailure);
    let mut stage = Stage::resuming_under(rules.clone(), recorded(Status::Failed, Reason::Exited));
    assert_eq!(stage.restart(), Duration::from_secs(1));
    stage.relaunch_succeeds();
    assert_eq!(stage.seen().unwrap().status, Status::Running);

    let vanished = Stage::resuming_under(rules, recorded(Status::Failed, Reason::Vanished));
    vanished.assert_nothing_is_open();
}

#[test]
fn what_was_stopped_is_kept_until_its_day_is_over() {
    let record = recorded(Status::Stopped, Reason::Idle);
    let mut stage = Stage::resuming(record.clone());
    assert_eq!(stage.seen(), Some(record.clone()));
    assert_eq!(stage.deadline, Some(record.end().0 + DAY));
    stage.wait_until_due();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_removal_that_was_under_way_is_finished() {
    let record = recorded(Status::Deleting, Reason::Requested);
    let mut stage = Stage::resuming(record.clone());
    assert_eq!(stage.deadline, None);
    assert_eq!(stage.tear_down_succeeds(), record.container);
    stage.assert_idle();
}

#[test]
fn what_was_never_acknowledged_is_removed() {
    let mut stage = Stage::resuming(recorded(Status::Creating, Reason::Requested));
    let sandbox = stage.seen().unwrap();
    assert_eq!((sandbox.status, sandbox.reason), (Status::Deleting, Reason::Incomplete));
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_container_of_another_session_takes_the_record_along_when_it_goes() {
    let stray = recorded(Status::Deleting, Reason::Incomplete);
    let (lifecycle, effects) = Lifecycle::absent(request().chat, name(), rules()).resuming(stray);
    let mut stage = Stage::absent();
    stage.lifecycle = lifecycle;
    stage.disk.record = Some(recorded(Status::Running, Reason::Ready));
    stage.receive(effects);
    stage.tear_down_succeeds();
    stage.assert_idle();
}
