//! Creates, with failures of their callers and sandboxes during and after them.

use std::time::Duration;

use sandboxd_actors::domain::outcome::{Launch, Outcome, SandboxError, StartFailure};
use sandboxd_actors::domain::profile::Network;
use sandboxd_actors::domain::sandbox::Status;
use sandboxd_actors::ports::engine::fake::Fault;
use sandboxd_actors::ports::engine::{Exit, Operation};

use crate::support::{Service, TRUST, in_time, request};

#[tokio::test]
async fn a_chat_gets_its_sandbox_and_keeps_it() {
    let service = Service::start().await;
    let request = request();
    let created = service.created(&request).await;
    assert_eq!((created.outcome, created.launch), (Outcome::Created, Launch::Cold));
    let container = service.container();
    assert_eq!(created.sandbox.container, Some(container.id));
    let endpoint = created.sandbox.endpoint.unwrap();
    assert_eq!((Some(endpoint.ip), endpoint.port), (container.address, 8080));

    let reused = service.created(&request).await;
    assert_eq!((reused.outcome, reused.launch), (Outcome::Reused, Launch::None));
    assert_eq!(reused.sandbox.session, created.sandbox.session);
    assert_eq!(service.sandbox(request.chat).await.unwrap().session, created.sandbox.session);
}

#[tokio::test]
async fn a_create_for_another_agent_is_refused_and_starts_no_container() {
    let service = Service::start().await;
    let mut request = request();
    let created = service.created(&request).await;
    request.agent = "another".parse().unwrap();
    match service.sandboxes.create(request).await {
        Err(SandboxError::Conflict { session, fields, .. }) => {
            assert_eq!((session, fields), (created.sandbox.session, vec!["agent_id"]));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(service.engine.calls(Operation::Create), 1);
}

#[tokio::test]
async fn a_sandbox_without_a_network_has_no_endpoint() {
    let service = Service::start().await;
    let mut request = request();
    std::sync::Arc::make_mut(&mut request.profile).network = Network::Blocked;
    assert_eq!(service.created(&request).await.sandbox.endpoint, None);
}

#[tokio::test]
async fn a_create_whose_caller_went_away_is_finished_and_reused() {
    let service = Service::start().await;
    let request = request();
    let gate = service.engine.hold_next(Operation::Start);
    let create = service.creating(&request);
    service.reached(Operation::Start).await;
    create.abort();
    assert!(create.await.unwrap_err().is_cancelled());
    gate.open();
    service.created(&request).await;
    assert_eq!(service.engine.calls(Operation::Create), 1);
    service.container();
}

#[tokio::test]
async fn get_answers_and_other_chats_are_served_while_a_create_hangs() {
    let service = Service::start().await;
    let hanging = request();
    for operation in [Operation::Create, Operation::Start, Operation::Inspect] {
        let chat = hanging.chat;
        let before = service.engine.calls(operation);
        let gate = service.engine.hold_next(operation);
        let create = service.creating(&hanging);
        in_time(service.engine.reached(operation, before + 1)).await;
        assert_eq!(in_time(service.sandbox(chat)).await.unwrap().status, Status::Creating);
        let other = request();
        in_time(service.created(&other)).await;
        in_time(service.sandboxes.delete(other.chat)).await.unwrap();
        assert!(!create.is_finished());
        gate.open();
        create.await.unwrap().unwrap();
        service.sandboxes.delete(chat).await.unwrap();
    }
}

#[tokio::test]
async fn a_sandbox_past_its_deadline_is_replaced() {
    let service = Service::start().await;
    let request = request();
    let old = service.created(&request).await.sandbox;
    service.clock.advance(request.ttl());
    let new = service.created(&request).await;
    assert_eq!(new.outcome, Outcome::Replaced);
    assert_ne!(new.sandbox.session, old.session);
    assert_eq!(Some(service.container().id), new.sandbox.container);
}

#[tokio::test]
async fn a_sandbox_that_died_unseen_is_replaced_once_it_is_no_longer_trusted() {
    let service = Service::start().await;
    let request = request();
    let old = service.created(&request).await.sandbox;
    let crash = Exit { code: 1, oom_killed: false };
    service.engine.end(old.container.as_ref().unwrap(), crash, &["out of luck"]);
    assert_eq!(service.created(&request).await.outcome, Outcome::Reused, "it was seen a moment ago");

    service.clock.advance(TRUST + Duration::from_millis(1));
    let new = service.created(&request).await;
    assert_eq!(new.outcome, Outcome::Replaced);
    assert_eq!(Some(service.container().id), new.sandbox.container);
}

#[tokio::test]
async fn a_sandbox_that_vanished_is_replaced() {
    let service = Service::start().await;
    let request = request();
    let old = service.created(&request).await.sandbox;
    service.engine.vanish(old.container.as_ref().unwrap());
    service.clock.advance(TRUST * 2);
    assert_eq!(service.created(&request).await.outcome, Outcome::Replaced);
    service.container();
}

#[tokio::test]
async fn a_sandbox_is_handed_out_again_while_the_engine_cannot_be_asked() {
    let service = Service::start().await;
    let request = request();
    let session = service.created(&request).await.sandbox.session;
    service.clock.advance(TRUST * 2);
    service.engine.fail_always(Operation::Inspect, Fault::unreachable());
    let reused = service.created(&request).await;
    assert_eq!((reused.outcome, reused.sandbox.session), (Outcome::Reused, session));
}

#[tokio::test]
async fn a_chat_directory_that_cannot_be_prepared_fails_the_create_before_anything_is_made() {
    let service = Service::start().await;
    service.directories.fail();
    let failure = service.start_failure(&request()).await;
    assert!(matches!(&failure, StartFailure::Directory(error) if error.message == "the disk is full"), "{failure}");
    assert_eq!(service.engine.calls(Operation::Create), 0);
}

#[tokio::test(start_paused = true)]
async fn a_file_system_that_hangs_does_not_hold_a_create_for_ever() {
    let service = Service::start().await;
    service.directories.hang();
    let failure = service.start_failure(&request()).await;
    assert!(matches!(failure, StartFailure::Directory(_)), "{failure}");
    service.until_all_retired().await;
}
