//! Saves a sandbox as a snapshot, and applies the retention rules.

use crate::chat::{Place, World};
use crate::domain::ids::SnapshotId;
use crate::domain::sandbox::Sandbox;
use crate::domain::snapshot::{Parent, Snapshot, SnapshotLabel, SnapshotOrigin};
use crate::ports::engine::EngineError;

pub async fn take(
    world: &World,
    sandbox: &Sandbox,
    label: Option<SnapshotLabel>,
    place: Place,
) -> Result<Box<Snapshot>, EngineError> {
    let missing = || EngineError::NoSuchContainer { container: sandbox.container_name.to_string() };
    let container = sandbox.container.as_ref().ok_or_else(missing)?;
    let _permit = place.permit(world).await;
    let origin = SnapshotOrigin {
        id: SnapshotId::next(),
        instance: world.instance.clone(),
        chat: sandbox.chat,
        session: sandbox.session,
        profile: sandbox.profile.clone(),
        label,
        parent: sandbox.snapshot.map_or_else(|| Parent::Image(sandbox.image.clone()), Parent::Snapshot),
        created_at: world.clock.now(),
    };
    let result = world.engine.commit(container, &origin).await;
    let outcome = if result.is_ok() { "ok" } else { "failed" };
    metrics::counter!("sandboxd_snapshots_total", "outcome" => outcome).increment(1);
    result.map(Box::new)
}

/// Removes expired snapshots of the chat. The next pass retries a failure.
pub async fn apply_retention(world: &World, sandbox: &Sandbox) {
    let World { instance, engine, retention, clock, .. } = world;
    if let Err(error) = retention.enforce(engine, instance, Some(sandbox.chat), clock.now()).await {
        tracing::warn!(chat.id = %sandbox.chat, %error, "removal of old snapshots failed; retrying with the next pass");
    }
}
