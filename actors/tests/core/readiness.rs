//! A create returns when its sandbox is ready, and fails within the limit if the sandbox never gets ready.

use std::sync::Arc;
use std::time::Duration;

use sandboxd_actors::domain::create_request::CreateRequest;
use sandboxd_actors::domain::outcome::{Outcome, StartFailure};
use sandboxd_actors::domain::profile::ReadinessCheck;
use sandboxd_actors::ports::engine::{Exit, Health, Operation};
use tokio::time::Instant;

use crate::support::{Behaviour, Service, TEARDOWN, TRUST, in_time, ready_when, request, start_failure};

const LIMIT: Duration = Duration::from_secs(30);

fn http() -> ReadinessCheck {
    ReadinessCheck::Http { port: 80, path: "/ready".into() }
}

#[tokio::test]
async fn a_sandbox_without_a_check_is_not_probed() {
    let service = Service::start().await;
    service.probe.behave(Behaviour::Refuse);
    service.created(&request()).await;
    assert!(service.probe.tries().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_probed_at_its_own_address_until_it_is_ready() {
    for (check, expected) in
        [(http(), "http 10.0.0.1:80 /ready"), (ReadinessCheck::Tcp { port: 80 }, "tcp 10.0.0.1:80")]
    {
        let service = Service::start().await;
        service.probe.behave(Behaviour::Refuse);
        let create = service.creating(&ready_when(check, LIMIT));
        service.probe.tried(3).await;
        assert!(!create.is_finished());
        service.probe.behave(Behaviour::Ready);
        create.await.unwrap().unwrap();
        assert!(service.probe.tries().iter().all(|tried| tried == expected), "{:?}", service.probe.tries());
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_never_gets_ready_fails_within_the_limit_with_the_last_error() {
    let service = Service::start().await;
    service.probe.behave(Behaviour::Refuse);
    let asked = Instant::now();
    let failure = service.start_failure(&ready_when(http(), LIMIT)).await;
    assert!(asked.elapsed() <= LIMIT, "{:?}", asked.elapsed());
    match failure {
        StartFailure::NotReady { limit, last, .. } => assert_eq!((limit, last.as_str()), (LIMIT, "connection refused")),
        other => panic!("{other:?}"),
    }
    assert_eq!(service.engine.containers(), []);
    service.until_all_retired().await;
}

#[tokio::test(start_paused = true)]
async fn a_try_that_never_ends_is_cut_off_at_the_limit() {
    let service = Service::start().await;
    service.probe.behave(Behaviour::Hang);
    let asked = Instant::now();
    let failure = service.start_failure(&ready_when(http(), LIMIT)).await;
    assert!(matches!(failure, StartFailure::NotReady { .. }), "{failure}");
    assert_eq!(asked.elapsed(), LIMIT);
    assert_eq!(service.engine.containers(), []);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_dies_during_a_probe_fails_at_once_with_its_cause() {
    for behaviour in [Behaviour::Refuse, Behaviour::Hang] {
        let service = Service::start().await;
        service.probe.behave(behaviour);
        let create = service.creating(&ready_when(http(), LIMIT));
        service.probe.tried(1).await;
        let died = Instant::now();
        let crash = Exit { code: 3, oom_killed: false };
        service.engine.end(&service.container().id, crash, &["starting", "no configuration"]);
        let StartFailure::Died(death) = start_failure(create.await.unwrap()) else { panic!("{behaviour:?}") };
        assert!(died.elapsed() <= Duration::from_secs(1), "{behaviour:?}: {:?}", died.elapsed());
        assert_eq!(death.exit, Some(crash));
        assert_eq!(death.log_tail, ["starting", "no configuration"]);
        assert_eq!(death.to_string(), "exit code 3, last output: no configuration");
        assert_eq!(service.engine.containers(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_runs_out_of_memory_during_a_probe_fails_with_its_limit() {
    let service = Service::start().await;
    service.probe.behave(Behaviour::Refuse);
    let create = service.creating(&ready_when(http(), LIMIT));
    service.probe.tried(1).await;
    service.engine.end(&service.container().id, Exit { code: 137, oom_killed: true }, &[]);
    let failure = start_failure(create.await.unwrap());
    assert_eq!(failure.to_string(), "it ended while starting: out of memory at its limit of 1073741824 bytes");
}

#[tokio::test]
async fn a_sandbox_that_ends_right_away_fails_with_its_cause() {
    let service = Service::start().await;
    let gate = service.engine.hold_next(Operation::Inspect);
    let create = service.creating(&request());
    service.reached(Operation::Inspect).await;
    service.engine.end(&service.container().id, Exit { code: 127, oom_killed: false }, &["not found"]);
    gate.open();
    let failure = start_failure(create.await.unwrap());
    assert_eq!(failure.to_string(), "it ended while starting: exit code 127, last output: not found");
    assert_eq!(service.engine.containers(), []);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_vanishes_during_a_probe_fails_at_once() {
    let service = Service::start().await;
    service.probe.behave(Behaviour::Hang);
    let create = service.creating(&ready_when(http(), LIMIT));
    service.probe.tried(1).await;
    let vanished = Instant::now();
    service.engine.vanish(&service.container().id);
    let failure = start_failure(create.await.unwrap());
    assert!(matches!(failure, StartFailure::Engine(_)), "{failure}");
    assert!(vanished.elapsed() <= Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_with_a_health_check_is_ready_when_it_is_healthy() {
    let service = Service::start().await;
    let gate = service.engine.hold_next(Operation::Inspect);
    let create = service.creating(&ready_when(ReadinessCheck::Health, LIMIT));
    service.reached(Operation::Inspect).await;
    let container = service.container().id;
    service.engine.set_health(&container, Health::Starting);
    gate.open();
    in_time(service.engine.reached(Operation::Inspect, 5)).await;
    assert!(!create.is_finished());
    service.engine.set_health(&container, Health::Healthy);
    create.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_stays_unhealthy_fails_within_the_limit() {
    let service = Service::start().await;
    let gate = service.engine.hold_next(Operation::Inspect);
    let asked = Instant::now();
    let create = service.creating(&ready_when(ReadinessCheck::Health, LIMIT));
    service.reached(Operation::Inspect).await;
    service.engine.set_health(&service.container().id, Health::Unhealthy);
    gate.open();
    let failure = start_failure(create.await.unwrap());
    assert_eq!(failure.to_string(), format!("it was not ready within {LIMIT:?}: its health check fails"));
    assert!(asked.elapsed() <= LIMIT);
}

#[tokio::test]
async fn an_image_without_a_health_check_cannot_be_waited_for() {
    let service = Service::start().await;
    let failure = service.start_failure(&ready_when(ReadinessCheck::Health, LIMIT)).await;
    assert_eq!(failure, StartFailure::NoHealthCheck);
    assert_eq!(service.engine.containers(), []);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_hangs_during_the_check_does_not_stretch_the_limit() {
    use sandboxd_actors::ports::engine::fake::Fault;
    let service = Service::start().await;
    service.probe.behave(Behaviour::Refuse);
    let limit = Duration::from_secs(5);
    let create = service.creating(&ready_when(http(), limit));
    service.probe.tried(1).await;
    let hangs = Instant::now();
    service.engine.fail_always(Operation::Inspect, Fault::Hang);
    let failure = start_failure(create.await.unwrap());
    assert!(matches!(failure, StartFailure::NotReady { .. }), "{failure}");
    // The create is answered once its container is removed. The inspect that verifies the removal hangs, too, for its
    // own limit.
    assert!(hangs.elapsed() <= limit + Duration::from_secs(1) + TEARDOWN.remove, "{:?}", hangs.elapsed());
}

/// A service with a sandbox that was ready once, and the request for it.
async fn ready_once(check: ReadinessCheck) -> (Service, CreateRequest) {
    let request = ready_when(check, LIMIT);
    let service = Service::with_profile(Arc::clone(&request.profile)).await;
    service.created(&request).await;
    (service, request)
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_does_not_answer_any_more_is_replaced() {
    for (check, behaviour) in
        [(http(), Behaviour::Refuse), (ReadinessCheck::Tcp { port: 80 }, Behaviour::Refuse), (http(), Behaviour::Hang)]
    {
        let (service, request) = ready_once(check).await;
        let before = service.sandbox(request.chat).await.unwrap();
        assert_eq!(service.created(&request).await.outcome, Outcome::Reused, "it was ready a moment ago");
        let tried = service.probe.tries().len();
        service.probe.behave(behaviour);
        service.clock.advance(TRUST * 2);
        let create = service.creating(&request);
        service.probe.tried(tried + 1).await;
        // The next sandbox gets ready.
        service.engine.reached(Operation::Start, 2).await;
        service.probe.behave(Behaviour::Ready);
        let after = create.await.unwrap().unwrap();
        assert_eq!(after.outcome, Outcome::Replaced, "{behaviour:?}");
        assert_ne!(after.sandbox.session, before.session);
        service.container();
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_of_a_ready_sandbox_has_a_shorter_limit_than_its_first_readiness() {
    let request = ready_when(http(), Duration::from_secs(600));
    let service = Service::with_profile(Arc::clone(&request.profile)).await;
    service.created(&request).await;
    service.probe.behave(Behaviour::Hang);
    service.clock.advance(TRUST * 2);
    let asked = Instant::now();
    let create = service.creating(&request);
    in_time(service.engine.reached(Operation::Start, 2)).await;
    assert_eq!(asked.elapsed(), Duration::from_secs(30));
    service.probe.behave(Behaviour::Ready);
    assert_eq!(create.await.unwrap().unwrap().outcome, Outcome::Replaced);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_could_not_be_made_ends_no_sandbox() {
    let (service, request) = ready_once(http()).await;
    service.probe.behave(Behaviour::Fail);
    service.clock.advance(TRUST * 2);
    assert_eq!(service.created(&request).await.outcome, Outcome::Reused);
}

#[tokio::test(start_paused = true)]
async fn an_adopted_sandbox_that_does_not_answer_is_not_handed_out() {
    for listed in [true, false] {
        let (service, request) = ready_once(http()).await;
        let next = service.next_run().await;
        if listed {
            next.adopt().await.expect("an engine without faults can be listed");
        }
        next.probe.behave(Behaviour::Refuse);
        let create = next.creating(&request);
        next.engine.reached(Operation::Start, 2).await;
        next.probe.behave(Behaviour::Ready);
        assert_eq!(create.await.unwrap().unwrap().outcome, Outcome::Replaced, "listed: {listed}");
    }
}
