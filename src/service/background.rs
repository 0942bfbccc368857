//! What goes on beside the requests for as long as the service runs. A task of it that fails ends the service, which the
//! service manager starts again: half a service would look healthy and is not.

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::ServiceError;

#[derive(Debug, Default)]
pub(super) struct Background {
    tasks: JoinSet<Option<ServiceError>>,
    ended: CancellationToken,
}

impl Background {
    /// Runs a task that answers only with a failure.
    pub(super) fn spawn(&mut self, task: impl Future<Output = ServiceError> + Send + 'static) {
        self.tasks.spawn(self.ended.clone().run_until_cancelled_owned(task));
    }

    /// Resolves with the first failure; a panic is one.
    pub(super) async fn failed(&mut self) -> ServiceError {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Some(failure))) => return failure,
                Some(Ok(None)) => {}
                Some(Err(error)) => {
                    tracing::error!(%error, "a background task panicked; the service ends");
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
