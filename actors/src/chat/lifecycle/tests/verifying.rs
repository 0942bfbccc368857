//! Checks before a sandbox is handed out again after a while, and after an engine event.

use super::*;

/// With a sandbox that was last seen alive too long ago to be trusted.
fn unseen_for_a_while() -> Stage {
    let mut stage = Stage::running();
    stage.wait(TRUST + Duration::from_millis(1));
    stage
}

#[test]
fn a_sandbox_that_was_seen_recently_is_handed_out_without_a_check() {
    let mut stage = Stage::running();
    stage.wait(TRUST);
    let create = stage.create();
    assert_eq!(stage.created(create).outcome, Outcome::Reused);
    stage.assert_no_open_effects();
}

#[test]
fn creates_share_one_check_and_trust_it_afterwards() {
    let mut stage = unseen_for_a_while();
    let creates = [stage.create(), stage.create()];
    stage.checked(Liveness::Alive);
    let reused = creates.map(|create| stage.created(create).sandbox.session);
    assert_eq!(reused[0], reused[1]);
    let later = stage.create();
    stage.created(later);
    stage.assert_no_open_effects();
}

#[test]
fn a_clock_that_went_back_ends_the_trust() {
    let mut stage = Stage::running();
    stage.now -= Duration::from_secs(3600);
    let create = stage.create();
    assert!(stage.is_waiting(create));
    stage.checked(Liveness::Alive);
    stage.created(create);
}

#[test]
fn a_sandbox_that_died_is_replaced_and_its_death_is_published() {
    let mut stage = unseen_for_a_while();
    let creates = [stage.create(), stage.create()];
    let death = Death { exit: Some(out_of_memory()), memory_limit_bytes: Some(64), log_tail: vec!["boom".into()] };
    stage.checked(Liveness::Ended(death));
    let failed = stage.history.iter().find(|t| t.to == Some(Status::Failed)).unwrap();
    assert_eq!(failed.sandbox.reason, Reason::OomKilled);
    assert_eq!(failed.sandbox.message.as_deref(), Some("out of memory at its limit of 64 bytes, last output: boom"));
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    let created = creates.map(|create| stage.created(create));
    assert_eq!(created[0], created[1]);
    assert_eq!(created[0].outcome, Outcome::Replaced);
    stage.assert_no_open_effects();
}

#[test]
fn a_sandbox_that_vanished_is_replaced() {
    let mut stage = unseen_for_a_while();
    let create = stage.create();
    stage.checked(Liveness::Vanished);
    let failed = stage.history.iter().find(|t| t.to == Some(Status::Failed)).unwrap();
    assert_eq!(failed.sandbox.reason, Reason::Vanished);
    let message = failed.sandbox.message.as_deref().unwrap_or_default();
    assert!(message.contains("removed past the service"), "{message}");
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Replaced);
}

#[test]
fn a_sandbox_that_cannot_be_checked_is_handed_out_again() {
    let mut stage = unseen_for_a_while();
    let session = stage.seen().unwrap().session;
    let create = stage.create();
    stage.checked(Liveness::Unknown(unreachable()));
    let reused = stage.created(create);
    assert_eq!((reused.outcome, reused.sandbox.session), (Outcome::Reused, session));
}

#[test]
fn a_create_that_does_not_match_is_refused_without_a_check() {
    let mut stage = unseen_for_a_while();
    let create = stage.create_with(from_another_agent());
    assert_eq!(stage.conflict(create), ["agent_id"]);
    stage.assert_no_open_effects();
}

#[test]
fn a_delete_during_a_check_lets_the_creates_before_it_go_first() {
    let mut stage = unseen_for_a_while();
    let session = stage.seen().unwrap().session;
    let create = stage.create();
    let delete = stage.delete();
    let reused = stage.created(create);
    assert_eq!((reused.outcome, reused.sandbox.session), (Outcome::Reused, session));
    stage.tear_down_succeeds();
    assert_eq!(stage.deleted_session(delete), session);
    stage.checked(Liveness::Vanished);
    stage.assert_idle();
}

