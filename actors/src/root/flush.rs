//! Flushes the unsaved changes of chats, in batches. All chats at once would fill the journal's queue: writes that do
//! not fit are lost, and callers that wait for a write are refused.

use std::time::Duration;

use futures_util::future::join_all;
use ractor::ActorRef;

use crate::chat::actor::Message;
use crate::journal::{JournalError, JournalHandle};
use crate::sandboxes::ask;

/// A small part of the journal's queue.
const BATCH: usize = 1024;

/// The delay before a retry, if the disk does not keep up.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Flushes the chats until the journal fails. The journal keeps the writes of the chats asked so far; the other chats
/// still hold theirs.
pub(crate) async fn flush_unsaved(chats: &[ActorRef<Message>], journal: &JournalHandle) -> Result<(), JournalError> {
    for batch in chats.chunks(BATCH) {
        // An actor that has ended has no unsaved changes.
        join_all(batch.iter().map(|chat| ask(chat, Message::Flush))).await;
        journal.flush().await?;
    }
    Ok(())
}

/// Retries until every change is on disk, or the journal has stopped.
pub(super) async fn flush_until_saved(chats: Vec<ActorRef<Message>>, journal: JournalHandle) {
    // A chat that has already written makes no write in the next try.
    while let Err(error) = flush_unsaved(&chats, &journal).await {
        if !error.is_temporary() {
            return tracing::error!(%error, "times shifted by a clock step not persisted");
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}
