//! Snapshots: on request, before a delete, and at the expiry. A failed snapshot loses no sandbox.

use super::*;

fn kept_at_the_end() -> Rules {
    rules_with(OnExpire::Snapshot, Restart::Never)
}

/// At the expiry, with the commit under way.
fn ending() -> Stage {
    let mut stage = Stage::running_under(kept_at_the_end());
    stage.wait_until_due();
    stage
}

#[test]
fn a_snapshot_is_answered_and_published_and_changes_no_status() {
    let mut stage = Stage::running();
    let before = stage.seen().unwrap();
    let asked = stage.snapshot();
    assert!(stage.is_waiting(asked));
    let snapshot = stage.commit_succeeds();
    assert_eq!(stage.snapshot_answer(asked), Ok(snapshot));
    assert_eq!(stage.seen().unwrap(), before);
    let published = stage.history.last().unwrap();
    assert_eq!((published.from, published.to), (Some(Status::Running), Some(Status::Running)));
    assert_eq!(published.sandbox.reason, Reason::Snapshotted);
    stage.assert_no_open_effects();
}

#[test]
fn a_failed_snapshot_is_published_and_changes_no_status() {
    let mut stage = Stage::running();
    let asked = stage.snapshot();
    stage.commit_fails();
    assert!(matches!(stage.snapshot_answer(asked), Err(SandboxError::SnapshotFailed { .. })));
    assert_eq!(stage.history.last().unwrap().sandbox.reason, Reason::SnapshotFailed);
    stage.checked(Liveness::Alive);
    assert_eq!(stage.seen().unwrap().status, Status::Running);
}

#[test]
fn one_commit_is_under_way_at_a_time() {
    let mut stage = Stage::running();
    let (first, second) = (stage.snapshot(), stage.snapshot());
    let one = stage.commit_succeeds();
    assert!(stage.is_waiting(second));
    let other = stage.commit_succeeds();
    assert_ne!(one.origin.id, other.origin.id);
    assert_eq!((stage.snapshot_answer(first), stage.snapshot_answer(second)), (Ok(one), Ok(other)));
}

#[test]
fn use_of_the_sandbox_proceeds_during_a_snapshot() {
    let mut stage = Stage::running();
    stage.snapshot();
    let (touch, create, renew) = (stage.touch(), stage.create(), stage.renew(Duration::from_secs(600)));
    stage.sandbox_after(touch);
    assert_eq!(stage.created(create).outcome, Outcome::Reused);
    stage.sandbox_after(renew);
}

#[test]
fn a_delete_and_a_pause_wait_for_the_snapshot_that_came_first() {
    let mut stage = Stage::running();
    let snapshot = stage.snapshot();
    let (pause, delete) = (stage.pause(), stage.delete());
    assert!(stage.is_waiting(pause) && stage.is_waiting(delete));
    stage.commit_succeeds();
    stage.snapshot_answer(snapshot).unwrap();
    stage.tear_down_succeeds();
    stage.deleted_session(delete);
}

#[test]
fn a_sandbox_frozen_for_a_commit_is_not_paused() {
    let mut stage = Stage::running();
    stage.snapshot();
    stage.engine_event();
    stage.checked(Liveness::Paused);
    assert_eq!(stage.seen().unwrap().status, Status::Running);
    // A check that began before the end of the commit may have seen the container frozen.
    stage.engine_event();
    stage.commit_succeeds();
    stage.checked(Liveness::Paused);
    assert_eq!(stage.seen().unwrap().status, Status::Running);
    stage.checked(Liveness::Alive);
    assert_eq!(stage.seen().unwrap().status, Status::Running);
}

