//! Removes a container in layers: a graceful stop, then a forced removal, within one limit.

use std::time::Duration;

use tokio::time::Instant;

use crate::chat::effects::discover;
use crate::chat::{Place, World};
use crate::domain::ids::{ChatId, ContainerId};
use crate::ports::engine::{EngineError, Operation};

/// The time limit of each layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TeardownLimits {
    pub graceful: Duration,
    pub remove: Duration,
    pub total: Duration,
}

impl TeardownLimits {
    /// Returns the part of the graceful limit for the container's processes. The engine needs the rest to end them and
    /// to answer.
    fn process_grace(&self) -> Duration {
        self.graceful * 2 / 3
    }
}

/// Removes a chat's container: the given one, or our container under the chat's name. Succeeds only once the engine
/// does not show the container any more.
pub async fn tear_down(
    world: &World,
    chat: ChatId,
    container: Option<ContainerId>,
    graceful: bool,
    place: Place,
) -> Result<(), EngineError> {
    let limits = &world.teardown;
    let mut left = limits.total;
    // The wait for a permit does not count against the limit.
    let _permit = place.permit(world).await;
    let container = match container {
        Some(container) => container,
        None => match within_limits(&mut left, limits.total, find(world, chat)).await?? {
            Some(container) => container,
            None => return Ok(()),
        },
    };
    if graceful && !limits.graceful.is_zero() {
        let stop = world.engine.stop(&container, limits.process_grace(), limits.graceful);
        if let Err(error) = within_limits(&mut left, limits.graceful, stop).await.flatten() {
            // The forced removal follows in any case.
            tracing::warn!(container.id = %container, %error, "sandbox was not stopped gracefully; forcing removal");
        }
    }
    let outer = left;
    within_limits(&mut left, outer, world.engine.remove(&container, limits.remove)).await.flatten()
}

/// Stops a container's processes and keeps the container.
pub async fn stop(world: &World, container: &ContainerId, place: Place) -> Result<(), EngineError> {
    let limits = &world.teardown;
    let _permit = place.permit(world).await;
    world.engine.stop(container, limits.process_grace(), limits.graceful).await
}

/// Runs a layer within its own limit and the remainder of the outer limit.
async fn within_limits<T>(
    left: &mut Duration,
    own: Duration,
    layer: impl Future<Output = T>,
) -> Result<T, EngineError> {
    let limit = own.min(*left);
    let started = Instant::now();
    let result = tokio::time::timeout(limit, layer).await;
    *left = left.saturating_sub(started.elapsed());
    result.map_err(|_| EngineError::TimedOut { operation: Operation::Remove, limit })
}

async fn find(world: &World, chat: ChatId) -> Result<Option<ContainerId>, EngineError> {
    let Some(container) = discover::inspect(world, chat).await? else {
        return Ok(None);
    };
    match discover::session_labels(&container, &world.instance, &world.claims) {
        Ok(_) => Ok(Some(container.id)),
        Err(why) => {
            tracing::warn!(container.id = %container.id, %why, "foreign container holds the chat's name; not removed");
            Ok(None)
        }
    }
}
