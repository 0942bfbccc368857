//! Something that takes a while, and whoever wants to know how it goes.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use ractor::ActorRef;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio_util::task::AbortOnDropHandle;

use super::{Made, Message, Work};
use crate::ports::images::{ImageError, Progress, Reporter};

pub type Outcome = Result<Made, ImageError>;

#[derive(Debug)]
pub(super) struct Job {
    reporter: Reporter,
    outcome: watch::Sender<Option<Outcome>>,
    /// For whoever asked for it, who is to miss nothing; it was there before the work began.
    first: Option<Following>,
    _task: AbortOnDropHandle<()>,
}

impl Job {
    /// Starts `work`, whose end comes back as a message.
    pub(super) fn start<F>(builder: &ActorRef<Message>, work: Work, begin: impl FnOnce(Reporter) -> F) -> Self
    where
        F: Future<Output = (Option<String>, Outcome)> + Send + 'static,
    {
        let (reporter, outcome) = (Reporter::new(), watch::Sender::new(None));
        let first = Some(Following { progress: reporter.listen(), outcome: outcome.subscribe() });
        let (running, builder) = (begin(reporter.clone()), builder.clone());
        let task = async move {
            let (head, outcome) = AssertUnwindSafe(running).catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!(?work, "the builder's work panicked");
                (None, Err(ImageError::Interrupted))
            });
            let _ = builder.cast(Message::Ended { work, head, outcome });
        };
        let task = AbortOnDropHandle::new(tokio::spawn(task));
        Self { reporter, outcome, first, _task: task }
    }

    pub(super) fn follow(&mut self) -> Following {
        let later = || Following { progress: self.reporter.listen(), outcome: self.outcome.subscribe() };
        self.first.take().unwrap_or_else(later)
    }

    pub(super) fn finish(self, outcome: Outcome) {
        self.outcome.send_replace(Some(outcome));
    }
}

/// Somebody who waits for a job. Whether there is one does not matter to the job.
#[derive(Debug)]
pub struct Following {
    progress: broadcast::Receiver<Progress>,
    outcome: watch::Receiver<Option<Outcome>>,
}

impl Following {
    /// How far it has come, until it has ended. Whoever is slow misses some.
    pub async fn next(&mut self) -> Option<Progress> {
        loop {
            match self.progress.recv().await {
                Ok(progress) => return Some(progress),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }

    pub async fn outcome(mut self) -> Outcome {
        match self.outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Err(ImageError::Interrupted)),
            // The builder has failed, and its jobs with it.
            Err(_) => Err(ImageError::Interrupted),
        }
    }
}
