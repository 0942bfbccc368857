//! Deletes: forced, idempotent, and retried until they succeed.

use std::time::Duration;

use sandboxd_actors::domain::outcome::{Deletion, RemovalError, SandboxError, StartFailure};
use sandboxd_actors::domain::profile::ReadinessCheck;
use sandboxd_actors::domain::sandbox::Status;
use sandboxd_actors::ports::engine::fake::Fault;
use sandboxd_actors::ports::engine::{EngineError, Operation};
use tokio::time::Instant;

use crate::support::{Behaviour, Service, TEARDOWN, in_time, ready_when, request, start_failure};

#[tokio::test]
async fn delete_removes_the_sandbox_and_is_idempotent() {
    let service = Service::start().await;
    let request = request();
    let sandbox = service.created(&request).await.sandbox;
    let deleted = Deletion::Deleted { session: sandbox.session, container: sandbox.container, snapshot: None };
    assert_eq!(service.sandboxes.delete(request.chat).await, Ok(deleted));
    assert_eq!(service.engine.containers(), []);
    assert_eq!(service.engine.calls(Operation::Stop), 1, "gracefully first");
    assert_eq!(service.sandboxes.delete(request.chat).await, Ok(Deletion::NotFound));
    assert_eq!(service.sandbox(request.chat).await, None);
}

#[tokio::test]
async fn a_container_that_is_already_gone_counts_as_deleted() {
    let service = Service::start().await;
    let request = request();
    let sandbox = service.created(&request).await.sandbox;
    service.engine.vanish(sandbox.container.as_ref().unwrap());
    let deleted = Deletion::Deleted { session: sandbox.session, container: sandbox.container, snapshot: None };
    assert_eq!(service.sandboxes.delete(request.chat).await, Ok(deleted));
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_stopped_gracefully_is_removed_all_the_same() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    service.engine.fail_next(Operation::Stop, Fault::unreachable());
    service.sandboxes.delete(request.chat).await.unwrap();
    assert_eq!(service.engine.containers(), []);
}

#[tokio::test]
async fn delete_during_create_leaves_no_container_wherever_the_create_is() {
    for operation in [Operation::Create, Operation::Start, Operation::Inspect] {
        let service = Service::start().await;
        let request = request();
        let gate = service.engine.hold_next(operation);
        let create = service.creating(&request);
        service.reached(operation).await;
        let sandboxes = service.sandboxes.clone();
        let delete = tokio::spawn(async move { sandboxes.delete(request.chat).await });
        let cancelling = async {
            while service.sandbox(request.chat).await.is_some_and(|sandbox| sandbox.status != Status::Deleting) {
                tokio::task::yield_now().await;
            }
        };
        in_time(cancelling).await;
        gate.open();
        let deleted = in_time(delete).await.unwrap().unwrap();
        assert!(matches!(deleted, Deletion::Deleted { .. }), "{operation}: {deleted:?}");
        assert_eq!(start_failure(create.await.unwrap()), StartFailure::Deleted, "{operation}");
        assert_eq!(service.engine.containers(), [], "{operation}");
        if operation == Operation::Create {
            assert_eq!(service.engine.calls(Operation::Start), 0, "a container that will be removed is not started");
        }
        service.until_all_retired().await;
    }
}

#[tokio::test]
async fn delete_during_a_readiness_check_ends_it_at_once() {
    let service = Service::start().await;
    service.probe.behave(Behaviour::Hang);
    let request = ready_when(ReadinessCheck::Tcp { port: 80 }, Duration::from_secs(3600));
    let create = service.creating(&request);
    service.probe.tried(1).await;
    in_time(service.sandboxes.delete(request.chat)).await.unwrap();
    assert_eq!(start_failure(create.await.unwrap()), StartFailure::Deleted);
    assert_eq!(service.engine.containers(), []);
    service.until_all_retired().await;
}

#[tokio::test]
async fn delete_while_the_chat_directory_hangs_creates_no_container() {
    let service = Service::start().await;
    service.directories.hang();
    let request = request();
    let create = service.creating(&request);
    service.until_served(1).await;
    in_time(service.sandboxes.delete(request.chat)).await.unwrap();
    assert_eq!(start_failure(create.await.unwrap()), StartFailure::Deleted);
    assert_eq!(service.engine.calls(Operation::Create), 0);
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_fails_three_times_is_owed_and_done_without_being_asked_again() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    for _ in 0..3 {
        service.engine.fail_next(Operation::Remove, Fault::unreachable());
    }
    let owed = service.sandboxes.delete(request.chat).await;
    assert!(matches!(owed, Err(SandboxError::DeleteOwed { .. })), "{owed:?}");
    assert_eq!(service.sandbox(request.chat).await.unwrap().status, Status::Deleting);
    service.until_empty().await;
    assert_eq!(service.engine.calls(Operation::Remove), 4);
    service.until_all_retired().await;
}

