//! Pausing a container and letting it go on, each of which counts as done if it is so afterwards.

use crate::chat::{Place, World};
use crate::domain::ids::ContainerId;
use crate::ports::engine::{ContainerState, EngineError};

pub async fn pause(world: &World, container: &ContainerId, place: Place) -> Result<(), EngineError> {
    let _turn = place.turn(world).await;
    let paused = world.engine.pause(container).await;
    unless_so(world, container, ContainerState::Paused, paused).await
}

pub async fn unpause(world: &World, container: &ContainerId) -> Result<(), EngineError> {
    let resumed = world.engine.unpause(container).await;
    unless_so(world, container, ContainerState::Running, resumed).await
}

/// An engine refuses what is so already, and may have done what it did not answer.
async fn unless_so(
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
