//! Resumption after a restart of the service: each status continues in its own way.

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A sandbox as the journal holds it, with or without a container.
fn recorded(status: Status, reason: Reason) -> Sandbox {
    Sandbox { status, reason, ..found(ContainerState::Running).sandbox(noon()) }
}

#[test]
fn a_running_sandbox_keeps_its_session_and_times_without_an_event() {
    let record = Sandbox { expires_at: noon() + DAY, ..recorded(Status::Running, Reason::Ready) };
    let mut stage = Stage::resuming(record.clone());
    assert_eq!(stage.seen(), Some(record.clone()));
    assert_eq!((stage.history.len(), &stage.counted[..]), (0, &[Status::Running][..]));
    assert_eq!(stage.deadline, Some(record.end().0));
    stage.assert_no_open_effects();
}

#[test]
fn a_running_sandbox_is_checked_before_it_is_handed_out() {
    let mut stage = Stage::resuming(recorded(Status::Running, Reason::Ready));
    let create = stage.create();
    assert!(stage.is_waiting(create));
    stage.checked(Liveness::Alive);
    assert_eq!(stage.created(create).outcome, Outcome::Reused);
}

#[test]
fn a_sandbox_that_expired_during_the_outage_ends_at_once() {
    let mut stage = Stage::resuming(Sandbox { expires_at: noon(), ..recorded(Status::Running, Reason::Ready) });
    assert_eq!(stage.deadline, Some(noon()));
    stage.due();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_failed_sandbox_stays_failed_until_its_end_and_is_saved_as_failed() {
    let record = recorded(Status::Failed, Reason::OomKilled);
    let mut stage = Stage::resuming(record.clone());
    assert_eq!(stage.seen(), Some(record.clone()));
    assert_eq!(stage.on_disk(), Some(&record));
    assert_eq!(stage.history.len(), 1, "that it failed is news");
    assert_eq!(stage.deadline, Some(record.end().0));
    stage.assert_no_open_effects();
}

#[test]
fn a_failed_sandbox_is_restarted_where_its_profile_says_so() {
    let rules = rules_with(OnExpire::Delete, Restart::OnFailure);
    let mut stage = Stage::resuming_under(rules.clone(), recorded(Status::Failed, Reason::Exited));
    assert_eq!(stage.restart(), Duration::from_secs(1));
    stage.relaunch_succeeds();
    assert_eq!(stage.seen().unwrap().status, Status::Running);

    let vanished = Stage::resuming_under(rules, recorded(Status::Failed, Reason::Vanished));
    vanished.assert_no_open_effects();
}

#[test]
fn a_stopped_sandbox_is_kept_for_a_day() {
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
fn an_unacknowledged_sandbox_is_removed() {
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
