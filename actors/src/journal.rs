//! The journal: what was promised, on disk before anybody is told.
//!
//! ```text
//!   writers ──▶ JournalHandle ──▶ actor: queue, numbers, batches ──▶ owner: a thread with the Journal ──▶ disk
//!      ▲                             │      ▲                              │
//!      └─────── done, or why not ────┤      └───────── committed ──────────┘
//!   watchers ◀──── events, in order ─┘
//! ```
//!
//! - **Group commit.** One commit is under way at a time; whatever arrives meanwhile is committed together, as the next
//!   one. So a busy journal needs hardly more commits than a quiet one.
//! - **All or nothing.** A batch is committed as one. If it fails, every writer in it is told, and nothing of it applies.
//! - **Events are numbered here**, in the order of the mailbox and without gaps, and published after their commit. The
//!   numbers of a batch that failed are used again: nobody has seen them.
//! - **A full disk heals.** Whoever waits is told at once. What was written with nobody waiting is kept, within the
//!   bounds of the queue, and tried again, so that no event is lost to it.
//! - **Nothing hangs.** Waiting has a limit, the queue has one, and a journal that panics ends the actor, which answers
//!   everybody.

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

/// The port to what keeps the journal. It has one owner, on a thread of its own, and may block.
pub trait Journal: Send + 'static {
    /// What was promised when the service last ran.
    fn load(&mut self) -> Result<Contents, JournalError>;

    /// One chat's sandbox, as it was last written down.
    fn sandbox(&mut self, chat: ChatId) -> Result<Option<Sandbox>, JournalError> {
        Ok(self.load()?.sandboxes.into_iter().find(|sandbox| sandbox.chat == chat))
    }

    /// Every session that has a record.
    fn sessions(&mut self) -> Result<Vec<SessionId>, JournalError> {
        Ok(self.load()?.sandboxes.into_iter().map(|sandbox| sandbox.session).collect())
    }

    /// All entries, in their order, or none. When it returns, they are on disk.
    fn commit(&mut self, entries: &[Entry]) -> Result<(), JournalError>;

    /// The events after a cursor, of one chat or of all, oldest first and at most `limit` of them.
    fn events(&mut self, after: u64, chat: Option<ChatId>, limit: usize) -> Result<EventPage, JournalError>;

    /// The last `limit` events of one chat, newest first.
    fn last_events(&mut self, chat: ChatId, limit: usize) -> Result<Vec<LifecycleEvent>, JournalError>;
}

#[derive(Debug, Clone, PartialEq)]
pub struct Contents {
    /// In no particular order.
    pub sandboxes: Vec<Sandbox>,
    /// The number of the last event; the next one is one more.
    pub last_event: u64,
    /// Of sandboxes whose containers were slots once, in no particular order.
    pub claims: Vec<Arc<Claim>>,
    /// The journal is older than claims are entries, and no [`Entry::ClaimsImported`] yet: the claims are files.
    pub claims_in_files: bool,
    /// No [`Entry::Rebuilt`] yet: a container without a record may well have been promised, by a journal that is lost.
    pub fresh: bool,
}

/// One thing to write down, with events as `E`.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry<E = LifecycleEvent> {
    /// The chat's sandbox as it is now. A chat has one; a new session takes the place of the one before.
    Save(Box<Sandbox>),
    /// Nothing is left of this session. Nothing happens if the chat has another one by now.
    Forget {
        chat: ChatId,
        session: SessionId,
    },
    /// This session was used. Nothing happens if the chat has another one by now.
    Activity {
        chat: ChatId,
        session: SessionId,
        at: Timestamp,
    },
    /// The container of this session was a slot. Nothing happens if the chat has another session, and it goes with its
    /// session's record.
    Claim(Arc<Claim>),
    /// The claims that were files are entries now.
    ClaimsImported,
    Event(Box<E>),
    /// Changes nothing, and is written all the same: it tells whether the journal can be written again.
    Probe,
    /// Everything that labels told has its record: from now on, a container without one was never promised. It belongs
    /// into the write that saves the last of them, or a crash would turn live sandboxes into strangers.
    Rebuilt,
}

/// An entry whose event has no number yet.
pub type Draft = Entry<Change>;

/// What happened to a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub at: Timestamp,
    pub chat: ChatId,
    pub session: SessionId,
    pub agent: AgentId,
    pub container: Option<ContainerId>,
    /// `None`: there was none.
    pub from: Option<Status>,
    /// `None`: nothing is left of it.
    pub to: Option<Status>,
    pub reason: Reason,
    /// For people: what `reason` means in this case.
    pub message: Option<String>,
}

/// A change with its place among all changes.
#[derive(Debug, Clone, PartialEq)]
pub struct LifecycleEvent {
    /// One more than that of the event before, from where the journal starts to count. It serves as a cursor.
    pub sequence: u64,
    pub change: Change,
}

/// Some events, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct EventPage {
    pub events: Vec<LifecycleEvent>,
    /// From this number on, every event is kept.
    pub kept_from: u64,
    /// The number of the last event, whichever chat it is of.
    pub last: u64,
}

impl EventPage {
    /// Whether events after this cursor are lost: they were pruned, or the cursor is of a journal that was set aside. A
    /// cursor of 0 is none; whoever has it asks for all that is kept.
    pub fn has_gap(&self, after: u64) -> bool {
        after != 0 && (after.saturating_add(1) < self.kept_from || after > self.last)
    }
}
