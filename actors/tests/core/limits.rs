//! What counts against a limit is what there is, whatever was asked for first.

use sandboxd_actors::domain::create_request::CreateRequest;
use sandboxd_actors::domain::ids::WorkspaceId;
use sandboxd_actors::domain::outcome::{LimitKind, Outcome, SandboxError};
use sandboxd_actors::ports::clock::Clock;
use sandboxd_actors::ports::engine::ContainerState;
use sandboxd_actors::ports::engine::fake::FakeEngine;
use sandboxd_actors::root::limits::Capacity;

use crate::support::{Service, TestClock, leave, request};

/// For a chat of its own.
fn within(workspace: u128) -> CreateRequest {
    CreateRequest { workspace: Some(WorkspaceId::new(uuid::Uuid::from_u128(workspace))), ..request() }
}

/// One sandbox per workspace, and one of the first was left on the engine.
async fn left(state: ContainerState) -> (Service, CreateRequest) {
    let (engine, request) = (FakeEngine::new(), within(1));
    leave(&engine, &request, state, TestClock::default().now());
    let capacity = Capacity { per_workspace: Some(1), ..Capacity::default() };
    (Service::limited(engine, capacity).await, request)
}

async fn is_full(service: &Service, workspace: u128) -> bool {
    match service.sandboxes.create(within(workspace)).await {
        Ok(_) => false,
        Err(SandboxError::AdmissionDenied { what: LimitKind::Workspace, limit: 1, .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_sandbox_that_is_asked_for_before_it_is_adopted_counts_as_what_it_is() {
    let (service, request) = left(ContainerState::Running).await;
    let unsaid = CreateRequest { workspace: None, ..request.clone() };
    let found = service.created(&unsaid).await;
    assert_eq!((found.outcome, found.sandbox.workspace), (Outcome::Reused, request.workspace));
    service.adopt().await.expect("an engine without faults can be listed");
    assert!(is_full(&service, 1).await);

    let (service, request) = left(ContainerState::Running).await;
    assert!(service.sandbox(request.chat).await.is_some(), "somebody only looks at it");
    assert!(is_full(&service, 1).await);
}

#[tokio::test]
async fn a_sandbox_that_takes_the_place_of_one_of_another_workspace_counts_as_its_own() {
    let (service, request) = left(ContainerState::Exited(None)).await;
    service.adopt().await.expect("an engine without faults can be listed");
    assert!(is_full(&service, 1).await, "what has failed is still there");
    let moved = CreateRequest { workspace: within(2).workspace, ..request };
    assert_eq!(service.created(&moved).await.outcome, Outcome::Replaced);
    assert!(is_full(&service, 2).await);
    assert!(!is_full(&service, 1).await);
}
