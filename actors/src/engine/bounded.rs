//! Adds a time limit, a span and a measurement to every call to the engine.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::task::{JoinError, JoinHandle};
use tracing::Instrument;

use crate::domain::container::ContainerSpec;
use crate::domain::ids::{ChatId, ContainerId, ContainerName, InstanceName, SnapshotId};
use crate::domain::snapshot::{Snapshot, SnapshotOrigin};
use crate::ports::clock::Timestamp;
use crate::ports::engine::events::EngineEvents;
use crate::ports::engine::logs::{EngineLogs, LogRange};
use crate::ports::engine::{Engine, EngineError, EngineIdentity, NetworkSpec, Observed, Operation, SnapshotRemoval};

/// The time limits of the engine calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineLimits {
    pub identify: Duration,
    pub network: Duration,
    pub image: Duration,
    pub create: Duration,
    pub start: Duration,
    pub inspect: Duration,
    pub list: Duration,
    pub logs: Duration,
    pub commit: Duration,
}

/// An engine whose calls cannot hang. Calls without a fixed limit take the limit as an argument.
#[derive(Clone)]
pub struct Bounded {
    engine: Arc<dyn Engine>,
    limits: EngineLimits,
}

impl std::fmt::Debug for Bounded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bounded").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Bounded {
    pub fn new(engine: Arc<dyn Engine>, limits: EngineLimits) -> Self {
        Self { engine, limits }
    }

    pub async fn identify(&self) -> Result<EngineIdentity, EngineError> {
        within(Operation::Identify, self.limits.identify, self.engine.identify()).await
    }

    pub async fn ensure_network(&self, network: &NetworkSpec) -> Result<(), EngineError> {
        within(Operation::EnsureNetwork, self.limits.network, self.engine.ensure_network(network)).await
    }

    pub async fn image_id(&self, image: &str) -> Result<Option<String>, EngineError> {
        within(Operation::ImageId, self.limits.image, self.engine.image_id(image)).await
    }

    pub async fn rename(&self, container: &ContainerId, name: &ContainerName) -> Result<(), EngineError> {
        within(Operation::Rename, self.limits.start, self.engine.rename(container, name)).await
    }

    /// Starts the creation of a container. The call is never cancelled: see [`Creation`].
    pub fn create(&self, spec: ContainerSpec) -> Creation {
        let engine = self.clone();
        let call = async move {
            let container = measured(Operation::Create, engine.engine.create(&spec)).await?;
            Ok(NewContainer { container, engine, delivered: false })
        };
        Creation { call: tokio::spawn(call.in_current_span()), limit: self.limits.create }
    }

    pub async fn start(&self, container: &ContainerId) -> Result<(), EngineError> {
        within(Operation::Start, self.limits.start, self.engine.start(container)).await
    }

    pub async fn inspect(&self, id_or_name: &str) -> Result<Option<Observed>, EngineError> {
        within(Operation::Inspect, self.limits.inspect, self.engine.inspect(id_or_name)).await
    }

    pub async fn list(&self, instance: &InstanceName) -> Result<Vec<Observed>, EngineError> {
        within(Operation::List, self.limits.list, self.engine.list(instance)).await
    }

    /// Pauses a container, within the limit of a start.
    pub async fn pause(&self, container: &ContainerId) -> Result<(), EngineError> {
        within(Operation::Pause, self.limits.start, self.engine.pause(container)).await
    }

    pub async fn unpause(&self, container: &ContainerId) -> Result<(), EngineError> {
        within(Operation::Unpause, self.limits.start, self.engine.unpause(container)).await
    }

    pub async fn stop(&self, container: &ContainerId, grace: Duration, limit: Duration) -> Result<(), EngineError> {
        within(Operation::Stop, limit, self.engine.stop(container, grace)).await
    }

    /// Removes a container. Succeeds only when an inspection confirms that the container is gone: the engine's answer
    /// may be wrong or lost. After such an answer the removal is retried at once. After a refusal it is retried with a
    /// delay: an engine may refuse because files disappear while it removes them, and succeeds a moment later. `limit`
    /// bounds each call, and no retry after a refusal begins after it.
    pub async fn remove(&self, container: &ContainerId, limit: Duration) -> Result<(), EngineError> {
        let (began, mut delay, mut tries) = (tokio::time::Instant::now(), FIRST_REFUSAL_DELAY, 1);
        loop {
            let answer = within(Operation::Remove, limit, self.engine.remove(container)).await;
            if let Err(error @ EngineError::Unreachable { .. }) = answer {
                return Err(error);
            }
            let inspection = self.engine.inspect(container.as_str());
            match within(Operation::Inspect, limit.min(self.limits.inspect), inspection).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => {}
                Err(unknown) => return Err(answer.err().unwrap_or(unknown)),
            }
            match answer {
                Err(EngineError::TimedOut { .. }) => return answer,
                Err(EngineError::Refused { ref message, .. })
                    if delay <= LONGEST_REFUSAL_DELAY && began.elapsed() + delay < limit =>
                {
                    tracing::debug!(container.id = %container, %message, ?delay, "engine refused a removal; retrying");
                    tokio::time::sleep(delay).await;
                    delay *= 2;
                }
                Err(ref error) if !error.may_have_happened() => return answer,
                _ if tries < REMOVAL_TRIES => {
                    tracing::warn!(container.id = %container, tries, "container exists after its removal; retrying");
                    tries += 1;
                }
                Err(_) => return answer,
                Ok(()) => {
                    let message = "the engine reported the container as removed but still lists it".to_owned();
                    return Err(EngineError::InvalidResponse { operation: Operation::Remove, message });
                }
            }
        }
    }

    /// Commits a container as a snapshot. A snapshot that exists although the answer was lost is a success.
    pub async fn commit(&self, container: &ContainerId, origin: &SnapshotOrigin) -> Result<Snapshot, EngineError> {
        let commit = self.engine.commit(container, origin);
        match within(Operation::Commit, self.limits.commit, commit).await {
            Err(error) if error.may_have_happened() => match self.snapshot(&origin.instance, origin.id).await {
                Ok(Some(snapshot)) => Ok(snapshot),
                _ => Err(error),
            },
            result => result,
        }
    }

    pub async fn snapshot(&self, instance: &InstanceName, id: SnapshotId) -> Result<Option<Snapshot>, EngineError> {
        within(Operation::Snapshot, self.limits.image, self.engine.snapshot(instance, id)).await
    }

    pub async fn snapshots(&self, instance: &InstanceName, chat: Option<ChatId>) -> Result<Vec<Snapshot>, EngineError> {
        within(Operation::Snapshots, self.limits.list, self.engine.snapshots(instance, chat)).await
    }

    /// Removes a snapshot, within the limit of a commit.
    pub async fn remove_snapshot(
        &self,
        instance: &InstanceName,
        id: SnapshotId,
    ) -> Result<SnapshotRemoval, EngineError> {
        within(Operation::RemoveSnapshot, self.limits.commit, self.engine.remove_snapshot(instance, id)).await
    }

    /// Removes the drafts of commits that no caller can be waiting for: they began before `started_at`, or exceeded
    /// their limit.
    pub async fn remove_drafts(
        &self,
        instance: &InstanceName,
        started_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), EngineError> {
        let limit = self.limits.commit;
        let abandoned = TimeDelta::from_std(limit).ok().and_then(|limit| now.checked_sub_signed(limit));
        let before = abandoned.map_or(started_at, |abandoned| abandoned.max(started_at));
        within(Operation::RemoveDrafts, limit, self.engine.remove_drafts(instance, before)).await
    }

    pub async fn log_tail(&self, container: &ContainerId, lines: usize) -> Result<Vec<String>, EngineError> {
        within(Operation::LogTail, self.limits.logs, self.engine.log_tail(container, lines)).await
    }

    /// Streams a container's log. Each piece has a limit, except when the log is followed.
    pub async fn logs(&self, container: &ContainerId, range: LogRange) -> Result<EngineLogs, EngineError> {
        let (operation, limit) = (Operation::Logs, self.limits.logs);
        let pieces = within(operation, limit, self.engine.logs(container, range)).await?;
        if range.follow {
            return Ok(pieces);
        }
        let next = move |pieces: Option<EngineLogs>| async move {
            let mut pieces = pieces?;
            match tokio::time::timeout(limit, pieces.next()).await {
                Ok(piece) => piece.map(|piece| (piece, Some(pieces))),
                Err(_) => Some((Err(EngineError::TimedOut { operation, limit }), None)),
            }
        };
        Ok(stream::unfold(Some(pieces), next).boxed())
    }

    /// Opens the stream of engine events. Only the opening has a limit: a stream may be silent.
    pub async fn watch(&self, instance: &InstanceName) -> Result<EngineEvents, EngineError> {
        within(Operation::Watch, self.limits.identify, self.engine.watch(instance)).await
    }

    /// Removes an unneeded container, retrying until it is gone.
    pub async fn remove_until_gone(&self, container: &ContainerId) {
        tracing::info!(container.id = %container, "removing unneeded container");
        let mut delay = FIRST_RETRY_DELAY;
        while !self.try_remove(container).await {
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(LONGEST_RETRY_DELAY);
        }
    }

    /// Tries once to remove a container, within the limit of a creation. Returns whether the container is gone.
    pub async fn try_remove(&self, container: &ContainerId) -> bool {
        let removal = AssertUnwindSafe(self.remove(container, self.limits.create)).catch_unwind().await;
        let failure = match removal {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "a panic".to_owned(),
        };
        tracing::warn!(container.id = %container, %failure, "failed to remove unneeded container");
        false
    }
}

