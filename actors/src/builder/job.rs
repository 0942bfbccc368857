//! A pull or a build under way, and its followers.

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
    /// The follower of the first caller, which misses no progress because it was created before the work began.
    first: Option<Follower>,
    _task: AbortOnDropHandle<()>,
}

impl Job {
    /// Starts `work`. Its end is reported with [`Message::Ended`].
    pub(super) fn start<F>(builder: &ActorRef<Message>, work: Work, begin: impl FnOnce(Reporter) -> F) -> Self
    where
        F: Future<Output = (Option<String>, Outcome)> + Send + 'static,
    {
        let (reporter, outcome) = (Reporter::new(), watch::Sender::new(None));
        let first = Some(Follower { progress: reporter.subscribe(), outcome: outcome.subscribe() });
        let (running, builder) = (begin(reporter.clone()), builder.clone());
        let task = async move {
            let (head, outcome) = AssertUnwindSafe(running).catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!(?work, "image job panicked");
                (None, Err(ImageError::Interrupted))
            });
            let _ = builder.cast(Message::Ended { work, head, outcome });
        };
        let task = AbortOnDropHandle::new(tokio::spawn(task));
        Self { reporter, outcome, first, _task: task }
    }

    pub(super) fn follow(&mut self) -> Follower {
        let later = || Follower { progress: self.reporter.subscribe(), outcome: self.outcome.subscribe() };
        self.first.take().unwrap_or_else(later)
    }

    pub(super) fn finish(self, outcome: Outcome) {
        self.outcome.send_replace(Some(outcome));
    }
}

/// A follower of a job. A job runs on without followers.
#[derive(Debug)]
pub struct Follower {
    progress: broadcast::Receiver<Progress>,
    outcome: watch::Receiver<Option<Outcome>>,
}

impl Follower {
    /// Returns the next progress, until the job has ended. A slow follower misses some.
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
