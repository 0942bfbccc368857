//! Launches a sandbox: from an admitted create to a ready sandbox.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::readiness::{has_ended, wait_until_ready};
use crate::chat::World;
use crate::chat::effects::discover::{Found, NotOurs, discover, recent_death_of};
use crate::chat::events::{LaunchFailure, Launched, Remains};
use crate::domain::container::{ContainerSpec, compose};
use crate::domain::create_request::CreateRequest;
use crate::domain::host_path::HostPath;
use crate::domain::ids::{ContainerId, SessionId};
use crate::domain::outcome::{Launch, NotSaved, StartFailure};
use crate::domain::profile::{Network, Profile};
use crate::domain::sandbox::{Endpoint, Sandbox};
use crate::engine::bounded::Straggler;
use crate::engine::fair_queue::{Lane, Tenant};
use crate::pool::claim::claim;
use crate::ports::chat_directories::DirectoryError;
use crate::ports::clock::Timestamp;
use crate::ports::engine::{EngineError, Observed};
use crate::ports::guest::{Init, NotBegun, Started};
use crate::ports::slot::NotBound;

/// The time that a cancelled launch still waits for a create call under way. It is almost always long enough to learn
/// which container must be removed.
const CANCELLED_CREATION_GRACE: Duration = Duration::from_secs(5);

/// Directories are ready in milliseconds. A hanging file system must not block a create for ever.
const DIRECTORY_LIMIT: Duration = Duration::from_secs(10);

/// The number of inspections of a container whose init did not start its program, and the pause between them.
const END_INSPECTIONS: u32 = 20;
const END_PAUSE: Duration = Duration::from_millis(50);

/// The number of tries for the chat's container name when a leftover of the chat holds it, and the first pause between
/// them. The pause doubles with each try, six seconds in total. An engine reserves a name before it shows the container
/// and frees it after removal, so earlier calls may still be in progress.
const NAME_TRIES: u32 = 8;
const NAME_PAUSE: Duration = Duration::from_millis(50);

/// Launches a sandbox. A straggler is an abandoned create call that the caller must follow to its end.
pub async fn launch(
    world: &World,
    request: &CreateRequest,
    session: SessionId,
    created_at: Timestamp,
    cancelled: &CancellationToken,
) -> (Result<Launched, LaunchFailure>, Option<Straggler>) {
    // A slot has the profile's image, never a snapshot.
    if request.snapshot.is_none()
        && let Some(result) = claim(world, request, session, created_at, cancelled).await
    {
        return (result, None);
    }
    let spec = match prepare(world, request, session, created_at, cancelled).await {
        Ok(spec) => spec,
        Err(failure) => return (Err(LaunchFailure { failure, remains: Remains::Nothing }), None),
    };
    let container = {
        let permit = world.engine_queue.acquire_within(world.queue_limit, Lane::Start, Tenant::of(request));
        let permit = unless_cancelled(cancelled, permit).await;
        let permit = permit.ok_or(StartFailure::Deleted).and_then(|permit| permit.map_err(StartFailure::from));
        let _permit = match permit {
            Ok(permit) => permit,
            Err(failure) => {
                world.remove_session(session).await;
                return (Err(LaunchFailure { failure, remains: Remains::Nothing }), None);
            }
        };
        let container = match create(world, request, &spec, cancelled).await {
            Ok(CreateOutcome::Created(container)) => container,
            Ok(CreateOutcome::Found(found)) => return (save_found(world, found, cancelled).await, None),
            Err((failure, straggler)) => return (Err(failure), straggler),
        };
        if !cancelled.is_cancelled()
            && let Err(error) = world.engine.start(&container).await
        {
            let remains = Remains::Container(container);
            return (Err(LaunchFailure { failure: error.into(), remains }), None);
        }
        container
    };
    let started = async {
        begin_program(world, &container, session, request.volume.as_ref(), &request.profile).await?;
        become_ready(world, &request.profile, &container).await
    };
    let result = unless_cancelled(cancelled, started).await;
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
    let prepare = async {
        let chat_directory = world.directories.prepare(request.chat, request.profile.user).await?;
        let init_waits = request.volume.is_some() && init_mode(&request.profile) == Some(Init::Waits);
        let guest_setup = if request.profile.init { world.guests.prepare(session, init_waits).await? } else { None };
        Ok((chat_directory, guest_setup))
    };
    let prepared = unless_cancelled(cancelled, tokio::time::timeout(DIRECTORY_LIMIT, prepare)).await;
    let (chat_directory, guest_setup) = prepared.ok_or(StartFailure::Deleted)?.unwrap_or_else(|_| {
        let message = format!("the file system did not answer within {DIRECTORY_LIMIT:?}");
        Err(DirectoryError::new(request.chat, message))
    })?;
    let spec = compose(&world.instance, &world.mounts, request, chat_directory, session, created_at);
    Ok(match guest_setup {
        Some(guest_setup) => spec.prepared(guest_setup),
        None => spec,
    })
}

