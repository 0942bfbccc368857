//! Write gate: while a sync updates a chat's sandbox, other writes wait.
//!
//! Requests that only read proceed at once. Requests that may write are queued in the order of their arrival until the
//! sync has ended, and then proceed one at a time. If the sync fails, the queued writes are refused, since they may
//! depend on its result. Later writes proceed: the caller knows of the failure.
//!
//! The queue belongs to the chat, since the order is decided before the sandbox of the chat is known. The state of a sync
//! belongs to the session that it ran in, and is removed with it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use sandboxd_actors::domain::ids::{ChatId, SessionId};
use sandboxd_actors::ports::chat_directories::DirectoryError;
use sandboxd_actors::ports::guest::{GuestSetup, Guests, NotBegun, Started};
use sandboxd_protocol::command::{SyncInfo, SyncState};
use sandboxd_protocol::error::{Error, ErrorKind};
use tokio::sync::oneshot;

use crate::protocol::guest::CommandId;

/// The syncs of all chats.
#[derive(Debug, Clone, Default)]
pub struct Syncs(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    active: HashMap<ChatId, ActiveSync>,
    /// The last sync of each session.
    sessions: HashMap<SessionId, SessionSync>,
}

/// A sync that writes wait for.
#[derive(Debug)]
struct ActiveSync {
    /// The command of the sync, once it runs.
    command: Option<(SessionId, CommandId)>,
    /// The sync has succeeded, and the queued writes proceed one at a time.
    draining: bool,
    barrier: Weak<BarrierState>,
    waiting: VecDeque<oneshot::Sender<Result<WriteTurn, Error>>>,
}

/// The state of the last sync of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SessionSync {
    command: CommandId,
    progress: Progress,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    Running,
    Done,
    Failed(String),
}

impl Syncs {
    /// Begins a sync. Fails if one is active.
    pub(in crate::server) fn begin(&self, chat: ChatId) -> Result<SyncBarrier, Error> {
        let mut state = self.state();
        if state.active.contains_key(&chat) {
            let message = format!("a sync of the sandbox of chat {chat} is already running");
            return Err(ErrorKind::Busy.error(message).with("chat_id", chat.to_string()));
        }
        let barrier = SyncBarrier(Arc::new(BarrierState::new(self.clone(), chat)));
        let (command, draining, waiting) = (None, false, VecDeque::new());
        state.active.insert(chat, ActiveSync { command, draining, barrier: Arc::downgrade(&barrier.0), waiting });
        Ok(barrier)
    }

    /// Returns the barrier for a caller that attaches to the command, if it is the command of an active sync.
    pub(super) fn barrier(&self, chat: ChatId, command: CommandId) -> Option<SyncBarrier> {
        let state = self.state();
        let sync = state.active.get(&chat).filter(|sync| !sync.draining)?;
        sync.command.filter(|(_, id)| *id == command)?;
        sync.barrier.upgrade().map(SyncBarrier)
    }

    /// Queues a write if a sync is active. To be called in the order of the requests.
    pub(in crate::server) fn queue_write(&self, chat: ChatId) -> Option<QueuedWrite> {
        let mut state = self.state();
        let (sender, receiver) = oneshot::channel();
        state.active.get_mut(&chat)?.waiting.push_back(sender);
        Some(QueuedWrite(receiver))
    }

    /// Describes the sync of the chat's sandbox, which has this session.
    pub(super) fn describe(&self, chat: ChatId, session: SessionId) -> Option<SyncInfo> {
        let state = self.state();
        if state.active.get(&chat).is_some_and(|sync| sync.command.is_none()) {
            return Some(SyncInfo { state: SyncState::Running, command_id: None, message: None });
        }
        let SessionSync { command, progress } = state.sessions.get(&session)?;
        let (state, message) = match progress {
            Progress::Running => (SyncState::Running, None),
            Progress::Done => (SyncState::Done, None),
            Progress::Failed(message) => (SyncState::Failed, Some(message.clone())),
        };
        Some(SyncInfo { state, command_id: Some(*command), message })
    }

    /// Wraps `guests` so that the sync of a session is removed with the session.
    pub fn removed_with(&self, guests: Arc<dyn Guests>) -> Arc<dyn Guests> {
        Arc::new(GuestsWithSyncs { guests, syncs: self.clone() })
    }

