//! A deadline, a span and a measurement around every call to the engine.

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

/// How long each kind of call may take.
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

/// An engine none of whose calls can hang. Calls whose limit depends on the situation take it as an argument.
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

    /// The one call that is never dropped: see [`Creation`].
    pub fn create(&self, spec: ContainerSpec) -> Creation {
        let engine = self.clone();
        let call = async move {
            let container = measured(Operation::Create, engine.engine.create(&spec)).await?;
            Ok(Unclaimed { container, engine, claimed: false })
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

    /// What the engine can start within a limit, it can pause within the same.
    pub async fn pause(&self, container: &ContainerId) -> Result<(), EngineError> {
        within(Operation::Pause, self.limits.start, self.engine.pause(container)).await
    }

    pub async fn unpause(&self, container: &ContainerId) -> Result<(), EngineError> {
        within(Operation::Unpause, self.limits.start, self.engine.unpause(container)).await
    }

    pub async fn stop(&self, container: &ContainerId, grace: Duration, limit: Duration) -> Result<(), EngineError> {
        within(Operation::Stop, limit, self.engine.stop(container, grace)).await
    }

    /// Removes a container, and succeeds only once the engine does not show it any more: neither an answer that says so nor
    /// one that was lost proves that it is gone. An answer that was wrong or lost leads to another try at once, and a
    /// refusal to another try soon: an engine may refuse because files that it removes go away meanwhile, and has removed
    /// them a moment later. `limit` bounds each try and each look, and no try that follows a refusal begins after it.
    pub async fn remove(&self, container: &ContainerId, limit: Duration) -> Result<(), EngineError> {
        let (began, mut pause, mut tries) = (tokio::time::Instant::now(), FIRST_REFUSAL_PAUSE, 1);
        loop {
            let answer = within(Operation::Remove, limit, self.engine.remove(container)).await;
            if let Err(error @ EngineError::Unreachable { .. }) = answer {
                return Err(error);
            }
            let look = self.engine.inspect(container.as_str());
            match within(Operation::Inspect, limit.min(self.limits.inspect), look).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => {}
                Err(unknown) => return Err(answer.err().unwrap_or(unknown)),
            }
            match answer {
                Err(EngineError::TimedOut { .. }) => return answer,
                Err(EngineError::Refused { ref message, .. })
                    if pause <= LONGEST_REFUSAL_PAUSE && began.elapsed() + pause < limit =>
                {
                    tracing::debug!(container.id = %container, %message, ?pause, "a removal was refused; removing again");
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(ref error) if !error.may_have_happened() => return answer,
                _ if tries < REMOVAL_TRIES => {
                    tracing::warn!(container.id = %container, tries, "container still there after its removal; removing again");
                    tries += 1;
                }
                Err(_) => return answer,
                Ok(()) => {
                    let message = "the engine reports the container as removed and still shows it".to_owned();
                    return Err(EngineError::InvalidResponse { operation: Operation::Remove, message });
                }
            }
        }
    }

    /// An engine that did it without being heard has done it.
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

    /// What the engine can put away within a limit, it can throw away within the same.
    pub async fn remove_snapshot(
        &self,
        instance: &InstanceName,
        id: SnapshotId,
    ) -> Result<SnapshotRemoval, EngineError> {
        within(Operation::RemoveSnapshot, self.limits.commit, self.engine.remove_snapshot(instance, id)).await
    }

    /// Removes what is left of commits of which nobody can be waiting for the end: those that began before `started_at`,
    /// or took too long.
    pub async fn remove_drafts(
        &self,
        instance: &InstanceName,
        started_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), EngineError> {
        let limit = self.limits.commit;
        let given_up = TimeDelta::from_std(limit).ok().and_then(|limit| now.checked_sub_signed(limit));
        let before = given_up.map_or(started_at, |given_up| given_up.max(started_at));
        within(Operation::RemoveDrafts, limit, self.engine.remove_drafts(instance, before)).await
    }

    pub async fn log_tail(&self, container: &ContainerId, lines: usize) -> Result<Vec<String>, EngineError> {
        within(Operation::LogTail, self.limits.logs, self.engine.log_tail(container, lines)).await
    }

    /// Each piece has a deadline, unless more may be printed at any time.
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

    /// Only the opening has a deadline: a stream on which nothing happens is in order.
    pub async fn watch(&self, instance: &InstanceName) -> Result<EngineEvents, EngineError> {
        within(Operation::Watch, self.limits.identify, self.engine.watch(instance)).await
    }

    /// Removes a container that is of no use to anybody, however often that has to be tried.
    pub async fn discard(&self, container: &ContainerId) {
        tracing::info!(container.id = %container, "removing a container that came too late");
        let mut pause = FIRST_DISCARD_PAUSE;
        while !self.try_to_discard(container).await {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_DISCARD_PAUSE);
        }
    }

    /// The same once, for callers that wait by themselves: whether the container is gone.
    pub async fn try_to_discard(&self, container: &ContainerId) -> bool {
        // What the engine could create within a limit, it can remove within the same.
        let removal = AssertUnwindSafe(self.remove(container, self.limits.create)).catch_unwind().await;
        let failure = match removal {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "a panic".to_owned(),
        };
        tracing::warn!(container.id = %container, %failure, "a container that is of no use is not removed yet");
        false
    }
}

