//! How the rest of the core reaches the journal.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorRef};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::actor::{Arguments, JournalActor, Message, Write};
use super::owner::{Question, Read, message_of};
use super::{Contents, Draft, EventPage, Journal, JournalError, LifecycleEvent};
use crate::domain::ids::{ChatId, SessionId};
use crate::domain::sandbox::Sandbox;

/// How many entries may wait for the disk. At about a kilobyte each, that is what a disk that hangs can cost.
const QUEUE_LIMIT: usize = 16_384;

/// How many events are held for a watcher that does not keep up. One that is told of a gap reads on from the journal.
const WATCHER_BACKLOG: usize = 1024;

/// How many events one read returns at most: commits wait while it runs.
const PAGE_LIMIT: usize = 1000;

/// Cheap to clone; all clones reach the same journal.
#[derive(Debug, Clone)]
pub struct JournalHandle {
    actor: ActorRef<Message>,
    room: Arc<Semaphore>,
    events: broadcast::Sender<Arc<LifecycleEvent>>,
    ended: CancellationToken,
    limit: Duration,
    /// Cleared once the journal is known to hold every promise.
    fresh: Arc<AtomicBool>,
    failure: watch::Receiver<Option<JournalError>>,
}

impl JournalHandle {
    /// Loads the journal, gives it to a thread of its own and starts its actor, linked to `supervisor` if there is one.
    /// Nobody waits for an answer for longer than `limit`.
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
            Ok(panic) => defect(message_of(&*panic)),
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
            Self { actor, room: Arc::new(Semaphore::new(QUEUE_LIMIT)), events, ended, limit, fresh, failure },
            contents,
        ))
    }

    /// Writes all of it or nothing; `Ok` means that it is on disk.
    ///
    /// It is handed over by the call itself, not when the answer is first awaited: writes that one caller makes one
    /// after the other stay in order, wherever their answers are awaited. An answer that is not awaited undoes nothing.
    pub fn write(&self, drafts: Vec<Draft>) -> impl Future<Output = Result<(), JournalError>> + Send + use<> {
        let (done, answer) = oneshot::channel();
        let handed_over = self.hand_over(drafts, Some(done));
        let limit = self.limit;
        async move {
            handed_over?;
            answered(answer, limit).await
        }
    }

    /// Writes with nobody waiting. It outlasts a full disk; any other failure is logged and counted.
    pub fn write_later(&self, drafts: Vec<Draft>) {
        if !drafts.is_empty()
            && let Err(error) = self.hand_over(drafts, None)
        {
            metrics::counter!("sandboxd_journal_failures_total", "error" => error.kind()).increment(1);
            tracing::warn!(%error, "a write that nobody waits for is lost");
        }
    }

    /// Resolves once all that was handed over before is on disk, or has failed otherwise than by a full disk.
    pub fn flush(&self) -> impl Future<Output = Result<(), JournalError>> + Send + use<> {
        self.write(Vec::new())
    }

    /// The events after a cursor, oldest first; at most `limit`, and never more than a thousand.
    pub async fn events(&self, after: u64, chat: Option<ChatId>, limit: usize) -> Result<EventPage, JournalError> {
        let (page, answer) = oneshot::channel();
        self.read(Question::Events { after, chat, limit: limit.min(PAGE_LIMIT), page })?;
        answered(answer, self.limit).await
    }

    /// The last events of one chat, newest first; at most `limit`, and never more than a thousand.
    pub async fn last_events(&self, chat: ChatId, limit: usize) -> Result<Vec<LifecycleEvent>, JournalError> {
        let (events, answer) = oneshot::channel();
        self.read(Question::LastEvents { chat, limit: limit.min(PAGE_LIMIT), events })?;
        answered(answer, self.limit).await
    }

    /// One chat's sandbox, as it was last written down.
    pub async fn sandbox(&self, chat: ChatId) -> Result<Option<Sandbox>, JournalError> {
        let (asked, answer) = oneshot::channel();
        self.read(Question::Sandbox { chat, answer: asked })?;
        answered(answer, self.limit).await
    }

    /// Every session that has a record.
    pub async fn sessions(&self) -> Result<Vec<SessionId>, JournalError> {
        let (asked, answer) = oneshot::channel();
        self.read(Question::Sessions { answer: asked })?;
        answered(answer, self.limit).await
    }

    /// Whether a container without a record may have been promised by a journal that is lost.
    pub fn is_fresh(&self) -> bool {
        self.fresh.load(Ordering::Acquire)
    }

    /// Why the last commit failed, if it did and none has succeeded since.
    pub fn failure(&self) -> Option<JournalError> {
        self.failure.borrow().clone()
    }

    fn read(&self, question: Question) -> Result<(), JournalError> {
        let read = Read { question, _place: self.place(1)? };
        self.actor.cast(Message::Read(read)).map_err(|_| JournalError::Stopped)
    }

    /// Every event from now on, in order, each after it is on disk and before its writer is answered. A watcher that
    /// lags is told so by the channel, and finds what it missed with [`JournalHandle::events`].
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<LifecycleEvent>> {
        self.events.subscribe()
    }

    /// Writes what is waiting, then closes the journal: when this returns, another process may open it.
    pub async fn stop(&self) -> Result<(), JournalError> {
        let flushed = self.flush().await;
        self.actor.stop(None);
        let closed = tokio::time::timeout(self.limit, self.ended.cancelled()).await;
        flushed.and(closed.map_err(|_| JournalError::TimedOut { limit: self.limit }))
    }

    /// Resolves when the journal is closed, whether it was stopped or has failed.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    fn hand_over(
        &self,
        drafts: Vec<Draft>,
        done: Option<oneshot::Sender<Result<(), JournalError>>>,
    ) -> Result<(), JournalError> {
        let _place = self.place(drafts.len())?;
        self.actor.cast(Message::Write(Write { drafts, done, _place })).map_err(|_| JournalError::Stopped)
    }

    /// A write that is larger than the queue is taken when there is nothing else in it.
    fn place(&self, entries: usize) -> Result<OwnedSemaphorePermit, JournalError> {
        let places = entries.clamp(1, QUEUE_LIMIT) as u32;
        let overloaded = |_| JournalError::Overloaded { limit: QUEUE_LIMIT };
        Arc::clone(&self.room).try_acquire_many_owned(places).map_err(overloaded)
    }
}

async fn answered<T>(answer: oneshot::Receiver<Result<T, JournalError>>, limit: Duration) -> Result<T, JournalError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(JournalError::Stopped),
        Err(_) => Err(JournalError::TimedOut { limit }),
    }
}
