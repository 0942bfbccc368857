//! Limits count the existing sandboxes, independent of the first request.

use sandboxd_actors::domain::create_request::CreateRequest;
use sandboxd_actors::domain::ids::WorkspaceId;
use sandboxd_actors::domain::outcome::{LimitKind, Outcome, SandboxError};
use sandboxd_actors::ports::clock::Clock;
use sandboxd_actors::ports::engine::ContainerState;
use sandboxd_actors::ports::engine::fake::FakeEngine;
use sandboxd_actors::root::limits::Capacity;

use crate::support::{Service, TestClock, leave, request};

/// A request for a new chat in the workspace.
fn in_workspace(workspace: u128) -> CreateRequest {
    CreateRequest { workspace: Some(WorkspaceId::new(uuid::Uuid::from_u128(workspace))), ..request() }
}

/// A service with a limit of one sandbox per workspace. The first workspace has a leftover sandbox on the engine.
async fn left(state: ContainerState) -> (Service, CreateRequest) {
    let (engine, request) = (FakeEngine::new(), in_workspace(1));
    leave(&engine, &request, state, TestClock::default().now());
    let capacity = Capacity { per_workspace: Some(1), ..Capacity::default() };
    (Service::limited(engine, capacity).await, request)
}

async fn is_full(service: &Service, workspace: u128) -> bool {
    match service.sandboxes.create(in_workspace(workspace)).await {
        Ok(_) => false,
        Err(SandboxError::AdmissionDenied { what: LimitKind::Workspace, limit: 1, .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_sandbox_requested_before_its_adoption_counts_with_its_own_keys() {
    let (service, request) = left(ContainerState::Running).await;
    let without_workspace = CreateRequest { workspace: None, ..request.clone() };
    let found = service.created(&without_workspace).await;
    assert_eq!((found.outcome, found.sandbox.workspace), (Outcome::Reused, request.workspace));
    service.adopt().await.expect("an engine without faults can be listed");
    assert!(is_full(&service, 1).await);

    let (service, request) = left(ContainerState::Running).await;
    assert!(service.sandbox(request.chat).await.is_some(), "a read finds the sandbox");
    assert!(is_full(&service, 1).await);
}

#[tokio::test]
async fn a_replacement_in_another_workspace_counts_in_that_workspace() {
    let (service, request) = left(ContainerState::Exited(None)).await;
    service.adopt().await.expect("an engine without faults can be listed");
    assert!(is_full(&service, 1).await, "a failed sandbox counts");
    let moved = CreateRequest { workspace: in_workspace(2).workspace, ..request };
    assert_eq!(service.created(&moved).await.outcome, Outcome::Replaced);
    assert!(is_full(&service, 2).await);
    assert!(!is_full(&service, 1).await);
}
