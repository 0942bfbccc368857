//! Pauses and resumes, on an engine that fails.

use sandboxd_actors::domain::outcome::{Deletion, Outcome, SandboxError};
use sandboxd_actors::domain::sandbox::{Reason, Status};
use sandboxd_actors::ports::engine::fake::Fault;
use sandboxd_actors::ports::engine::{ContainerState, EngineError, Operation};
use sandboxd_actors::reconciler::Trigger;
use tokio::time::Instant;

use crate::support::{ENGINE_LIMIT, Service, in_time, request};

#[tokio::test(start_paused = true)]
async fn a_pause_that_hangs_is_answered_at_its_deadline_and_the_sandbox_runs_on() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    service.engine.fail_next(Operation::Pause, Fault::Hang);
    let asked = Instant::now();
    let failure = service.sandboxes.pause(request.chat).await.expect_err("the engine does not answer");
    assert!(matches!(failure, SandboxError::NotPaused { error: EngineError::TimedOut { .. }, .. }), "{failure:?}");
    assert_eq!(asked.elapsed(), ENGINE_LIMIT);
    assert_eq!(service.sandbox(request.chat).await.map(|sandbox| sandbox.status), Some(Status::Running));
    assert_eq!(service.sandboxes.pause(request.chat).await.map(|sandbox| sandbox.status), Ok(Status::Paused));
    assert_eq!(service.container().state, ContainerState::Paused);
}

#[tokio::test(start_paused = true)]
async fn a_pause_or_resume_whose_answer_was_lost_counts_as_done() {
    let service = Service::start().await;
    let request = request();
    let created = service.created(&request).await;
    service.engine.fail_next(Operation::Pause, Fault::answer_lost());
    let paused = service.sandboxes.pause(request.chat).await.expect("it is paused");
    assert_eq!((paused.status, paused.reason), (Status::Paused, Reason::Requested));
    service.engine.fail_next(Operation::Unpause, Fault::answer_lost());
    let reused = service.created(&request).await;
    assert_eq!((reused.outcome, reused.sandbox.session), (Outcome::Reused, created.sandbox.session));
    assert_eq!(reused.sandbox.status, Status::Running);
    service.engine.fail_next(Operation::Pause, Fault::Panic);
    let failure = service.sandboxes.pause(request.chat).await.expect_err("a defect is no pause");
    assert!(matches!(failure, SandboxError::NotPaused { .. }), "{failure:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_resume_is_reported_and_the_sandbox_stays_paused() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    service.sandboxes.pause(request.chat).await.expect("it is paused");
    service.engine.fail_always(Operation::Unpause, Fault::unreachable());
    let failures = [
        service.sandboxes.create(request.clone()).await.expect_err("it is paused"),
        service.sandboxes.touch(request.chat).await.expect_err("it is paused"),
    ];
    for failure in failures {
        assert!(matches!(failure, SandboxError::NotResumed { .. }), "{failure:?}");
    }
    assert_eq!(service.sandbox(request.chat).await.map(|sandbox| sandbox.status), Some(Status::Paused));
    service.engine.heal();
    assert_eq!(service.created(&request).await.outcome, Outcome::Reused);
}

#[tokio::test(start_paused = true)]
async fn a_delete_does_not_wait_for_a_pause_or_a_resumption() {
    let service = Service::start().await;
    for operation in [Operation::Pause, Operation::Unpause] {
        let request = request();
        service.created(&request).await;
        if operation == Operation::Unpause {
            service.sandboxes.pause(request.chat).await.expect("it is paused");
        }
        let (calls, gate) = (service.engine.calls(operation), service.engine.hold_next(operation));
        let waiting = {
            let (sandboxes, chat) = (service.sandboxes.clone(), request.chat);
            tokio::spawn(async move {
                match operation {
                    Operation::Pause => sandboxes.pause(chat).await,
                    _ => sandboxes.touch(chat).await,
                }
            })
        };
        in_time(service.engine.reached(operation, calls + 1)).await;
        let deleted = service.sandboxes.delete(request.chat).await;
        assert!(matches!(deleted, Ok(Deletion::Deleted { .. })), "{deleted:?}");
        let failure = waiting.await.expect("no panic").expect_err("it is gone");
        assert!(matches!(failure, SandboxError::NotRunning { status: Status::Deleting, .. }), "{failure:?}");
        gate.open();
        service.until_all_retired().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_external_pause_without_an_event_is_found_by_the_next_pass() {
    let service = Service::start().await;
    let request = request();
    let created = service.created(&request).await;
    let container = created.sandbox.container.expect("it has a container");
    service.engine.fail_always(Operation::Watch, Fault::unreachable());
    service.engine.break_streams();
    for (paused, status) in [(true, Status::Paused), (false, Status::Running)] {
        service.engine.set_paused(&container, paused);
        service.sandboxes.reconcile(Trigger::Request, false).await.expect("the engine answers");
        service.until_status(request.chat, status).await;
        let sandbox = service.sandbox(request.chat).await.expect("it is there");
        assert_eq!((sandbox.session, sandbox.reason), (created.sandbox.session, Reason::ByOthers));
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_sandbox_is_adopted_as_paused_with_and_without_a_journal() {
    let service = Service::start().await;
    let request = request();
    let created = service.created(&request).await;
    service.sandboxes.pause(request.chat).await.expect("it is paused");
    let next = service.next_run().await;
    next.adopt().await.expect("the engine answers");
    let without_a_journal = Service::unlisted(service.engine.clone()).await;
    without_a_journal.adopt().await.expect("the engine answers");
    for (run, reason) in [(&next, Reason::Requested), (&without_a_journal, Reason::Adopted)] {
        let sandbox = run.sandbox(request.chat).await.expect("it is there");
        assert_eq!((sandbox.status, sandbox.reason), (Status::Paused, reason));
        assert_eq!(sandbox.session, created.sandbox.session);
    }
    assert_eq!(without_a_journal.created(&request).await.outcome, Outcome::Reused);
}
