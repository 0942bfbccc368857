//! The way in: from an admitted create to a sandbox that is ready.

use std::time::Duration;

use ractor::ActorRef;
use tokio_util::sync::CancellationToken;

use super::readiness::{has_ended, wait_until_ready};
use crate::chat::World;
use crate::chat::effects::discover::{Found, NotOurs, discover, sudden_death};
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
use crate::root;

/// How long a cancelled launch still waits for a creation that is under way: almost always long enough to learn what
/// has to be removed.
const CANCELLED_CREATION_GRACE: Duration = Duration::from_secs(5);

/// A host's directories are ready in milliseconds; a file system that hangs must not hold a create for ever.
const DIRECTORY_LIMIT: Duration = Duration::from_secs(10);

/// Looks at a container whose init did not start its program, and the pause between them.
const END_LOOKS: u32 = 20;
const END_PAUSE: Duration = Duration::from_millis(50);

/// Tries for the chat's name, should it be taken by something of the chat's own that is in the way, and the first pause
/// between them; each is twice as long as the one before, six seconds in all. An engine gives a name away before it
/// shows the container, and takes it back after: what it was asked for earlier may be on its way in or out.
const NAME_TRIES: u32 = 8;
const NAME_PAUSE: Duration = Duration::from_millis(50);

/// Launches a sandbox. A straggler is a creation that was given up; it is still to be followed to its end.
pub async fn launch(
    world: &World,
    root: &ActorRef<root::Message>,
    request: &CreateRequest,
    session: SessionId,
    created_at: Timestamp,
    cancelled: &CancellationToken,
) -> (Result<Launched, LaunchFailure>, Option<Straggler>) {
    // Slots are of the profile's image, and a snapshot is another.
    if request.snapshot.is_none()
        && let Some(result) = claim(world, root, request, session, created_at, cancelled).await
    {
        return (result, None);
    }
    let spec = match prepare(world, request, session, created_at, cancelled).await {
        Ok(spec) => spec,
        Err(failure) => return (Err(LaunchFailure { failure, remains: Remains::Nothing }), None),
    };
    let container = {
        let turn = world.turns.take_within(world.queue_limit, Lane::Start, Tenant::of(request));
        let turn = until(cancelled, turn).await;
        let turn = turn.ok_or(StartFailure::Deleted).and_then(|turn| turn.map_err(StartFailure::from));
        let _turn = match turn {
            Ok(turn) => turn,
            Err(failure) => {
                world.clear(session).await;
                return (Err(LaunchFailure { failure, remains: Remains::Nothing }), None);
            }
        };
        let container = match create(world, request, &spec, cancelled).await {
            Ok(Named::Created(container)) => container,
            Ok(Named::Found(found)) => return (flush_unsaved(world, found, cancelled).await, None),
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
        begin(world, &container, session, request.volume.as_ref(), &request.profile).await?;
        become_ready(world, &request.profile, &container).await
    };
    let result = until(cancelled, started).await;
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
        let waits = request.volume.is_some() && init(&request.profile) == Some(Init::Waits);
        let furnishing = if request.profile.init { world.guests.prepare(session, waits).await? } else { None };
        Ok((chat_directory, furnishing))
    };
    let prepared = until(cancelled, tokio::time::timeout(DIRECTORY_LIMIT, prepare)).await;
    let (chat_directory, furnishing) = prepared.ok_or(StartFailure::Deleted)?.unwrap_or_else(|_| {
        let message = format!("the file system did not answer within {DIRECTORY_LIMIT:?}");
        Err(DirectoryError::new(request.chat, message))
    })?;
    let spec = compose(&world.instance, &world.mounts, request, chat_directory, session, created_at);
    Ok(match furnishing {
        Some(furnishing) => spec.prepared(furnishing),
        None => spec,
    })
}

enum Named {
    Created(ContainerId),
    Found(Box<Found>),
}

