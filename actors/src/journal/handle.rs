//! The handle through which the rest of the core uses the journal.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorRef};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::actor::{Arguments, JournalActor, Message, Write};
use super::owner::{Query, Read, panic_message};
use super::{Contents, Draft, EventPage, Journal, JournalError, LifecycleEvent};
use crate::domain::ids::{ChatId, SessionId};
use crate::domain::sandbox::Sandbox;

/// The number of entries that may wait for the disk. At about a kilobyte each, it bounds the memory cost of a hanging
/// disk.
const QUEUE_LIMIT: usize = 16_384;

/// The number of events held for a slow watcher. A watcher that lags behind further reads on from the journal.
const WATCHER_BACKLOG: usize = 1024;

/// The maximum number of events of one read: commits wait while it runs.
const PAGE_LIMIT: usize = 1000;

/// A handle to the journal. It is cheap to clone, and all clones use the same journal.
#[derive(Debug, Clone)]
pub struct JournalHandle {
    actor: ActorRef<Message>,
    capacity: Arc<Semaphore>,
    events: broadcast::Sender<Arc<LifecycleEvent>>,
    ended: CancellationToken,
    limit: Duration,
    /// False once the journal has a record of every acknowledged sandbox.
    fresh: Arc<AtomicBool>,
    failure: watch::Receiver<Option<JournalError>>,
}

impl JournalHandle {
    /// Loads the journal, gives it to a thread of its own and starts its actor, linked to `supervisor` if there is one.
    /// No caller waits for an answer for longer than `limit`.
    pub async fn start(
        journal: impl Journal,
        limit: Duration,
        supervisor: Option<ActorCell>,
    ) -> Result<(Self, Contents), JournalError> {
        Self::start_with(journal, limit, supervisor, false).await
    }

    /// As [`JournalHandle::start`], without a thread, for a journal that never blocks and a clock that may be paused.
    #[cfg(feature = "fake-engine")]
    pub async fn start_in_place(journal: impl Journal, limit: Duration) -> Result<(Self, Contents), JournalError> {
        Self::start_with(journal, limit, None, true).await
    }

    async fn start_with(
        mut journal: impl Journal,
        limit: Duration,
        supervisor: Option<ActorCell>,
        in_place: bool,
    ) -> Result<(Self, Contents), JournalError> {
        let defect = |message: String| JournalError::Defect { message };
        let loading = tokio::task::spawn_blocking(move || (journal.load(), journal));
        let (contents, journal) = loading.await.map_err(|error| match error.try_into_panic() {
            Ok(panic) => defect(panic_message(&*panic)),
            Err(error) => defect(error.to_string()),
        })?;
        let contents = contents?;

        let fresh = Arc::new(AtomicBool::new(contents.fresh));
        let (events, _) = broadcast::channel(WATCHER_BACKLOG);
        let ended = CancellationToken::new();
        let (failing, failure) = watch::channel(None);
        let arguments = Arguments {
            journal: Box::new(journal),
            last_event: contents.last_event,
            events: events.clone(),
            ended: ended.clone().drop_guard(),
            fresh: Arc::clone(&fresh),
            failure: failing,
            in_place,
        };
        let spawned = match supervisor {
            Some(supervisor) => Actor::spawn_linked(None, JournalActor, arguments, supervisor).await,
            None => Actor::spawn(None, JournalActor, arguments).await,
        };
        let (actor, _) = spawned.map_err(|error| defect(error.to_string()))?;
        Ok((
            Self { actor, capacity: Arc::new(Semaphore::new(QUEUE_LIMIT)), events, ended, limit, fresh, failure },
            contents,
        ))
    }

    /// Writes all drafts or none; `Ok` means that they are on disk.
    ///
    /// The call itself queues the write, not the first poll: the writes of one caller stay in the order of the calls.
    /// Dropping the future does not undo the write.
    pub fn write(&self, drafts: Vec<Draft>) -> impl Future<Output = Result<(), JournalError>> + Send + use<> {
        let (done, answer) = oneshot::channel();
        let queued = self.enqueue(drafts, Some(done));
        let limit = self.limit;
        async move {
            queued?;
            answered(answer, limit).await
        }
    }