/// The number of tries of a removal whose answer was lost or wrong.
const REMOVAL_TRIES: usize = 3;

/// The delay before a refused removal is retried. It doubles with each retry, to a second and a half in all. A longer
/// delay would occupy a permit of the engine queue, or a caller, for a container that the engine cannot remove.
const FIRST_REFUSAL_DELAY: Duration = Duration::from_millis(50);
const LONGEST_REFUSAL_DELAY: Duration = Duration::from_millis(800);

/// The delay between two tries to remove an unneeded container.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(250);
const LONGEST_RETRY_DELAY: Duration = Duration::from_secs(30);

/// A running creation of a container. Dropping the call would not stop the engine from creating the container, so the
/// call runs until it is answered. If no caller waits any more by then, the container is removed.
#[derive(Debug)]
pub struct Creation {
    call: JoinHandle<Result<NewContainer, EngineError>>,
    limit: Duration,
}

/// A creation whose caller stopped waiting.
#[derive(Debug)]
pub struct Straggler(JoinHandle<Result<NewContainer, EngineError>>);

/// A new container that was not delivered to a caller yet. Dropping this value removes the container.
#[derive(Debug)]
struct NewContainer {
    container: ContainerId,
    engine: Bounded,
    delivered: bool,
}

impl Creation {
    /// Waits until the call is answered, its limit has passed, or `give_up` resolves.
    pub async fn outcome(
        self,
        give_up: impl Future<Output = ()>,
    ) -> Result<ContainerId, (EngineError, Option<Straggler>)> {
        let Creation { mut call, limit } = self;
        tokio::select! {
            answer = &mut call => delivered(answer).map_err(|error| (error, None)),
            () = tokio::time::sleep(limit) => {
                Err((EngineError::TimedOut { operation: Operation::Create, limit }, Some(Straggler(call))))
            }
            () = give_up => {
                let message = "the request was cancelled before the engine answered".to_owned();
                Err((EngineError::Interrupted { message }, Some(Straggler(call))))
            }
        }
    }
}

