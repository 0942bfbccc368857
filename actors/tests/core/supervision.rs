//! A failed actor restarts by itself, with the state of the engine, and disturbs no other actor.

use sandboxd_actors::domain::create_request::CreateRequest;
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::outcome::{Created, Outcome, SandboxError, StartFailure};
use sandboxd_actors::ports::clock::Clock;
use sandboxd_actors::ports::engine::fake::{FakeEngine, Fault};
use sandboxd_actors::ports::engine::{ContainerState, EngineError, Health, Operation};

use crate::support::{Service, TestClock, in_time, leave, request};

/// Makes the chat's actor fail in the middle of a request.
async fn crash(service: &Service, chat: ChatId) {
    // The reaper reads the same clock, and may be the actor that fails.
    while {
        service.clock.panic_once();
        !matches!(service.sandboxes.get(chat).await, Err(SandboxError::Recovering { .. }))
    } {}
}

/// Creates a sandbox, with retries as the errors say.
async fn created_with_retries(service: &Service, request: &CreateRequest) -> Created {
    let created = async {
        loop {
            match service.sandboxes.create(request.clone()).await {
                Err(SandboxError::Recovering { retry_after, .. }) => tokio::time::sleep(retry_after).await,
                answer => return answer.expect("the create succeeds"),
            }
        }
    };
    in_time(created).await
}

#[tokio::test(start_paused = true)]
async fn a_chat_whose_actor_fails_comes_back_with_its_sandbox() {
    let service = Service::start().await;
    let (request, other) = (request(), self::request());
    let session = service.created(&request).await.sandbox.session;
    let others = service.created(&other).await.sandbox.session;
    crash(&service, request.chat).await;
    assert_eq!(service.sandbox(other.chat).await.unwrap().session, others, "other chats are not disturbed");
    let again = created_with_retries(&service, &request).await;
    assert_eq!((again.outcome, again.sandbox.session), (Outcome::Reused, session));
    assert_eq!(service.engine.calls(Operation::Create), 2);
}

#[tokio::test(start_paused = true)]
async fn every_caller_of_a_chat_that_fails_gets_a_retry_error() {
    let service = Service::start().await;
    let request = request();
    let gate = service.engine.hold_next(Operation::Start);
    let creates: Vec<_> = (0..5).map(|_| service.creating(&request)).collect();
    service.reached(Operation::Start).await;
    crash(&service, request.chat).await;
    for create in creates {
        let answer = create.await.unwrap();
        assert!(matches!(answer, Err(SandboxError::Recovering { .. })), "{answer:?}");
    }
    gate.open();
    created_with_retries(&service, &request).await;
    service.container();
}

#[tokio::test(start_paused = true)]
async fn a_chat_that_fails_again_and_again_is_started_ever_more_slowly() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    let mut waits = Vec::new();
    for _ in 0..7 {
        crash(&service, request.chat).await;
        let failed = tokio::time::Instant::now();
        created_with_retries(&service, &request).await;
        waits.push(failed.elapsed());
    }
    // The journal's own thread lets a paused clock run ahead a little.
    assert!(waits[0].as_secs() < 30 && waits[6].as_secs() >= 59, "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_container_half_made_by_an_actor_that_failed_is_removed_without_a_request() {
    let service = Service::start().await;
    let request = request();
    service.engine.fail_next(Operation::Start, Fault::Hang);
    let create = service.creating(&request);
    service.reached(Operation::Start).await;
    crash(&service, request.chat).await;
    assert!(create.await.unwrap().is_err());
    service.container();
    service.until_empty().await;
    service.until_all_retired().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_created_after_its_actor_failed_is_removed() {
    let service = Service::start().await;
    let request = request();
    let gate = service.engine.hold_next(Operation::Create);
    let create = service.creating(&request);
    service.reached(Operation::Create).await;
    crash(&service, request.chat).await;
    assert!(create.await.unwrap().is_err());
    // The next actor finds no container and retires before the engine creates it.
    service.until_all_retired().await;
    gate.open();
    service.reached(Operation::Remove).await;
    service.until_empty().await;
}

#[tokio::test(start_paused = true)]
async fn a_straggler_is_removed_though_the_actor_that_gave_it_up_failed() {
    let service = Service::start().await;
    let request = request();
    let gate = service.engine.hold_next(Operation::Create);
    service.start_failure(&request).await;
    crash(&service, request.chat).await;
    service.until_all_retired().await;
    gate.open();
    service.reached(Operation::Remove).await;
    service.until_empty().await;
}

#[tokio::test(start_paused = true)]
async fn a_chat_that_comes_back_while_the_engine_is_silent_looks_until_it_answers() {
    let service = Service::start().await;
    let request = request();
    let session = service.created(&request).await.sandbox.session;
    service.engine.fail_always(Operation::Inspect, Fault::unreachable());
    crash(&service, request.chat).await;
    in_time(service.engine.reached(Operation::Inspect, 5)).await;
    let unknown = service.sandboxes.get(request.chat).await;
    assert!(matches!(unknown, Err(SandboxError::Unknown { .. })), "{unknown:?}");
    service.engine.heal();
    assert_eq!(service.sandbox(request.chat).await.unwrap().session, session);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_whose_actor_does_not_start_is_adopted_in_the_end() {
    let (engine, request) = (FakeEngine::new(), request());
    let session = leave(&engine, &request, ContainerState::Running, TestClock::default().now());
    engine.set_health(&engine.containers()[0].id, Health::Unhealthy);
    let service = Service::unlisted(engine).await;
    // The pass reads the clock first.
    service.clock.panic_after(1);
    service.adopt().await.unwrap();
    let answer = service.sandboxes.get(request.chat).await;
    assert!(matches!(answer, Err(SandboxError::Recovering { .. })), "{answer:?}");
    assert_ne!(
        created_with_retries(&service, &request).await.sandbox.session,
        session,
        "the unhealthy one is replaced"
    );
}

#[tokio::test]
async fn a_launch_that_panics_is_an_answer_and_is_rolled_back() {
    for operation in [Operation::Create, Operation::Start, Operation::Inspect] {
        let service = Service::start().await;
        let request = request();
        service.engine.fail_next(operation, Fault::Panic);
        let failure = service.start_failure(&request).await;
        let expected =
            matches!(failure, StartFailure::Defect(_) | StartFailure::Engine(EngineError::InvalidResponse { .. }));
        assert!(expected, "{operation}: {failure}");
        assert_eq!(service.engine.containers(), [], "{operation}");
        assert_eq!(service.created(&request).await.outcome, Outcome::Created);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tear_down_that_panics_is_owed() {
    for operation in [Operation::Stop, Operation::Remove] {
        let service = Service::start().await;
        let request = request();
        service.created(&request).await;
        service.engine.fail_next(operation, Fault::Panic);
        let owed = service.sandboxes.delete(request.chat).await;
        assert!(matches!(owed, Err(SandboxError::DeleteOwed { .. })), "{operation}: {owed:?}");
        service.until_empty().await;
        service.until_all_retired().await;
    }
}

#[tokio::test]
async fn an_inspect_that_panics_does_not_count_as_a_vanished_sandbox() {
    let service = Service::start().await;
    let request = request();
    let session = service.created(&request).await.sandbox.session;
    service.clock.advance(crate::support::TRUST * 2);
    service.engine.fail_next(Operation::Inspect, Fault::Panic);
    let reused = service.created(&request).await;
    assert_eq!((reused.outcome, reused.sandbox.session), (Outcome::Reused, session));
}