    /// Writes without acknowledgement. The write survives a full disk; any other failure is logged and counted.
    pub fn write_later(&self, drafts: Vec<Draft>) {
        if !drafts.is_empty()
            && let Err(error) = self.enqueue(drafts, None)
        {
            metrics::counter!("sandboxd_journal_failures_total", "error" => error.kind()).increment(1);
            tracing::warn!(%error, "unacknowledged journal write lost");
        }
    }

    /// Resolves when all earlier writes are on disk or have failed for another reason than a full disk.
    pub fn flush(&self) -> impl Future<Output = Result<(), JournalError>> + Send + use<> {
        self.write(Vec::new())
    }

    /// Returns the events after a cursor, oldest first; at most `limit`, and never more than a thousand.
    pub async fn events(&self, after: u64, chat: Option<ChatId>, limit: usize) -> Result<EventPage, JournalError> {
        let (page, answer) = oneshot::channel();
        self.read(Query::Events { after, chat, limit: limit.min(PAGE_LIMIT), page })?;
        answered(answer, self.limit).await
    }

    /// Returns the last events of one chat, newest first; at most `limit`, and never more than a thousand.
    pub async fn last_events(&self, chat: ChatId, limit: usize) -> Result<Vec<LifecycleEvent>, JournalError> {
        let (events, answer) = oneshot::channel();
        self.read(Query::LastEvents { chat, limit: limit.min(PAGE_LIMIT), events })?;
        answered(answer, self.limit).await
    }

    /// Returns the record of a chat's sandbox.
    pub async fn sandbox(&self, chat: ChatId) -> Result<Option<Sandbox>, JournalError> {
        let (sender, answer) = oneshot::channel();
        self.read(Query::Sandbox { chat, answer: sender })?;
        answered(answer, self.limit).await
    }

    /// Returns every session that has a record.
    pub async fn sessions(&self) -> Result<Vec<SessionId>, JournalError> {
        let (sender, answer) = oneshot::channel();
        self.read(Query::Sessions { answer: sender })?;
        answered(answer, self.limit).await
    }

    /// Whether a lost journal may have had a record of a container that has none.
    pub fn is_fresh(&self) -> bool {
        self.fresh.load(Ordering::Acquire)
    }

    /// Returns the error of the last commit, if it failed.
    pub fn failure(&self) -> Option<JournalError> {
        self.failure.borrow().clone()
    }

    fn read(&self, query: Query) -> Result<(), JournalError> {
        let read = Read { query, _permit: self.reserve(1)? };
        self.actor.cast(Message::Read(read)).map_err(|_| JournalError::Stopped)
    }

    /// Returns a channel of all events from now on, in order. An event is sent after its commit and before the answer
    /// to its writer. A watcher that lags gets an error and reads the missed events with [`JournalHandle::events`].
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<LifecycleEvent>> {
        self.events.subscribe()
    }

    /// Flushes the queue and closes the journal. Afterwards another process may open it.
    pub async fn stop(&self) -> Result<(), JournalError> {
        let flushed = self.flush().await;
        self.actor.stop(None);
        let closed = tokio::time::timeout(self.limit, self.ended.cancelled()).await;
        flushed.and(closed.map_err(|_| JournalError::TimedOut { limit: self.limit }))
    }

    /// Resolves when the journal is closed, after a stop or a failure.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    fn enqueue(
        &self,
        drafts: Vec<Draft>,
        done: Option<oneshot::Sender<Result<(), JournalError>>>,
    ) -> Result<(), JournalError> {
        let _permit = self.reserve(drafts.len())?;
        self.actor.cast(Message::Write(Write { drafts, done, _permit })).map_err(|_| JournalError::Stopped)
    }

    /// Reserves capacity of the queue. A write that is larger than the queue is accepted when the queue is empty.
    fn reserve(&self, entries: usize) -> Result<OwnedSemaphorePermit, JournalError> {
        let permits = entries.clamp(1, QUEUE_LIMIT) as u32;
        let overloaded = |_| JournalError::Overloaded { limit: QUEUE_LIMIT };
        Arc::clone(&self.capacity).try_acquire_many_owned(permits).map_err(overloaded)
    }
}

async fn answered<T>(answer: oneshot::Receiver<Result<T, JournalError>>, limit: Duration) -> Result<T, JournalError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(JournalError::Stopped),
        Err(_) => Err(JournalError::TimedOut { limit }),
    }
}
