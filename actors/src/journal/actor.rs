//! The journal's mailbox: queues writes, commits them in batches, answers the writers and publishes the events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{OwnedSemaphorePermit, broadcast, oneshot, watch};
use tokio_util::sync::DropGuard;

use super::batch::assemble;
use super::owner::{self, Done, Job, Owner, Read};
use super::{Draft, Entry, Journal, JournalError, LifecycleEvent};

/// A batch takes no further writes once it has so many entries: a commit should take milliseconds.
const BATCH_LIMIT: usize = 1024;

/// For so long, an event that nobody waits for waits for something to be written with it: most are the beginning of what
/// somebody does wait for, a moment later, and every commit keeps the disk from others.
const LINGER: Duration = Duration::from_millis(20);

/// How soon the journal is tried again after a failure, if no write tries it before.
const RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum Message {
    Write(Write),
    Read(Read),
    /// The thread is done with its job.
    Done(Done),
    Retry,
}

#[derive(Debug)]
pub(super) struct Write {
    pub(super) drafts: Vec<Draft>,
    /// `None`: nobody waits.
    pub(super) done: Option<oneshot::Sender<Result<(), JournalError>>>,
    /// Its place in the queue, given back when the write is over, however it ends.
    pub(super) _place: OwnedSemaphorePermit,
}

impl Write {
    fn tell(self, result: &Result<(), JournalError>) {
        if let Some(done) = self.done {
            // A writer that has gone away does not mind.
            let _ = done.send(result.clone());
        }
    }
}

pub(super) struct Arguments {
    pub(super) journal: Box<dyn Journal>,
    pub(super) last_event: u64,
    pub(super) events: broadcast::Sender<Arc<LifecycleEvent>>,
    pub(super) ended: DropGuard,
    pub(super) fresh: Arc<AtomicBool>,
    pub(super) failure: watch::Sender<Option<JournalError>>,
    /// The actor keeps the journal to itself and needs no thread.
    pub(super) in_place: bool,
}

#[derive(Debug)]
pub(super) struct JournalActor;

#[derive(Debug)]
pub(super) struct State {
    owner: Owner,
    last_event: u64,
    events: broadcast::Sender<Arc<LifecycleEvent>>,
    fresh: Arc<AtomicBool>,
    queue: VecDeque<Write>,
    reads: VecDeque<Read>,
    /// The writes of the commit that is under way.
    committing: Vec<Write>,
    /// The thread has a job.
    busy: bool,
    /// Commits and reads take turns, so that neither holds the other up for longer than one.
    read_is_next: bool,
    /// Why the last commit failed, if it did. The log tells the first failure and the first success after it.
    failure: watch::Sender<Option<JournalError>>,
    /// The queue holds only what nobody waits for: no commit until somebody does, or the timer has run out.
    holding: bool,
    timer_runs: bool,
    /// The last commit failed, and no write is there to try again: the next commit does so by itself.
    probing: bool,
}

impl Actor for JournalActor {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<Message>, arguments: Arguments) -> Result<State, ActorProcessingErr> {
        let Arguments { journal, last_event, events, ended, fresh, failure, in_place } = arguments;
        let owner = match in_place {
            #[cfg(feature = "fake-engine")]
            true => Owner::Actor { journal, actor: myself, _ended: ended },
            _ => owner::start(journal, myself, ended)?,
        };
        Ok(State {
            owner,
            last_event,
            events,
            fresh,
            queue: VecDeque::new(),
            reads: VecDeque::new(),
            committing: Vec::new(),
            busy: false,
            read_is_next: false,
            failure,
            holding: false,
            timer_runs: false,
            probing: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Write(write) => state.queue_up(&myself, write),
            Message::Read(read) => state.reads.push_back(read),
            Message::Retry => {
                (state.holding, state.timer_runs) = (false, false);
                state.probing = state.failure.borrow().is_some();
            }
            Message::Done(done) => {
                state.busy = false;
                match done {
                    Done::Read => {}
                    Done::Committed { entries, result: Ok(()), took } => state.committed(entries, took),
                    Done::Committed { result: Err(error), took, .. } => state.failed(&myself, error, took),
                    Done::Broken { message } => {
                        state.tell_all(&Err(JournalError::Defect { message: message.clone() }));
                        return Err(format!("the journal panicked: {message}").into());
                    }
                }
            }
        }
        state.give_work();
        Ok(())
    }
}

