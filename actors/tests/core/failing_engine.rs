//! An engine that fails: the caller gets the cause, and no untracked container is left.

use sandboxd_actors::domain::outcome::{Outcome, StartFailure};
use sandboxd_actors::domain::sandbox::Status;
use sandboxd_actors::ports::engine::fake::Fault;
use sandboxd_actors::ports::engine::{EngineError, Operation};

use crate::support::{Service, request};

fn refused(operation: Operation) -> Fault {
    Fault::Fail(EngineError::Refused { operation, message: "no space left on device".into() })
}

#[tokio::test]
async fn a_created_container_whose_answer_was_lost_is_removed() {
    let service = Service::start().await;
    let request = request();
    service.engine.fail_next(Operation::Create, Fault::answer_lost());
    let failure = service.start_failure(&request).await;
    assert!(matches!(failure, StartFailure::Engine(EngineError::Interrupted { .. })), "{failure}");
    assert_eq!(service.engine.containers(), []);
    assert_eq!(service.created(&request).await.outcome, Outcome::Created);
}

#[tokio::test]
async fn a_container_that_does_not_start_is_removed() {
    for fault in [refused(Operation::Start), Fault::answer_lost()] {
        let service = Service::start().await;
        let request = request();
        service.engine.fail_next(Operation::Start, fault);
        let failure = service.start_failure(&request).await;
        assert!(matches!(failure, StartFailure::Engine(_)), "{failure}");
        assert_eq!(service.engine.containers(), []);
        assert_eq!(service.created(&request).await.outcome, Outcome::Created);
    }
}

#[tokio::test]
async fn a_container_that_cannot_be_inspected_after_its_start_is_removed() {
    let service = Service::start().await;
    let request = request();
    service.engine.fail_next(Operation::Inspect, refused(Operation::Inspect));
    let failure = service.start_failure(&request).await;
    assert!(matches!(failure, StartFailure::Engine(EngineError::Refused { .. })), "{failure}");
    assert_eq!(service.engine.containers(), []);
}

#[tokio::test]
async fn a_container_without_an_address_is_removed() {
    let service = Service::start().await;
    service.engine.without_addresses();
    assert_eq!(service.start_failure(&request()).await, StartFailure::NoAddress);
    assert_eq!(service.engine.containers(), []);
    service.until_all_retired().await;
}

#[tokio::test]
async fn an_image_that_is_not_there_is_named() {
    let service = Service::start().await;
    service.engine.lose_image("image");
    let failure = service.start_failure(&request()).await;
    assert_eq!(failure, StartFailure::Engine(EngineError::ImageNotFound { image: "image".into() }));
}

#[tokio::test]
async fn a_create_at_an_unreachable_engine_fails_and_changes_no_other_sandbox() {
    let service = Service::start().await;
    let kept = request();
    let session = service.created(&kept).await.sandbox.session;
    for operation in [Operation::Create, Operation::Start, Operation::Inspect, Operation::Stop, Operation::Remove] {
        service.engine.fail_always(operation, Fault::unreachable());
    }
    let failure = service.start_failure(&request()).await;
    assert!(matches!(&failure, StartFailure::Engine(error) if error.is_unavailable()), "{failure}");
    assert_eq!(service.engine.calls(Operation::Remove), 0, "no container was created, so none is removed");
    let sandbox = service.sandbox(kept.chat).await.unwrap();
    assert_eq!((sandbox.session, sandbox.status), (session, Status::Running));
    service.until_served(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_roll_back_that_fails_is_made_up_for() {
    let service = Service::start().await;
    let request = request();
    service.engine.fail_next(Operation::Start, refused(Operation::Start));
    service.engine.fail_next(Operation::Remove, Fault::unreachable());
    service.engine.fail_next(Operation::Remove, Fault::unreachable());
    let failure = service.start_failure(&request).await;
    assert!(matches!(failure, StartFailure::Engine(EngineError::Refused { .. })), "{failure}");
    service.until_empty().await;
    service.until_all_retired().await;
}

#[tokio::test]
async fn a_create_whose_predecessor_cannot_be_removed_fails_with_the_cause() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    service.clock.advance(request.ttl());
    service.engine.fail_next(Operation::Remove, Fault::unreachable());
    let failure = service.start_failure(&request).await;
    assert!(matches!(failure, StartFailure::PredecessorRemains(_)), "{failure}");
    assert_eq!(service.engine.calls(Operation::Create), 1);
    assert_eq!(service.created(&request).await.outcome, Outcome::Replaced);
    service.container();
}
