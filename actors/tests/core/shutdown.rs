//! An orderly shutdown: no new work, a grace period for work under way, and sandboxes stay.

use std::time::Duration;

use sandboxd_actors::domain::outcome::SandboxError;
use sandboxd_actors::ports::engine::Operation;
use sandboxd_actors::ports::engine::fake::Fault;
use tokio::time::Instant;

use crate::support::{Service, in_time, request};

const GRACE: Duration = Duration::from_secs(10);

impl Service {
    fn shutting_down(&self) -> tokio::task::JoinHandle<()> {
        let sandboxes = self.sandboxes.clone();
        tokio::spawn(async move { sandboxes.shut_down(GRACE).await })
    }

    /// Resolves once requests are refused.
    async fn until_closed(&self) {
        let closed = async {
            while self.sandboxes.get(request().chat).await != Err(SandboxError::ShuttingDown) {
                tokio::task::yield_now().await;
            }
        };
        in_time(closed).await;
    }
}

#[tokio::test]
async fn a_create_under_way_is_finished_and_new_ones_are_refused() {
    let service = Service::start().await;
    let request = request();
    let gate = service.engine.hold_next(Operation::Start);
    let create = service.creating(&request);
    service.reached(Operation::Start).await;
    let end = service.shutting_down();
    service.until_closed().await;
    assert_eq!(service.sandboxes.create(request.clone()).await, Err(SandboxError::ShuttingDown));
    assert!(!end.is_finished());
    gate.open();
    let created = create.await.unwrap().unwrap();
    in_time(end).await.unwrap();
    assert_eq!(Some(service.container().id), created.sandbox.container, "it stays");
}

#[tokio::test]
async fn a_delete_under_way_is_finished() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    let gate = service.engine.hold_next(Operation::Remove);
    let sandboxes = service.sandboxes.clone();
    let delete = tokio::spawn(async move { sandboxes.delete(request.chat).await });
    service.reached(Operation::Remove).await;
    let end = service.shutting_down();
    service.until_closed().await;
    gate.open();
    delete.await.unwrap().unwrap();
    in_time(end).await.unwrap();
    assert_eq!(service.engine.containers(), []);
}

#[tokio::test(start_paused = true)]
async fn idle_sandboxes_do_not_delay_the_shutdown_and_stay() {
    let service = Service::start().await;
    for _ in 0..3 {
        service.created(&request()).await;
    }
    let began = Instant::now();
    service.sandboxes.shut_down(GRACE).await;
    assert!(began.elapsed() < GRACE, "{:?}", began.elapsed());
    assert_eq!(service.engine.containers().len(), 3);
    assert_eq!(service.engine.calls(Operation::Stop), 0);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_hangs_is_given_the_grace_period_and_no_more() {
    let service = Service::start().await;
    service.engine.fail_next(Operation::Create, Fault::Hang);
    let create = service.creating(&request());
    service.reached(Operation::Create).await;
    let began = Instant::now();
    service.sandboxes.shut_down(GRACE).await;
    assert!(began.elapsed() >= GRACE && began.elapsed() < GRACE * 2, "{:?}", began.elapsed());
    assert_eq!(create.await.unwrap(), Err(SandboxError::ShuttingDown));
}

#[tokio::test(start_paused = true)]
async fn an_owed_removal_does_not_hold_the_end_up() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    service.engine.fail_always(Operation::Remove, Fault::unreachable());
    assert!(service.sandboxes.delete(request.chat).await.is_err());
    let began = Instant::now();
    service.sandboxes.shut_down(GRACE).await;
    assert!(began.elapsed() < GRACE, "{:?}", began.elapsed());
}

#[tokio::test]
async fn after_the_shutdown_every_request_is_refused() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    service.sandboxes.shut_down(GRACE).await;
    assert_eq!(service.sandboxes.create(request.clone()).await, Err(SandboxError::ShuttingDown));
    assert_eq!(service.sandboxes.get(request.chat).await, Err(SandboxError::ShuttingDown));
    assert_eq!(service.sandboxes.delete(request.chat).await, Err(SandboxError::ShuttingDown));
    assert_eq!(service.sandboxes.list(None, 10).await, Err(SandboxError::ShuttingDown));
    assert_eq!(service.sandboxes.count().await, 0);
}
