//! The one bounded worker pool for file system work: guests, volumes and chat directories.
//!
//! A call into a file system that does not answer cannot be cancelled: its thread stays in the kernel until the file
//! system answers or is unmounted. These rules limit the cost of such a call to its own caller:
//!
//! - Every call has a deadline, after which its caller gets an error. The thread stays counted until it returns.
//! - Calls run in *lanes*. A lane runs few calls at a time; once all of them are overdue it refuses further ones at
//!   once.
//! - The service's directories have their own lanes. A caller's path is looked up mount by mount, each step in the lane
//!   of its mount: the name of a mount point is known without touching the mounted file system.
//!
//! No call runs on a thread of the service's runtime, whose shutdown would wait for it.

mod lane;
mod walk;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use crate::storage::volumes::resolve_existing;
pub use lane::Unavailable;
use lane::{Call, Lane};
pub use walk::{Directory, Links};
use walk::{Progress, Walk};

/// The deadline of a call. A disk answers in milliseconds, a network file system within a second or two.
pub const LIMIT: Duration = Duration::from_secs(5);

/// The maximum of concurrent calls in a lane of the service's own directories.
const OWN_CALLS: usize = 8;

/// The maximum of concurrent calls into one mount for callers' paths.
const CALLS_PER_MOUNT: usize = 4;

/// The maximum of concurrent calls for callers' paths over all mounts: as many threads can be stuck at the same time.
const CALLERS_CALLS: usize = 256;

const STATE: &str = "state";
const CHATS: &str = "chats";
const CALLERS: &str = "callers";

/// The names of lanes in logs and metrics. All mounts of callers' paths share one name.
pub const LANES: [&str; 3] = [STATE, CHATS, CALLERS];

/// Why a directory was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("{}: {why}", mount.display())]
    Unavailable { mount: PathBuf, why: Unavailable },
    /// `path` is resolved as far as it exists.
    #[error("{}: {}", path.display(), std::io::Error::from(*errno))]
    Failed { path: PathBuf, errno: Errno },
}

/// Access to file systems through the worker pool.
#[derive(Debug, Clone)]
pub struct FileSystem(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    limit: Duration,
    /// The runtime's threads for blocking work are the workers. It runs no tasks. `None` only while the pool is
    /// dropped.
    workers: Option<Runtime>,
    state: OwnLane,
    chats: OwnLane,
    callers: Arc<Semaphore>,
    /// By mount point.
    mounts: Mutex<HashMap<PathBuf, Arc<Lane>>>,
}

/// A directory of the service and the lane of its calls.
#[derive(Debug)]
struct OwnLane {
    root: PathBuf,
    lane: Arc<Lane>,
}

/// A directory of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    State,
    Chats,
}

impl FileSystem {
    /// Creates the pool for a service with these state and chat directories.
    pub fn new(state: &Path, chats: &Path) -> std::io::Result<Self> {
        Self::with_limit(state, chats, LIMIT)
    }

    pub(crate) fn with_limit(state: &Path, chats: &Path, limit: Duration) -> std::io::Result<Self> {
        let workers = Builder::new_current_thread()
            .thread_name("file-system")
            .max_blocking_threads(2 * OWN_CALLS + CALLERS_CALLS)
            .build()?;
        let own = |root: &Path, name| OwnLane { root: resolve_existing(root), lane: Lane::new(name, OWN_CALLS, limit) };
        Ok(Self(Arc::new(Pool {
            limit,
            workers: Some(workers),
            state: own(state, STATE),
            chats: own(chats, CHATS),
            callers: Arc::new(Semaphore::new(CALLERS_CALLS)),
            mounts: Mutex::default(),
        })))
    }

