//! Hundreds of sandboxes or slots that end or start at the same time: the engine gets no more calls at once than there
//! are permits, and neither kind of work keeps the other, or a caller, from a permit.
//!
//! Time is virtual here, so the number of calls that came first is the same in every run.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sandboxd_actors::domain::create_request::CreateRequest;
use sandboxd_actors::domain::outcome::Deletion;
use sandboxd_actors::domain::profile::{OnExpire, PoolTargets, Profile, ReadinessCheck, Restart};
use sandboxd_actors::ports::engine::fake::Fault;
use sandboxd_actors::ports::engine::{Exit, Operation};
use tokio::time::Instant;

use crate::support::{Behaviour, Service, in_time, ready_when, request};

const PERMITS: usize = 4;
const MANY: usize = 300;

/// One permit of each other kind before it, and all permits that were already taken.
const SOON: usize = 3 * PERMITS;

/// A request of a separate agent, idle after a minute.
fn of_agent(number: usize) -> CreateRequest {
    let agent = format!("agent-{number}").parse().expect("a name");
    CreateRequest { agent, idle_timeout: Some(Duration::from_secs(60)), ..request() }
}

/// A service in which many sandboxes of different agents have expired, and the first of them are being removed.
async fn crowded(on_expire: OnExpire, slow: Operation) -> Service {
    let service = Service::with_expiry(PERMITS, on_expire).await;
    for request in (0..MANY).map(of_agent) {
        service.created(&CreateRequest { profile: service.profile.clone(), ..request }).await;
    }
    service.engine.fail_always(slow, Fault::Delay(Duration::from_millis(100)));
    service.clock.advance(Duration::from_secs(61));
    in_time(service.engine.reached(slow, 1)).await;
    service
}

fn assert_soon(service: &Service, operation: Operation) {
    let before = service.engine.calls(operation);
    assert!(before <= SOON, "{before} calls of {operation} came first");
    assert!(service.engine.most_under_way(operation) <= PERMITS);
}

#[tokio::test(start_paused = true)]
async fn a_create_is_served_soon_amid_hundreds_of_ends() {
    for (on_expire, slow) in [
        (OnExpire::Delete, Operation::Stop),
        (OnExpire::Delete, Operation::Remove),
        (OnExpire::Stop, Operation::Stop),
        (OnExpire::Pause, Operation::Pause),
        (OnExpire::Snapshot, Operation::Commit),
    ] {
        let service = crowded(on_expire, slow).await;
        service.created(&CreateRequest { profile: service.profile.clone(), ..of_agent(MANY) }).await;
        assert_soon(&service, slow);
    }
}

#[tokio::test(start_paused = true)]
async fn a_delete_is_served_soon_amid_hundreds_of_ends_of_others() {
    let service = crowded(OnExpire::Delete, Operation::Remove).await;
    let mine = CreateRequest { profile: service.profile.clone(), ..of_agent(MANY) };
    service.created(&mine).await;
    let before = service.engine.calls(Operation::Remove);
    assert!(matches!(service.sandboxes.delete(mine.chat).await, Ok(Deletion::Deleted { .. })));
    let came_first = service.engine.calls(Operation::Remove) - before;
    assert!(came_first <= SOON, "{came_first} removals came first");
}

#[tokio::test(start_paused = true)]
async fn a_delete_is_served_soon_amid_hundreds_of_creates_and_all_are_served_in_the_end() {
    let service = Service::with_expiry(PERMITS, OnExpire::Delete).await;
    let mine = CreateRequest { profile: service.profile.clone(), ..of_agent(MANY) };
    service.created(&mine).await;
    service.engine.fail_always(Operation::Create, Fault::Delay(Duration::from_millis(100)));
    let asked = |number| CreateRequest { profile: service.profile.clone(), ..of_agent(number) };
    let creates: Vec<_> = (0..MANY).map(|number| service.creating(&asked(number))).collect();
    in_time(service.engine.reached(Operation::Create, 1 + PERMITS)).await;
    assert!(matches!(service.sandboxes.delete(mine.chat).await, Ok(Deletion::Deleted { .. })));
    assert_soon(&service, Operation::Create);
    for created in join_all(creates).await {
        created.expect("no panic").expect("created");
    }
    assert_eq!(service.engine.most_under_way(Operation::Create), PERMITS);
}

/// A service whose drain removes many slots, each removal with this fault.
async fn draining(removal: Fault) -> Service {
    let pool = PoolTargets { size: MANY, ..PoolTargets::default() };
    let profile = Arc::new(Profile { pool, ..(*request().profile).clone() });
    let service = Service::with_profile_and_permits(PERMITS, profile).await;
    in_time(service.engine.reached(Operation::Start, MANY)).await;
    service.engine.fail_always(Operation::Remove, removal);
    let sandboxes = service.sandboxes.clone();
    tokio::spawn(async move { sandboxes.drain_pools(None).await });
    in_time(service.engine.reached(Operation::Remove, 1)).await;
    service
}

#[tokio::test(start_paused = true)]
async fn a_create_is_served_soon_amid_hundreds_of_slots_that_are_removed() {
    let service = draining(Fault::Delay(Duration::from_millis(100))).await;
    service.created(&CreateRequest { profile: Arc::clone(&service.profile), ..request() }).await;
    assert_soon(&service, Operation::Remove);
    in_time(service.engine.until(|engine| engine.containers().len() == 1)).await;
}

#[tokio::test(start_paused = true)]
async fn slots_that_cannot_be_removed_hold_no_permits() {
    let service = draining(Fault::unreachable()).await;
    in_time(service.engine.reached(Operation::Remove, MANY + 1)).await;
    let asked = Instant::now();
    service.created(&CreateRequest { profile: Arc::clone(&service.profile), ..request() }).await;
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    service.engine.heal();
    in_time(service.engine.until(|engine| engine.containers().len() == 1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_holds_no_permit_while_its_sandbox_gets_ready() {
    let limit = Duration::from_secs(30);
    let mut mine = ready_when(ReadinessCheck::Tcp { port: 80 }, limit);
    Arc::make_mut(&mut mine.profile).restart = Restart::OnFailure;
    let service = Service::with_profile_and_permits(1, Arc::clone(&mine.profile)).await;
    service.created(&mine).await;
    let tried = service.probe.tries().len();
    service.probe.behave(Behaviour::Hang);
    service.engine.end(&service.container().id, Exit { code: 1, oom_killed: false }, &[]);
    service.probe.tried(tried + 1).await;
    let asked = Instant::now();
    service.created(&request()).await;
    assert!(asked.elapsed() < limit / 2, "{:?}", asked.elapsed());
}