#[test]
fn creates_that_wait_for_a_check_when_the_sandbox_expires_get_the_next_one() {
    let mut stage = unseen_for_a_while();
    let old = stage.seen().unwrap().session;
    let waiting = stage.create();
    stage.wait(request().ttl());
    let late = stage.create();
    assert!(stage.is_waiting(waiting), "a sandbox at its end is not handed out");
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    let created = [waiting, late].map(|create| stage.created(create));
    assert_eq!(created[0], created[1]);
    assert_ne!(created[0].sandbox.session, old);
    assert_eq!(created[0].outcome, Outcome::Replaced);
    stage.checked(Liveness::Vanished);
    assert_eq!(stage.seen().unwrap().status, Status::Running, "the check was of the old one");
}

#[test]
fn a_sandbox_that_expires_during_a_check_is_replaced() {
    let mut stage = unseen_for_a_while();
    let create = stage.create();
    stage.wait(request().ttl());
    stage.checked(Liveness::Alive);
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Replaced);
}

#[test]
fn an_engine_event_triggers_a_check_that_finds_the_death() {
    let mut stage = Stage::running();
    stage.engine_event();
    stage.engine_event();
    stage.checked(Liveness::Ended(death()));
    assert_eq!(stage.seen().unwrap().reason, Reason::OomKilled);
    stage.assert_no_open_effects();
}

#[test]
fn a_live_sandbox_is_trusted_again_after_an_engine_event() {
    let mut stage = unseen_for_a_while();
    stage.engine_event();
    stage.checked(Liveness::Alive);
    let create = stage.create();
    assert_eq!(stage.created(create).outcome, Outcome::Reused);
    stage.assert_no_open_effects();
}

#[test]
fn an_event_of_another_container_is_ignored() {
    let mut stage = Stage::running();
    stage.send(Event::EngineEvent { container: ContainerId::new("another") });
    stage.assert_no_open_effects();
}

#[test]
fn an_engine_event_during_a_create_triggers_a_check_when_it_runs() {
    let mut stage = Stage::absent();
    stage.disk_is(DiskIs::Stuck);
    let create = stage.create();
    let container = stage.launch_succeeds();
    stage.send(Event::EngineEvent { container });
    stage.assert_no_open_effects();
    stage.disk_is(DiskIs::Fine);
    stage.created(create);
    stage.checked(Liveness::Ended(death()));
    assert_eq!(stage.seen().unwrap().status, Status::Failed);
}

#[test]
fn a_listing_without_the_live_sandbox_only_triggers_a_check() {
    let mut stage = Stage::running();
    let container = stage.seen().unwrap().container.unwrap();
    stage.send(Event::Listed(Some(LiveContainer { container, paused: false })));
    stage.assert_no_open_effects();
    for shown in [None, Some(another())] {
        stage.send(Event::Listed(shown));
        stage.checked(Liveness::Alive);
        assert_eq!(stage.seen().unwrap().status, Status::Running);
    }
}

#[test]
fn a_listing_is_ignored_by_a_chat_without_a_running_sandbox() {
    for mut stage in [Stage::absent(), Stage::unknown(), Stage::deleting(), Stage::adopting(&found(ended()))] {
        let open = stage.open.len();
        stage.send(Event::Listed(None));
        stage.send(Event::Listed(Some(another())));
        assert_eq!(stage.open.len(), open);
    }
}

fn another() -> LiveContainer {
    LiveContainer { container: ContainerId::new("another"), paused: false }
}

#[test]
fn a_sandbox_whose_service_does_not_answer_is_replaced() {
    let mut stage = unseen_for_a_while();
    let create = stage.create();
    stage.checked(Liveness::Unhealthy("its service does not answer: refused".into()));
    let failed = stage.history.iter().find(|t| t.to == Some(Status::Failed)).unwrap();
    assert_eq!(failed.sandbox.reason, Reason::Unhealthy);
    assert_eq!(failed.sandbox.message.as_deref(), Some("its service does not answer: refused"));
    stage.tear_down_succeeds();
    stage.launch_succeeds();
    assert_eq!(stage.created(create).outcome, Outcome::Replaced);
    stage.assert_no_open_effects();
}

#[test]
fn a_service_that_does_not_answer_ends_no_sandbox_that_no_create_asks_for() {
    let mut stage = unseen_for_a_while();
    stage.engine_event();
    stage.checked(Liveness::Unhealthy("busy".into()));
    assert!(stage.history.iter().all(|t| t.to != Some(Status::Failed)), "{:?}", stage.history);
    let create = stage.create();
    assert!(stage.is_waiting(create), "it was not seen to be well");
    stage.checked(Liveness::Alive);
    assert_eq!(stage.created(create).outcome, Outcome::Reused);
    stage.assert_no_open_effects();
}
