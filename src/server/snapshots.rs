//! Requests that list, delete and look up snapshots. The chat takes its snapshots itself.

use std::sync::Arc;

use sandboxd_actors::domain::ids::SnapshotId;
use sandboxd_actors::domain::outcome::{SandboxError, StartFailure};
use sandboxd_actors::domain::profile::Profile;
use sandboxd_actors::domain::snapshot::{Snapshot, image_name};
use sandboxd_actors::ports::engine::EngineError;
use sandboxd_actors::ports::engine::SnapshotRemoval;
use sandboxd_protocol::error::{Error, ErrorKind};

use super::handler::Handler;
use crate::protocol::answer::{self, Answer};
use crate::protocol::error::{of_engine, of_sandbox};
use crate::protocol::params::Snapshots;

impl Handler {
    pub(super) async fn snapshots(&self, query: Snapshots) -> Result<Answer, Error> {
        let Snapshots { chat, after, limit } = query;
        let snapshots = self.engine.snapshots(&self.instance, chat).await.map_err(of_engine)?;
        Ok(Answer::Snapshots(answer::snapshots(snapshots, after, limit)))
    }

    pub(super) async fn delete_snapshot(&self, snapshot: SnapshotId) -> Result<Answer, Error> {
        let deleted = match self.engine.remove_snapshot(&self.instance, snapshot).await.map_err(of_engine)? {
            SnapshotRemoval::InUse => {
                let message =
                    format!("snapshot {snapshot} is in use by a sandbox that was restored from it; delete that first");
                return Err(ErrorKind::SnapshotInUse.error(message).with("snapshot_id", snapshot.to_string()));
            }
            SnapshotRemoval::Removed => {
                metrics::counter!("sandboxd_snapshots_removed_total", "because" => "requested").increment(1);
                tracing::info!(snapshot.id = %snapshot, "snapshot removed");
                true
            }
            SnapshotRemoval::NotFound => false,
        };
        Ok(Answer::SnapshotDeleted(answer::snapshot_deletion(snapshot, deleted)))
    }

    pub(super) async fn find_snapshot(&self, id: SnapshotId) -> Result<Snapshot, Error> {
        self.engine.snapshot(&self.instance, id).await.map_err(of_engine)?.ok_or_else(|| not_found(id))
    }

    /// Returns the profile with the snapshot as its image.
    pub(super) fn with_snapshot(&self, profile: Arc<Profile>, id: SnapshotId) -> Arc<Profile> {
        let mut profile = Arc::unwrap_or_clone(profile);
        profile.image = image_name(&self.instance, id);
        Arc::new(profile)
    }
}

/// Maps the error of a create. The snapshot may have been removed since the lookup.
pub(super) fn create_error(error: SandboxError, snapshot: Option<SnapshotId>) -> Error {
    use EngineError::ImageNotFound;
    match (&error, snapshot) {
        (SandboxError::StartFailed { failure: StartFailure::Engine(ImageNotFound { .. }), .. }, Some(snapshot)) => {
            not_found(snapshot)
        }
        _ => of_sandbox(error),
    }
}

fn not_found(id: SnapshotId) -> Error {
    ErrorKind::SnapshotNotFound.error(format!("there is no snapshot {id}")).with("snapshot_id", id.to_string())
}
