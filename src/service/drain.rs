//! Removes the slots of an ended service, without starting one.

use std::sync::Arc;

use sandboxd_actors::domain::ids::{InstanceName, InvalidId};
use sandboxd_actors::domain::labels::SlotLabels;
use sandboxd_actors::engine::bounded::Bounded;
use sandboxd_actors::journal::{Journal, JournalError, JournalHandle};
use sandboxd_actors::pool::claims::Claims;
use sandboxd_actors::ports::chat_directories::DirectoryError;
use sandboxd_actors::ports::engine::{Engine, EngineError};
use sandboxd_actors::ports::slot::Slots;

use super::{JOURNAL_LIMIT, claims, engine_limits};
use crate::config::Config;
use crate::guest::GuestsOnDisk;
use crate::instance_lock::{InstanceLock, InstanceLockError};
use crate::storage::file_system::FileSystem;

#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    #[error("instance.name: {0}")]
    Instance(#[from] InvalidId),
    #[error("{0}; `sandboxctl pools drain` asks that service to remove its slots")]
    Running(InstanceLockError),
    #[error("state.dir: {0}")]
    State(#[from] std::io::Error),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Slot(#[from] DirectoryError),
}

/// A locked instance: no service of it runs or can start while this exists.
pub struct Drain {
    instance: InstanceName,
    engine: Bounded,
    _lock: InstanceLock,
}

impl Drain {
    pub async fn begin(config: &Config, engine: Arc<dyn Engine>) -> Result<Self, DrainError> {
        let instance: InstanceName = config.instance.name.parse()?;
        let engine = Bounded::new(engine, engine_limits(config));
        let host = engine.identify().await?.host;
        let lock = InstanceLock::acquire(&instance, &host).map_err(DrainError::Running)?;
        Ok(Self { instance, engine, _lock: lock })
    }

    /// Removes every slot without a claim and returns their number. A slot that was taken without a claim was never
    /// acknowledged. If the journal was lost, it may have had the claim of a slot whose directory is not that of a free
    /// slot, so such a slot stays until a service has rebuilt the journal.
    pub async fn remove_slots(self, config: &Config, journal: impl Journal) -> Result<usize, DrainError> {
        let (journal, contents) = JournalHandle::start(journal, JOURNAL_LIMIT, None).await?;
        let claimed = Arc::new(Claims::default());
        let file_system = FileSystem::new(&config.state.dir, &config.chats.root)?;
        let guests = GuestsOnDisk::open(&config.state.dir, Arc::clone(&claimed), file_system)?;
        claims::load(&claimed, &contents, &guests, &journal).await?;
        let mut removed = 0;
        for container in self.engine.list(&self.instance).await? {
            let Ok(labels) = SlotLabels::decode(&container.labels) else { continue };
            if claimed.of_slot(labels.slot).is_some() {
                continue;
            }
            let claims_are_complete = !contents.fresh && !contents.claims_in_files;
            if !guests.is_free(labels.slot).await? && !claims_are_complete {
                tracing::warn!(
                    slot.id = %labels.slot, container.id = %container.id,
                    "slot kept: it may be a chat's sandbox, and the journal is not rebuilt"
                );
                continue;
            }
            self.engine.remove(&container.id, config.teardown.remove).await?;
            guests.clear(labels.slot).await;
            tracing::info!(slot.id = %labels.slot, container.id = %container.id, "slot removed");
            removed += 1;
        }
        journal.stop().await?;
        Ok(removed)
    }
}

impl std::fmt::Debug for Drain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drain").field("instance", &self.instance).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
