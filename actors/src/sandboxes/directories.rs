//! Pruning of chat directories without a sandbox.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Sandboxes;
use crate::domain::ids::ChatId;
use crate::domain::outcome::{NotPurged, NotSaved, SandboxError};
use crate::ports::chat_directories::DirectoryError;
use crate::ports::clock::Timestamp;

impl Sandboxes {
    /// Removes the directories of chats that have had no sandbox for longer than `keep`. Each directory is removed
    /// through its chat, so that no sandbox loses its directory. A failed removal does not stop the others. Returns the
    /// number of removed directories.
    pub async fn prune_chat_directories(&self, keep: Duration) -> Result<usize, DirectoryError> {
        // Before the engine is listed, a chat without an actor may have a sandbox.
        if !self.is_listed().await {
            return Ok(0);
        }
        let known = self.known_chats().await.unwrap_or_default();
        let mut removed = 0;
        for chat in self.world.directories.list().await? {
            match self.prune_chat_directory(chat, keep, &known).await {
                Ok(gone) => removed += usize::from(gone),
                Err(error) => tracing::warn!(chat.id = %chat, %error, "chat directory could not be pruned"),
            }
        }
        Ok(removed)
    }

    /// Finishes removals of chat directories that an earlier run of the service left.
    pub async fn finish_chat_removals(&self) -> Result<(), DirectoryError> {
        self.world.directories.finish_removals().await
    }

    async fn prune_chat_directory(
        &self,
        chat: ChatId,
        keep: Duration,
        known: &BTreeSet<ChatId>,
    ) -> Result<bool, SandboxError> {
        let directories = &self.world.directories;
        let failed = |error: DirectoryError| SandboxError::NotPurged { chat, why: error.into() };
        if known.contains(&chat) {
            // The end of the last session counts, also once the events of that session are pruned.
            directories.mark_used(chat).await.map_err(failed)?;
            return Ok(false);
        }
        let now = self.world.clock.now();
        let Some(changed_at) = directories.changed_at(chat).await.map_err(failed)? else { return Ok(false) };
        if !is_due(changed_at, keep, now) {
            return Ok(false);
        }
        let last = self.world.journal.last_events(chat, 1).await;
        let last = last.map_err(|error| SandboxError::NotSaved { chat, error: NotSaved(error.to_string()) })?;
        if last.first().is_some_and(|event| !is_due(event.change.at, keep, now)) {
            return Ok(false);
        }
        match self.purge(chat).await {
            Err(SandboxError::NotPurged { why: NotPurged::InUse, .. }) => Ok(false),
            purged => purged,
        }
    }
}

fn is_due(used_at: Timestamp, keep: Duration, now: Timestamp) -> bool {
    (now - used_at).to_std().is_ok_and(|unused| unused >= keep)
}
