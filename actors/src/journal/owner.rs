//! The thread that has the journal to itself, so that nobody locks it and no worker of the runtime waits for a disk.

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
    pub(super) question: Question,
    /// Given back when the read is over, however it ends.
    pub(super) _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(super) enum Question {
    Events { after: u64, chat: Option<ChatId>, limit: usize, page: oneshot::Sender<Result<EventPage, JournalError>> },
    LastEvents { chat: ChatId, limit: usize, events: oneshot::Sender<Result<Vec<LifecycleEvent>, JournalError>> },
    Sandbox { chat: ChatId, answer: oneshot::Sender<Result<Option<Sandbox>, JournalError>> },
    Sessions { answer: oneshot::Sender<Result<Vec<SessionId>, JournalError>> },
}

/// How a job ended.
#[derive(Debug)]
pub(super) enum Done {
    Committed {
        entries: Vec<Entry>,
        result: Result<(), JournalError>,
        took: Duration,
    },
    Read,
    /// The journal panicked. It is in an unknown state, so it is given up and the thread ends.
    Broken {
        message: String,
    },
}

/// Whoever has the journal.
pub(super) enum Owner {
    Thread(mpsc::Sender<Job>),
    /// The actor itself, for a journal that never blocks: a clock that a test has paused does not wait for a thread.
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
    /// Whether the job will be answered.
    pub(super) fn give(&mut self, job: Job) -> bool {
        match self {
            Owner::Thread(jobs) => jobs.send(job).is_ok(),
            #[cfg(feature = "fake-engine")]
            Owner::Actor { journal, actor, .. } => actor.cast(Message::Done(attempt(job, &mut **journal))).is_ok(),
        }
    }
}

/// Starts the thread. It ends, and closes the journal, when the sender is dropped; `ended` is released after that.
pub(super) fn start(journal: Box<dyn Journal>, actor: ActorRef<Message>, ended: DropGuard) -> std::io::Result<Owner> {
    let (sender, jobs) = mpsc::channel();
    let thread = std::thread::Builder::new().name("journal".into());
    thread.spawn(move || {
        let _ended = ended;
        own(journal, &jobs, &actor);
    })?;
    Ok(Owner::Thread(sender))
}

fn own(mut journal: Box<dyn Journal>, jobs: &mpsc::Receiver<Job>, actor: &ActorRef<Message>) {
    for job in jobs {
        let done = attempt(job, &mut *journal);
        let broken = matches!(done, Done::Broken { .. });
        if actor.cast(Message::Done(done)).is_err() || broken {
            return;
        }
    }
}

fn attempt(job: Job, journal: &mut dyn Journal) -> Done {
    catch_unwind(AssertUnwindSafe(|| carry_out(job, journal)))
        .unwrap_or_else(|panic| Done::Broken { message: message_of(&*panic) })
}

fn carry_out(job: Job, journal: &mut dyn Journal) -> Done {
    match job {
        Job::Commit(entries) => {
            let started = Instant::now();
            let result = journal.commit(&entries);
            Done::Committed { entries, result, took: started.elapsed() }
        }
        Job::Read(Read { question, _place }) => {
            // A reader that has gone away does not mind.
            match question {
                Question::Events { after, chat, limit, page } => drop(page.send(journal.events(after, chat, limit))),
                Question::LastEvents { chat, limit, events } => drop(events.send(journal.last_events(chat, limit))),
                Question::Sandbox { chat, answer } => drop(answer.send(journal.sandbox(chat))),
                Question::Sessions { answer } => drop(answer.send(journal.sessions())),
            }
            Done::Read
        }
    }
}

pub(super) fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}
