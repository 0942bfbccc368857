//! Pauses and resumes a container. A failed call counts as done if the container is in the wanted state afterwards.

use crate::chat::{Place, World};
use crate::domain::ids::ContainerId;
use crate::ports::engine::{ContainerState, EngineError};

pub async fn pause(world: &World, container: &ContainerId, place: Place) -> Result<(), EngineError> {
    let _permit = place.permit(world).await;
    let paused = world.engine.pause(container).await;
    accept_if_in_state(world, container, ContainerState::Paused, paused).await
}

pub async fn unpause(world: &World, container: &ContainerId) -> Result<(), EngineError> {
    let resumed = world.engine.unpause(container).await;
    accept_if_in_state(world, container, ContainerState::Running, resumed).await
}

/// Accepts a failed call if the container is in the wanted state. An engine refuses a call for the current state, and
/// may have executed a call that it did not answer.
async fn accept_if_in_state(
    world: &World,
    container: &ContainerId,
    state: ContainerState,
    outcome: Result<(), EngineError>,
) -> Result<(), EngineError> {
    let Err(error) = outcome else { return Ok(()) };
    match world.engine.inspect(container.as_str()).await {
        Ok(Some(seen)) if seen.state == state => Ok(()),
        _ => Err(error),
    }
}
