//! Acknowledge only after the journal commit: behaviour with a slow, full or silent disk.

use super::*;

/// With a sandbox that runs and is not on disk yet.
fn saving() -> (Stage, WaiterId) {
    let mut stage = Stage::absent();
    stage.disk_is(DiskIs::Stuck);
    let create = stage.create();
    stage.launch_succeeds();
    (stage, create)
}

/// With a sandbox whose container is removed and whose record is not.
fn removing_record() -> (Stage, WaiterId) {
    let mut stage = Stage::running();
    let delete = stage.delete();
    stage.disk_is(DiskIs::Stuck);
    stage.tear_down_succeeds();
    (stage, delete)
}

#[test]
fn a_sandbox_is_being_created_until_it_is_on_disk() {
    let (mut stage, create) = saving();
    assert!(stage.is_waiting(create));
    assert_eq!(stage.seen().unwrap().status, Status::Creating);
    assert!(!stage.lifecycle.is_settled());
    stage.disk_is(DiskIs::Fine);
    let created = stage.created(create);
    assert_eq!(stage.on_disk(), Some(&created.sandbox));
}

#[test]
fn creates_while_a_sandbox_is_being_saved_join_it() {
    let (mut stage, first) = saving();
    let second = stage.create();
    assert!(stage.is_waiting(second));
    stage.disk_is(DiskIs::Fine);
    assert_eq!(stage.created(first), stage.created(second));
}

#[test]
fn a_full_disk_while_creating_takes_the_sandbox_back_and_says_so() {
    let (mut stage, create) = saving();
    let container = stage.lifecycle.sandbox().unwrap().container.clone();
    stage.disk_is(DiskIs::Full);
    assert_eq!(stage.seen().unwrap().reason, Reason::RolledBack);
    stage.disk_is(DiskIs::Fine);
    assert_eq!(stage.tear_down_succeeds(), container);
    assert_eq!(stage.start_failure(create), StartFailure::NotSaved(no_room()));
    stage.assert_idle();
}

#[test]
fn a_sandbox_that_was_taken_back_leaves_no_record_though_its_write_got_there_late() {
    let (mut stage, create) = saving();
    stage.write_times_out();
    stage.disk_is(DiskIs::Fine);
    assert_eq!(stage.on_disk().unwrap().status, Status::Running, "the write that was given up got there");
    stage.tear_down_succeeds();
    assert!(matches!(stage.start_failure(create), StartFailure::NotSaved(_)));
    stage.assert_idle();
}

#[test]
fn delete_while_a_sandbox_is_being_saved_removes_it_and_its_record() {
    let (mut stage, create) = saving();
    let planned = stage.seen().unwrap();
    let container = stage.lifecycle.sandbox().unwrap().container.clone();
    let delete = stage.delete();
    stage.disk_is(DiskIs::Fine);
    assert!(stage.is_waiting(create), "a sandbox being removed is not handed out");
    assert_eq!(stage.on_disk().unwrap().status, Status::Deleting);
    assert_eq!(stage.tear_down_succeeds(), container);
    assert_eq!(stage.start_failure(create), StartFailure::Deleted);
    assert_eq!(stage.deleted_session(delete), planned.session);
    stage.assert_idle();
}

#[test]
fn a_delete_is_answered_when_the_record_is_removed() {
    let (mut stage, delete) = removing_record();
    assert!(stage.is_waiting(delete));
    assert_eq!(stage.seen().unwrap().status, Status::Deleting);
    assert!(!stage.lifecycle.is_settled() && !stage.lifecycle.is_idle());
    stage.disk_is(DiskIs::Fine);
    stage.deleted_session(delete);
    stage.assert_idle();
}

#[test]
fn a_full_disk_while_removing_the_record_is_owed_and_retried() {
    let (mut stage, delete) = removing_record();
    stage.disk_is(DiskIs::Full);
    let owed = SandboxError::DeleteOwed { chat: request().chat, error: no_room().into() };
    assert_eq!(stage.delete_answer(delete), Err(owed));
    assert!(stage.seen().unwrap().message.unwrap().contains("no space left"));
    stage.retry();
    stage.tear_down_succeeds();
    assert_eq!(stage.retry(), Duration::from_millis(500), "still full");
    stage.disk_is(DiskIs::Fine);
    stage.tear_down_succeeds();
    stage.assert_idle();
}

#[test]
fn a_create_after_a_delete_that_cannot_be_saved_gets_the_reason() {
    let (mut stage, _) = removing_record();
    let create = stage.create();
    stage.disk_is(DiskIs::Full);
    assert_eq!(stage.start_failure(create), StartFailure::PredecessorRemains(no_room().into()));
    let again = stage.create();
    stage.disk_is(DiskIs::Fine);
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    stage.created(again);
    let on_disk = stage.on_disk().unwrap().session;
    assert_eq!(stage.seen().unwrap().session, on_disk);
}

#[test]
fn no_launch_before_the_record_of_the_predecessor_is_removed() {
    let (mut stage, _) = removing_record();
    stage.create();
    stage.assert_no_open_effects();
    stage.disk_is(DiskIs::Fine);
    stage.launch_succeeds();
}

#[test]
fn a_repeated_or_outdated_write_answer_is_ignored() {
    let (mut stage, create) = saving();
    let Phase::Creating(creating) = stage.lifecycle.phase() else { panic!() };
    let Origin::Request { saving: Some(ticket), .. } = creating.origin else { panic!() };
    stage.send(Event::Saved { ticket: Ticket(ticket.0 + 1), result: Ok(()) });
    assert!(stage.is_waiting(create));
    stage.send(Event::Saved { ticket, result: Ok(()) });
    stage.created(create);
    stage.send(Event::Saved { ticket, result: Err(no_room()) });
    assert_eq!(stage.seen().unwrap().status, Status::Running);
    stage.assert_no_open_effects();
}

#[test]
fn a_launch_without_leftovers_writes_no_record() {
    let mut stage = Stage::absent();
    stage.disk_is(DiskIs::Full);
    let create = stage.create();
    stage.launch_fails(Remains::Perhaps);
    stage.tear_down_succeeds();
    assert_eq!(stage.start_failure(create), StartFailure::NoAddress);
    stage.assert_idle();
}
