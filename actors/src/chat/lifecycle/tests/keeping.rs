//! Renewals, leases and activity: how they keep a sandbox, when they are acknowledged, and how they are saved.

use chrono::TimeDelta;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const GRAIN: Duration = Duration::from_secs(5);

fn at(seconds: u64) -> Timestamp {
    noon() + Duration::from_secs(seconds)
}

fn lease(seconds: u64, durable: bool) -> Lease {
    Lease::of_caller(Duration::from_secs(seconds), durable)
}

fn command(seconds: u64) -> Lease {
    Lease::of_work(Duration::from_secs(seconds), Holder::Command { id: 7 })
}

fn held_by(sandbox: &Sandbox) -> Vec<(Holder, Timestamp)> {
    sandbox.held_by.iter().map(|hold| (hold.holder, hold.until)).collect()
}

/// With a sandbox that has this idle timeout.
fn idle_after(seconds: u64) -> Stage {
    let mut stage = Stage::absent();
    stage.create_with(CreateRequest { idle_timeout: Some(Duration::from_secs(seconds)), ..request() });
    stage.launch_succeeds();
    stage
}

fn not_saved() -> SandboxError {
    SandboxError::NotSaved { chat: request().chat, error: no_room() }
}

#[test]
fn a_renewal_counts_from_now_and_is_on_disk_when_acknowledged() {
    let mut stage = Stage::running();
    stage.wait(Duration::from_secs(100));
    stage.disk_is(DiskIs::Stuck);
    let renew = stage.renew(HOUR);
    assert!(stage.is_waiting(renew));
    assert!(!stage.lifecycle.is_settled());
    stage.disk_is(DiskIs::Fine);
    let sandbox = stage.sandbox_after(renew);
    assert_eq!((sandbox.expires_at, sandbox.last_activity_at), (stage.now + HOUR, stage.now));
    assert_eq!(stage.on_disk(), Some(&sandbox));
    assert_eq!(stage.deadline, Some(stage.now + HOUR));
    stage.assert_no_open_effects();
}

#[test]
fn a_change_is_acknowledged_only_after_the_commit() {
    let mut stage = Stage::running();
    let before = stage.seen().unwrap();
    stage.disk_is(DiskIs::Stuck);
    let renew = stage.renew(HOUR);
    stage.lease(lease(1000, true));
    let passing = lease(500, false);
    let of_connection = stage.lease(passing);
    let hold = Hold { id: Some(passing.id), holder: passing.holder, until: at(500) };
    let acknowledged = Sandbox { held_until: Some(at(500)), held_by: vec![hold], ..before };
    assert_eq!(stage.sandbox_after(of_connection), acknowledged);
    let (touch, create) = (stage.touch(), stage.create());
    assert_eq!(stage.sandbox_after(touch), acknowledged);
    assert_eq!(stage.created(create).sandbox, acknowledged);
    assert_eq!(stage.seen(), Some(acknowledged.clone()));

    let Phase::Running(running) = stage.lifecycle.phase() else { panic!() };
    let first = running.unsaved[0].ticket;
    stage.send(Event::Saved { ticket: first, result: Ok(()) });
    assert_eq!(
        stage.sandbox_after(renew),
        Sandbox { expires_at: noon() + HOUR, ..acknowledged },
        "the lease is still on its way"
    );
}

#[test]
fn a_renewal_never_brings_the_end_closer() {
    let mut stage = Stage::running();
    let before = stage.seen().unwrap().expires_at;
    let renew = stage.renew(Duration::from_secs(1));
    assert_eq!(stage.sandbox_after(renew).expires_at, before);
}

#[test]
fn a_renewal_that_cannot_be_saved_is_undone() {
    let mut stage = Stage::running();
    let before = stage.seen().unwrap().expires_at;
    stage.disk_is(DiskIs::Full);
    let renew = stage.renew(HOUR);
    assert_eq!(stage.sandbox_answer(renew), Err(not_saved()));
    assert_eq!((stage.seen().unwrap().expires_at, stage.deadline), (before, Some(before)));
    assert!(stage.lifecycle.is_settled());
}