    /// Runs a call in the lane of a directory of the service.
    pub async fn own<T: Send + 'static>(
        &self,
        directory: Own,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let lane = self.own_lane(directory);
        let call = lane.enter(Instant::now() + self.0.limit, None).await?;
        self.run(call, work).await
    }

    /// Runs a call in the background, for a caller that cannot wait, such as an actor. A failure is logged.
    pub fn own_later(&self, directory: Own, name: &'static str, work: impl FnOnce() + Send + 'static) {
        let this = self.clone();
        tokio::spawn(async move {
            if let Err(error) = this.own(directory, work).await {
                tracing::warn!(%error, "{name} failed");
            }
        });
    }

    /// Opens the directory at a caller's path.
    pub async fn open(&self, path: &Path, links: Links) -> Result<Directory, OpenError> {
        let deadline = Instant::now() + self.0.limit;
        let mut walk = Walk::new(path, links);
        loop {
            let mount = walk.mount().to_owned();
            let unavailable = |why| OpenError::Unavailable { mount: mount.clone(), why };
            let call = self.enter(&mount, deadline).await.map_err(unavailable)?;
            match self.run(call, move || walk.advance()).await.map_err(unavailable)?? {
                Progress::Arrived(directory) => return Ok(directory),
                Progress::Crosses(next) => walk = *next,
            }
        }
    }

    /// Opens a directory of the service or of a caller at its canonical path, to mount it. No link is followed, so that
    /// the handle is of the checked directory, or the call fails.
    pub async fn open_source(&self, path: &Path) -> Result<Directory, OpenError> {
        let Some(own) = [Own::State, Own::Chats].into_iter().find(|own| path.starts_with(self.own_root(*own))) else {
            return self.open(path, Links::Refuse).await;
        };
        let (path, mount) = (path.to_owned(), self.own_root(own).to_owned());
        self.own(own, move || open_own(&path)).await.map_err(|why| OpenError::Unavailable { mount, why })?
    }

    /// Runs a call for directories of a mount on a thread that ends with the call, so that the call may change the
    /// thread's own state, such as its namespaces.
    pub async fn on_thread<T: Send + 'static>(
        &self,
        mount_point: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let call = self.enter(mount_point, Instant::now() + self.0.limit).await?;
        let (done, outcome) = oneshot::channel();
        let watch = call.watch();
        let work = move || drop(done.send(call.finish(work)));
        std::thread::Builder::new().name("mount".to_owned()).spawn(work).map_err(|_| Unavailable::Failed)?;
        watch.outcome(async { outcome.await.ok() }).await
    }

    async fn enter(&self, mount: &Path, deadline: Instant) -> Result<Call, Unavailable> {
        let lane = {
            let mut mounts = self.0.mounts.lock().unwrap_or_else(PoisonError::into_inner);
            // A lane without a running call has no state to keep.
            mounts.retain(|_, lane| Arc::strong_count(lane) > 1);
            let new = || Lane::new(CALLERS, CALLS_PER_MOUNT, self.0.limit);
            Arc::clone(mounts.entry(mount.to_owned()).or_insert_with(new))
        };
        lane.enter(deadline, Some(&self.0.callers)).await
    }

    async fn run<T: Send + 'static>(
        &self,
        call: Call,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let watch = call.watch();
        let done = self.workers().spawn_blocking(move || call.finish(work));
        watch.outcome(async { done.await.ok() }).await
    }

    fn workers(&self) -> &Handle {
        self.0.workers.as_ref().map(Runtime::handle).unwrap_or_else(|| unreachable!("only drop takes it"))
    }

    fn own_lane(&self, own: Own) -> &Arc<Lane> {
        match own {
            Own::State => &self.0.state.lane,
            Own::Chats => &self.0.chats.lane,
        }
    }

    fn own_root(&self, own: Own) -> &Path {
        match own {
            Own::State => &self.0.state.root,
            Own::Chats => &self.0.chats.root,
        }
    }
}

impl Drop for Pool {
    /// Does not wait for stuck calls.
    fn drop(&mut self) {
        if let Some(workers) = self.workers.take() {
            workers.shutdown_background();
        }
    }
}

fn open_own(path: &Path) -> Result<Directory, OpenError> {
    let failed = |errno| OpenError::Failed { path: path.to_owned(), errno };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).map_err(failed)?;
    Directory::of(handle, PathBuf::from("/")).map_err(failed)
}

#[cfg(test)]
mod tests;
