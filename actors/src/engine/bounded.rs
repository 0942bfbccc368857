//! A deadline, a span and a measurement around every call to the engine.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::Instrument;

use super::{Engine, EngineError, EngineIdentity, NetworkSpec, Observed, Operation};
use crate::container::ContainerSpec;
use crate::ids::{ContainerId, InstanceName};

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

    pub async fn has_image(&self, image: &str) -> Result<bool, EngineError> {
        within(Operation::HasImage, self.limits.image, self.engine.has_image(image)).await
    }

    /// The one call that is never dropped: see [`Creation`].
    pub fn create(&self, spec: ContainerSpec) -> Creation {
        let engine = Arc::clone(&self.engine);
        let call = async move { measured(Operation::Create, engine.create(&spec)).await };
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

    pub async fn stop(&self, container: &ContainerId, grace: Duration, limit: Duration) -> Result<(), EngineError> {
        within(Operation::Stop, limit, self.engine.stop(container, grace)).await
    }

    pub async fn remove(&self, container: &ContainerId, limit: Duration) -> Result<(), EngineError> {
        within(Operation::Remove, limit, self.engine.remove(container)).await
    }

    pub async fn log_tail(&self, container: &ContainerId, lines: usize) -> Result<Vec<String>, EngineError> {
        within(Operation::LogTail, self.limits.logs, self.engine.log_tail(container, lines)).await
    }
}

/// A container being created. Dropping the call would not stop the engine from creating it, so the call goes on until
/// it is answered, and whoever stops waiting is given the rest of it to follow.
#[derive(Debug)]
pub struct Creation {
    call: tokio::task::JoinHandle<Result<ContainerId, EngineError>>,
    limit: Duration,
}

/// A creation that nobody waits for any more.
#[derive(Debug)]
pub struct Straggler(tokio::task::JoinHandle<Result<ContainerId, EngineError>>);

impl Creation {
    /// Waits until the call is answered, its limit has passed, or `give_up` resolves.
    pub async fn outcome(
        self,
        give_up: impl Future<Output = ()>,
    ) -> Result<ContainerId, (EngineError, Option<Straggler>)> {
        let Creation { mut call, limit } = self;
        tokio::select! {
            answer = &mut call => joined(answer).map_err(|error| (error, None)),
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
    /// The container that came into being after all, if one did.
    pub async fn outcome(self) -> Option<ContainerId> {
        joined(self.0.await).ok()
    }
}

fn joined(
    answer: Result<Result<ContainerId, EngineError>, tokio::task::JoinError>,
) -> Result<ContainerId, EngineError> {
    answer
        .unwrap_or_else(|error| Err(EngineError::Nonsense { operation: Operation::Create, message: error.to_string() }))
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
    metrics::histogram!("sandboxd_engine_operation_duration_seconds", "operation" => operation.as_str())
        .record(started.elapsed().as_secs_f64());
    if let Err(error) = &result {
        span.record("error.type", error.kind());
        metrics::counter!("sandboxd_engine_errors_total", "operation" => operation.as_str(), "error" => error.kind())
            .increment(1);
        tracing::debug!(parent: &span, %error, "engine call failed");
    }
    result
}
