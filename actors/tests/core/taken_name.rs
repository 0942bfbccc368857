//! The chat's container name is taken on the engine by an unknown container. The outcome depends on that container.

use sandboxd_actors::domain::labels;
use sandboxd_actors::domain::outcome::{Outcome, SandboxError, StartFailure};
use sandboxd_actors::ports::clock::Clock;
use sandboxd_actors::ports::engine::fake::Fault;
use sandboxd_actors::ports::engine::{ContainerState, EngineError, Exit, Operation};

use crate::support::{Service, leave, observed, request, spec};

#[tokio::test]
async fn a_foreign_container_is_named_and_left_alone() {
    let service = Service::start().await;
    let request = request();
    for (label, value, expected) in [
        (labels::MANAGED, None, "it has no label sandboxd.managed"),
        (labels::INSTANCE, Some("another"), "it belongs to instance another"),
        (labels::SCHEMA, Some("99"), "its labels are of schema 99, which this version does not know"),
    ] {
        let spec = spec(&request, &service.clock);
        let mut foreign = observed(&spec, ContainerState::Running);
        match value {
            Some(value) => drop(foreign.labels.insert(label.into(), value.into())),
            None => drop(foreign.labels.remove(label)),
        }
        service.engine.place(foreign.clone(), spec);
        match service.start_failure(&request).await {
            StartFailure::NameConflict { name, holder, why } => {
                assert_eq!((name, holder, why.as_str()), (foreign.name.clone(), foreign.id.clone(), expected));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(service.container(), foreign, "unchanged");
        service.engine.vanish(&foreign.id);
    }
    service.until_all_retired().await;
}

#[tokio::test]
async fn a_live_sandbox_of_the_chat_is_handed_out() {
    let service = Service::start().await;
    let request = request();
    let session = leave(&service.engine, &request, ContainerState::Running, service.clock.now());
    let created = service.created(&request).await;
    assert_eq!((created.outcome, created.sandbox.session), (Outcome::Reused, session));
    service.container();
}

#[tokio::test]
async fn a_live_sandbox_of_another_agent_is_a_conflict() {
    let service = Service::start().await;
    let mut request = request();
    let session = leave(&service.engine, &request, ContainerState::Running, service.clock.now());
    request.agent = "another".parse().unwrap();
    match service.sandboxes.create(request.clone()).await {
        Err(SandboxError::Conflict { session: theirs, fields, .. }) => {
            assert_eq!((theirs, fields), (session, vec!["agent_id"]));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(service.sandbox(request.chat).await.unwrap().session, session, "and it is known from now on");
}

#[tokio::test]
async fn a_live_sandbox_past_its_deadline_is_replaced() {
    let service = Service::start().await;
    let request = request();
    let session = leave(&service.engine, &request, ContainerState::Running, service.clock.now());
    service.clock.advance(request.ttl());
    let created = service.created(&request).await;
    assert_eq!(created.outcome, Outcome::Replaced);
    assert_ne!(created.sandbox.session, session);
    assert_eq!(Some(service.container().id), created.sandbox.container);
}

#[tokio::test]
async fn a_leftover_of_an_earlier_sandbox_is_removed() {
    let crashed = ContainerState::Exited(Some(Exit { code: 1, oom_killed: false }));
    for state in [crashed, ContainerState::Created, ContainerState::Dead] {
        let service = Service::start().await;
        let request = request();
        leave(&service.engine, &request, state, service.clock.now());
        let created = service.created(&request).await;
        assert_eq!(created.outcome, Outcome::Created);
        assert_eq!(Some(service.container().id), created.sandbox.container);
    }
}

#[tokio::test]
async fn a_container_that_cannot_be_inspected_is_left_alone() {
    let service = Service::start().await;
    let request = request();
    let session = leave(&service.engine, &request, ContainerState::Running, service.clock.now());
    let silent = EngineError::Interrupted { message: "connection reset".into() };
    service.engine.fail_next(Operation::Inspect, Fault::Fail(silent.clone()));
    assert_eq!(service.start_failure(&request).await, StartFailure::Engine(silent));
    assert_eq!(service.engine.calls(Operation::Remove), 0);
    assert_eq!(service.created(&request).await.sandbox.session, session);
}

#[tokio::test(start_paused = true)]
async fn a_leftover_that_cannot_be_removed_is_removed_later() {
    let service = Service::start().await;
    let request = request();
    leave(&service.engine, &request, ContainerState::Created, service.clock.now());
    service.engine.fail_next(Operation::Remove, Fault::unreachable());
    service.engine.fail_next(Operation::Remove, Fault::unreachable());
    let failure = service.start_failure(&request).await;
    assert!(matches!(failure, StartFailure::Engine(EngineError::Unreachable { .. })), "{failure}");
    service.until_empty().await;
    service.until_all_retired().await;
}

#[tokio::test(start_paused = true)]
async fn a_create_waits_for_a_name_whose_container_is_not_visible() {
    let service = Service::start().await;
    for _ in 0..5 {
        service.engine.fail_next(Operation::Create, taken());
    }
    assert_eq!(service.created(&request()).await.outcome, Outcome::Created);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_stays_taken_without_a_visible_container_is_a_temporary_failure() {
    let service = Service::start().await;
    service.engine.fail_always(Operation::Create, taken());
    let failure = service.start_failure(&request()).await;
    assert!(matches!(&failure, StartFailure::Engine(error) if error.is_unavailable()), "{failure}");
    service.until_all_retired().await;
}

#[tokio::test(start_paused = true)]
async fn a_delete_does_not_wait_for_a_name_to_be_free() {
    let service = Service::start().await;
    let request = request();
    service.engine.fail_always(Operation::Create, taken());
    let create = service.creating(&request);
    service.reached(Operation::Create).await;
    let asked = tokio::time::Instant::now();
    service.sandboxes.delete(request.chat).await.unwrap();
    assert!(asked.elapsed() < std::time::Duration::from_secs(1), "{:?}", asked.elapsed());
    assert_eq!(crate::support::start_failure(create.await.unwrap()), StartFailure::Deleted);
    service.until_all_retired().await;
}

/// The engine's error while it creates or removes the container with the name.
fn taken() -> Fault {
    Fault::Fail(EngineError::NameTaken { name: "that of the chat".into() })
}
