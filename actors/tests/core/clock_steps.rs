//! The wall clock is set while the service runs.

use std::time::Duration;

use sandboxd_actors::ports::clock::{Clock, Timestamp};
use sandboxd_actors::ports::engine::ContainerState;
use sandboxd_actors::ports::engine::fake::FakeEngine;

use crate::support::{Service, TestClock, in_time, leave, request};

const TICK: Duration = Duration::from_secs(1);

/// More than the journal's queue holds.
const MANY: usize = 17_000;

#[tokio::test(start_paused = true)]
async fn a_clock_step_is_persisted_for_any_number_of_sandboxes() {
    let engine = FakeEngine::new();
    let start = TestClock::default().now();
    for _ in 0..MANY {
        leave(&engine, &request(), ContainerState::Running, start);
    }
    let service = Service::unlisted(engine).await;
    service.adopt().await.unwrap();

    // On a paused clock, exactly until the reaper has read the time.
    tokio::time::sleep(2 * TICK).await;
    // Without the shift, the sandboxes would count as unused for that much longer after a restart.
    service.clock.advance(Duration::from_secs(60));
    let persisted = async {
        while service.journal.sandboxes().iter().any(|sandbox| sandbox.last_activity_at == start) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    in_time(persisted).await;
    let listed = service.sandboxes.list(None, MANY).await.unwrap().sandboxes;
    assert!(listed.iter().map(|sandbox| sandbox.last_activity_at).eq(on_disk(&service)));
}

fn on_disk(service: &Service) -> Vec<Timestamp> {
    service.journal.sandboxes().iter().map(|sandbox| sandbox.last_activity_at).collect()
}
