//! A service that starts adopts the containers of an earlier run.

use std::time::Duration;

use sandboxd_actors::domain::outcome::{Deletion, Outcome, SandboxError};
use sandboxd_actors::domain::sandbox::{Reason, Status};
use sandboxd_actors::ports::clock::Clock;
use sandboxd_actors::ports::engine::fake::{FakeEngine, Fault};
use sandboxd_actors::ports::engine::{ContainerState, Exit, Health, Operation};

use crate::support::{Service, TestClock, leave, observed, request, spec};

fn left(state: ContainerState) -> (FakeEngine, sandboxd_actors::domain::create_request::CreateRequest) {
    let (engine, request) = (FakeEngine::new(), request());
    leave(&engine, &request, state, TestClock::default().now());
    (engine, request)
}

#[tokio::test]
async fn a_sandbox_survives_a_restart_of_the_service_unchanged() {
    let before = Service::start().await;
    let request = request();
    let old = before.created(&request).await.sandbox;
    before.sandboxes.shut_down(Duration::from_secs(1)).await;

    let after = before.next_run().await;
    assert_eq!(after.adopt().await, Ok((1, 0)));
    let sandbox = after.sandbox(request.chat).await.unwrap();
    assert_eq!((sandbox.status, sandbox.reason), (Status::Running, Reason::Ready));
    let reused = after.created(&request).await;
    assert_eq!(reused.outcome, Outcome::Reused);
    assert_eq!(reused.sandbox.session, old.session);
    assert_eq!(reused.sandbox.container, old.container);
    assert_eq!(reused.sandbox.endpoint, old.endpoint);
    assert_eq!(reused.sandbox.started_at, old.started_at);
    assert_eq!(reused.sandbox.expires_at, old.expires_at);
    assert_eq!(after.engine.calls(Operation::Create), 1);
}

#[tokio::test]
async fn an_adopted_sandbox_can_be_deleted() {
    let (engine, request) = left(ContainerState::Running);
    let service = Service::unlisted(engine).await;
    service.adopt().await.unwrap();
    assert!(matches!(service.sandboxes.delete(request.chat).await, Ok(Deletion::Deleted { .. })));
    assert_eq!(service.engine.containers(), []);
    service.until_all_retired().await;
}

#[tokio::test]
async fn a_sandbox_known_only_by_labels_lives_its_full_time_from_its_adoption() {
    for state in [ContainerState::Running, ContainerState::Exited(None)] {
        let (engine, request) = left(state);
        let service = Service::unlisted(engine).await;
        // The sandbox may have been renewed, which its labels do not show.
        service.clock.advance(request.ttl());
        service.adopt().await.unwrap();
        let adopted = service.sandbox(request.chat).await.unwrap();
        assert_eq!(
            (adopted.expires_at, adopted.last_activity_at),
            (service.clock.now() + request.ttl(), service.clock.now())
        );
        service.clock.advance(request.ttl());
        service.until_empty().await;
        service.until_all_retired().await;
    }
}

#[tokio::test]
async fn a_half_made_container_is_removed() {
    let (engine, _) = left(ContainerState::Created);
    let service = Service::unlisted(engine).await;
    service.adopt().await.unwrap();
    service.until_empty().await;
    service.until_all_retired().await;
}

#[tokio::test]
async fn a_container_with_invalid_labels_is_skipped_and_left_alone() {
    let (engine, request) = left(ContainerState::Running);
    let broken = spec(&self::request(), &TestClock::default());
    let mut unreadable = observed(&broken, ContainerState::Running);
    unreadable.labels.insert("sandboxd.expires-at".into(), "soon".into());
    engine.place(unreadable, broken.clone());
    let mut renamed = observed(&broken, ContainerState::Running);
    renamed.name = "another".into();
    engine.place(renamed, broken);

    let service = Service::unlisted(engine).await;
    assert_eq!(service.adopt().await, Ok((1, 2)));
    service.created(&request).await;
    assert_eq!(service.engine.containers().len(), 3);
}