enum CreateOutcome {
    Created(ContainerId),
    Found(Box<Found>),
}

/// Creates the container under the chat's name. A taken name is resolved by [`free_name`].
async fn create(
    world: &World,
    request: &CreateRequest,
    spec: &ContainerSpec,
    cancelled: &CancellationToken,
) -> Result<CreateOutcome, (LaunchFailure, Option<Straggler>)> {
    let mut taken = EngineError::NameTaken { name: spec.name.to_string() };
    for attempt in 0..NAME_TRIES {
        let give_up = async {
            cancelled.cancelled().await;
            tokio::time::sleep(CANCELLED_CREATION_GRACE).await;
        };
        match world.engine.create(spec.clone()).outcome(give_up).await {
            Ok(container) => return Ok(CreateOutcome::Created(container)),
            Err((error @ EngineError::NameTaken { .. }, _)) => taken = error,
            Err((error, straggler)) => {
                let remains = match &straggler {
                    Some(_) => Remains::Straggler,
                    None if error.may_have_happened() => Remains::Perhaps,
                    None => Remains::Nothing,
                };
                return Err((LaunchFailure { failure: error.into(), remains }, straggler));
            }
        }
        if let Some(found) = free_name(world, request, spec).await.map_err(|failure| (failure, None))? {
            return Ok(CreateOutcome::Found(found));
        }
        let pause = tokio::time::sleep(NAME_PAUSE * 2u32.pow(attempt));
        if unless_cancelled(cancelled, pause).await.is_none() {
            return Err((LaunchFailure { failure: StartFailure::Deleted, remains: Remains::Nothing }, None));
        }
    }
    Err((LaunchFailure { failure: taken.into(), remains: Remains::Nothing }, None))
}

/// Resolves a taken name. A live sandbox of the chat is returned, a dead, unhealthy or incomplete one is removed, and a
/// foreign container is reported and left in place.
async fn free_name(
    world: &World,
    request: &CreateRequest,
    spec: &ContainerSpec,
) -> Result<Option<Box<Found>>, LaunchFailure> {
    let discovered = discover(world, request.chat).await;
    // This launch created no container, and the holder may be a live sandbox: a silent engine is no reason to remove
    // it.
    let untouched = |failure| LaunchFailure { failure, remains: Remains::Nothing };
    match discovered.map_err(|error| untouched(error.into()))? {
        None => Ok(None),
        Some(Ok(found)) if found.live_container().is_some() => Ok(Some(Box::new(found))),
        Some(Ok(found)) => {
            let leftover = found.container.id;
            tracing::info!(container.id = %leftover, "removing leftover container of an earlier sandbox");
            match world.engine.remove(&leftover, world.teardown.remove).await {
                Ok(()) => Ok(None),
                Err(error) => Err(LaunchFailure { failure: error.into(), remains: Remains::Container(leftover) }),
            }
        }
        // An abandoned slot, claimed for this chat or for a deleted one.
        Some(Err((holder, NotOurs::Slot(_)))) => match world.engine.remove(&holder, world.teardown.remove).await {
            Ok(()) => Ok(None),
            Err(error) => Err(LaunchFailure { failure: error.into(), remains: Remains::Nothing }),
        },
        Some(Err((holder, why))) => {
            Err(untouched(StartFailure::NameConflict { name: spec.name.to_string(), holder, why: why.to_string() }))
        }
    }
}

/// Saves a found sandbox before the create is acknowledged.
async fn save_found(
    world: &World,
    found: Box<Found>,
    cancelled: &CancellationToken,
) -> Result<Launched, LaunchFailure> {
    let record = Box::new(found.sandbox(world.clock.now()));
    match world.journal.write(world.adoption(record).collect()).await {
        Ok(()) => Ok(Launched::Found(found)),
        // The sandbox is about to be removed.
        Err(_) if cancelled.is_cancelled() => Ok(Launched::Found(found)),
        // This launch created no container. The next create or the next reconciliation finds the sandbox again.
        Err(error) => {
            let failure = NotSaved(error.to_string()).into();
            Err(LaunchFailure { failure, remains: Remains::Nothing })
        }
    }
}

