//! Pools and claims, with faults of the engine and the host.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sandboxd_actors::domain::create_request::CreateRequest;
use sandboxd_actors::domain::ids::ContainerName;
use sandboxd_actors::domain::outcome::{Launch, Outcome, SandboxError, StartFailure};
use sandboxd_actors::domain::profile::PoolTargets;
use sandboxd_actors::journal::memory::Fault as JournalFault;
use sandboxd_actors::pool::Status;
use sandboxd_actors::pool::inventory::Hinted;
use sandboxd_actors::ports::engine::fake::{FakeEngine, Fault};
use sandboxd_actors::ports::engine::{ContainerState, EngineError, Operation};

use crate::support::{Service, in_time, instance, request};

/// A service whose pool has this number of slots.
async fn pooled(size: usize) -> Service {
    let targets = PoolTargets { size, hints: 1, ..PoolTargets::default() };
    let service = Service::pooled(FakeEngine::new(), targets).await;
    service.adopt().await.expect("an engine without faults can be listed");
    until(&service, |pool| pool.slots.free == size).await;
    service
}

async fn until(service: &Service, condition: impl Fn(&Status) -> bool) -> Status {
    loop {
        let pool = service.sandboxes.pools().await.remove(0);
        if condition(&pool) {
            return pool;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        service.clock.advance(Duration::from_millis(10));
    }
}

/// A request for a new chat with the configured profile.
fn another(service: &Service) -> CreateRequest {
    CreateRequest { profile: Arc::clone(&service.profile), ..request() }
}

#[tokio::test(start_paused = true)]
async fn a_warm_create_starts_no_container_and_does_not_wait_for_its_rename() {
    let service = pooled(1).await;
    let before = [Operation::Create, Operation::Start].map(|operation| service.engine.calls(operation));
    let request = another(&service);
    let created = service.created(&request).await;
    assert_eq!((created.outcome, created.launch), (Outcome::Created, Launch::Warm));
    assert_eq!([Operation::Create, Operation::Start].map(|operation| service.engine.calls(operation)), before);
    let name = ContainerName::of(&instance(), request.chat);
    let is_named = |engine: &FakeEngine| {
        let mut containers = engine.containers().into_iter();
        containers.any(|it| Some(&it.id) == created.sandbox.container.as_ref() && it.name == name.as_str())
    };
    service.engine.until(is_named).await;
    let binding = service.slots.binding(created.sandbox.session).expect("bound");
    assert_eq!(binding.mounts.iter().map(|mount| mount.target.as_str()).collect::<Vec<_>>(), ["/chat", "/volume"]);
    assert!(binding.environment.iter().any(|variable| variable == ("AGENT_ID", "agent")));
}

#[tokio::test(start_paused = true)]
async fn of_many_creates_at_once_each_gets_a_container_of_its_own() {
    let service = pooled(8).await;
    let creates = (0..40).map(|_| service.sandboxes.create(another(&service)));
    let created: Vec<_> = join_all(creates).await.into_iter().map(|created| created.expect("created")).collect();
    let containers: BTreeSet<_> = created.iter().map(|created| created.sandbox.container.clone()).collect();
    assert_eq!(containers.len(), 40);
    let warm = created.iter().filter(|created| created.launch == Launch::Warm).count();
    assert!(warm >= 8, "{warm}");
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_cannot_be_bound_is_removed_and_the_create_goes_on_without() {
    let service = pooled(1).await;
    let slot = service.engine.containers()[0].id.clone();
    service.slots.fail_binds(1);
    let created = service.created(&another(&service)).await;
    assert_eq!(created.launch, Launch::Cold);
    assert_ne!(created.sandbox.container.as_ref(), Some(&slot));
    service.engine.until(|engine| engine.containers().iter().all(|container| container.id != slot)).await;
    assert_eq!(until(&service, |pool| pool.slots.free == 1).await.counters.spoiled, 1);
}

#[tokio::test(start_paused = true)]
async fn a_slot_whose_claim_cannot_be_copied_is_removed_at_once() {
    let service = pooled(1).await;
    let slot = service.engine.containers()[0].id.clone();
    service.slots.fail_copies(1);
    assert_eq!(service.created(&another(&service)).await.launch, Launch::Cold);
    in_time(service.engine.until(|engine| engine.containers().iter().all(|container| container.id != slot))).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_rename_does_not_delay_a_create() {
    let service = pooled(1).await;
    service.engine.fail_next(Operation::Rename, Fault::Hang);
    assert_eq!(service.created(&another(&service)).await.launch, Launch::Warm);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_an_image_was_rebuilt_under_is_not_handed_out() {
    let service = pooled(1).await;
    let slot = service.engine.containers()[0].id.clone();
    service.engine.rebuild_image(&service.profile.image);
    let created = service.created(&another(&service)).await;
    assert_ne!(created.sandbox.container, Some(slot));
    assert_eq!(created.launch, Launch::Cold);
}

#[tokio::test(start_paused = true)]
async fn a_delete_during_a_claim_removes_the_slot_too() {
    let service = pooled(1).await;
    let request = another(&service);
    service.slots.hold_binds();
    let looks = service.engine.calls(Operation::ImageId);
    let create = service.creating(&request);
    service.engine.reached(Operation::ImageId, looks + 1).await;
    let sandboxes = service.sandboxes.clone();
    let delete = tokio::spawn(async move { sandboxes.delete(request.chat).await });
    tokio::task::yield_now().await;
    service.slots.release_binds();
    delete.await.expect("no panic").expect("deleted");
    let failed = create.await.expect("no panic").expect_err("deleted while it was created");
    assert!(matches!(failed, SandboxError::StartFailed { failure: StartFailure::Deleted, .. }), "{failed}");
    let name = ContainerName::of(&instance(), request.chat);
    assert!(service.engine.containers().iter().all(|container| container.name != name.as_str()));
}

#[tokio::test(start_paused = true)]
async fn slots_wait_for_a_quiet_engine() {
    let service = pooled(0).await;
    let gates: Vec<_> = (0..40).map(|_| service.engine.hold_next(Operation::Start)).collect();
    let creates: Vec<_> = (0..40).map(|_| service.creating(&another(&service))).collect();
    service.engine.reached(Operation::Start, 40).await;
    let hinted = service.sandboxes.hint(service.profile.name.clone(), None, Duration::from_secs(3600)).await;
    assert!(matches!(hinted, Some(Ok(Hinted::Preparing { .. }))), "{hinted:?}");
    for _ in 0..50 {
        until(&service, |pool| pool.slots.coming == 1 && pool.slots.free == 0).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(service.engine.calls(Operation::Create), 40, "not while others wait for it");
    gates.iter().for_each(sandboxd_actors::ports::engine::fake::Gate::open);
    for create in creates {
        create.await.expect("no panic").expect("created");
    }
    until(&service, |pool| pool.slots.free == 1).await;
}

#[tokio::test(start_paused = true)]
async fn failed_starts_of_slots_back_off() {
    let targets = PoolTargets { size: 1, ..PoolTargets::default() };
    let engine = FakeEngine::new();
    engine.fail_always(Operation::Create, Fault::Fail(EngineError::Unreachable { message: "gone".into() }));
    let service = Service::pooled(engine, targets).await;
    service.adopt().await.expect("it can be listed");
    let failed = until(&service, |pool| pool.last_error.is_some()).await;
    assert!(failed.last_error.expect("why").contains("gone"));
    assert!(failed.retry_at.is_some());
    service.engine.heal();
    let healed = until(&service, |pool| pool.slots.free == 1).await;
    assert_eq!((healed.last_error, healed.retry_at), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_ends_waits_for_the_slot_on_its_way_and_begins_no_other() {
    let targets = PoolTargets { size: 2, ..PoolTargets::default() };
    let service = Service::pooled(FakeEngine::new(), targets).await;
    let start = service.engine.hold_next(Operation::Start);
    service.adopt().await.expect("an engine without faults can be listed");
    until(&service, |pool| pool.slots.coming == 1).await;
    service.engine.reached(Operation::Start, 1).await;
    let sandboxes = service.sandboxes.clone();
    let end = tokio::spawn(async move { sandboxes.shut_down(Duration::from_secs(60)).await });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!end.is_finished(), "the slot is not there yet");
    start.open();
    end.await.expect("no panic");
    let states: Vec<_> = service.engine.containers().into_iter().map(|container| container.state).collect();
    assert_eq!(states, [ContainerState::Running]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_on_disk_with_its_sandbox_and_goes_with_it() {
    let service = pooled(1).await;
    // The container keeps the name of a slot.
    service.engine.fail_always(Operation::Rename, Fault::unreachable());
    let request = another(&service);
    let created = service.created(&request).await;
    let claims = service.journal.claims();
    let claimed: Vec<_> = claims.iter().map(|claim| (claim.session, Some(&claim.container))).collect();
    assert_eq!(claimed, [(created.sandbox.session, created.sandbox.container.as_ref())]);

    // The next run has only the engine and the journal.
    let next = service.next_run().await;
    next.adopt().await.expect("an engine without faults can be listed");
    let found = next.created(&request).await;
    assert_eq!((found.outcome, found.sandbox.session), (Outcome::Reused, created.sandbox.session));
    next.sandboxes.delete(request.chat).await.expect("deleted");
    assert_eq!(next.journal.claims(), []);
    assert!(next.engine.containers().iter().all(|container| Some(&container.id) != found.sandbox.container.as_ref()));
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_whose_record_cannot_be_written_has_no_claim_either() {
    let service = pooled(1).await;
    service.journal.fail_always(JournalFault::full());
    let failed = service.start_failure(&another(&service)).await;
    assert!(matches!(failed, StartFailure::NotSaved(_)), "{failed}");
    service.journal.heal();
    assert_eq!(service.journal.claims(), []);
}

#[tokio::test(start_paused = true)]
async fn a_drained_pool_stays_empty_until_it_is_filled_and_chats_keep_their_slots() {
    let service = pooled(3).await;
    let warm = service.created(&another(&service)).await;
    assert_eq!(warm.launch, Launch::Warm);
    until(&service, |pool| pool.slots.free == 3).await;

    let drained = service.sandboxes.drain_pools(Some(service.profile.name.clone())).await.remove(0);
    assert!(drained.is_drained && drained.target == 0, "{drained:?}");
    assert_eq!((drained.slots.free, drained.slots.coming, drained.removing), (0, 0, 0), "answered once they are gone");
    let left: Vec<_> = service.engine.containers().into_iter().map(|container| Some(container.id)).collect();
    assert_eq!(left, std::slice::from_ref(&warm.sandbox.container), "the chat's sandbox stays");
    for _ in 0..100 {
        let pool = service.sandboxes.pools().await.remove(0);
        assert_eq!((pool.slots.free, pool.slots.coming), (0, 0), "{pool:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        service.clock.advance(Duration::from_millis(100));
    }
    assert_eq!(service.created(&another(&service)).await.launch, Launch::Cold);
    let hinted = service.sandboxes.hint(service.profile.name.clone(), None, Duration::from_secs(60)).await;
    assert!(matches!(&hinted, Some(Err(why)) if why.contains("drained")), "{hinted:?}");

    service.sandboxes.fill_pools(None).await;
    until(&service, |pool| pool.slots.free == 3 && !pool.is_drained).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_the_slot_that_is_being_started() {
    let targets = PoolTargets { size: 1, ..PoolTargets::default() };
    let service = Service::pooled(FakeEngine::new(), targets).await;
    let start = service.engine.hold_next(Operation::Start);
    service.adopt().await.expect("an engine without faults can be listed");
    service.engine.reached(Operation::Start, 1).await;
    let sandboxes = service.sandboxes.clone();
    let drain = tokio::spawn(async move { sandboxes.drain_pools(None).await });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!drain.is_finished(), "the slot is not there yet");
    start.open();
    assert!(drain.await.expect("no panic")[0].is_drained);
    assert_eq!(service.engine.containers().len(), 0);
}
