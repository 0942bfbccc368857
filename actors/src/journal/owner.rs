//! The thread that has the journal to itself, so that nobody locks it and no worker of the runtime waits for a disk.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ractor::ActorRef;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::DropGuard;

use super::actor::Message;
use super::{Entry, EventPage, Journal, JournalError};
use crate::ids::ChatId;

#[derive(Debug)]
pub(super) enum Job {
    Commit(Vec<Entry>),
    Read(Read),
}

#[derive(Debug)]
pub(super) struct Read {
    pub(super) after: u64,
    pub(super) chat: Option<ChatId>,
    pub(super) limit: usize,
    pub(super) page: oneshot::Sender<Result<EventPage, JournalError>>,
    /// Given back when the read is over, however it ends.
    pub(super) _place: OwnedSemaphorePermit,
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

/// Starts the thread. It ends, and closes the journal, when the sender is dropped; `ended` is released after that.
pub(super) fn start(
    journal: Box<dyn Journal>,
    actor: ActorRef<Message>,
    ended: DropGuard,
) -> std::io::Result<mpsc::Sender<Job>> {
    let (sender, jobs) = mpsc::channel();
    let thread = std::thread::Builder::new().name("journal".into());
    thread.spawn(move || {
        let _ended = ended;
        own(journal, &jobs, &actor);
    })?;
    Ok(sender)
}

fn own(mut journal: Box<dyn Journal>, jobs: &mpsc::Receiver<Job>, actor: &ActorRef<Message>) {
    for job in jobs {
        let done = catch_unwind(AssertUnwindSafe(|| carry_out(job, &mut *journal)))
            .unwrap_or_else(|panic| Done::Broken { message: message_of(&*panic) });
        let broken = matches!(done, Done::Broken { .. });
        if actor.cast(Message::Done(done)).is_err() || broken {
            return;
        }
    }
}

fn carry_out(job: Job, journal: &mut dyn Journal) -> Done {
    match job {
        Job::Commit(entries) => {
            let started = Instant::now();
            let result = journal.commit(&entries);
            Done::Committed { entries, result, took: started.elapsed() }
        }
        Job::Read(Read { after, chat, limit, page, _place }) => {
            // A reader that has gone away does not mind.
            let _ = page.send(journal.events(after, chat, limit));
            Done::Read
        }
    }
}

pub(super) fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}