/// Creates the container under the chat's name. If the name is taken, whatever holds it decides.
async fn create(
    world: &World,
    request: &CreateRequest,
    spec: &ContainerSpec,
    cancelled: &CancellationToken,
) -> Result<Named, (LaunchFailure, Option<Straggler>)> {
    let mut taken = EngineError::NameTaken { name: spec.name.to_string() };
    for attempt in 0..NAME_TRIES {
        let give_up = async {
            cancelled.cancelled().await;
            tokio::time::sleep(CANCELLED_CREATION_GRACE).await;
        };
        match world.engine.create(spec.clone()).outcome(give_up).await {
            Ok(container) => return Ok(Named::Created(container)),
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
        if let Some(found) = make_way(world, request, spec).await.map_err(|failure| (failure, None))? {
            return Ok(Named::Found(found));
        }
        let pause = tokio::time::sleep(NAME_PAUSE * 2u32.pow(attempt));
        if until(cancelled, pause).await.is_none() {
            return Err((LaunchFailure { failure: StartFailure::Deleted, remains: Remains::Nothing }, None));
        }
    }
    Err((LaunchFailure { failure: taken.into(), remains: Remains::Nothing }, None))
}

/// Looks at what holds the chat's name: a live sandbox of the chat is found, a dead, ill or half-made one is removed, and
/// what is not ours is left alone and named.
async fn make_way(
    world: &World,
    request: &CreateRequest,
    spec: &ContainerSpec,
) -> Result<Option<Box<Found>>, LaunchFailure> {
    let discovered = discover(&world.engine, &world.instance, request.chat).await;
    // Nothing was made, and what is there may be a live sandbox: an engine that does not answer is no reason to end it.
    let untouched = |failure| LaunchFailure { failure, remains: Remains::Nothing };
    match discovered.map_err(|error| untouched(error.into()))? {
        None => Ok(None),
        Some(Ok(found)) if found.live_container().is_some() => Ok(Some(Box::new(found))),
        Some(Ok(found)) => {
            let leftover = found.container.id;
            tracing::info!(container.id = %leftover, "removing what is left of an earlier sandbox");
            match world.engine.remove(&leftover, world.teardown.remove).await {
                Ok(()) => Ok(None),
                Err(error) => Err(LaunchFailure { failure: error.into(), remains: Remains::Container(leftover) }),
            }
        }
        // Given up on its way to this chat, or to one that was deleted.
        Some(Err((holder, NotOurs::Slot))) => match world.engine.remove(&holder, world.teardown.remove).await {
            Ok(()) => Ok(None),
            Err(error) => Err(LaunchFailure { failure: error.into(), remains: Remains::Nothing }),
        },
        Some(Err((holder, why))) => {
            Err(untouched(StartFailure::InTheWay { name: spec.name.to_string(), holder, why: why.to_string() }))
        }
    }
}

/// What was found is promised like what was made: on disk before anybody is told.
async fn flush_unsaved(
    world: &World,
    found: Box<Found>,
    cancelled: &CancellationToken,
) -> Result<Launched, LaunchFailure> {
    let record = Box::new(found.sandbox(world.clock.now()));
    match world.journal.write(world.adoption(record).collect()).await {
        Ok(()) => Ok(Launched::Found(found)),
        // It is going to be removed.
        Err(_) if cancelled.is_cancelled() => Ok(Launched::Found(found)),
        // Nothing was made. What is there is found again with the next create, or by the next reconciliation.
        Err(error) => {
            let failure = NotSaved(error.to_string()).into();
            Err(LaunchFailure { failure, remains: Remains::Nothing })
        }
    }
}

/// Starts the container of a sandbox that ended again.
pub async fn relaunch(
    world: &World,
    sandbox: &Sandbox,
    cancelled: &CancellationToken,
) -> Result<Launched, LaunchFailure> {
    let remains = || sandbox.container.clone().map_or(Remains::Perhaps, Remains::Container);
    let started = async {
        let unknown = || StartFailure::Defect(format!("there is no profile {} any more", sandbox.profile));
        let profile = world.rules.profiles.get(&sandbox.profile).ok_or_else(unknown)?;
        let container = sandbox
            .container
            .as_ref()
            .ok_or_else(|| EngineError::NoSuchContainer { container: sandbox.container_name.to_string() })?;
        let turn = world.turns.take(Lane::Start, Tenant::owning(sandbox)).await;
        let not_bound = |error: NotBound| StartFailure::NotBound(error.to_string());
        world.slots.open_again(sandbox.session).await.map_err(not_bound)?;
        world.engine.start(container).await?;
        // The engine is done with it, and a sandbox may take its time to get ready.
        drop(turn);
        world.slots.bind_again(sandbox.session).await.map_err(not_bound)?;
        if let Err(failure) = begin(world, container, sandbox.session, sandbox.volume.as_ref(), profile).await {
            // With another directory than its volume, nothing may go on in it.
            if let Err(error) = world.engine.stop(container, Duration::ZERO, world.teardown.remove).await {
                tracing::warn!(container.id = %container, %error, "a sandbox that must not run was not stopped");
            }
            return Err(failure);
        }
        become_ready(world, profile, container).await
    };
    let outcome = until(cancelled, started).await.unwrap_or(Err(StartFailure::Deleted));
    outcome.map_err(|failure| LaunchFailure { failure, remains: remains() })
}

/// Lets the program of a container that was started begin, if the container has the directory that it was made for.
async fn begin(
    world: &World,
    container: &ContainerId,
    session: SessionId,
    volume: Option<&HostPath>,
    profile: &Profile,
) -> Result<(), StartFailure> {
    let (Some(volume), Some(init)) = (volume, init(profile)) else { return Ok(()) };
    let started = Started { session, container, volume, target: &world.mounts.volume, init };
    match world.guests.begin(started).await {
        Ok(()) => Ok(()),
        Err(NotBegun::Volume(why)) => Err(StartFailure::VolumeChanged(why)),
        Err(NotBegun::Init(why)) => {
            // An init that ended tells more by how it ended, which the engine may learn a moment later.
            for _ in 0..END_LOOKS {
                match world.engine.inspect(container.as_str()).await? {
                    Some(seen) if has_ended(&seen) => {
                        let memory_limit = Some(profile.limits.memory_bytes);
                        return Err(StartFailure::Died(sudden_death(&world.engine, &seen, memory_limit).await));
                    }
                    Some(_) => tokio::time::sleep(END_PAUSE).await,
                    None => break,
                }
            }
            Err(StartFailure::NotBegun(why))
        }
    }
}

/// Who starts the program of the profile's sandboxes, as far as their mounts can be looked at before or after: other
/// runtimes show the host nothing of them.
fn init(profile: &Profile) -> Option<Init> {
    if profile.runtime.is_some() {
        return None;
    }
    Some(if profile.init { Init::Waits } else { Init::Absent })
}

/// Starts nothing more: waits until what was started has an address and answers.
async fn become_ready(world: &World, profile: &Profile, container: &ContainerId) -> Result<Launched, StartFailure> {
    let seen = world.engine.inspect(container.as_str()).await?;
    let seen = seen.ok_or_else(|| EngineError::NoSuchContainer { container: container.to_string() })?;
    if has_ended(&seen) {
        let death = sudden_death(&world.engine, &seen, Some(profile.limits.memory_bytes)).await;
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

/// The future's outcome, unless the launch is cancelled first.
async fn until<T>(cancelled: &CancellationToken, future: impl Future<Output = T>) -> Option<T> {
    cancelled.run_until_cancelled(future).await
}
