//! The logs of a sandbox: the output of its own program, which the engine stores.

use std::convert::Infallible;

use futures_util::TryStreamExt;
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::outcome::SandboxError;
use sandboxd_actors::domain::sandbox::Holder;
use sandboxd_actors::ports::engine::EngineError;
use sandboxd_actors::ports::engine::logs::{EngineLogs, LogRange, LogStream};
use sandboxd_protocol::error::{Error, ErrorKind};
use sandboxd_protocol::guest::LogsResult;

use super::exec::{OutputRelay, WorkLease};
use super::{GuestCall, disconnected};
use crate::protocol::answer::Answer;
use crate::protocol::error::{of_engine, of_sandbox};
use crate::protocol::guest::Output;
use crate::server::access::Role;

impl GuestCall<'_> {
    pub(super) async fn logs(&self, chat: ChatId, range: LogRange) -> Result<Answer, Error> {
        let sandbox = self.sandboxes.find(chat).await.map_err(of_sandbox)?;
        let not_running = of_sandbox(SandboxError::NotRunning { chat, status: sandbox.status });
        let container = sandbox.container.ok_or_else(|| not_running.clone())?;
        let pieces = self.engine.logs(&container, range).await.map_err(|error| match error {
            EngineError::NoSuchContainer { .. } => not_running,
            error => of_engine(error),
        })?;
        let lease = match (range.follow, self.role) {
            (true, Role::Full) => self.lease_if_running(chat).await?,
            _ => None,
        };
        let outcome = self.stream_logs(pieces, lease.as_ref()).await;
        if let Some(lease) = lease {
            lease.release().await;
        }
        outcome.map(Answer::Logs)
    }

    /// Leases the sandbox. Returns `None` if it does not run: its logs need no lease.
    async fn lease_if_running(&self, chat: ChatId) -> Result<Option<WorkLease<'_>>, Error> {
        match WorkLease::acquire(self.sandboxes, chat, Holder::Logs, self.max_lease).await {
            Ok(lease) => Ok(Some(lease)),
            Err(error) if matches!(error.data.kind, ErrorKind::SandboxNotRunning | ErrorKind::SandboxNotFound) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn stream_logs(&self, mut pieces: EngineLogs, lease: Option<&WorkLease<'_>>) -> Result<LogsResult, Error> {
        let everything = Output { stream: true, limit: usize::MAX, detach_on_disconnect: true };
        let mut relay = OutputRelay::new(None, everything, self);
        let forwarding = async {
            while let Some(piece) = pieces.try_next().await.map_err(of_engine)? {
                let stream = match piece.stream {
                    LogStream::Stdout => 0,
                    LogStream::Stderr => 1,
                };
                relay.forward(stream, &piece.bytes).await.map_err(|_| disconnected())?;
            }
            relay.finish().await.map_err(|_| disconnected())
        };
        let renewing = async {
            match lease {
                Some(lease) => lease.renew().await,
                None => std::future::pending::<Infallible>().await,
            }
        };
        let outcome = tokio::select! {
            outcome = forwarding => outcome,
            never = renewing => match never {},
            () = self.disconnected.cancelled() => Err(disconnected()),
            () = self.shutdown.cancelled() => Err(ErrorKind::ShuttingDown.error("the service is shutting down")),
        };
        outcome.map(|()| LogsResult { bytes: relay.bytes() })
    }
}
