//! A lane: how many calls may be under way in one place, and how many of them are overdue.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Why there is no outcome. The same call may succeed later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("the file system did not answer within {0:?}")]
    TimedOut(Duration),
    #[error("the file system does not answer: {calls} earlier calls have waited for it for over {limit:?}")]
    Hung { calls: usize, limit: Duration },
    #[error("the file system worker failed")]
    Failed,
}

#[derive(Debug)]
pub(super) struct Lane {
    /// For metrics and logs: whose paths it serves.
    name: &'static str,
    size: usize,
    limit: Duration,
    permits: Arc<Semaphore>,
    /// Calls whose callers were told that they take too long, and that have not returned.
    overdue: AtomicUsize,
}

impl Lane {
    pub(super) fn new(name: &'static str, size: usize, limit: Duration) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(size));
        Arc::new(Self { name, size, limit, permits, overdue: AtomicUsize::new(0) })
    }

    /// Waits until a call may begin. `shared` bounds several lanes together.
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
        let place = Arc::new(Place { lane: Arc::clone(self), state: AtomicU8::new(RUNNING), since: Instant::now() });
        Ok(Call { place, _permits: permits, deadline })
    }
}

const RUNNING: u8 = 0;
const OVERDUE: u8 = 1;
const RETURNED: u8 = 2;

/// The place of one call in its lane.
#[derive(Debug)]
struct Place {
    lane: Arc<Lane>,
    state: AtomicU8,
    since: Instant,
}

impl Place {
    /// Called once, by the caller's side.
    fn is_overdue(&self) {
        // Counted first: a call that returns in between takes back what was counted.
        self.lane.overdue.fetch_add(1, Ordering::Relaxed);
        stuck(self.lane.name).increment(1);
        let returned = self.state.compare_exchange(RUNNING, OVERDUE, Ordering::Relaxed, Ordering::Relaxed).is_err();
        if returned {
            self.is_no_longer_overdue();
        } else {
            tracing::warn!(lane = self.lane.name, limit = ?self.lane.limit, "file system call is overdue");
        }
    }

    /// Called once, by the worker's side.
    fn has_returned(&self) {
        if self.state.swap(RETURNED, Ordering::Relaxed) == OVERDUE {
            tracing::info!(lane = self.lane.name, took = ?self.since.elapsed(), "overdue file system call returned");
            self.is_no_longer_overdue();
        }
    }

    fn is_no_longer_overdue(&self) {
        self.lane.overdue.fetch_sub(1, Ordering::Relaxed);
        stuck(self.lane.name).decrement(1);
    }
}

/// A call that may begin. It counts until it has returned, whether or not its caller still waits.
#[derive(Debug)]
pub(super) struct Call {
    place: Arc<Place>,
    _permits: (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>),
    deadline: Instant,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.place.has_returned();
    }
}

impl Call {
    /// Does the work, on the thread of a worker.
    pub(super) fn finish<T>(self, work: impl FnOnce() -> T) -> T {
        work()
    }

    pub(super) fn watch(&self) -> Watch {
        Watch { place: Arc::clone(&self.place), deadline: self.deadline }
    }
}

/// The caller's side of a call.
#[derive(Debug)]
pub(super) struct Watch {
    place: Arc<Place>,
    deadline: Instant,
}

impl Watch {
    /// The outcome, if it comes in time. In a task of its own: a caller that goes away leaves a call that still counts.
    pub(super) async fn outcome<T: Send + 'static>(
        self,
        done: impl Future<Output = Option<T>> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let watching = async move {
            match tokio::time::timeout_at(self.deadline, done).await {
                Ok(outcome) => outcome.ok_or(Unavailable::Failed),
                Err(_) => {
                    self.place.is_overdue();
                    Err(Unavailable::TimedOut(self.place.lane.limit))
                }
            }
        };
        tokio::spawn(watching).await.unwrap_or(Err(Unavailable::Failed))
    }
}

fn stuck(lane: &'static str) -> metrics::Gauge {
    metrics::gauge!("sandboxd_file_system_stuck_calls", "lane" => lane)
}
