//! A lane: limits the concurrent calls into one directory or mount, and counts the overdue ones.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Why a call has no outcome. The same call may succeed later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("the file system did not answer within {0:?}")]
    TimedOut(Duration),
    #[error("the file system does not answer: {calls} earlier calls are waiting for more than {limit:?}")]
    Hung { calls: usize, limit: Duration },
    #[error("the file system worker failed")]
    Failed,
}

/// A limit on concurrent file system calls.
#[derive(Debug)]
pub(super) struct Lane {
    /// The name in metrics and logs.
    name: &'static str,
    size: usize,
    limit: Duration,
    permits: Arc<Semaphore>,
    /// The number of calls that missed their deadline and have not returned.
    overdue: AtomicUsize,
}

impl Lane {
    pub(super) fn new(name: &'static str, size: usize, limit: Duration) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(size));
        Arc::new(Self { name, size, limit, permits, overdue: AtomicUsize::new(0) })
    }

    /// Waits until a call may begin. `shared` limits several lanes together.
    pub(super) async fn enter(
        self: &Arc<Self>,
        deadline: Instant,
        shared: Option<&Arc<Semaphore>>,
    ) -> Result<Call, Unavailable> {
        if self.overdue.load(Ordering::Relaxed) >= self.size {
            metrics::counter!("sandboxd_file_system_refused_total", "lane" => self.name).increment(1);
            return Err(Unavailable::Hung { calls: self.size, limit: self.limit });
        }
        let permits = async {
            let own = Arc::clone(&self.permits).acquire_owned().await.ok();
            let shared = match shared {
                Some(shared) => Arc::clone(shared).acquire_owned().await.ok(),
                None => None,
            };
            (own, shared)
        };
        let permits =
            tokio::time::timeout_at(deadline, permits).await.map_err(|_| Unavailable::TimedOut(self.limit))?;
        let call_state =
            Arc::new(CallState { lane: Arc::clone(self), state: AtomicU8::new(RUNNING), since: Instant::now() });
        Ok(Call { call_state, _permits: permits, deadline })
    }
}

const RUNNING: u8 = 0;
const OVERDUE: u8 = 1;
const RETURNED: u8 = 2;

/// The state of one call in its lane, shared by the caller and the worker.
#[derive(Debug)]
struct CallState {
    lane: Arc<Lane>,
    state: AtomicU8,
    since: Instant,
}

impl CallState {
    /// Called once, by the caller's side.
    fn mark_overdue(&self) {
        // Counts before the state changes: a call that returned in between is uncounted below.
        self.lane.overdue.fetch_add(1, Ordering::Relaxed);
        stuck_calls(self.lane.name).increment(1);
        let returned = self.state.compare_exchange(RUNNING, OVERDUE, Ordering::Relaxed, Ordering::Relaxed).is_err();
        if returned {
            self.uncount_overdue();
        } else {
            tracing::warn!(lane = self.lane.name, limit = ?self.lane.limit, "file system call is overdue");
        }
    }

    /// Called once, by the worker's side.
    fn mark_returned(&self) {
        if self.state.swap(RETURNED, Ordering::Relaxed) == OVERDUE {
            tracing::info!(lane = self.lane.name, took = ?self.since.elapsed(), "overdue file system call returned");
            self.uncount_overdue();
        }
    }

    fn uncount_overdue(&self) {
        self.lane.overdue.fetch_sub(1, Ordering::Relaxed);
        stuck_calls(self.lane.name).decrement(1);
    }
}

/// A call that may begin. It counts until it returns, whether or not its caller still waits.
#[derive(Debug)]
pub(super) struct Call {
    call_state: Arc<CallState>,
    _permits: (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>),
    deadline: Instant,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.call_state.mark_returned();
    }
}

impl Call {
    /// Runs the work on the worker's thread and ends the call.
    pub(super) fn finish<T>(self, work: impl FnOnce() -> T) -> T {
        work()
    }

    pub(super) fn watch(&self) -> Watch {
        Watch { call_state: Arc::clone(&self.call_state), deadline: self.deadline }
    }
}

/// The caller's side of a call.
#[derive(Debug)]
pub(super) struct Watch {
    call_state: Arc<CallState>,
    deadline: Instant,
}

impl Watch {
    /// Returns the outcome if it arrives before the deadline. Runs in a separate task, so that the call still counts
    /// after its caller is dropped.
    pub(super) async fn outcome<T: Send + 'static>(
        self,
        done: impl Future<Output = Option<T>> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let watching = async move {
            match tokio::time::timeout_at(self.deadline, done).await {
                Ok(outcome) => outcome.ok_or(Unavailable::Failed),
                Err(_) => {
                    self.call_state.mark_overdue();
                    Err(Unavailable::TimedOut(self.call_state.lane.limit))
                }
            }
        };
        tokio::spawn(watching).await.unwrap_or(Err(Unavailable::Failed))
    }
}

fn stuck_calls(lane: &'static str) -> metrics::Gauge {
    metrics::gauge!("sandboxd_file_system_stuck_calls", "lane" => lane)
}
