//! Background tasks of the service. A failed task ends the service, and the service manager restarts it: a service with
//! a missing task would look healthy.

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::ServiceError;

#[derive(Debug, Default)]
pub(super) struct Background {
    tasks: JoinSet<Option<ServiceError>>,
    ended: CancellationToken,
}

impl Background {
    /// Runs a task that only returns if it fails.
    pub(super) fn spawn(&mut self, task: impl Future<Output = ServiceError> + Send + 'static) {
        self.tasks.spawn(self.ended.clone().run_until_cancelled_owned(task));
    }

    /// Resolves with the first failure or panic.
    pub(super) async fn failed(&mut self) -> ServiceError {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Some(failure))) => return failure,
                Some(Ok(None)) => {}
                Some(Err(error)) => {
                    tracing::error!(%error, "background task panicked; service stopping");
                    return ServiceError::Background(error);
                }
                None => std::future::pending().await,
            }
        }
    }

    pub(super) fn end(&self) {
        self.ended.cancel();
    }
}
