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

/// The number of entries at which a batch takes no further writes: a commit should take milliseconds.
const BATCH_LIMIT: usize = 1024;

/// How long an unacknowledged event waits for other writes to join its commit. An awaited write mostly follows a moment
/// later, and every commit keeps the disk from other programs.
const LINGER: Duration = Duration::from_millis(20);

/// The delay after a failure until the journal is tried again, if no write tries it before.
const RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum Message {
    Write(Write),
    Read(Read),
    /// The thread has finished its job.
    Done(Done),
    Retry,
}

#[derive(Debug)]
pub(super) struct Write {
    pub(super) drafts: Vec<Draft>,
    /// `None`: the writer does not wait for the result.
    pub(super) done: Option<oneshot::Sender<Result<(), JournalError>>>,
    /// The share of the queue that this write occupies until it ends.
    pub(super) _permit: OwnedSemaphorePermit,
}

impl Write {
    fn answer(self, result: &Result<(), JournalError>) {
        if let Some(done) = self.done {
            // The writer may have stopped waiting.
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
    /// The actor owns the journal itself, without a thread.
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
    /// The writes of the running commit.
    committing: Vec<Write>,
    /// The owner has a job.
    busy: bool,
    /// Commits and reads alternate, so that neither waits for more than one of the other.
    read_is_next: bool,
    /// The error of the last commit, if it failed. The first failure and the first success after it are logged.
    failure: watch::Sender<Option<JournalError>>,
    /// The queue holds only unacknowledged writes: the commit waits for an awaited write or for the timer.
    holding: bool,
    timer_runs: bool,
    /// The last commit failed and no write is queued: the next commit is a probe.
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
            Message::Write(write) => state.enqueue(&myself, write),
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
                        state.answer_all(&Err(JournalError::Defect { message: message.clone() }));
                        return Err(format!("the journal panicked: {message}").into());
                    }
                }
            }
        }
        state.start_next_job();
        Ok(())
    }
}

impl State {
    fn enqueue(&mut self, myself: &ActorRef<Message>, write: Write) {
        let is_awaited = write.done.is_some();
        let events_only = write.drafts.iter().all(|draft| matches!(draft, Draft::Event(_)));
        let can_wait = events_only && (self.holding || (self.queue.is_empty() && !self.busy));
        self.queue.push_back(write);
        if is_awaited || !can_wait {
            self.holding = false;
        } else {
            self.hold(myself, LINGER);
        }
    }

    /// Submits the next job to the owner, unless the owner is busy.
    fn start_next_job(&mut self) {
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
            // A thread that ended has reported it, and that message ends this actor.
            self.busy = self.owner.submit(job);
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
                // The write keeps its drafts for a retry after a full disk.
                drafts.extend(write.drafts.iter().cloned());
            }
            self.committing.push(write);
        }
        if std::mem::take(&mut self.probing) && drafts.is_empty() {
            drafts.push(Draft::Probe);
        }
        if drafts.is_empty() {
            // Flushes are empty writes, which wait for the writes before them.
            self.answer_all(&Ok(()));
            return None;
        }
        Some(Job::Commit(assemble(drafts, self.last_event)))
    }

    fn committed(&mut self, entries: Vec<Entry>, took: Duration) {
        self.measure(took);
        if self.failure.send_replace(None).is_some() {
            tracing::info!("journal writable again");
        }
        for entry in entries {
            if matches!(entry, Entry::Rebuilt) {
                self.fresh.store(false, Ordering::Release);
            }
            if let Entry::Event(event) = entry {
                self.last_event = event.sequence;
                metrics::counter!("sandboxd_journal_events_total").increment(1);
                // There may be no watcher.
                let _ = self.events.send(Arc::new(*event));
            }
        }
        self.answer_all(&Ok(()));
    }

    fn failed(&mut self, myself: &ActorRef<Message>, error: JournalError, took: Duration) {
        self.measure(took);
        metrics::counter!("sandboxd_journal_failures_total", "error" => error.kind()).increment(1);
        if self.failure.send_replace(Some(error.clone())).is_none() {
            tracing::error!(error.type = error.kind(), %error, "journal write failed");
        }
        let mut failed: VecDeque<Write> = self.committing.drain(..).collect();
        if matches!(error, JournalError::Full { .. }) {
            // The writes behind would fail as well, so their writers are answered now.
            failed.append(&mut self.queue);
            (failed, self.queue) = failed.into_iter().partition(|write| write.done.is_some());
            self.holding = !self.queue.is_empty();
        }
        self.schedule_retry(myself, RETRY_DELAY);
        let lost = failed.iter().filter(|write| write.done.is_none()).count();
        if lost > 0 {
            tracing::error!(%error, writes = lost, "unacknowledged journal writes lost");
        }
        let result = Err(error);
        failed.into_iter().for_each(|write| write.answer(&result));
    }

    fn hold(&mut self, myself: &ActorRef<Message>, delay: Duration) {
        self.holding = !self.queue.is_empty();
        if self.holding {
            self.schedule_retry(myself, delay);
        }
    }

    fn schedule_retry(&mut self, myself: &ActorRef<Message>, delay: Duration) {
        if !std::mem::replace(&mut self.timer_runs, true) {
            myself.send_after(delay, || Message::Retry);
        }
    }

    fn answer_all(&mut self, result: &Result<(), JournalError>) {
        self.committing.drain(..).for_each(|write| write.answer(result));
    }

    fn measure(&self, took: Duration) {
        metrics::histogram!("sandboxd_journal_commit_duration_seconds").record(took.as_secs_f64());
        metrics::histogram!("sandboxd_journal_batch_writes").record(self.committing.len() as f64);
    }
}