#[test]
fn a_renewal_that_came_first_wins_over_the_deadline() {
    for disk in [DiskIs::Fine, DiskIs::Stuck] {
        let mut stage = Stage::running();
        stage.wait(request().ttl());
        stage.disk_is(disk);
        stage.renew(HOUR);
        stage.due();
        assert_eq!(stage.seen().unwrap().status, Status::Running);
        assert_eq!(stage.deadline, Some(stage.now + HOUR));
    }
}

#[test]
fn a_deadline_that_came_first_wins_over_the_renewal() {
    let mut stage = Stage::running();
    stage.wait_until_due();
    let renew = stage.renew(HOUR);
    let refused = SandboxError::NotRunning { chat: request().chat, status: Status::Deleting };
    assert_eq!(stage.sandbox_answer(renew), Err(refused));
}

#[test]
fn a_renewal_past_the_deadline_that_cannot_be_saved_leaves_the_sandbox_at_its_end() {
    let mut stage = Stage::running();
    stage.wait(request().ttl());
    stage.disk_is(DiskIs::Stuck);
    stage.renew(HOUR);
    stage.disk_is(DiskIs::Full);
    assert_eq!(stage.deadline, Some(noon() + request().ttl()));
    stage.due();
    assert_eq!(stage.seen().unwrap().reason, Reason::Expired);
}

#[test]
fn a_renewal_that_cannot_be_saved_takes_those_that_were_built_on_it_along() {
    let mut stage = Stage::running();
    let before = stage.seen().unwrap().expires_at;
    stage.disk_is(DiskIs::Stuck);
    let renewals = [stage.renew(HOUR), stage.renew(2 * HOUR), stage.renew(3 * HOUR)];
    stage.write_times_out();
    for renewal in renewals {
        assert!(matches!(stage.sandbox_answer(renewal), Err(SandboxError::NotSaved { .. })));
    }
    assert_eq!(stage.seen().unwrap().expires_at, before);
    stage.disk_is(DiskIs::Fine);
    assert_eq!(stage.on_disk().unwrap().expires_at, before, "though each of them got to the disk after all");
    stage.assert_no_open_effects();
}

#[test]
fn a_renewal_on_disk_carries_those_before_it() {
    let mut stage = Stage::running();
    let renew = |stage: &mut Stage, ttl| {
        let waiter = stage.renew(ttl);
        let Phase::Running(running) = stage.lifecycle.phase() else { panic!() };
        (waiter, running.unsaved.last().unwrap().ticket)
    };
    stage.disk_is(DiskIs::Stuck);
    let ((first, failed), (second, saved)) = (renew(&mut stage, HOUR), renew(&mut stage, 2 * HOUR));
    stage.send(Event::Saved { ticket: saved, result: Ok(()) });
    stage.send(Event::Saved { ticket: failed, result: Err(no_room()) });
    assert_eq!([first, second].map(|waiter| stage.sandbox_after(waiter).expires_at), [noon() + 2 * HOUR; 2]);
    assert_eq!(stage.seen().unwrap().expires_at, noon() + 2 * HOUR, "no acknowledged change is undone");
}

#[test]
fn waiting_changes_are_answered_when_the_sandbox_ends() {
    for (end, status) in [("delete", Status::Deleting), ("death", Status::Failed), ("expiry", Status::Deleting)] {
        let mut stage = Stage::running();
        stage.disk_is(DiskIs::Stuck);
        let renew = stage.renew(HOUR);
        match end {
            "delete" => _ = stage.delete(),
            "death" => stage.dies(),
            _ => {
                stage.wait(2 * HOUR);
                stage.due();
            }
        }
        assert_eq!(stage.sandbox_answer(renew), Err(SandboxError::NotRunning { chat: request().chat, status }));
        stage.disk_is(DiskIs::Fine);
        assert_eq!(stage.on_disk().unwrap().status, status);
    }
}

#[test]
fn renew_touch_and_lease_need_a_running_sandbox() {
    let chat = request().chat;
    let not_running = |status| SandboxError::NotRunning { chat, status };
    let creating = {
        let mut stage = Stage::absent();
        stage.create();
        stage
    };
    for (mut stage, error) in [
        (Stage::absent(), SandboxError::NotFound { chat }),
        (creating, not_running(Status::Creating)),
        (Stage::adopting(&found(ended())), not_running(Status::Failed)),
        (Stage::deleting(), not_running(Status::Deleting)),
    ] {
        let asked = [stage.renew(HOUR), stage.touch(), stage.lease(lease(10, true)), stage.release(LeaseId::random())];
        for waiter in asked {
            assert_eq!(stage.sandbox_answer(waiter), Err(error.clone()));
        }
    }
}

