//! Shows a claimed slot with the labels and the name of its sandbox. An engine cannot change a container's labels and
//! needs time to change its name, so both come from the slot's claim. The readers of a container need not know slots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::container::ContainerSpec;
use crate::domain::ids::{ChatId, ContainerId, ContainerName, InstanceName, SlotId, SnapshotId};
use crate::domain::labels;
use crate::domain::snapshot::{Snapshot, SnapshotOrigin};
use crate::pool::claims::Claims;
use crate::ports::clock::Timestamp;
use crate::ports::engine::events::{EngineEvent, EngineEvents, EventSubject};
use crate::ports::engine::logs::{EngineLogs, LogRange};
use crate::ports::engine::{Engine, EngineError, EngineIdentity, NetworkSpec, Observed, SnapshotRemoval};
use async_trait::async_trait;
use futures_util::StreamExt;

/// An engine that shows claimed slots as sandboxes.
pub struct ClaimedLabels {
    inner: Arc<dyn Engine>,
    claims: Arc<Claims>,
}

impl ClaimedLabels {
    pub fn around(inner: Arc<dyn Engine>, claims: Arc<Claims>) -> Arc<dyn Engine> {
        Arc::new(Self { inner, claims })
    }

    /// Returns the container with the labels and the name of its claim, and that name if the container lacks it yet.
    fn shown(&self, mut container: Observed) -> (Observed, Option<ContainerName>) {
        let Some(claim) = slot(&container.labels).and_then(|slot| self.claims.of_slot(slot)) else {
            return (container, None);
        };
        let name = name(&claim.labels);
        container.labels.clone_from(&claim.labels);
        let missing = name.filter(|name| name.as_str() != container.name);
        if let Some(name) = &missing {
            container.name = name.to_string();
        }
        (container, missing)
    }

    /// Renames a container whose renaming was interrupted by the end of the service or a failure of the engine.
    fn rename_later(&self, container: ContainerId, name: ContainerName) {
        let engine = Arc::clone(&self.inner);
        tokio::spawn(async move {
            match tokio::time::timeout(RENAME_LIMIT, engine.rename(&container, &name)).await {
                Ok(Ok(())) => tracing::info!(container.id = %container, "renamed a claimed slot"),
                Ok(Err(error)) => tracing::debug!(container.id = %container, %error, "renaming a claimed slot failed"),
                Err(_) => {}
            }
        });
    }
}

/// The limit of a renaming. After it, the next listing tries again.
const RENAME_LIMIT: Duration = Duration::from_secs(30);

/// Returns the name of the container of the chat that the labels name.
fn name(labels: &BTreeMap<String, String>) -> Option<ContainerName> {
    let parsed = |label| labels.get(label).map(String::as_str);
    Some(ContainerName::of(&parsed(labels::INSTANCE)?.parse().ok()?, parsed(labels::CHAT_ID)?.parse().ok()?))
}

/// Returns the chat whose container has this name.
fn chat(name: &str) -> Option<ChatId> {
    const UUID: usize = 36;
    name.strip_prefix("sandboxd-")?.get(name.len().checked_sub("sandboxd-".len() + UUID)?..)?.parse().ok()
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
        let mut found = self.inner.inspect(id_or_name).await?;
        if found.is_none()
            && let Some(claim) = chat(id_or_name).and_then(|chat| self.claims.of_chat(chat))
        {
            found = self.inner.inspect(claim.container.as_str()).await?;
        }
        Ok(found.map(|container| self.shown(container).0))
    }

    async fn list(&self, instance: &InstanceName) -> Result<Vec<Observed>, EngineError> {
        let listed = self.inner.list(instance).await?.into_iter().map(|container| {
            let (shown, missing) = self.shown(container);
            if let Some(name) = missing {
                self.rename_later(shown.id.clone(), name);
            }
            shown
        });
        Ok(listed.collect())
    }

    async fn watch(&self, instance: &InstanceName) -> Result<EngineEvents, EngineError> {
        let claims = Arc::clone(&self.claims);
        let resolved = move |subject| match subject {
            EventSubject::Slot(slot) => claims.of_slot(slot).map_or(subject, |claim| EventSubject::Chat(claim.chat)),
            EventSubject::Chat(_) => subject,
        };
        let events = self.inner.watch(instance).await?;
        let relabelled = move |event: Result<EngineEvent, EngineError>| match event {
            Ok(event) => Ok(EngineEvent { subject: resolved(event.subject), ..event }),
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