impl State {
    fn queue_up(&mut self, myself: &ActorRef<Message>, write: Write) {
        let is_awaited = write.done.is_some();
        let tells_only = write.drafts.iter().all(|draft| matches!(draft, Draft::Event(_)));
        let can_wait = tells_only && (self.holding || (self.queue.is_empty() && !self.busy));
        self.queue.push_back(write);
        if is_awaited || !can_wait {
            self.holding = false;
        } else {
            self.hold(myself, LINGER);
        }
    }

    /// Gives the thread its next job, if it has none and there is one.
    fn give_work(&mut self) {
        if self.busy {
            return;
        }
        let job = if self.read_is_next {
            self.next_read().or_else(|| self.next_commit())
        } else {
            self.next_commit().or_else(|| self.next_read())
        };
        if let Some(job) = job {
            self.read_is_next = matches!(job, Job::Commit(_));
            // A thread that is gone has said so, and that message ends this actor.
            self.busy = self.owner.give(job);
        }
    }

    fn next_read(&mut self) -> Option<Job> {
        self.reads.pop_front().map(Job::Read)
    }

    fn next_commit(&mut self) -> Option<Job> {
        let mut drafts = Vec::new();
        while !self.holding
            && drafts.len() < BATCH_LIMIT
            && let Some(mut write) = self.queue.pop_front()
        {
            if write.done.is_some() {
                drafts.append(&mut write.drafts);
            } else {
                // Kept, should the disk be full.
                drafts.extend(write.drafts.iter().cloned());
            }
            self.committing.push(write);
        }
        if std::mem::take(&mut self.probing) && drafts.is_empty() {
            drafts.push(Draft::Probe);
        }
        if drafts.is_empty() {
            // Writes of nothing, which waited for what was before them.
            self.tell_all(&Ok(()));
            return None;
        }
        Some(Job::Commit(assemble(drafts, self.last_event)))
    }

    fn committed(&mut self, entries: Vec<Entry>, took: Duration) {
        self.measure(took);
        if self.failure.send_replace(None).is_some() {
            tracing::info!("the journal is written again");
        }
        for entry in entries {
            if matches!(entry, Entry::Rebuilt) {
                self.fresh.store(false, Ordering::Release);
            }
            if let Entry::Event(event) = entry {
                self.last_event = event.sequence;
                metrics::counter!("sandboxd_journal_events_total").increment(1);
                // Without a watcher, nobody is told.
                let _ = self.events.send(Arc::new(*event));
            }
        }
        self.tell_all(&Ok(()));
    }

    fn failed(&mut self, myself: &ActorRef<Message>, error: JournalError, took: Duration) {
        self.measure(took);
        metrics::counter!("sandboxd_journal_failures_total", "error" => error.kind()).increment(1);
        if self.failure.send_replace(Some(error.clone())).is_none() {
            tracing::error!(error.type = error.kind(), %error, "the journal cannot be written");
        }
        let mut failed: VecDeque<Write> = self.committing.drain(..).collect();
        if matches!(error, JournalError::Full { .. }) {
            // The writes behind would meet the same; whoever waits is better told now.
            failed.append(&mut self.queue);
            (failed, self.queue) = failed.into_iter().partition(|write| write.done.is_some());
            self.holding = !self.queue.is_empty();
        }
        self.wake_after(myself, RETRY_DELAY);
        let lost = failed.iter().filter(|write| write.done.is_none()).count();
        if lost > 0 {
            tracing::error!(%error, writes = lost, "writes that nobody waited for are lost");
        }
        let result = Err(error);
        failed.into_iter().for_each(|write| write.tell(&result));
    }

    fn hold(&mut self, myself: &ActorRef<Message>, delay: Duration) {
        self.holding = !self.queue.is_empty();
        if self.holding {
            self.wake_after(myself, delay);
        }
    }

    fn wake_after(&mut self, myself: &ActorRef<Message>, delay: Duration) {
        if !std::mem::replace(&mut self.timer_runs, true) {
            myself.send_after(delay, || Message::Retry);
        }
    }

    fn tell_all(&mut self, result: &Result<(), JournalError>) {
        self.committing.drain(..).for_each(|write| write.tell(result));
    }

    fn measure(&self, took: Duration) {
        metrics::histogram!("sandboxd_journal_commit_duration_seconds").record(took.as_secs_f64());
        metrics::histogram!("sandboxd_journal_batch_writes").record(self.committing.len() as f64);
    }
}