#[test]
fn an_unknown_sandbox_is_discovered_before_it_is_renewed() {
    let mut stage = Stage::unknown();
    let (renew, touch) = (stage.renew(HOUR), stage.touch());
    assert!(stage.is_waiting(renew) && stage.is_waiting(touch));
    stage.discovered(Ok(Some(found(ContainerState::Running))));
    assert_eq!(stage.sandbox_after(renew).expires_at, noon() + HOUR);
    stage.sandbox_after(touch);

    let mut silent = Stage::unknown();
    let renew = silent.renew(HOUR);
    silent.discovered(Err(unreachable()));
    let unknown = SandboxError::Unknown { chat: request().chat, error: unreachable() };
    assert_eq!(silent.sandbox_answer(renew), Err(unknown), "which is not the same as having none");
}

#[test]
fn a_touch_only_counts_as_activity() {
    let mut stage = idle_after(10);
    let before = stage.seen().unwrap();
    stage.wait(Duration::from_secs(9));
    let touch = stage.touch();
    let sandbox = stage.sandbox_after(touch);
    assert_eq!(sandbox, Sandbox { last_activity_at: stage.now, ..before });
    assert_eq!(sandbox.end(), (at(19), Reason::Idle));
}

#[test]
fn activity_is_saved_no_more_often_than_every_few_seconds() {
    let mut stage = Stage::running();
    for _ in 0..12 {
        stage.wait(Duration::from_secs(1));
        stage.touch();
    }
    assert_eq!(stage.saved_activities, [at(5), at(10)]);
    assert_eq!(stage.on_disk().unwrap().last_activity_at, at(10));
    assert_eq!(stage.seen().unwrap().last_activity_at, at(12));
}

#[test]
fn reuse_is_saved_like_any_activity() {
    let mut stage = Stage::running();
    stage.wait(GRAIN);
    let create = stage.create();
    stage.checked(Liveness::Alive);
    stage.created(create);
    assert_eq!(stage.saved_activities, [stage.now]);
}

#[test]
fn unsaved_activity_is_flushed_once() {
    let mut stage = Stage::running();
    assert!(stage.lifecycle.flush().is_none(), "a new sandbox is on disk as it is");
    stage.wait(Duration::from_secs(1));
    stage.touch();
    let flushed = stage.lifecycle.flush();
    assert!(matches!(flushed, Some(Effect::SaveActivity { at, .. }) if at == stage.now), "{flushed:?}");
    assert!(stage.lifecycle.flush().is_none());
}

#[test]
fn a_saved_change_includes_the_activity() {
    let mut stage = Stage::running();
    stage.wait(HOUR);
    stage.renew(HOUR);
    assert_eq!(stage.on_disk().unwrap().last_activity_at, stage.now);
    assert!(stage.saved_activities.is_empty(), "no separate activity write is needed");
    assert!(stage.lifecycle.flush().is_none());
}

#[test]
fn a_lease_holds_off_both_deadlines_and_its_end_counts_as_use() {
    let mut stage = idle_after(60);
    let held = stage.lease(lease(1000, false));
    assert_eq!(stage.sandbox_after(held).held_until, Some(at(1000)));
    assert_eq!(stage.deadline, Some(at(1000)), "past its absolute deadline, it ends with the lease");
    stage.wait_until_due();
    assert_eq!(stage.seen().unwrap().reason, Reason::Expired);

    let mut stage = idle_after(60);
    stage.renew(HOUR);
    stage.lease(lease(1000, false));
    assert_eq!(stage.deadline, Some(at(1060)), "idle time counts from its end");
    stage.wait_until_due();
    assert_eq!(stage.seen().unwrap().reason, Reason::Idle);
}

