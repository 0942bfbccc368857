//! Removing a container in layers: a graceful end, then removal by force, all within an outer limit.

use std::time::Duration;

use tokio::time::Instant;

use crate::chat::effects::discover::Found;
use crate::chat::{Place, World};
use crate::domain::ids::{ChatId, ContainerId, ContainerName};
use crate::ports::engine::{EngineError, Operation};

/// How long each layer may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TeardownLimits {
    pub graceful: Duration,
    pub remove: Duration,
    pub total: Duration,
}

impl TeardownLimits {
    /// What the container's processes get of the graceful layer; the rest is the engine's, to end them and to answer.
    fn process_grace(&self) -> Duration {
        self.graceful * 2 / 3
    }
}

/// Removes a chat's container: this one, or, if it is not known, whichever of ours has the chat's name. Succeeds only
/// once the engine does not show it any more.
pub async fn tear_down(
    world: &World,
    chat: ChatId,
    container: Option<ContainerId>,
    graceful: bool,
    place: Place,
) -> Result<(), EngineError> {
    let limits = &world.teardown;
    let mut left = limits.total;
    // Waiting for a turn at a busy engine is nobody's fault and does not count.
    let _turn = place.turn(world).await;
    let container = match container {
        Some(container) => container,
        None => match clamped(&mut left, limits.total, find(world, chat)).await?? {
            Some(container) => container,
            None => return Ok(()),
        },
    };
    if graceful && !limits.graceful.is_zero() {
        let stop = world.engine.stop(&container, limits.process_grace(), limits.graceful);
        if let Err(error) = clamped(&mut left, limits.graceful, stop).await.flatten() {
            // Removal is tried whatever the graceful end did.
            tracing::warn!(container.id = %container, %error, "the sandbox was not stopped gracefully");
        }
    }
    let outer = left;
    clamped(&mut left, outer, world.engine.remove(&container, limits.remove)).await.flatten()
}

/// Ends a container's processes and keeps it.
pub async fn stop(world: &World, container: &ContainerId, place: Place) -> Result<(), EngineError> {
    let limits = &world.teardown;
    let _turn = place.turn(world).await;
    world.engine.stop(container, limits.process_grace(), limits.graceful).await
}

/// Runs a layer within its own limit and what is left of the outer one.
async fn clamped<T>(left: &mut Duration, own: Duration, layer: impl Future<Output = T>) -> Result<T, EngineError> {
    let limit = own.min(*left);
    let started = Instant::now();
    let result = tokio::time::timeout(limit, layer).await;
    *left = left.saturating_sub(started.elapsed());
    result.map_err(|_| EngineError::TimedOut { operation: Operation::Remove, limit })
}

async fn find(world: &World, chat: ChatId) -> Result<Option<ContainerId>, EngineError> {
    let name = ContainerName::of(&world.instance, chat);
    let Some(container) = world.engine.inspect(name.as_str()).await? else {
        return Ok(None);
    };
    let id = container.id.clone();
    match Found::recognise(container, &world.instance) {
        Ok(_) => Ok(Some(id)),
        Err(why) => {
            tracing::warn!(container.id = %id, %why, "left alone a container that is not ours");
            Ok(None)
        }
    }
}
