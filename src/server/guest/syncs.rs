//! While a chat's sandbox is brought up to date, nothing else is written in it.
//!
//! What only reads goes at once. Whatever may write waits, in the order in which it was asked for, until the sync has
//! ended; then each goes in its turn. Should the sync fail, those that have waited for it are refused: they would build on
//! what is not there. Whoever asks after that has been told.
//!
//! The queue is the chat's, for its order is settled before it is known which sandbox the chat has. How a sync stands is
//! kept for the session it ran in, and ends with that.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use sandboxd_actors::domain::ids::{ChatId, SessionId};
use sandboxd_actors::ports::chat_directories::DirectoryError;
use sandboxd_actors::ports::guest::{GuestSetup, Guests, NotBegun, Started};
use sandboxd_protocol::command::{SyncInfo, SyncState};
use tokio::sync::oneshot;

use crate::protocol::error::{Error, Kind};
use crate::protocol::guest::CommandId;

#[derive(Debug, Clone, Default)]
pub struct Syncs(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    under_way: HashMap<ChatId, UnderWay>,
    /// The last sync of each session.
    sessions: HashMap<SessionId, Sync>,
}

/// A sync that others wait for.
#[derive(Debug)]
struct UnderWay {
    /// Where it runs, once it does.
    runs_as: Option<(SessionId, CommandId)>,
    /// It is over, and one of those that waited has its turn.
    ending: bool,
    barrier: Weak<Raised>,
    waiting: VecDeque<oneshot::Sender<Result<Turn, Error>>>,
}

