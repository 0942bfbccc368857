//! Waits until a started sandbox is ready, and never waits for a dead one.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::Instant;

use crate::chat::World;
use crate::chat::effects::discover::recent_death_of;
use crate::domain::ids::ContainerId;
use crate::domain::outcome::StartFailure;
use crate::domain::profile::{Profile, ReadinessCheck};
use crate::ports::engine::{ContainerState, EngineError, Health, Observed};
use crate::ports::probe::NotReady;

/// The pause between two tries. Most services are up within milliseconds; slow ones are not polled too often.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// From this pause on, an inspection precedes the pause. An inspection costs as much as several of the earlier tries.
const INSPECT_FROM: Duration = Duration::from_millis(10);

/// The interval of inspections during a try. A try against a dead sandbox may never return.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// The time that an inspection may overrun the limit, to tell a death from a delay at the very end.
const INSPECTION_OVERRUN: Duration = Duration::from_secs(1);

/// The number of output lines that are reported for a sandbox that did not get ready.
const LOG_TAIL_LINES: usize = 20;

/// Returns once the sandbox is ready, has died, or has used up its time.
pub async fn wait_until_ready(
    world: &World,
    container: &ContainerId,
    address: Option<IpAddr>,
    profile: &Profile,
) -> Result<(), StartFailure> {
    let limit = profile.readiness.timeout;
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    loop {
        let tried = tokio::select! {
            tried = try_once(world, container, address, &profile.readiness.check, deadline) => tried?,
            failure = watch(world, container, profile, deadline) => return Err(failure),
        };
        let last = match tried {
            Ok(()) => return Ok(()),
            Err(not_ready) => not_ready.to_string(),
        };
        // A dead sandbox never gets ready, and its cause of death says more than a refused connection.
        let is_last = || Instant::now() + pause >= deadline;
        if is_last() || pause >= INSPECT_FROM {
            expect_alive(world, container, profile, deadline).await?;
        }
        if is_last() {
            let log_tail = world.engine.log_tail(container, LOG_TAIL_LINES).await.unwrap_or_default();
            return Err(StartFailure::NotReady { limit, last, log_tail });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}

pub fn has_ended(container: &Observed) -> bool {
    matches!(container.state, ContainerState::Exited(_) | ContainerState::Dead | ContainerState::Removing)
}

/// Tries the readiness check once. The outer error ends the wait; the inner one says why the sandbox is not ready yet.
async fn try_once(
    world: &World,
    container: &ContainerId,
    address: Option<IpAddr>,
    check: &ReadinessCheck,
    deadline: Instant,
) -> Result<Result<(), NotReady>, StartFailure> {
    let endpoint = |port| address.map(|ip| SocketAddr::new(ip, port)).ok_or(StartFailure::NoAddress);
    let answer = match check {
        ReadinessCheck::None => return Ok(Ok(())),
        ReadinessCheck::Http { port, path } => {
            let address = endpoint(*port)?;
            tokio::time::timeout_at(deadline, world.probe.http(address, path)).await
        }
        ReadinessCheck::Tcp { port } => {
            let address = endpoint(*port)?;
            tokio::time::timeout_at(deadline, world.probe.tcp(address)).await
        }
        ReadinessCheck::Health => {
            return match inspect(world, container, deadline).await?.map(|seen| seen.health) {
                Some(Some(Health::Healthy)) => Ok(Ok(())),
                Some(Some(Health::Starting)) => {
                    Ok(Err(NotReady::Refused("its health check has not passed yet".into())))
                }
                Some(Some(Health::Unhealthy)) => Ok(Err(NotReady::Refused("its health check fails".into()))),
                Some(None) => Err(StartFailure::NoHealthCheck),
                None => Ok(Err(NotReady::Refused("its health is unknown".into()))),
            };
        }
    };
    Ok(answer.unwrap_or_else(|_| Err(NotReady::Refused("it did not answer in time".into()))))
}

/// Returns once the sandbox cannot get ready any more.
async fn watch(world: &World, container: &ContainerId, profile: &Profile, deadline: Instant) -> StartFailure {
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        if let Err(failure) = expect_alive(world, container, profile, deadline).await {
            return failure;
        }
    }
}

async fn expect_alive(
    world: &World,
    container: &ContainerId,
    profile: &Profile,
    deadline: Instant,
) -> Result<(), StartFailure> {
    match inspect(world, container, deadline).await?.filter(has_ended) {
        Some(ended) => {
            let death = recent_death_of(&world.engine, &ended, Some(profile.limits.memory_bytes)).await;
            Err(StartFailure::Died(death))
        }
        None => Ok(()),
    }
}

/// Inspects the container. Returns `None` if the engine does not answer; the next try asks again.
async fn inspect(world: &World, container: &ContainerId, deadline: Instant) -> Result<Option<Observed>, StartFailure> {
    match tokio::time::timeout_at(deadline + INSPECTION_OVERRUN, world.engine.inspect(container.as_str())).await {
        Ok(Ok(Some(seen))) => Ok(Some(seen)),
        Ok(Ok(None)) => Err(EngineError::NoSuchContainer { container: container.to_string() }.into()),
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}
