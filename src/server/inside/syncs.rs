//! While a chat's sandbox is brought up to date, nothing else is written in it.
//!
//! What only reads goes at once. Whatever may write waits, in the order in which it was asked for, until the sync has
//! ended; then each goes in its turn. Should the sync fail, those that have waited for it are refused: they would build on
//! what is not there. Whoever asks after that has been told.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sandboxd_actors::ids::ChatId;
use tokio::sync::oneshot;

use crate::protocol::error::{Error, Kind};
use crate::protocol::inside::CommandId;
use crate::protocol::inside::answer::SyncFields;

#[derive(Debug, Clone, Default)]
pub struct Syncs(Arc<Mutex<HashMap<ChatId, Sync>>>);

#[derive(Debug)]
struct Sync {
    state: State,
    command: Option<CommandId>,
    barrier: Weak<Raised>,
    waiting: VecDeque<oneshot::Sender<Result<Turn, Error>>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Running,
    /// It is over, and one of those that waited has its turn.
    Ending,
    Done,
    Failed(String),
}

impl Syncs {
    /// Begins one, unless one is under way.
    pub(in crate::server) fn begin(&self, chat: ChatId) -> Result<Barrier, Error> {
        let mut syncs = self.state();
        if let Some(Sync { state: State::Running | State::Ending, .. }) = syncs.get(&chat) {
            let message = format!("the sandbox of chat {chat} is being brought up to date already");
            return Err(Kind::Busy.error(message).with("chat_id", chat.to_string()));
        }
        let barrier = Barrier(Arc::new(Raised::new(self.clone(), chat)));
        let (state, waiting) = (State::Running, VecDeque::new());
        syncs.insert(chat, Sync { state, command: None, barrier: Arc::downgrade(&barrier.0), waiting });
        Ok(barrier)
    }

    /// For whoever follows a command, if it is that of a sync under way.
    pub(super) fn barrier(&self, chat: ChatId, command: CommandId) -> Option<Barrier> {
        let syncs = self.state();
        let sync = syncs.get(&chat).filter(|sync| sync.state == State::Running && sync.command == Some(command))?;
        sync.barrier.upgrade().map(Barrier)
    }

    /// A place in the queue, if there is one. To be taken in the order of the requests.
    pub(in crate::server) fn queue(&self, chat: ChatId) -> Option<Place> {
        let mut syncs = self.state();
        let sync = syncs.get_mut(&chat)?;
        if !matches!(sync.state, State::Running | State::Ending) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        sync.waiting.push_back(sender);
        Some(Place(receiver))
    }

    /// Nothing is left of the chat's sandbox.
    pub(in crate::server) fn forget(&self, chat: ChatId) {
        let mut syncs = self.state();
        if let Some(Sync { state: State::Done | State::Failed(_), .. }) = syncs.get(&chat) {
            syncs.remove(&chat);
        }
    }

    pub(super) fn describe(&self, chat: ChatId) -> Option<SyncFields> {
        let syncs = self.state();
        let Sync { state, command, .. } = syncs.get(&chat)?;
        let (state, message) = match state {
            State::Running => ("running", None),
            State::Ending | State::Done => ("done", None),
            State::Failed(message) => ("failed", Some(message.clone())),
        };
        Some(SyncFields { state, command_id: *command, message })
    }

    fn end(&self, chat: ChatId, outcome: Result<(), String>) {
        let mut syncs = self.state();
        let Some(sync) = syncs.get_mut(&chat) else { return };
        match outcome {
            Ok(()) => {
                sync.state = State::Ending;
                drop(syncs);
                self.next(chat);
            }
            Err(message) => {
                let error = Kind::SyncFailed
                    .error(format!("the sandbox was not brought up to date: {message}"))
                    .with("chat_id", chat.to_string());
                for waiting in sync.waiting.drain(..) {
                    let _ = waiting.send(Err(error.clone()));
                }
                sync.state = State::Failed(message);
            }
        }
    }

    /// Lets the next one go. Those that come meanwhile wait for their turn like the others.
    fn next(&self, chat: ChatId) {
        loop {
            let waiting = {
                let mut syncs = self.state();
                let Some(sync) = syncs.get_mut(&chat).filter(|sync| sync.state == State::Ending) else { return };
                let Some(waiting) = sync.waiting.pop_front() else {
                    sync.state = State::Done;
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

    fn state(&self) -> MutexGuard<'_, HashMap<ChatId, Sync>> {
        // No panic can leave the map half changed.
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
    pub(super) fn runs_as(&self, command: CommandId) {
        if let Some(sync) = self.0.syncs.state().get_mut(&self.0.chat) {
            sync.command = Some(command);
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
        assert_eq!(syncs.begin(chat()).expect_err("the second").kind, Kind::Busy);
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

    #[test]
    fn a_sync_is_under_way_as_long_as_anybody_follows_it() {
        let syncs = Syncs::default();
        let begun = syncs.begin(chat()).expect("the first");
        begun.runs_as(7);
        assert!(syncs.barrier(chat(), 8).is_none(), "it is another command");
        let (heard, deaf) = (syncs.barrier(chat(), 7).expect("it runs"), syncs.barrier(chat(), 7).expect("it runs"));
        begun.give_up("another one has attached");
        assert_eq!(syncs.describe(chat()).expect("known").state, "running");
        heard.lift(Ok(()));
        assert!(syncs.barrier(chat(), 7).is_none(), "it has ended");
        let next = syncs.begin(chat()).expect("the second");
        drop(deaf);
        assert_eq!(syncs.describe(chat()).expect("known").state, "running");
        next.give_up("the sandbox is gone");
        let failed = syncs.describe(chat()).expect("known");
        assert_eq!((failed.state, failed.message.as_deref()), ("failed", Some("the sandbox is gone")));
    }

    #[test]
    fn a_failure_refuses_those_that_waited_and_nobody_after_them() {
        let syncs = Syncs::default();
        let barrier = syncs.begin(chat()).expect("the first");
        let place = syncs.queue(chat()).expect("a place");
        drop(barrier);
        let refused = place.turn().now_or_never().expect("an answer").expect_err("it failed");
        assert_eq!(refused.kind, Kind::SyncFailed);
        assert!(syncs.queue(chat()).is_none());
        assert_eq!(syncs.describe(chat()).expect("remembered").state, "failed");
        assert!(syncs.begin(chat()).is_ok(), "it can be tried again");
    }
}