#[test]
fn a_command_holds_off_idleness_but_never_the_absolute_end() {
    let mut stage = idle_after(60);
    let running = command(1000);
    let held = stage.lease(running);
    let sandbox = stage.sandbox_after(held);
    assert_eq!((sandbox.held_until, held_by(&sandbox)), (None, vec![(running.holder, at(1000))]));
    assert_eq!(stage.deadline, Some(sandbox.expires_at), "its time to live is absolute");
    stage.wait(Duration::from_secs(200));
    let prolonged = stage.lease(running);
    assert_eq!(held_by(&stage.sandbox_after(prolonged)), [(running.holder, at(1200))]);
    assert_eq!(stage.deadline, Some(sandbox.expires_at));
    stage.wait_until_due();
    let ended = stage.seen().unwrap();
    assert_eq!((ended.reason, ended.held_by), (Reason::Expired, vec![]));

    let mut stage = idle_after(60);
    stage.renew(HOUR);
    stage.lease(running);
    stage.wait(Duration::from_secs(200));
    stage.release(running.id);
    assert_eq!(stage.deadline, Some(at(260)), "idle time counts from its end");
}

#[test]
fn leases_that_are_taken_again_and_again_end_at_most_the_maximum_past_the_time_to_live() {
    let mut stage = idle_after(60);
    let expires_at = stage.seen().unwrap().expires_at;
    let latest = expires_at + MAX_LEASE;
    let anew = lease(MAX_LEASE.as_secs(), true);
    stage.lease(anew);
    while stage.now + MAX_LEASE / 4 < latest {
        stage.wait(MAX_LEASE / 4);
        let (again, another) = (stage.lease(anew), stage.lease(lease(MAX_LEASE.as_secs(), false)));
        for waiter in [again, another] {
            let sandbox = stage.sandbox_after(waiter);
            assert!(sandbox.held_until <= Some(latest), "{sandbox:?}");
            assert!(sandbox.held_by.iter().all(|hold| hold.until <= latest), "{sandbox:?}");
        }
        stage.release_all_but(anew.id);
    }
    assert_eq!((stage.deadline, stage.seen().unwrap().held_until), (Some(latest), Some(latest)));
    stage.wait_until_due();
    assert_eq!(stage.seen().unwrap().reason, Reason::Expired);
}

#[test]
fn a_renewal_moves_the_end_that_leases_are_measured_from() {
    let mut stage = idle_after(60);
    let held = lease(MAX_LEASE.as_secs(), false);
    stage.lease(held);
    stage.wait(MAX_LEASE - Duration::from_secs(60));
    stage.lease(held);
    let before = stage.seen().unwrap();
    assert_eq!(before.held_until, Some(before.expires_at + MAX_LEASE));
    stage.renew(HOUR);
    assert_eq!(stage.seen().unwrap().held_until, Some(stage.now + MAX_LEASE), "as long as it was asked for");
    stage.disk_is(DiskIs::Full);
    let lost = stage.renew(10 * HOUR);
    stage.sandbox_answer(lost).unwrap_err();
    let sandbox = stage.seen().unwrap();
    assert!(sandbox.held_until <= Some(sandbox.expires_at + MAX_LEASE));
}

#[test]
fn a_durable_lease_from_an_earlier_run_is_held_to_the_maximum() {
    let far = found(ContainerState::Running).sandbox(noon());
    let far = Sandbox { held_until: Some(at(1_000_000)), ..far };
    let latest = far.expires_at + MAX_LEASE;
    let mut stage = Stage::resuming(far);
    assert_eq!((stage.deadline, stage.seen().unwrap().held_until), (Some(latest), Some(latest)));
}

#[test]
fn releasing_a_lease_counts_as_use_and_leaves_the_others() {
    let mut stage = idle_after(60);
    let (long, short) = (lease(1000, false), lease(100, false));
    stage.renew(HOUR);
    stage.lease(long);
    stage.lease(short);
    stage.wait(Duration::from_secs(10));
    let release = stage.release(long.id);
    assert_eq!(stage.sandbox_after(release).held_until, Some(at(100)));
    assert_eq!(stage.deadline, Some(at(160)));
    let release = stage.release(short.id);
    assert_eq!(stage.sandbox_after(release).held_until, None);
    assert_eq!(stage.deadline, Some(at(70)));
}