/// The error of dockerd when the files of a container vanish while it removes them.
fn not_empty() -> Fault {
    let message = "unable to remove filesystem for c1: unlinkat /var/lib/docker/c1: directory not empty".into();
    Fault::Fail(EngineError::Refused { operation: Operation::Remove, message })
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_the_engine_refuses_for_a_moment_is_no_failure() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    for _ in 0..3 {
        service.engine.fail_next(Operation::Remove, not_empty());
    }
    let asked = Instant::now();
    let deleted = service.sandboxes.delete(request.chat).await;
    assert!(matches!(deleted, Ok(Deletion::Deleted { .. })), "{deleted:?}");
    assert_eq!(service.engine.calls(Operation::Remove), 4);
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    assert_eq!(service.engine.containers(), []);
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_the_engine_goes_on_refusing_is_owed_within_its_limit() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    service.engine.fail_always(Operation::Remove, not_empty());
    let asked = Instant::now();
    let owed = service.sandboxes.delete(request.chat).await;
    let why = RemovalError::Engine(match not_empty() {
        Fault::Fail(error) => error,
        other => panic!("{other:?}"),
    });
    assert_eq!(owed, Err(SandboxError::DeleteOwed { chat: request.chat, error: why }));
    assert!(service.engine.calls(Operation::Remove) > 1);
    assert!(asked.elapsed() <= TEARDOWN.remove, "{:?}", asked.elapsed());
    service.engine.heal();
    service.until_empty().await;
    service.until_all_retired().await;
}

#[tokio::test]
async fn a_removal_whose_answer_was_lost_is_seen_to_have_happened() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    service.engine.fail_next(Operation::Remove, Fault::answer_lost());
    let deleted = service.sandboxes.delete(request.chat).await;
    assert!(matches!(deleted, Ok(Deletion::Deleted { .. })), "{deleted:?}");
}

#[tokio::test]
async fn a_delete_whose_caller_went_away_is_finished() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    let gate = service.engine.hold_next(Operation::Stop);
    let sandboxes = service.sandboxes.clone();
    let delete = tokio::spawn(async move { sandboxes.delete(request.chat).await });
    service.reached(Operation::Stop).await;
    delete.abort();
    assert!(delete.await.unwrap_err().is_cancelled());
    gate.open();
    service.until_empty().await;
    service.until_all_retired().await;
}

#[tokio::test]
async fn a_removal_whose_answer_was_lost_or_wrong_is_verified_and_tried_again_at_once() {
    for (fault, tries) in [(Fault::FalseSuccess, 2), (Fault::broken_off(), 2), (Fault::answer_lost(), 1)] {
        let service = Service::start().await;
        let request = request();
        service.created(&request).await;
        service.engine.fail_next(Operation::Remove, fault.clone());
        service.sandboxes.delete(request.chat).await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_eq!(service.engine.containers(), [], "{fault:?}");
        assert_eq!(service.engine.calls(Operation::Remove), tries, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_the_engine_only_reports_is_owed() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    service.engine.fail_always(Operation::Remove, Fault::FalseSuccess);
    let owed = service.sandboxes.delete(request.chat).await.unwrap_err();
    assert!(matches!(owed, SandboxError::DeleteOwed { .. }), "{owed}");
    service.container();
    assert_eq!(service.journal.sandboxes().len(), 1, "the record stays");
    service.engine.heal();
    service.until_empty().await;
    service.until_all_retired().await;
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_cannot_be_verified_is_owed() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    service.engine.fail_always(Operation::Inspect, Fault::unreachable());
    let owed = service.sandboxes.delete(request.chat).await.unwrap_err();
    assert!(matches!(owed, SandboxError::DeleteOwed { .. }), "{owed}");
    assert_eq!(service.journal.sandboxes().len(), 1, "the record stays");
    service.engine.heal();
    service.until_all_retired().await;
    assert_eq!(service.journal.sandboxes(), []);
}
