//! What a sandbox's own program prints, which its engine keeps.

use std::convert::Infallible;

use futures_util::TryStreamExt;
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::outcome::SandboxError;
use sandboxd_actors::domain::sandbox::Holder;
use sandboxd_actors::ports::engine::EngineError;
use sandboxd_actors::ports::engine::logs::{EngineLogs, LogRange, LogStream};
use sandboxd_protocol::guest::LogsResult;

use super::exec::{Held, Told};
use super::{GuestCall, gone};
use crate::protocol::answer::Answer;
use crate::protocol::error::{Error, Kind, of_engine, of_sandbox};
use crate::protocol::guest::Output;
use crate::server::access::Role;

impl GuestCall<'_> {
    pub(super) async fn logs(&self, chat: ChatId, range: LogRange) -> Result<Answer, Error> {
        let sandbox = self.sandboxes.find(chat).await.map_err(of_sandbox)?;
        let gone = of_sandbox(SandboxError::NotRunning { chat, status: sandbox.status });
        let container = sandbox.container.ok_or_else(|| gone.clone())?;
        let pieces = self.engine.logs(&container, range).await.map_err(|error| match error {
            EngineError::NoSuchContainer { .. } => gone,
            error => of_engine(error),
        })?;
        let held = match (range.follow, self.role) {
            (true, Role::Full) => self.held_if_running(chat).await?,
            _ => None,
        };
        let outcome = self.tell_logs(pieces, held.as_ref()).await;
        if let Some(held) = held {
            held.release().await;
        }
        outcome.map(Answer::Logs)
    }

    /// One that does not run has nothing to be held for.
    async fn held_if_running(&self, chat: ChatId) -> Result<Option<Held<'_>>, Error> {
        match Held::take(self.sandboxes, chat, Holder::Logs, self.max_lease).await {
            Ok(held) => Ok(Some(held)),
            Err(error) if matches!(error.data.kind, Kind::SandboxNotRunning | Kind::SandboxNotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn tell_logs(&self, mut pieces: EngineLogs, held: Option<&Held<'_>>) -> Result<LogsResult, Error> {
        let everything = Output { stream: true, limit: usize::MAX, detach_on_disconnect: true };
        let mut told = Told::new(None, everything, self);
        let telling = async {
            while let Some(piece) = pieces.try_next().await.map_err(of_engine)? {
                let stream = match piece.stream {
                    LogStream::Stdout => 0,
                    LogStream::Stderr => 1,
                };
                told.tell(stream, &piece.bytes).await.map_err(|_| gone())?;
            }
            told.finish().await.map_err(|_| gone())
        };
        let keeping = async {
            match held {
                Some(held) => held.keep().await,
                None => std::future::pending::<Infallible>().await,
            }
        };
        let outcome = tokio::select! {
            outcome = telling => outcome,
            never = keeping => match never {},
            () = self.gone.cancelled() => Err(gone()),
            () = self.shutdown.cancelled() => Err(Kind::ShuttingDown.error("the service is shutting down")),
        };
        outcome.map(|()| LogsResult { bytes: told.bytes() })
    }
}
