//! How a slot comes into being: behind everybody who waits for the engine.

use tokio_util::sync::CancellationToken;

use crate::chat::World;
use crate::chat::effects::readiness::has_ended;
use crate::domain::container::{compose_slot, places, spec_hash};
use crate::domain::ids::SlotId;
use crate::domain::labels::SlotLabels;
use crate::domain::profile::{Network, Profile};
use crate::ports::engine::EngineError;
use crate::ports::slot::Slot;

/// Why a slot did not come.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotStarted(pub(super) String);

/// Starts a slot, unless the pool is closed before it is its turn. What is left of one that fails is removed before this
/// answers.
pub(super) async fn start(
    world: &World,
    profile: &Profile,
    id: SlotId,
    closed: &CancellationToken,
) -> Result<Slot, NotStarted> {
    let turn = closed.run_until_cancelled(world.turns.take_in_a_quiet_moment()).await;
    let turn = turn.ok_or_else(|| NotStarted("the service ends".into()))?;
    let image = world.engine.image_id(&profile.image).await.map_err(failed)?;
    let image_id = image.ok_or_else(|| failed(EngineError::ImageNotFound { image: profile.image.clone() }))?;
    let created_at = world.clock.now();
    let labels = SlotLabels {
        instance: world.instance.clone(),
        slot: id,
        profile: profile.name.clone(),
        spec_hash: spec_hash(profile, &world.mounts),
        image_id: image_id.clone(),
        created_at,
    };
    let places = places(&world.mounts);
    let furnishing = world.slots.prepare(id, &places).await.map_err(failed)?;
    let spec = compose_slot(&world.mounts, profile, &labels).prepared(furnishing);
    let container = match world.engine.create(spec).outcome(std::future::pending()).await {
        Ok(container) => container,
        Err((error, straggler)) => {
            if let Some(straggler) = straggler {
                straggler.ended().await;
            }
            world.slots.clear(id).await;
            return Err(failed(error));
        }
    };
    let started = async {
        world.engine.start(&container).await.map_err(failed)?;
        drop(turn);
        let seen = world.engine.inspect(container.as_str()).await.map_err(failed)?;
        let seen = seen.filter(|seen| !has_ended(seen)).ok_or_else(|| NotStarted("it ended at once".into()))?;
        if seen.address.is_none() && profile.network != Network::Blocked {
            return Err(NotStarted("it has no address".into()));
        }
        world.slots.wait(id, &places).await.map_err(failed)?;
        Ok(seen.address)
    };
    match started.await {
        Ok(address) => Ok(Slot { id, container, address, image_id, created_at }),
        Err(error) => {
            world.engine.discard(&container).await;
            world.slots.clear(id).await;
            Err(error)
        }
    }
}

fn failed(error: impl std::fmt::Display) -> NotStarted {
    NotStarted(error.to_string())
}