    fn complete(&self, chat: ChatId, outcome: Result<(), String>) {
        let mut state = self.state();
        let State { active, sessions } = &mut *state;
        let Some(sync) = active.get_mut(&chat) else { return };
        // The session may have ended meanwhile.
        if let Some(known) = sync.command.and_then(|(session, _)| sessions.get_mut(&session)) {
            known.progress = outcome.clone().map_or_else(Progress::Failed, |()| Progress::Done);
        }
        match outcome {
            Ok(()) => {
                sync.draining = true;
                drop(state);
                self.admit_next(chat);
            }
            Err(message) => {
                let error = ErrorKind::SyncFailed
                    .error(format!("the sync of the sandbox failed: {message}"))
                    .with("chat_id", chat.to_string());
                for waiting in active.remove(&chat).into_iter().flat_map(|sync| sync.waiting) {
                    let _ = waiting.send(Err(error.clone()));
                }
            }
        }
    }

    /// Lets the next queued write proceed. Writes that arrive meanwhile are queued behind the others.
    fn admit_next(&self, chat: ChatId) {
        loop {
            let waiting = {
                let mut state = self.state();
                let Some(sync) = state.active.get_mut(&chat).filter(|sync| sync.draining) else { return };
                let Some(waiting) = sync.waiting.pop_front() else {
                    state.active.remove(&chat);
                    return;
                };
                waiting
            };
            match waiting.send(Ok(WriteTurn { syncs: Some(self.clone()), chat })) {
                // The request was dropped. Its turn must not admit the next one on drop: this loop does.
                Err(Ok(mut unused)) => drop(unused.syncs.take()),
                _ => return,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can leave the state half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The barrier of an active sync, held by every request that follows its command. If the last one drops it without an
/// outcome, the sync has failed.
#[derive(Debug)]
pub(in crate::server) struct SyncBarrier(Arc<BarrierState>);

#[derive(Debug)]
struct BarrierState {
    syncs: Syncs,
    chat: ChatId,
    is_complete: AtomicBool,
    /// The reason of the failure if the barrier is dropped without an outcome.
    give_up_reason: Mutex<String>,
}

impl SyncBarrier {
    pub(super) fn set_command(&self, session: SessionId, command: CommandId) {
        let mut state = self.0.syncs.state();
        if let Some(sync) = state.active.get_mut(&self.0.chat) {
            sync.command = Some((session, command));
            state.sessions.insert(session, SessionSync { command, progress: Progress::Running });
        }
    }

    pub(super) fn complete(self, outcome: Result<(), String>) {
        self.0.complete(outcome);
    }

    /// Drops the barrier without an outcome. Other requests may still follow the sync.
    pub(super) fn give_up(self, reason: &str) {
        reason.clone_into(&mut self.0.give_up_reason.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl BarrierState {
    fn new(syncs: Syncs, chat: ChatId) -> Self {
        Self {
            syncs,
            chat,
            is_complete: AtomicBool::new(false),
            give_up_reason: Mutex::new("its request ended early".to_owned()),
        }
    }

    /// Completes the sync once: another sync may be active when the last holder drops this one.
    fn complete(&self, outcome: Result<(), String>) {
        if !self.is_complete.swap(true, Ordering::Relaxed) {
            self.syncs.complete(self.chat, outcome);
        }
    }
}

impl Drop for BarrierState {
    fn drop(&mut self) {
        let reason = std::mem::take(self.give_up_reason.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.complete(Err(reason));
    }
}

/// A write in the queue of a sync.
#[derive(Debug)]
pub(in crate::server) struct QueuedWrite(oneshot::Receiver<Result<WriteTurn, Error>>);

impl QueuedWrite {
    /// Waits until the write may proceed.
    pub(super) async fn wait(self) -> Result<WriteTurn, Error> {
        self.0.await.unwrap_or_else(|_| Err(ErrorKind::Internal.error("the queue of the sync was dropped")))
    }
}

/// The turn of a queued write. Its drop admits the next one.
#[derive(Debug)]
pub(super) struct WriteTurn {
    /// Absent for the turn of a dropped request.
    syncs: Option<Syncs>,
    chat: ChatId,
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        if let Some(syncs) = self.syncs.take() {
            syncs.admit_next(self.chat);
        }
    }
}

/// Guests that remove the sync of a session with the session.
struct GuestsWithSyncs {
    guests: Arc<dyn Guests>,
    syncs: Syncs,
}

#[async_trait]
impl Guests for GuestsWithSyncs {
    async fn prepare(&self, session: SessionId, waits: bool) -> Result<Option<GuestSetup>, DirectoryError> {
        self.guests.prepare(session, waits).await
    }

    async fn begin(&self, started: Started<'_>) -> Result<(), NotBegun> {
        self.guests.begin(started).await
    }

    async fn clear(&self, session: SessionId) {
        self.syncs.state().sessions.remove(&session);
        self.guests.clear(session).await;
    }

    fn has_inherited(&self) -> bool {
        self.guests.has_inherited()
    }

    async fn retain(&self, known: &HashSet<SessionId>) {
        self.guests.retain(known).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn chat() -> ChatId {
        "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().expect("an id")
    }

    #[test]
    fn queued_writes_proceed_one_at_a_time_in_order() {
        let syncs = Syncs::default();
        assert!(syncs.queue_write(chat()).is_none(), "there is nothing to wait for");
        let barrier = syncs.begin(chat()).expect("the first");
        assert_eq!(syncs.begin(chat()).expect_err("the second").data.kind, ErrorKind::Busy);
        let [first, gone, second] = [(); 3].map(|()| syncs.queue_write(chat()).expect("a place"));
        drop(gone);
        let (mut first, mut second) = (Box::pin(first.wait()), Box::pin(second.wait()));
        assert!((&mut first).now_or_never().is_none());
        barrier.complete(Ok(()));
        assert!((&mut second).now_or_never().is_none(), "it is not its turn");
        let turn = (&mut first).now_or_never().expect("its turn").expect("it may write");
        let late = syncs.queue_write(chat()).expect("others are still waiting");
        drop(turn);
        drop((&mut second).now_or_never().expect("its turn").expect("it may write"));
        drop(late.wait().now_or_never().expect("its turn").expect("it may write"));
        assert!(syncs.queue_write(chat()).is_none(), "it is over");
    }

    fn session() -> SessionId {
        "0b9d0f4c-6a5d-4f0e-9a43-0f3f0d5f4a10".parse().expect("an id")
    }

    #[tokio::test]
    async fn a_sync_is_described_while_its_session_lasts() {
        let syncs = Syncs::default();
        let guests = syncs.removed_with(Arc::new(sandboxd_actors::ports::guest::NoGuestSetup));
        let barrier = syncs.begin(chat()).expect("the first");
        barrier.set_command(session(), 7);
        barrier.complete(Ok(()));
        assert_eq!(syncs.describe(chat(), session()).expect("known").state, SyncState::Done);
        assert!(syncs.describe(chat(), SessionId::random()).is_none(), "another sandbox has had none");
        guests.clear(session()).await;
        assert!(syncs.describe(chat(), session()).is_none());

        let barrier = syncs.begin(chat()).expect("the second");
        barrier.set_command(session(), 8);
        guests.clear(session()).await;
        barrier.give_up("the sandbox is gone");
        assert!(syncs.describe(chat(), session()).is_none(), "its end is that of no session");
        let state = syncs.state();
        assert!(state.active.is_empty() && state.sessions.is_empty(), "{state:?}");
    }

    #[test]
    fn a_sync_is_active_while_a_caller_follows_it() {
        let syncs = Syncs::default();
        let begun = syncs.begin(chat()).expect("the first");
        begun.set_command(session(), 7);
        assert!(syncs.barrier(chat(), 8).is_none(), "it is another command");
        let (attached, late) = (syncs.barrier(chat(), 7).expect("it runs"), syncs.barrier(chat(), 7).expect("it runs"));
        begun.give_up("another one has attached");
        assert_eq!(syncs.describe(chat(), session()).expect("known").state, SyncState::Running);
        attached.complete(Ok(()));
        assert!(syncs.barrier(chat(), 7).is_none(), "it has ended");
        let next = syncs.begin(chat()).expect("the second");
        next.set_command(session(), 9);
        drop(late);
        assert_eq!(syncs.describe(chat(), session()).expect("known").state, SyncState::Running);
        next.give_up("the sandbox is gone");
        let failed = syncs.describe(chat(), session()).expect("known");
        assert_eq!((failed.state, failed.message.as_deref()), (SyncState::Failed, Some("the sandbox is gone")));
    }

    #[test]
    fn a_failed_sync_refuses_the_queued_writes_and_no_later_ones() {
        let syncs = Syncs::default();
        let barrier = syncs.begin(chat()).expect("the first");
        barrier.set_command(session(), 7);
        let queued = syncs.queue_write(chat()).expect("a place");
        drop(barrier);
        let refused = queued.wait().now_or_never().expect("an answer").expect_err("it failed");
        assert_eq!(refused.data.kind, ErrorKind::SyncFailed);
        assert!(syncs.queue_write(chat()).is_none());
        assert_eq!(syncs.describe(chat(), session()).expect("remembered").state, SyncState::Failed);
        assert!(syncs.begin(chat()).is_ok(), "it can be tried again");
    }
}