#[test]
fn a_lease_too_many_is_refused_until_another_one_ends() {
    let mut stage = idle_after(60);
    stage.renew(HOUR);
    let first = lease(10, false);
    stage.lease(first);
    for _ in 1..rules().max_leases {
        stage.lease(lease(100, true));
    }
    let refused = stage.lease(lease(1000, false));
    let error = SandboxError::TooManyLeases { chat: request().chat, limit: rules().max_leases };
    assert_eq!(stage.sandbox_answer(refused), Err(error));
    assert_eq!(stage.seen().unwrap().held_until, Some(at(100)), "the refused lease does not hold it");
    let again = stage.lease(Lease { duration: Duration::from_secs(20), ..first });
    stage.sandbox_after(again);
    stage.wait(Duration::from_secs(20));
    let accepted = stage.lease(lease(1000, false));
    assert_eq!(stage.sandbox_after(accepted).held_until, Some(at(1020)));
}

#[test]
fn a_lease_that_is_not_there_cannot_be_released() {
    let mut stage = Stage::running();
    let unknown = LeaseId::random();
    let release = stage.release(unknown);
    let error = SandboxError::NoSuchLease { chat: request().chat, lease: unknown };
    assert_eq!(stage.sandbox_answer(release), Err(error));
}

#[test]
fn a_durable_lease_is_on_disk_when_acknowledged_and_one_of_a_connection_never_is() {
    let mut stage = Stage::running();
    stage.disk_is(DiskIs::Stuck);
    let of_connection = stage.lease(lease(2000, false));
    assert_eq!(stage.sandbox_after(of_connection).held_until, Some(at(2000)));
    let durable = stage.lease(lease(1000, true));
    assert!(stage.is_waiting(durable));
    stage.disk_is(DiskIs::Fine);
    assert_eq!(stage.sandbox_after(durable).held_until, Some(at(2000)));
    assert_eq!(stage.on_disk().unwrap().held_until, Some(at(1000)));
    stage.renew(2 * HOUR);
    assert_eq!(stage.on_disk().unwrap().held_until, Some(at(1000)), "also after other saves");
}

#[test]
fn a_durable_lease_that_cannot_be_saved_or_given_back_is_as_it_was() {
    let mut stage = Stage::running();
    let (first, second) = (lease(1000, true), lease(2000, true));
    stage.lease(first);
    stage.disk_is(DiskIs::Full);
    let taken = stage.lease(second);
    assert_eq!(stage.sandbox_answer(taken), Err(not_saved()));
    assert_eq!(stage.seen().unwrap().held_until, Some(at(1000)));
    let longer = stage.lease(Lease { duration: HOUR, ..first });
    assert_eq!(stage.sandbox_answer(longer), Err(not_saved()));
    assert_eq!(stage.seen().unwrap().held_until, Some(at(1000)));
    let given_back = stage.release(first.id);
    assert_eq!(stage.sandbox_answer(given_back), Err(not_saved()));
    assert_eq!((stage.seen().unwrap().held_until, stage.deadline), (Some(at(1000)), Some(at(1000))));
    stage.disk_is(DiskIs::Fine);
    let again = stage.release(first.id);
    assert_eq!(stage.sandbox_after(again).held_until, None);
}

#[test]
fn leases_outlast_a_crash_of_the_sandbox_but_only_durable_ones_are_saved() {
    let mut stage = Stage::running_under(rules_with(OnExpire::Delete, Restart::OnFailure));
    let (durable, of_connection) = (lease(1000, true), lease(2000, false));
    stage.lease(durable);
    stage.lease(of_connection);
    stage.dies();
    assert_eq!(stage.seen().unwrap().held_until, Some(at(2000)));
    assert_eq!(stage.on_disk().unwrap().held_until, Some(at(1000)));
    stage.restart();
    stage.relaunch_succeeds();
    assert_eq!(stage.seen().unwrap().held_until, Some(at(2000)));
    let release = stage.release(of_connection.id);
    assert_eq!(stage.sandbox_after(release).held_until, Some(at(1000)));
    let release = stage.release(durable.id);
    assert_eq!(stage.sandbox_after(release).held_until, None);
}

#[test]
fn a_lease_can_be_released_while_the_sandbox_is_down() {
    let mut stage = Stage::running_under(rules_with(OnExpire::Delete, Restart::OnFailure));
    let (durable, of_connection) = (lease(1000, true), lease(2000, false));
    stage.lease(durable);
    stage.lease(of_connection);
    stage.dies();
    let release = stage.release(of_connection.id);
    assert_eq!(stage.sandbox_after(release).held_until, Some(at(1000)));
    assert_eq!(stage.deadline, Some(at(1000)));
    stage.restart();
    let release = stage.release(durable.id);
    assert_eq!(stage.sandbox_after(release).status, Status::Creating);
    assert_eq!(stage.on_disk().unwrap().status, Status::Failed, "on disk it stays as acknowledged");
    stage.relaunch_succeeds();
    assert_eq!(stage.seen().unwrap().held_until, None);
    assert_eq!(stage.on_disk().unwrap().held_until, None);
}

