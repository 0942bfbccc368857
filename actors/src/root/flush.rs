//! Has chats write down what nobody waits for, some at a time. All of them at once would fill the journal's queue: what
//! does not fit is lost, and whoever waits for a write is turned away.

use std::time::Duration;

use futures_util::future::join_all;
use ractor::ActorRef;

use crate::chat::actor::Message;
use crate::journal::{JournalError, JournalHandle};
use crate::sandboxes::ask;

/// A small part of what the journal's queue holds.
const AT_ONCE: usize = 1024;

/// Before the next try, where the disk does not keep up.
const PAUSE: Duration = Duration::from_secs(1);

/// Stops where the journal does: what those asked so far have given it, it keeps; the others still have theirs.
pub(crate) async fn flush_unsaved(chats: &[ActorRef<Message>], journal: &JournalHandle) -> Result<(), JournalError> {
    for some in chats.chunks(AT_ONCE) {
        // One that has ended has nothing to write.
        join_all(some.iter().map(|chat| ask(chat, Message::Flush))).await;
        journal.flush().await?;
    }
    Ok(())
}

/// Goes on until all of it is on disk, or there is no journal to write to.
pub(super) async fn write_down_in_time(chats: Vec<ActorRef<Message>>, journal: JournalHandle) {
    // Whoever has written asks the journal for nothing the next time.
    while let Err(error) = flush_unsaved(&chats, &journal).await {
        if !error.is_temporary() {
            return tracing::error!(%error, "how the clock has moved deadlines is not written down");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