/// Starts the container of an ended sandbox again.
pub async fn relaunch(
    world: &World,
    sandbox: &Sandbox,
    cancelled: &CancellationToken,
) -> Result<Launched, LaunchFailure> {
    let remains = || sandbox.container.clone().map_or(Remains::Perhaps, Remains::Container);
    let started = async {
        let unknown = || StartFailure::Defect(format!("profile {} is not configured any more", sandbox.profile));
        let profile = world.rules.profiles.get(&sandbox.profile).ok_or_else(unknown)?;
        let container = sandbox
            .container
            .as_ref()
            .ok_or_else(|| EngineError::NoSuchContainer { container: sandbox.container_name.to_string() })?;
        let permit = world.engine_queue.acquire(Lane::Start, Tenant::owning(sandbox)).await;
        let not_bound = |error: NotBound| StartFailure::NotBound(error.to_string());
        world.slots.open_again(sandbox.session).await.map_err(not_bound)?;
        world.engine.start(container).await?;
        // Releases the permit: the engine call is done, and readiness may take long.
        drop(permit);
        world.slots.bind_again(sandbox.session).await.map_err(not_bound)?;
        if let Err(failure) = begin_program(world, container, sandbox.session, sandbox.volume.as_ref(), profile).await {
            // The container may have another directory than its volume, so it must not run.
            if let Err(error) = world.engine.stop(container, Duration::ZERO, world.teardown.remove).await {
                tracing::warn!(container.id = %container, %error, "sandbox that failed to restart was not stopped");
            }
            return Err(failure);
        }
        become_ready(world, profile, container).await
    };
    let outcome = unless_cancelled(cancelled, started).await.unwrap_or(Err(StartFailure::Deleted));
    outcome.map_err(|failure| LaunchFailure { failure, remains: remains() })
}

/// Lets the program of a started container begin, if the container has its own volume directory.
async fn begin_program(
    world: &World,
    container: &ContainerId,
    session: SessionId,
    volume: Option<&HostPath>,
    profile: &Profile,
) -> Result<(), StartFailure> {
    let (Some(volume), Some(init)) = (volume, init_mode(profile)) else { return Ok(()) };
    let started = Started { session, container, volume, target: &world.mounts.volume, init };
    match world.guests.begin(started).await {
        Ok(()) => Ok(()),
        Err(NotBegun::Volume(why)) => Err(StartFailure::VolumeChanged(why)),
        Err(NotBegun::Init(why)) => {
            // The exit status of an ended init says more than this error, and the engine may report it late.
            for _ in 0..END_INSPECTIONS {
                match world.engine.inspect(container.as_str()).await? {
                    Some(seen) if has_ended(&seen) => {
                        let memory_limit = Some(profile.limits.memory_bytes);
                        return Err(StartFailure::Died(recent_death_of(&world.engine, &seen, memory_limit).await));
                    }
                    Some(_) => tokio::time::sleep(END_PAUSE).await,
                    None => break,
                }
            }
            Err(StartFailure::NotBegun(why))
        }
    }
}

/// Returns how the program of the profile's sandboxes starts. `None` for other runtimes, whose mounts are invisible to
/// the host.
fn init_mode(profile: &Profile) -> Option<Init> {
    if profile.runtime.is_some() {
        return None;
    }
    Some(if profile.init { Init::Waits } else { Init::Absent })
}

/// Waits until a started container has an address and is ready.
async fn become_ready(world: &World, profile: &Profile, container: &ContainerId) -> Result<Launched, StartFailure> {
    let seen = world.engine.inspect(container.as_str()).await?;
    let seen = seen.ok_or_else(|| EngineError::NoSuchContainer { container: container.to_string() })?;
    if has_ended(&seen) {
        let death = recent_death_of(&world.engine, &seen, Some(profile.limits.memory_bytes)).await;
        return Err(StartFailure::Died(death));
    }
    let endpoint = endpoint(&seen, profile)?;
    wait_until_ready(world, container, seen.address, profile).await?;
    Ok(Launched::Started {
        container: container.clone(),
        endpoint,
        started_at: seen.started_at.unwrap_or_else(|| world.clock.now()),
        launch: Launch::Cold,
        claim: None,
    })
}

fn endpoint(seen: &Observed, profile: &Profile) -> Result<Option<Endpoint>, StartFailure> {
    match (&profile.network, seen.address) {
        (Network::Blocked, _) => Ok(None),
        (Network::Named(_), Some(ip)) => Ok(Some(Endpoint { ip, port: profile.port })),
        (Network::Named(_), None) => Err(StartFailure::NoAddress),
    }
}

/// Returns the outcome of the future, or `None` if the launch is cancelled first.
async fn unless_cancelled<T>(cancelled: &CancellationToken, future: impl Future<Output = T>) -> Option<T> {
    cancelled.run_until_cancelled(future).await
}