#[tokio::test]
async fn an_ended_sandbox_is_shown_as_failed_with_its_cause_and_replaced() {
    let (engine, request) = left(ContainerState::Running);
    let id = engine.containers()[0].id.clone();
    engine.end(&id, Exit { code: 137, oom_killed: true }, &["allocating"]);
    let service = Service::unlisted(engine).await;
    service.adopt().await.unwrap();
    let sandbox = service.sandbox(request.chat).await.unwrap();
    assert_eq!((sandbox.status, sandbox.reason), (Status::Failed, Reason::OomKilled));
    assert_eq!(sandbox.message.as_deref(), Some("out of memory, last output: allocating"));
    assert_eq!(service.created(&request).await.outcome, Outcome::Replaced);
    service.container();
}

#[tokio::test]
async fn an_ended_sandbox_is_adopted_though_its_end_cannot_be_looked_up() {
    let (engine, request) = left(ContainerState::Exited(None));
    let alive = self::request();
    leave(&engine, &alive, ContainerState::Running, TestClock::default().now());
    engine.fail_next(Operation::Inspect, Fault::unreachable());
    let service = Service::unlisted(engine).await;
    assert_eq!(service.adopt().await, Ok((2, 0)));
    assert_eq!(service.sandbox(request.chat).await.unwrap().status, Status::Failed);
    assert_eq!(service.sandbox(alive.chat).await.unwrap().status, Status::Running);
}

#[tokio::test]
async fn a_sandbox_whose_health_check_fails_is_not_handed_out() {
    let (engine, request) = left(ContainerState::Running);
    engine.set_health(&engine.containers()[0].id, Health::Unhealthy);
    let service = Service::unlisted(engine).await;
    service.adopt().await.unwrap();
    let sandbox = service.sandbox(request.chat).await.unwrap();
    assert_eq!((sandbox.status, sandbox.reason), (Status::Failed, Reason::Unhealthy));
    assert_eq!(service.created(&request).await.outcome, Outcome::Replaced);
}

#[tokio::test]
async fn a_sandbox_that_is_gone_since_the_listing_is_not_handed_out() {
    let (engine, request) = left(ContainerState::Running);
    let service = Service::unlisted(engine).await;
    service.adopt().await.unwrap();
    service.engine.vanish(&service.container().id);
    assert_eq!(service.created(&request).await.outcome, Outcome::Replaced);
}

#[tokio::test]
async fn another_pass_makes_no_change_for_a_chat_that_is_served() {
    let service = Service::start().await;
    let request = request();
    let session = service.created(&request).await.sandbox.session;
    assert_eq!(service.adopt().await, Ok((0, 0)));
    assert_eq!(service.sandbox(request.chat).await.unwrap().session, session);
}

#[tokio::test(start_paused = true)]
async fn until_the_engine_is_listed_every_chat_asks_it_for_itself() {
    let (engine, request) = left(ContainerState::Running);
    for operation in [Operation::List, Operation::Inspect] {
        engine.fail_always(operation, Fault::unreachable());
    }
    let service = Service::unlisted(engine).await;
    assert!(service.adopt().await.is_err());
    let unknown = service.sandboxes.create(request.clone()).await;
    assert!(matches!(unknown, Err(SandboxError::Unknown { .. })), "{unknown:?}");
    let unknown = service.sandboxes.delete(request.chat).await;
    assert!(matches!(unknown, Err(SandboxError::Unknown { .. })), "{unknown:?}");
    assert_eq!(service.engine.containers().len(), 1, "no decision was made");

    service.engine.heal();
    assert_eq!(service.created(&request).await.outcome, Outcome::Reused);
    let other = self::request();
    assert_eq!(service.sandbox(other.chat).await, None);
    assert_eq!(service.created(&other).await.outcome, Outcome::Created);
    assert_eq!(service.adopt().await, Ok((0, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_chat_that_could_not_be_looked_up_retires_when_the_engine_answers_again() {
    let engine = FakeEngine::new();
    engine.fail_always(Operation::Inspect, Fault::unreachable());
    let service = Service::unlisted(engine).await;
    let unknown = service.sandboxes.get(request().chat).await;
    assert!(matches!(unknown, Err(SandboxError::Unknown { .. })), "{unknown:?}");
    assert_eq!(service.sandboxes.count().await, 1);
    service.engine.heal();
    service.until_all_retired().await;
}
