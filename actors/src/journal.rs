//! The journal: durable state, acknowledged only after its commit.
//!
//! ```text
//!   writers ──▶ JournalHandle ──▶ actor: queue, numbers, batches ──▶ owner: a thread with the Journal ──▶ disk
//!      ▲                             │      ▲                              │
//!      └─────── result of a write ───┤      └───────── committed ──────────┘
//!   watchers ◀──── events, in order ─┘
//! ```
//!
//! - **Group commit.** One commit runs at a time; writes that arrive meanwhile form the next commit. So a busy journal
//!   needs hardly more commits than a quiet one.
//! - **Atomic.** A batch is one commit. If it fails, every writer gets the error and no entry applies.
//! - **Events are numbered here**, in the order of the mailbox and without gaps, and published after their commit. The
//!   numbers of a failed batch are used again: no watcher has seen them.
//! - **A full disk is temporary.** Waiting writers get the error at once. Unacknowledged writes stay queued, within the
//!   bounds of the queue, and are retried, so no event is lost.
//! - **No call hangs.** Waiting and the queue have limits. A journal that panics ends the actor, which answers every
//!   caller.

mod actor;
mod batch;
mod error;
mod handle;
#[cfg(feature = "fake-engine")]
pub mod memory;
mod owner;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::domain::ids::{AgentId, ChatId, ContainerId, SessionId};
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::pool::claims::Claim;
use crate::ports::clock::Timestamp;

pub use error::JournalError;
pub use handle::JournalHandle;

/// The port to the storage of the journal. An implementation has one owner, on a thread of its own, and may block.
pub trait Journal: Send + 'static {
    /// Returns the contents that the last run of the service committed.
    fn load(&mut self) -> Result<Contents, JournalError>;

    /// Returns the record of a chat's sandbox.
    fn sandbox(&mut self, chat: ChatId) -> Result<Option<Sandbox>, JournalError> {
        Ok(self.load()?.sandboxes.into_iter().find(|sandbox| sandbox.chat == chat))
    }

    /// Returns every session that has a record.
    fn sessions(&mut self) -> Result<Vec<SessionId>, JournalError> {
        Ok(self.load()?.sandboxes.into_iter().map(|sandbox| sandbox.session).collect())
    }

    /// Commits all entries, in their order, or none. `Ok` means that they are on disk.
    fn commit(&mut self, entries: &[Entry]) -> Result<(), JournalError>;

    /// Returns the events after a cursor, of one chat or of all, oldest first and at most `limit` of them.
    fn events(&mut self, after: u64, chat: Option<ChatId>, limit: usize) -> Result<EventPage, JournalError>;

    /// Returns the last `limit` events of one chat, newest first.
    fn last_events(&mut self, chat: ChatId, limit: usize) -> Result<Vec<LifecycleEvent>, JournalError>;
}

/// The state that a journal holds when it is opened.
#[derive(Debug, Clone, PartialEq)]
pub struct Contents {
    /// In no particular order.
    pub sandboxes: Vec<Sandbox>,
    /// The number of the last event; the next one is one more.
    pub last_event: u64,
    /// The claims of sandboxes whose containers were slots, in no particular order.
    pub claims: Vec<Arc<Claim>>,
    /// The journal predates claim entries and has no [`Entry::ClaimsImported`] yet: the claims are files.
    pub claims_in_files: bool,
    /// The journal has no [`Entry::Rebuilt`] yet: a lost journal may have had a record of a container without one.
    pub fresh: bool,
}

/// One entry of the journal, with events as `E`.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry<E = LifecycleEvent> {
    /// Stores the chat's record. A chat has one record; a new session replaces the one before.
    Save(Box<Sandbox>),
    /// Removes the record of this session. No effect if the chat has another session by now.
    Remove {
        chat: ChatId,
        session: SessionId,
    },
    /// Updates the session's last activity. No effect if the chat has another session by now.
    Activity {
        chat: ChatId,
        session: SessionId,
        at: Timestamp,
    },
    /// Stores the claim of a session whose container was a slot. No effect if the chat has another session. The claim
    /// is removed with the session's record.
    Claim(Arc<Claim>),
    /// The claims that were files are entries from now on.
    ClaimsImported,
    Event(Box<E>),
    /// A write without content, which tests whether the journal can be written again.
    Probe,
    /// Every sandbox known from labels has its record: from now on, a container without one was never acknowledged.
    /// This entry belongs into the write that saves the last record, or a crash would orphan live sandboxes.
    Rebuilt,
}

/// An entry whose event has no number yet.
pub type Draft = Entry<Change>;

/// A change of a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub at: Timestamp,
    pub chat: ChatId,
    pub session: SessionId,
    pub agent: AgentId,
    pub container: Option<ContainerId>,
    /// `None`: the chat had no sandbox.
    pub from: Option<Status>,
    /// `None`: the sandbox is removed.
    pub to: Option<Status>,
    pub reason: Reason,
    /// Explains `reason` to people.
    pub message: Option<String>,
}

/// A change with its number.
#[derive(Debug, Clone, PartialEq)]
pub struct LifecycleEvent {
    /// One more than the number of the event before. It serves as a cursor.
    pub sequence: u64,
    pub change: Change,
}

/// A page of events, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct EventPage {
    pub events: Vec<LifecycleEvent>,
    /// The journal holds every event from this number on.
    pub kept_from: u64,
    /// The number of the last event of all chats.
    pub last: u64,
}

impl EventPage {
    /// Whether events after this cursor are lost: they were pruned, or the cursor is of a journal that was set aside.
    /// The cursor 0 asks for all stored events and has no gap.
    pub fn has_gap(&self, after: u64) -> bool {
        after != 0 && (after.saturating_add(1) < self.kept_from || after > self.last)
    }
}