#[test]
fn a_paused_sandbox_is_kept_and_stays_paused() {
    let mut stage = Stage::running();
    let pause = stage.pause();
    let waiting = stage.snapshot();
    stage.pause_succeeds();
    stage.sandbox_after(pause);
    let touch = stage.touch();
    assert!(stage.is_waiting(touch), "it resumes after the snapshot");
    stage.commit_succeeds();
    stage.snapshot_answer(waiting).unwrap();
    assert_eq!(stage.seen().unwrap().status, Status::Paused);
    stage.unpause_succeeds();
    stage.sandbox_after(touch);
}

#[test]
fn a_deadline_that_comes_during_a_snapshot_counts_after_it() {
    let mut stage = Stage::running();
    stage.now = stage.deadline.unwrap();
    stage.snapshot();
    stage.due();
    assert_eq!(stage.seen().unwrap().status, Status::Running);
    stage.commit_succeeds();
    stage.wait_until_due();
    assert_eq!(stage.seen().unwrap().status, Status::Deleting);
}

#[test]
fn a_delete_with_a_snapshot_removes_the_sandbox_and_names_the_snapshot() {
    let mut stage = Stage::running();
    let delete = stage.delete_with_snapshot();
    assert_eq!(stage.seen().unwrap().status, Status::Running, "no removal before the snapshot");
    let snapshot = stage.commit_succeeds();
    assert_eq!(stage.seen().unwrap().status, Status::Deleting);
    stage.tear_down_succeeds();
    let Ok(Deletion::Deleted { snapshot: named, .. }) = stage.delete_answer(delete) else { panic!("not deleted") };
    assert_eq!(named, Some(snapshot.origin.id));
    stage.assert_idle();
}

#[test]
fn a_delete_whose_snapshot_fails_keeps_the_sandbox() {
    let mut stage = Stage::running();
    let delete = stage.delete_with_snapshot();
    let create = stage.create();
    stage.commit_fails();
    assert!(matches!(stage.delete_answer(delete), Err(SandboxError::SnapshotFailed { .. })));
    assert_eq!(stage.created(create).outcome, Outcome::Reused);
    stage.checked(Liveness::Alive);
    stage.assert_no_open_effects();
}

#[test]
fn a_create_that_came_during_a_delete_with_a_snapshot_follows_it() {
    let mut stage = Stage::running();
    let (delete, create) = (stage.delete_with_snapshot(), stage.create());
    stage.commit_succeeds();
    stage.tear_down_succeeds();
    stage.delete_answer(delete).unwrap();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Created);
}

#[test]
fn a_failed_sandbox_is_saved_when_deleted_and_a_vanished_one_cannot_be() {
    let mut stage = Stage::running();
    stage.dies();
    let delete = stage.delete_with_snapshot();
    stage.commit_succeeds();
    stage.tear_down_succeeds();
    assert!(matches!(stage.delete_answer(delete), Ok(Deletion::Deleted { snapshot: Some(_), .. })));

    let mut stage = Stage::running();
    stage.engine_event();
    stage.checked(Liveness::Vanished);
    let delete = stage.delete_with_snapshot();
    stage.tear_down_succeeds();
    assert!(matches!(stage.delete_answer(delete), Ok(Deletion::Deleted { snapshot: None, .. })));
}

