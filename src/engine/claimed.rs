//! Shows a slot that has become a session's with the session's labels. An engine cannot change a container's, so they are
//! kept beside it; whoever reads a container needs to know nothing of that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use sandboxd_actors::clock::Timestamp;
use sandboxd_actors::container::ContainerSpec;
use sandboxd_actors::engine::events::{EngineEvent, EngineEvents, Whose};
use sandboxd_actors::engine::logs::{EngineLogs, LogRange};
use sandboxd_actors::engine::{Engine, EngineError, EngineIdentity, NetworkSpec, Observed, SnapshotRemoval};
use sandboxd_actors::ids::{ChatId, ContainerId, ContainerName, InstanceName, SlotId, SnapshotId};
use sandboxd_actors::labels;
use sandboxd_actors::snapshot::{Snapshot, SnapshotOrigin};

use crate::interiors::InteriorsOnDisk;

pub struct ClaimedLabels {
    inner: Arc<dyn Engine>,
    interiors: Arc<InteriorsOnDisk>,
}

impl ClaimedLabels {
    pub fn around(inner: Arc<dyn Engine>, interiors: Arc<InteriorsOnDisk>) -> Arc<dyn Engine> {
        Arc::new(Self { inner, interiors })
    }

    fn shown(&self, mut container: Observed) -> Observed {
        if let Some(labels) = slot(&container.labels).and_then(|slot| self.interiors.labels_of(slot)) {
            container.labels = labels;
        }
        container
    }
}

impl std::fmt::Debug for ClaimedLabels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimedLabels").finish_non_exhaustive()
    }
}

fn slot(labels: &BTreeMap<String, String>) -> Option<SlotId> {
    labels.get(labels::SLOT_ID)?.parse().ok()
}

#[async_trait]
impl Engine for ClaimedLabels {
    async fn inspect(&self, id_or_name: &str) -> Result<Option<Observed>, EngineError> {
        Ok(self.inner.inspect(id_or_name).await?.map(|container| self.shown(container)))
    }

    async fn list(&self, instance: &InstanceName) -> Result<Vec<Observed>, EngineError> {
        Ok(self.inner.list(instance).await?.into_iter().map(|container| self.shown(container)).collect())
    }

    async fn watch(&self, instance: &InstanceName) -> Result<EngineEvents, EngineError> {
        let interiors = Arc::clone(&self.interiors);
        let shown = move |whose| match whose {
            Whose::Slot(slot) => {
                let chat = interiors.labels_of(slot).and_then(|labels| labels.get(labels::CHAT_ID)?.parse().ok());
                chat.map_or(whose, Whose::Chat)
            }
            Whose::Chat(_) => whose,
        };
        let events = self.inner.watch(instance).await?;
        let relabelled = move |event: Result<EngineEvent, EngineError>| match event {
            Ok(event) => Ok(EngineEvent { whose: shown(event.whose), ..event }),
            Err(error) => Err(error),
        };
        Ok(events.map(relabelled).boxed())
    }

    async fn identify(&self) -> Result<EngineIdentity, EngineError> {
        self.inner.identify().await
    }

    async fn ensure_network(&self, network: &NetworkSpec) -> Result<(), EngineError> {
        self.inner.ensure_network(network).await
    }

    async fn has_image(&self, image: &str) -> Result<bool, EngineError> {
        self.inner.has_image(image).await
    }

    async fn image_id(&self, image: &str) -> Result<Option<String>, EngineError> {
        self.inner.image_id(image).await
    }

    async fn create(&self, container: &ContainerSpec) -> Result<ContainerId, EngineError> {
        self.inner.create(container).await
    }

    async fn start(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.inner.start(container).await
    }

    async fn rename(&self, container: &ContainerId, name: &ContainerName) -> Result<(), EngineError> {
        self.inner.rename(container, name).await
    }

    async fn pause(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.inner.pause(container).await
    }

    async fn unpause(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.inner.unpause(container).await
    }

    async fn stop(&self, container: &ContainerId, grace: Duration) -> Result<(), EngineError> {
        self.inner.stop(container, grace).await
    }

    async fn remove(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.inner.remove(container).await
    }

    async fn commit(&self, container: &ContainerId, origin: &SnapshotOrigin) -> Result<Snapshot, EngineError> {
        self.inner.commit(container, origin).await
    }

    async fn snapshot(&self, instance: &InstanceName, snapshot: SnapshotId) -> Result<Option<Snapshot>, EngineError> {
        self.inner.snapshot(instance, snapshot).await
    }

    async fn snapshots(&self, instance: &InstanceName, chat: Option<ChatId>) -> Result<Vec<Snapshot>, EngineError> {
        self.inner.snapshots(instance, chat).await
    }

    async fn remove_snapshot(
        &self,
        instance: &InstanceName,
        snapshot: SnapshotId,
    ) -> Result<SnapshotRemoval, EngineError> {
        self.inner.remove_snapshot(instance, snapshot).await
    }

    async fn remove_drafts(&self, instance: &InstanceName, before: Timestamp) -> Result<(), EngineError> {
        self.inner.remove_drafts(instance, before).await
    }

    async fn log_tail(&self, container: &ContainerId, lines: usize) -> Result<Vec<String>, EngineError> {
        self.inner.log_tail(container, lines).await
    }

    async fn logs(&self, container: &ContainerId, range: LogRange) -> Result<EngineLogs, EngineError> {
        self.inner.logs(container, range).await
    }
}