/// How a sync of a session stands.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sync {
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
    /// Begins one, unless one is under way.
    pub(in crate::server) fn begin(&self, chat: ChatId) -> Result<Barrier, Error> {
        let mut state = self.state();
        if state.under_way.contains_key(&chat) {
            let message = format!("the sandbox of chat {chat} is being brought up to date already");
            return Err(Kind::Busy.error(message).with("chat_id", chat.to_string()));
        }
        let barrier = Barrier(Arc::new(Raised::new(self.clone(), chat)));
        let (runs_as, ending, waiting) = (None, false, VecDeque::new());
        state.under_way.insert(chat, UnderWay { runs_as, ending, barrier: Arc::downgrade(&barrier.0), waiting });
        Ok(barrier)
    }

    /// For whoever follows a command, if it is that of a sync under way.
    pub(super) fn barrier(&self, chat: ChatId, command: CommandId) -> Option<Barrier> {
        let state = self.state();
        let sync = state.under_way.get(&chat).filter(|sync| !sync.ending)?;
        sync.runs_as.filter(|(_, runs)| *runs == command)?;
        sync.barrier.upgrade().map(Barrier)
    }

    /// A place in the queue, if there is one. To be taken in the order of the requests.
    pub(in crate::server) fn queue(&self, chat: ChatId) -> Option<Place> {
        let mut state = self.state();
        let (sender, receiver) = oneshot::channel();
        state.under_way.get_mut(&chat)?.waiting.push_back(sender);
        Some(Place(receiver))
    }

    /// The sync of the chat's sandbox, which has this session.
    pub(super) fn describe(&self, chat: ChatId, session: SessionId) -> Option<SyncInfo> {
        let state = self.state();
        if state.under_way.get(&chat).is_some_and(|sync| sync.runs_as.is_none()) {
            return Some(SyncInfo { state: SyncState::Running, command_id: None, message: None });
        }
        let Sync { command, progress } = state.sessions.get(&session)?;
        let (state, message) = match progress {
            Progress::Running => (SyncState::Running, None),
            Progress::Done => (SyncState::Done, None),
            Progress::Failed(message) => (SyncState::Failed, Some(message.clone())),
        };
        Some(SyncInfo { state, command_id: Some(*command), message })
    }

    /// Sandboxes whose syncs end with them, however they end.
    pub fn ending_with(&self, guests: Arc<dyn Guests>) -> Arc<dyn Guests> {
        Arc::new(WithSyncs { guests, syncs: self.clone() })
    }

    fn end(&self, chat: ChatId, outcome: Result<(), String>) {
        let mut state = self.state();
        let State { under_way, sessions } = &mut *state;
        let Some(sync) = under_way.get_mut(&chat) else { return };
        // A session that has ended meanwhile is not told of any more.
        if let Some(told) = sync.runs_as.and_then(|(session, _)| sessions.get_mut(&session)) {
            told.progress = outcome.clone().map_or_else(Progress::Failed, |()| Progress::Done);
        }
        match outcome {
            Ok(()) => {
                sync.ending = true;
                drop(state);
                self.next(chat);
            }
            Err(message) => {
                let error = Kind::SyncFailed
                    .error(format!("the sandbox was not brought up to date: {message}"))
                    .with("chat_id", chat.to_string());
                for waiting in under_way.remove(&chat).into_iter().flat_map(|sync| sync.waiting) {
                    let _ = waiting.send(Err(error.clone()));
                }
            }
        }
    }

    /// Lets the next one go. Those that come meanwhile wait for their turn like the others.
    fn next(&self, chat: ChatId) {
        loop {
            let waiting = {
                let mut state = self.state();
                let Some(sync) = state.under_way.get_mut(&chat).filter(|sync| sync.ending) else { return };
                let Some(waiting) = sync.waiting.pop_front() else {
                    state.under_way.remove(&chat);
                    return;
                };
                waiting
            };
            match waiting.send(Ok(Turn { syncs: Some(self.clone()), chat })) {
                // Nobody waits for it any more. It is passed over here, not by its end.
                Err(Ok(mut unwanted)) => drop(unwanted.syncs.take()),
                _ => return,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held while a sync is under way, by all who follow it. Once the last of them has dropped it, the sync has failed, unless
/// one of them has heard how it ended.
#[derive(Debug)]
pub(in crate::server) struct Barrier(Arc<Raised>);

#[derive(Debug)]
struct Raised {
    syncs: Syncs,
    chat: ChatId,
    lifted: AtomicBool,
    /// Why nobody follows it any more.
    given_up: Mutex<String>,
}

impl Barrier {
    pub(super) fn runs_as(&self, session: SessionId, command: CommandId) {
        let mut state = self.0.syncs.state();
        if let Some(sync) = state.under_way.get_mut(&self.0.chat) {
            sync.runs_as = Some((session, command));
            state.sessions.insert(session, Sync { command, progress: Progress::Running });
        }
    }

    pub(super) fn lift(self, outcome: Result<(), String>) {
        self.0.lift(outcome);
    }

    /// Others may still follow it.
    pub(super) fn give_up(self, reason: &str) {
        reason.clone_into(&mut self.0.given_up.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Raised {
    fn new(syncs: Syncs, chat: ChatId) -> Self {
        Self { syncs, chat, lifted: AtomicBool::new(false), given_up: Mutex::new("it was given up".to_owned()) }
    }

    /// Once: another sync may have begun by the time the last one lets go.
    fn lift(&self, outcome: Result<(), String>) {
        if !self.lifted.swap(true, Ordering::Relaxed) {
            self.syncs.end(self.chat, outcome);
        }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        let reason = std::mem::take(self.given_up.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.lift(Err(reason));
    }
}

#[derive(Debug)]
pub(in crate::server) struct Place(oneshot::Receiver<Result<Turn, Error>>);

impl Place {
    pub(super) async fn turn(self) -> Result<Turn, Error> {
        self.0.await.unwrap_or_else(|_| Err(Kind::Internal.error("the queue is gone")))
    }
}

/// Held while it is one's turn to write.
#[derive(Debug)]
pub(super) struct Turn {
    /// Absent for one that nobody took.
    syncs: Option<Syncs>,
    chat: ChatId,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(syncs) = self.syncs.take() {
            syncs.next(self.chat);
        }
    }
}

/// Forgets the syncs of sessions of which nothing is left.
struct WithSyncs {
    guests: Arc<dyn Guests>,
    syncs: Syncs,
}

#[async_trait]
impl Guests for WithSyncs {
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
    fn those_that_wait_go_one_after_the_other_in_their_order() {
        let syncs = Syncs::default();
        assert!(syncs.queue(chat()).is_none(), "there is nothing to wait for");
        let barrier = syncs.begin(chat()).expect("the first");
        assert_eq!(syncs.begin(chat()).expect_err("the second").data.kind, Kind::Busy);
        let [first, gone, second] = [(); 3].map(|()| syncs.queue(chat()).expect("a place"));
        drop(gone);
        let (mut first, mut second) = (Box::pin(first.turn()), Box::pin(second.turn()));
        assert!((&mut first).now_or_never().is_none());
        barrier.lift(Ok(()));
        assert!((&mut second).now_or_never().is_none(), "it is not its turn");
        let turn = (&mut first).now_or_never().expect("its turn").expect("it may write");
        let late = syncs.queue(chat()).expect("others are still waiting");
        drop(turn);
        drop((&mut second).now_or_never().expect("its turn").expect("it may write"));
        drop(late.turn().now_or_never().expect("its turn").expect("it may write"));
        assert!(syncs.queue(chat()).is_none(), "it is over");
    }

    fn session() -> SessionId {
        "0b9d0f4c-6a5d-4f0e-9a43-0f3f0d5f4a10".parse().expect("an id")
    }

    #[tokio::test]
    async fn a_sync_is_told_of_as_long_as_its_session_lasts() {
        let syncs = Syncs::default();
        let guests = syncs.ending_with(Arc::new(sandboxd_actors::ports::guest::NoGuestSetup));
        let barrier = syncs.begin(chat()).expect("the first");
        barrier.runs_as(session(), 7);
        barrier.lift(Ok(()));
        assert_eq!(syncs.describe(chat(), session()).expect("known").state, SyncState::Done);
        assert!(syncs.describe(chat(), SessionId::random()).is_none(), "another sandbox has had none");
        guests.clear(session()).await;
        assert!(syncs.describe(chat(), session()).is_none());

        let barrier = syncs.begin(chat()).expect("the second");
        barrier.runs_as(session(), 8);
        guests.clear(session()).await;
        barrier.give_up("the sandbox is gone");
        assert!(syncs.describe(chat(), session()).is_none(), "its end is that of no session");
        let state = syncs.state();
        assert!(state.under_way.is_empty() && state.sessions.is_empty(), "{state:?}");
    }

    #[test]
    fn a_sync_is_under_way_as_long_as_anybody_follows_it() {
        let syncs = Syncs::default();
        let begun = syncs.begin(chat()).expect("the first");
        begun.runs_as(session(), 7);
        assert!(syncs.barrier(chat(), 8).is_none(), "it is another command");
        let (heard, deaf) = (syncs.barrier(chat(), 7).expect("it runs"), syncs.barrier(chat(), 7).expect("it runs"));
        begun.give_up("another one has attached");
        assert_eq!(syncs.describe(chat(), session()).expect("known").state, SyncState::Running);
        heard.lift(Ok(()));
        assert!(syncs.barrier(chat(), 7).is_none(), "it has ended");
        let next = syncs.begin(chat()).expect("the second");
        next.runs_as(session(), 9);
        drop(deaf);
        assert_eq!(syncs.describe(chat(), session()).expect("known").state, SyncState::Running);
        next.give_up("the sandbox is gone");
        let failed = syncs.describe(chat(), session()).expect("known");
        assert_eq!((failed.state, failed.message.as_deref()), (SyncState::Failed, Some("the sandbox is gone")));
    }

    #[test]
    fn a_failure_refuses_those_that_waited_and_nobody_after_them() {
        let syncs = Syncs::default();
        let barrier = syncs.begin(chat()).expect("the first");
        barrier.runs_as(session(), 7);
        let place = syncs.queue(chat()).expect("a place");
        drop(barrier);
        let refused = place.turn().now_or_never().expect("an answer").expect_err("it failed");
        assert_eq!(refused.data.kind, Kind::SyncFailed);
        assert!(syncs.queue(chat()).is_none());
        assert_eq!(syncs.describe(chat(), session()).expect("remembered").state, SyncState::Failed);
        assert!(syncs.begin(chat()).is_ok(), "it can be tried again");
    }
}