#[test]
fn a_sandbox_at_its_end_is_kept_and_then_removed() {
    let mut stage = ending();
    assert_eq!(stage.seen().unwrap().status, Status::Running, "no removal before the snapshot");
    stage.commit_succeeds();
    let sandbox = stage.seen().unwrap();
    assert_eq!((sandbox.status, sandbox.reason), (Status::Deleting, Reason::Expired));
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_sandbox_that_cannot_be_kept_stays_and_is_tried_again_less_and_less_eagerly() {
    let mut stage = ending();
    let mut delays = Vec::new();
    for _ in 0..8 {
        stage.commit_fails();
        stage.checked(Liveness::Alive);
        assert_eq!(stage.seen().unwrap().status, Status::Running);
        delays.push((stage.deadline.unwrap() - stage.now).num_seconds());
        stage.due();
        stage.assert_no_open_effects();
        stage.wait_until_due();
    }
    assert_eq!(delays, [5, 10, 20, 40, 80, 160, 300, 300]);
    stage.commit_succeeds();
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_create_at_the_end_gets_a_new_sandbox_once_the_old_one_is_kept() {
    let mut stage = Stage::running_under(kept_at_the_end());
    stage.now = stage.deadline.unwrap();
    let create = stage.create();
    let snapshot = stage.commit_succeeds();
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    let created = stage.created(create);
    assert_eq!(created.outcome, Outcome::Replaced);
    assert_ne!(created.sandbox.session, snapshot.origin.session);
}

#[test]
fn a_create_at_the_end_is_refused_if_the_old_one_cannot_be_kept() {
    let mut stage = ending();
    let create = stage.create();
    stage.commit_fails();
    assert!(matches!(stage.create_answer(create), Err(SandboxError::SnapshotFailed { .. })));
    stage.checked(Liveness::Alive);
    assert_eq!(stage.seen().unwrap().status, Status::Running);
}

#[test]
fn a_renewal_rescues_a_sandbox_whose_snapshot_failed() {
    let mut stage = ending();
    stage.commit_fails();
    stage.checked(Liveness::Alive);
    let renew = stage.renew(Duration::from_secs(3600));
    stage.sandbox_after(renew);
    stage.now = stage.deadline.unwrap().min(stage.now + Duration::from_secs(5));
    stage.due();
    stage.assert_no_open_effects();
    let create = stage.create();
    stage.checked(Liveness::Alive);
    assert_eq!(stage.created(create).outcome, Outcome::Reused);
}

#[test]
fn a_restored_sandbox_is_reused_for_its_own_snapshot_and_no_other() {
    let snapshot = crate::domain::ids::SnapshotId::next();
    let from = |snapshot| CreateRequest { snapshot: Some(snapshot), ..request() };
    let mut stage = Stage::absent();
    let restore = stage.create_with(from(snapshot));
    stage.launch_succeeds();
    let created = stage.created(restore);
    assert_eq!((created.outcome, created.sandbox.snapshot), (Outcome::Restored, Some(snapshot)));
    assert_eq!(stage.on_disk().unwrap().snapshot, Some(snapshot));
    let again = stage.create_with(from(snapshot));
    assert_eq!(stage.created(again).outcome, Outcome::Reused);
    let any = stage.create();
    assert_eq!(stage.created(any).outcome, Outcome::Reused);
    let other = stage.create_with(from(crate::domain::ids::SnapshotId::next()));
    assert_eq!(stage.conflict(other), ["snapshot_id"]);
}

#[test]
fn a_restart_waits_for_the_snapshot() {
    let mut stage = Stage::running_under(rules_with(OnExpire::Delete, Restart::OnFailure));
    let snapshot = stage.snapshot();
    stage.dies();
    stage.restart();
    assert_eq!(stage.seen().unwrap().status, Status::Failed);
    stage.commit_succeeds();
    stage.snapshot_answer(snapshot).unwrap();
    stage.restart();
    stage.relaunch_succeeds();
    assert_eq!(stage.seen().unwrap().status, Status::Running);
}

#[test]
fn a_snapshot_without_a_sandbox_is_refused() {
    let mut stage = Stage::absent();
    let snapshot = stage.snapshot();
    assert!(matches!(stage.snapshot_answer(snapshot), Err(SandboxError::NotFound { .. })));
    let create = stage.create();
    let snapshot = stage.snapshot();
    assert!(matches!(stage.snapshot_answer(snapshot), Err(SandboxError::NotRunning { status: Status::Creating, .. })));
    let delete = stage.delete_with_snapshot();
    stage.cancel();
    stage.launch_fails(Remains::Nothing);
    stage.start_failure(create);
    assert!(matches!(stage.delete_answer(delete), Ok(Deletion::Deleted { snapshot: None, .. })));
}
