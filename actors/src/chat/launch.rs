//! The way in: from an admitted create to a sandbox that is ready.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::World;
use super::discovery::{Condition, Found, autopsy, discover};
use super::events::{LaunchFailure, Launched, Remains};
use super::readiness::{has_ended, wait_until_ready};
use crate::clock::Timestamp;
use crate::container::{ContainerSpec, compose};
use crate::engine::bounded::Straggler;
use crate::engine::{EngineError, Observed};
use crate::ids::{ContainerId, SessionId};
use crate::outcome::StartFailure;
use crate::profile::Network;
use crate::request::CreateRequest;
use crate::sandbox::Endpoint;

/// How long a cancelled launch still waits for a creation that is under way: almost always long enough to learn what
/// has to be removed.
const CANCELLED_CREATION_GRACE: Duration = Duration::from_secs(5);

/// Tries for the chat's name, should it be taken by something of the chat's own that is in the way.
const NAME_TRIES: usize = 3;

/// Launches a sandbox. A straggler is a creation that was given up; it is still to be followed to its end.
pub async fn launch(
    world: &World,
    request: &CreateRequest,
    session: SessionId,
    created_at: Timestamp,
    cancelled: &CancellationToken,
) -> (Result<Launched, LaunchFailure>, Option<Straggler>) {
    let spec = match prepare(world, request, session, created_at, cancelled).await {
        Ok(spec) => spec,
        Err(failure) => return (Err(LaunchFailure { failure, remains: Remains::Nothing }), None),
    };
    let container = {
        let Some(_slot) = until(cancelled, world.engine_slots.acquire()).await else {
            return (Err(LaunchFailure { failure: StartFailure::Deleted, remains: Remains::Nothing }), None);
        };
        let container = match create(world, request, &spec, cancelled).await {
            Ok(Claim::Created(container)) => container,
            Ok(Claim::Found(found)) => return (Ok(Launched::Found(found)), None),
            Err((failure, straggler)) => {
                let remains = what_remains(&failure, straggler.is_some());
                return (Err(LaunchFailure { failure, remains }), straggler);
            }
        };
        if !cancelled.is_cancelled()
            && let Err(error) = world.engine.start(&container).await
        {
            let remains = Remains::Container(container);
            return (Err(LaunchFailure { failure: error.into(), remains }), None);
        }
        container
    };
    let result = until(cancelled, become_ready(world, request, &container)).await;
    let result = result.unwrap_or(Err(StartFailure::Deleted));
    (result.map_err(|failure| LaunchFailure { failure, remains: Remains::Container(container) }), None)
}

async fn prepare(
    world: &World,
    request: &CreateRequest,
    session: SessionId,
    created_at: Timestamp,
    cancelled: &CancellationToken,
) -> Result<ContainerSpec, StartFailure> {
    let prepared = until(cancelled, world.directories.prepare(request.chat, request.profile.user)).await;
    let chat_directory = prepared.ok_or(StartFailure::Deleted)??;
    Ok(compose(&world.instance, &world.mounts, request, chat_directory, session, created_at))
}

enum Claim {
    Created(ContainerId),
    Found(Box<Found>),
}

/// Creates the container under the chat's name. If the name is taken, whatever holds it decides.
async fn create(
    world: &World,
    request: &CreateRequest,
    spec: &ContainerSpec,
    cancelled: &CancellationToken,
) -> Result<Claim, (StartFailure, Option<Straggler>)> {
    let mut taken = EngineError::NameTaken { name: spec.name.to_string() };
    for _ in 0..NAME_TRIES {
        let give_up = async {
            cancelled.cancelled().await;
            tokio::time::sleep(CANCELLED_CREATION_GRACE).await;
        };
        match world.engine.create(spec.clone()).outcome(give_up).await {
            Ok(container) => return Ok(Claim::Created(container)),
            Err((error @ EngineError::NameTaken { .. }, _)) => taken = error,
            Err((error, straggler)) => return Err((error.into(), straggler)),
        }
        if let Some(found) = make_way(world, request, spec).await.map_err(|failure| (failure, None))? {
            return Ok(Claim::Found(found));
        }
    }
    Err((taken.into(), None))
}

/// Looks at what holds the chat's name: a live sandbox of the chat is found, a dead or half-made one is removed, and
/// what is not ours is left alone and named.
async fn make_way(
    world: &World,
    request: &CreateRequest,
    spec: &ContainerSpec,
) -> Result<Option<Box<Found>>, StartFailure> {
    match discover(&world.engine, &world.instance, request.chat).await? {
        None => Ok(None),
        Some(Ok(found)) if found.condition() == Condition::Alive => Ok(Some(Box::new(found))),
        Some(Ok(found)) => {
            tracing::info!(container.id = %found.container.id, "removing what is left of an earlier sandbox");
            world.engine.remove(&found.container.id, world.teardown.remove).await?;
            Ok(None)
        }
        Some(Err((holder, why))) => {
            Err(StartFailure::InTheWay { name: spec.name.to_string(), holder, why: why.to_string() })
        }
    }
}

/// Starts nothing more: waits until what was started has an address and answers.
async fn become_ready(
    world: &World,
    request: &CreateRequest,
    container: &ContainerId,
) -> Result<Launched, StartFailure> {
    let profile = &*request.profile;
    let seen = world.engine.inspect(container.as_str()).await?;
    let seen = seen.ok_or_else(|| EngineError::NoSuchContainer { container: container.to_string() })?;
    if has_ended(&seen) {
        let death = autopsy(&world.engine, &seen, Some(profile.limits.memory_bytes)).await;
        return Err(StartFailure::Died(death));
    }
    let endpoint = endpoint(&seen, request)?;
    wait_until_ready(world, container, seen.address, profile).await?;
    Ok(Launched::Started {
        container: container.clone(),
        endpoint,
        started_at: seen.started_at.unwrap_or_else(|| world.clock.now()),
    })
}

fn endpoint(seen: &Observed, request: &CreateRequest) -> Result<Option<Endpoint>, StartFailure> {
    match (&request.profile.network, seen.address) {
        (Network::Blocked, _) => Ok(None),
        (Network::Named(_), Some(ip)) => Ok(Some(Endpoint { ip, port: request.profile.port })),
        (Network::Named(_), None) => Err(StartFailure::NoAddress),
    }
}

fn what_remains(failure: &StartFailure, straggler: bool) -> Remains {
    match failure {
        _ if straggler => Remains::Straggler,
        StartFailure::Engine(error) if error.may_have_happened() => Remains::Perhaps,
        _ => Remains::Nothing,
    }
}

/// The future's outcome, unless the launch is cancelled first.
async fn until<T>(cancelled: &CancellationToken, future: impl Future<Output = T>) -> Option<T> {
    cancelled.run_until_cancelled(future).await
}