impl Straggler {
    /// Resolves when the call is answered and a container that it created is gone. Dropping this future does not stop
    /// the removal.
    pub async fn ended(self) {
        if let Ok(Ok(created)) = self.0.await {
            created.engine.remove_until_gone(&created.container).await;
            created.deliver();
        }
    }
}

fn delivered(answer: Result<Result<NewContainer, EngineError>, JoinError>) -> Result<ContainerId, EngineError> {
    let invalid_response =
        |error: JoinError| EngineError::InvalidResponse { operation: Operation::Create, message: error.to_string() };
    answer.map_err(invalid_response)?.map(NewContainer::deliver)
}

impl NewContainer {
    fn deliver(mut self) -> ContainerId {
        self.delivered = true;
        self.container.clone()
    }
}

impl Drop for NewContainer {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and the next run finds the container.
        if !self.delivered
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (engine, container) = (self.engine.clone(), self.container.clone());
            runtime.spawn(async move { engine.remove_until_gone(&container).await });
        }
    }
}

async fn within<T>(
    operation: Operation,
    limit: Duration,
    call: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, EngineError> {
    measured(operation, async {
        tokio::time::timeout(limit, call).await.unwrap_or(Err(EngineError::TimedOut { operation, limit }))
    })
    .await
}

async fn measured<T>(
    operation: Operation,
    call: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, EngineError> {
    let span = tracing::debug_span!("engine", operation = operation.as_str(), error.type = tracing::field::Empty);
    let started = Instant::now();
    let result = call.instrument(span.clone()).await;
    let outcome = result.as_ref().err().map_or("none", EngineError::kind);
    metrics::histogram!("sandboxd_engine_operation_duration_seconds",
        "operation" => operation.as_str(), "error" => outcome)
    .record(started.elapsed().as_secs_f64());
    if let Err(error) = &result {
        span.record("error.type", error.kind());
        metrics::counter!("sandboxd_engine_errors_total", "operation" => operation.as_str(), "error" => error.kind())
            .increment(1);
        tracing::debug!(parent: &span, %error, "engine call failed");
    }
    result
}
