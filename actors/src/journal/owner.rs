//! The thread that owns the journal, so that it needs no lock and no worker of the runtime waits for a disk.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ractor::ActorRef;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::DropGuard;

use super::actor::Message;
use super::{Entry, EventPage, Journal, JournalError, LifecycleEvent};
use crate::domain::ids::{ChatId, SessionId};
use crate::domain::sandbox::Sandbox;

#[derive(Debug)]
pub(super) enum Job {
    Commit(Vec<Entry>),
    Read(Read),
}

#[derive(Debug)]
pub(super) struct Read {
    pub(super) query: Query,
    /// The share of the queue that this read occupies until it ends.
    pub(super) _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(super) enum Query {
    Events { after: u64, chat: Option<ChatId>, limit: usize, page: oneshot::Sender<Result<EventPage, JournalError>> },
    LastEvents { chat: ChatId, limit: usize, events: oneshot::Sender<Result<Vec<LifecycleEvent>, JournalError>> },
    Sandbox { chat: ChatId, answer: oneshot::Sender<Result<Option<Sandbox>, JournalError>> },
    Sessions { answer: oneshot::Sender<Result<Vec<SessionId>, JournalError>> },
}

/// The result of a job.
#[derive(Debug)]
pub(super) enum Done {
    Committed {
        entries: Vec<Entry>,
        result: Result<(), JournalError>,
        took: Duration,
    },
    Read,
    /// The journal panicked. Its state is unknown, so the thread ends.
    Broken {
        message: String,
    },
}

/// The owner of the journal.
pub(super) enum Owner {
    Thread(mpsc::Sender<Job>),
    /// The actor itself, for a journal that never blocks: a paused clock in a test does not wait for a thread.
    #[cfg(feature = "fake-engine")]
    Actor {
        journal: Box<dyn Journal>,
        actor: ActorRef<Message>,
        _ended: DropGuard,
    },
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Owner")
    }
}

impl Owner {
    /// Submits a job. Returns whether the job will be answered.
    pub(super) fn submit(&mut self, job: Job) -> bool {
        match self {
            Owner::Thread(jobs) => jobs.send(job).is_ok(),
            #[cfg(feature = "fake-engine")]
            Owner::Actor { journal, actor, .. } => actor.cast(Message::Done(run_job(job, &mut **journal))).is_ok(),
        }
    }
}

/// Starts the thread. The thread ends and closes the journal when the sender is dropped; then it drops `ended`.
pub(super) fn start(journal: Box<dyn Journal>, actor: ActorRef<Message>, ended: DropGuard) -> std::io::Result<Owner> {
    let (sender, jobs) = mpsc::channel();
    let thread = std::thread::Builder::new().name("journal".into());
    thread.spawn(move || {
        let _ended = ended;
        run(journal, &jobs, &actor);
    })?;
    Ok(Owner::Thread(sender))
}

fn run(mut journal: Box<dyn Journal>, jobs: &mpsc::Receiver<Job>, actor: &ActorRef<Message>) {
    for job in jobs {
        let done = run_job(job, &mut *journal);
        let broken = matches!(done, Done::Broken { .. });
        if actor.cast(Message::Done(done)).is_err() || broken {
            return;
        }
    }
}

fn run_job(job: Job, journal: &mut dyn Journal) -> Done {
    catch_unwind(AssertUnwindSafe(|| execute(job, journal)))
        .unwrap_or_else(|panic| Done::Broken { message: panic_message(&*panic) })
}

fn execute(job: Job, journal: &mut dyn Journal) -> Done {
    match job {
        Job::Commit(entries) => {
            let started = Instant::now();
            let result = journal.commit(&entries);
            Done::Committed { entries, result, took: started.elapsed() }
        }
        Job::Read(Read { query, _permit }) => {
            // The reader may have stopped waiting.
            match query {
                Query::Events { after, chat, limit, page } => drop(page.send(journal.events(after, chat, limit))),
                Query::LastEvents { chat, limit, events } => drop(events.send(journal.last_events(chat, limit))),
                Query::Sandbox { chat, answer } => drop(answer.send(journal.sandbox(chat))),
                Query::Sessions { answer } => drop(answer.send(journal.sessions())),
            }
            Done::Read
        }
    }
}

pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}
