//! A watch of events: the events of the journal after a cursor, then live events, without loss and without repetition.
//!
//! ```text
//! subscribe ─▶ read the journal from the cursor to its end ─▶ send live events ─┐
//!                       ▲                                                       │
//!                       └──────────── the watcher lagged: events dropped ───────┘
//! ```
//!
//! A slow watcher delays only its own connection. Live events that are dropped meanwhile are read from the journal. If
//! they are pruned from the journal too, the watcher gets a gap notification.

use std::sync::Arc;

use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::journal::{EventPage, JournalHandle, LifecycleEvent};
use sandboxd_protocol::error::Error;
use sandboxd_protocol::event::WatchResult;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio_util::sync::CancellationToken;

use super::outbox::{Closed, Ticket};
use crate::protocol::answer::Answer;
use crate::protocol::error::of_journal;
use crate::protocol::notification::Notification;
use crate::protocol::params;

/// Events per read of the journal.
const PAGE: usize = 256;

/// A watch with its subscription: no later event is missed.
#[derive(Debug)]
pub(super) struct Watch {
    journal: JournalHandle,
    live: Receiver<Arc<LifecycleEvent>>,
    after: Option<u64>,
    chat: Option<ChatId>,
}

impl Watch {
    pub(super) fn begin(journal: &JournalHandle, params::Watch { after, chat }: params::Watch) -> Self {
        Self { journal: journal.clone(), live: journal.subscribe(), after, chat }
    }

    /// Sends events until `ending`, or until the caller reads no more.
    pub(super) async fn run(mut self, ticket: &Ticket, ending: &CancellationToken) -> Result<Answer, Error> {
        let cursor = self.start().await?;
        let mut progress = Progress { ticket, chat: self.chat, cursor };
        let following = async {
            progress.ticket.notify(Notification::Watching { after: cursor }).await?;
            progress.follow(&self.journal, &mut self.live).await
        };
        match ending.run_until_cancelled(following).await {
            Some(Err(Stop::Failed(error))) => Err(error),
            Some(Err(Stop::Closed) | Ok(())) | None => {
                Ok(Answer::Watched(WatchResult { last_sequence: progress.cursor }))
            }
        }
    }

    /// Returns the sequence of the last event before the watch.
    async fn start(&mut self) -> Result<u64, Error> {
        if let Some(after @ 1..) = self.after {
            return Ok(after);
        }
        let EventPage { kept_from, last, .. } = self.journal.events(0, None, 0).await.map_err(of_journal)?;
        if self.after.is_some() {
            // A cursor of zero requests all events that the journal has.
            return Ok(kept_from.saturating_sub(1));
        }
        // Events since the subscription belong to the watch.
        let mut dropped = 0;
        loop {
            match self.live.try_recv() {
                Ok(event) => return Ok(event.sequence.saturating_sub(1 + dropped)),
                Err(TryRecvError::Lagged(count)) => dropped = count,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return Ok(last),
            }
        }
    }
}

enum Stop {
    Closed,
    Failed(Error),
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Self {
        Stop::Closed
    }
}

struct Progress<'a> {
    ticket: &'a Ticket,
    chat: Option<ChatId>,
    /// All events up to this one are sent or belong to other chats.
    cursor: u64,
}

impl Progress<'_> {
    /// Sends events. Returns only when the journal ends.
    async fn follow(&mut self, journal: &JournalHandle, live: &mut Receiver<Arc<LifecycleEvent>>) -> Result<(), Stop> {
        self.catch_up(journal).await?;
        loop {
            match live.recv().await {
                Ok(event) => self.send(&event).await?,
                Err(RecvError::Lagged(_)) => self.catch_up(journal).await?,
                Err(RecvError::Closed) => return Ok(()),
            }
        }
    }

    async fn catch_up(&mut self, journal: &JournalHandle) -> Result<(), Stop> {
        loop {
            let page =
                journal.events(self.cursor, self.chat, PAGE).await.map_err(|error| Stop::Failed(of_journal(error)))?;
            // The next event is pruned, or the cursor belongs to another journal.
            if self.cursor + 1 < page.kept_from || self.cursor > page.last {
                let gap = Notification::Gap { after: self.cursor, resumes_at: page.kept_from };
                self.ticket.notify(gap).await?;
                self.cursor = page.kept_from.saturating_sub(1);
                continue;
            }
            for event in &page.events {
                self.send(event).await?;
            }
            if page.events.len() < PAGE {
                self.cursor = self.cursor.max(page.last);
                return Ok(());
            }
        }
    }

    async fn send(&mut self, event: &LifecycleEvent) -> Result<(), Stop> {
        if event.sequence > self.cursor {
            if self.chat.is_none_or(|chat| chat == event.change.chat) {
                self.ticket.notify(Notification::Event(event)).await?;
            }
            self.cursor = event.sequence;
        }
        Ok(())
    }
}