/// How often a removal is tried at once, where the engine's answer was lost or wrong.
const REMOVAL_TRIES: usize = 3;

/// Before another try of a removal that the engine refused; each pause is twice as long as the one before, a second and a
/// half in all. More would hold a turn at the engine, or a caller, for a container that the engine cannot remove.
const FIRST_REFUSAL_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_REFUSAL_PAUSE: Duration = Duration::from_millis(800);

/// Between two tries to remove a container that came too late.
const FIRST_DISCARD_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_DISCARD_PAUSE: Duration = Duration::from_secs(30);

/// A container being created. Dropping the call would not stop the engine from creating it, so the call goes on until
/// it is answered. A container that nobody waits for any more by then is removed, also if whoever waited is gone.
#[derive(Debug)]
pub struct Creation {
    call: JoinHandle<Result<Unclaimed, EngineError>>,
    limit: Duration,
}

/// A creation that nobody waits for any more.
#[derive(Debug)]
pub struct Straggler(JoinHandle<Result<Unclaimed, EngineError>>);

/// A container that nobody has taken charge of yet. Dropping it removes the container.
#[derive(Debug)]
struct Unclaimed {
    container: ContainerId,
    engine: Bounded,
    claimed: bool,
}

impl Creation {
    /// Waits until the call is answered, its limit has passed, or `give_up` resolves.
    pub async fn outcome(
        self,
        give_up: impl Future<Output = ()>,
    ) -> Result<ContainerId, (EngineError, Option<Straggler>)> {
        let Creation { mut call, limit } = self;
        tokio::select! {
            answer = &mut call => claimed(answer).map_err(|error| (error, None)),
            () = tokio::time::sleep(limit) => {
                Err((EngineError::TimedOut { operation: Operation::Create, limit }, Some(Straggler(call))))
            }
            () = give_up => {
                let message = "its answer was no longer waited for".to_owned();
                Err((EngineError::Interrupted { message }, Some(Straggler(call))))
            }
        }
    }
}

impl Straggler {
    /// Resolves once the call has been answered, and a container that came into being after all is gone. Whoever stops
    /// waiting for it changes nothing about that.
    pub async fn ended(self) {
        if let Ok(Ok(unclaimed)) = self.0.await {
            unclaimed.engine.discard(&unclaimed.container).await;
            unclaimed.claim();
        }
    }
}

fn claimed(answer: Result<Result<Unclaimed, EngineError>, JoinError>) -> Result<ContainerId, EngineError> {
    let invalid_response =
        |error: JoinError| EngineError::InvalidResponse { operation: Operation::Create, message: error.to_string() };
    answer.map_err(invalid_response)?.map(Unclaimed::claim)
}

impl Unclaimed {
    fn claim(mut self) -> ContainerId {
        self.claimed = true;
        self.container.clone()
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        // Without a runtime the process is at its end, and the next one finds what is left.
        if !self.claimed
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (engine, container) = (self.engine.clone(), self.container.clone());
            runtime.spawn(async move { engine.discard(&container).await });
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