#[test]
fn a_new_sandbox_does_not_inherit_the_leases_of_the_one_before() {
    let mut stage = Stage::running();
    let held = lease(1000, true);
    stage.lease(held);
    stage.delete();
    let create = stage.create();
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).sandbox.held_until, None);
    let release = stage.release(held.id);
    assert!(matches!(stage.sandbox_answer(release), Err(SandboxError::NoSuchLease { .. })));
}

#[test]
fn a_hold_from_an_earlier_run_is_independent_of_other_leases() {
    let held = Sandbox { held_until: Some(at(1000)), ..found(ContainerState::Running).sandbox(noon()) };
    let mut stage = Stage::resuming(held);
    assert_eq!(stage.deadline, Some(at(1000)));
    let of_connection = lease(10, false);
    stage.lease(of_connection);
    let release = stage.release(of_connection.id);
    assert_eq!(stage.sandbox_after(release).held_until, Some(at(1000)));
    stage.renew(HOUR);
    assert_eq!(stage.on_disk().unwrap().held_until, Some(at(1000)));
}

#[test]
fn a_clock_that_jumps_takes_idle_time_and_leases_along_but_no_absolute_deadline() {
    let mut stage = idle_after(60);
    stage.renew(HOUR);
    let expires_at = stage.seen().unwrap().expires_at;
    stage.now += HOUR / 2;
    stage.send(Event::ClockStepped { by: TimeDelta::from_std(HOUR / 2).unwrap() });
    let sandbox = stage.seen().unwrap();
    assert_eq!((sandbox.last_activity_at, sandbox.expires_at), (stage.now, expires_at));
    assert_eq!(stage.deadline, Some(stage.now + Duration::from_secs(60)));

    let unsaved = stage.lifecycle.flush();
    stage.receive(unsaved.into_iter().collect());
    assert_eq!(stage.on_disk().unwrap().last_activity_at, stage.now);
    assert!(stage.lifecycle.flush().is_none(), "it is saved once");

    stage.lease(lease(100, false));
    stage.now -= HOUR / 4;
    stage.send(Event::ClockStepped { by: -TimeDelta::from_std(HOUR / 4).unwrap() });
    let sandbox = stage.seen().unwrap();
    assert_eq!(sandbox.held_until, Some(stage.now + Duration::from_secs(100)));
    assert_eq!((sandbox.last_activity_at, sandbox.expires_at), (stage.now, expires_at));
}

#[test]
fn a_clock_that_jumps_past_the_absolute_deadline_ends_the_sandbox() {
    let mut stage = Stage::running();
    stage.now += HOUR;
    stage.send(Event::ClockStepped { by: TimeDelta::from_std(HOUR).unwrap() });
    stage.due();
    assert_eq!(stage.seen().unwrap().reason, Reason::Expired);
}

#[test]
fn a_clock_step_is_ignored_without_a_sandbox() {
    for mut stage in [Stage::absent(), Stage::unknown(), Stage::deleting()] {
        let open = stage.open.len();
        stage.send(Event::ClockStepped { by: TimeDelta::hours(1) });
        assert_eq!((stage.open.len(), stage.deadline), (open, None));
    }
}

#[test]
fn a_lease_that_comes_back_because_it_could_not_be_released_has_followed_the_clock() {
    let mut stage = Stage::running();
    let held = lease(1000, true);
    stage.lease(held);
    stage.disk_is(DiskIs::Stuck);
    stage.release(held.id);
    stage.now += HOUR;
    stage.send(Event::ClockStepped { by: TimeDelta::hours(1) });
    stage.disk_is(DiskIs::Full);
    assert_eq!(stage.seen().unwrap().held_until, Some(at(3600 + 1000)));
    stage.disk_is(DiskIs::Fine);
    assert_eq!(stage.on_disk().unwrap().held_until, Some(at(3600 + 1000)));
}
