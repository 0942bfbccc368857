//! An engine that does not answer: every caller is answered within its limit, and late containers are removed.
//!
//! Time is virtual here: it jumps to the next deadline whenever no task is ready.

use sandboxd_actors::domain::outcome::{Deletion, Outcome, SandboxError, StartFailure};
use sandboxd_actors::ports::engine::fake::{Fault, Gate};
use sandboxd_actors::ports::engine::{EngineError, Operation};
use tokio::time::Instant;

use crate::support::{ENGINE_LIMIT, Service, TEARDOWN, TRUST, in_time, request};

fn assert_timed_out(failure: &StartFailure, expected: Operation) {
    match failure {
        StartFailure::Engine(EngineError::TimedOut { operation, .. }) => assert_eq!(*operation, expected),
        other => panic!("expected a time-out, got {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_that_hangs_is_answered_at_its_deadline_and_its_late_container_is_removed() {
    let service = Service::start().await;
    let request = request();
    let gate = service.engine.hold_next(Operation::Create);
    let asked = Instant::now();
    assert_timed_out(&service.start_failure(&request).await, Operation::Create);
    assert_eq!(asked.elapsed(), ENGINE_LIMIT);
    assert_eq!(service.sandbox(request.chat).await, None);
    assert_eq!(service.sandboxes.count().await, 1, "the chat waits for the straggler");

    gate.open();
    service.reached(Operation::Remove).await;
    service.until_empty().await;
    service.until_all_retired().await;
}

#[tokio::test(start_paused = true)]
async fn a_straggler_that_cannot_be_removed_at_first_is_removed_in_the_end() {
    let service = Service::start().await;
    let gate = service.engine.hold_next(Operation::Create);
    service.start_failure(&request()).await;
    for fault in [Fault::unreachable(), Fault::Panic, Fault::Hang] {
        service.engine.fail_next(Operation::Remove, fault);
    }
    gate.open();
    in_time(service.engine.reached(Operation::Remove, 4)).await;
    service.until_empty().await;
    service.until_all_retired().await;
}

#[tokio::test(start_paused = true)]
async fn a_straggler_does_not_keep_the_chat_from_a_new_sandbox() {
    let service = Service::start().await;
    let request = request();
    let gate = service.engine.hold_next(Operation::Create);
    service.start_failure(&request).await;
    let created = service.created(&request).await;
    assert_eq!(created.outcome, Outcome::Created);
    gate.open();
    in_time(service.engine.until(|engine| engine.name_clashes() == 1)).await;
    assert_eq!(Some(service.container().id), created.sandbox.container, "the late one was refused by its name");
}

#[tokio::test(start_paused = true)]
async fn a_straggler_that_comes_first_makes_way_for_the_new_sandbox() {
    let service = Service::start().await;
    let request = request();
    let late = service.engine.hold_next(Operation::Create);
    service.start_failure(&request).await;
    // The straggler's container exists, and cannot be removed before the next create finds it.
    let removal = service.engine.hold_next(Operation::Remove);
    late.open();
    service.reached(Operation::Remove).await;
    let created = service.created(&request).await;
    removal.open();
    assert_eq!(service.engine.name_clashes(), 1);
    in_time(service.engine.until(|engine| engine.calls(Operation::Remove) == 2)).await;
    assert_eq!(Some(service.container().id), created.sandbox.container);
}

#[tokio::test(start_paused = true)]
async fn delete_during_a_create_that_hangs_is_answered_and_the_straggler_removed() {
    let service = Service::start().await;
    let request = request();
    let gate = service.engine.hold_next(Operation::Create);
    let create = service.creating(&request);
    service.reached(Operation::Create).await;
    let asked = Instant::now();
    let deleted = service.sandboxes.delete(request.chat).await;
    assert!(matches!(deleted, Ok(Deletion::Deleted { container: None, .. })), "{deleted:?}");
    assert!(asked.elapsed() < ENGINE_LIMIT, "a delete does not wait for the deadline of the cancelled create");
    assert!(create.await.unwrap().is_err());
    gate.open();
    service.reached(Operation::Remove).await;
    service.until_empty().await;
    service.until_all_retired().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_or_a_look_that_hangs_is_answered_at_its_deadline_and_rolled_back() {
    for operation in [Operation::Start, Operation::Inspect] {
        let service = Service::start().await;
        service.engine.fail_next(operation, Fault::Hang);
        let asked = Instant::now();
        assert_timed_out(&service.start_failure(&request()).await, operation);
        assert_eq!(asked.elapsed(), ENGINE_LIMIT);
        assert_eq!(service.engine.containers(), []);
        service.until_all_retired().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_hangs_does_not_keep_the_sandbox_from_being_removed() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    service.engine.fail_next(Operation::Stop, Fault::Hang);
    let asked = Instant::now();
    service.sandboxes.delete(request.chat).await.unwrap();
    assert_eq!(asked.elapsed(), TEARDOWN.graceful);
    assert_eq!(service.engine.containers(), []);
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_hangs_is_answered_within_the_outer_limit_and_owed() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    for operation in [Operation::Stop, Operation::Remove, Operation::Inspect] {
        service.engine.fail_always(operation, Fault::Hang);
    }
    let asked = Instant::now();
    let owed = service.sandboxes.delete(request.chat).await;
    assert!(matches!(owed, Err(SandboxError::DeleteOwed { .. })), "{owed:?}");
    assert!(asked.elapsed() <= TEARDOWN.total, "{:?}", asked.elapsed());
    service.engine.heal();
    service.until_empty().await;
    service.until_all_retired().await;
}

#[tokio::test(start_paused = true)]
async fn a_look_at_a_running_sandbox_that_hangs_hands_it_out_in_the_end() {
    let service = Service::start().await;
    let request = request();
    let session = service.created(&request).await.sandbox.session;
    service.clock.advance(TRUST * 2);
    service.engine.fail_next(Operation::Inspect, Fault::Hang);
    let reused = service.created(&request).await;
    assert_eq!((reused.outcome, reused.sandbox.session), (Outcome::Reused, session));
}

#[tokio::test(start_paused = true)]
async fn a_chat_whose_engine_hangs_disturbs_no_other() {
    let service = Service::start().await;
    let gate = Gate::default();
    service.engine.fail_next(Operation::Create, Fault::Hold(gate.clone()));
    let hanging = service.creating(&request());
    service.reached(Operation::Create).await;
    let asked = Instant::now();
    let other = request();
    service.created(&other).await;
    service.sandboxes.delete(other.chat).await.unwrap();
    assert!(asked.elapsed() < ENGINE_LIMIT, "no limit of another chat passed");
    gate.open();
    hanging.await.unwrap().unwrap();
}
