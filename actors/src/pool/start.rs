//! Starts a slot, behind every caller that waits for the engine.

use tokio_util::sync::CancellationToken;

use crate::chat::World;
use crate::chat::effects::readiness::has_ended;
use crate::domain::container::{compose_slot, late_mount_points, spec_hash};
use crate::domain::ids::SlotId;
use crate::domain::labels::SlotLabels;
use crate::domain::profile::{Network, Profile};
use crate::ports::engine::EngineError;
use crate::ports::slot::Slot;

/// The reason why a slot did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotStarted(pub(super) String);

/// Starts a slot, unless the pool is closed before a permit is free. A failed slot is removed before this returns.
pub(super) async fn start(
    world: &World,
    profile: &Profile,
    id: SlotId,
    closed: &CancellationToken,
) -> Result<Slot, NotStarted> {
    let permit = closed.run_until_cancelled(world.engine_queue.acquire_when_half_free()).await;
    let permit = permit.ok_or_else(|| NotStarted("the service is shutting down".into()))?;
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
    let places = late_mount_points(&world.mounts);
    let guest_setup = world.slots.prepare(id, &places).await.map_err(failed)?;
    let spec = compose_slot(&world.mounts, profile, &labels).prepared(guest_setup);
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
        drop(permit);
        let seen = world.engine.inspect(container.as_str()).await.map_err(failed)?;
        let seen =
            seen.filter(|seen| !has_ended(seen)).ok_or_else(|| NotStarted("the container exited at once".into()))?;
        if seen.address.is_none() && profile.network != Network::Blocked {
            return Err(NotStarted("the container has no address".into()));
        }
        world.slots.wait(id, &places).await.map_err(failed)?;
        Ok(seen.address)
    };
    match started.await {
        Ok(address) => Ok(Slot { id, container, address, image_id, created_at }),
        Err(error) => {
            world.engine.remove_until_gone(&container).await;
            world.slots.clear(id).await;
            Err(error)
        }
    }
}

fn failed(error: impl std::fmt::Display) -> NotStarted {
    NotStarted(error.to_string())
}
