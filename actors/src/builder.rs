//! The image builder: pulls and builds images on request, builds repository images when their branch has moved, and
//! removes unused images.
//!
//! ```text
//! pull ──┐                       ┌── one job per image, shared by all requests for it
//! build ─┼─▶ mailbox ─▶ job ─────┼── one per build
//! tick ──┘      ▲        │       └── one per repository
//!               └─ended──┘  progress and outcome go to all followers of the job
//! ```
//!
//! A job does not belong to its callers: it continues when they disconnect. [`repository_image`] decides which images
//! to build, and [`garbage_collection`] which to remove. The mailbox never waits for the engine.

pub mod garbage_collection;
mod job;
pub mod repository_image;
mod work;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::domain::ids::InstanceName;
use crate::ports::clock::{Clock, Timestamp};
use crate::ports::images::labels::Origin;
use crate::ports::images::{Image, ImageError, Images};
use crate::ports::repositories::Sources;
use garbage_collection::{Occasion, Watermarks};
use job::Job;
pub use job::{Follower, Outcome};
use repository_image::{Repository, RepositoryState};

/// The interval at which the builder checks for due work.
const TICK: Duration = Duration::from_secs(1);

/// The configuration and the ports of the builder.
#[derive(Clone)]
pub struct BuilderSetup {
    pub instance: InstanceName,
    pub images: Arc<dyn Images>,
    pub sources: Arc<dyn Sources>,
    pub clock: Arc<dyn Clock>,
    pub repositories: BTreeMap<String, Arc<Repository>>,
    /// The image that each profile names.
    pub profiles: BTreeMap<String, String>,
    pub limits: BuilderLimits,
    pub collection: CollectionSettings,
}

impl std::fmt::Debug for BuilderSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuilderSetup").field("instance", &self.instance).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuilderLimits {
    pub pull: Duration,
    pub build: Duration,
    /// The limit for calls that the engine answers at once.
    pub ask: Duration,
    pub builds_at_once: usize,
}

/// The settings of regular garbage collection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CollectionSettings {
    pub interval: Duration,
    pub watermarks: Watermarks,
    /// Includes images that the service did not create.
    pub all: bool,
}

/// A request to build an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRequest {
    pub tag: String,
    pub directory: PathBuf,
    pub dockerfile: String,
    pub arguments: BTreeMap<String, String>,
}

/// The result of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    pub image: String,
    pub id: String,
    /// The commit of the repository that the image was built from.
    pub commit: Option<String>,
    /// Whether the image was pulled or built.
    pub changed: bool,
}

/// The images and the configured repositories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub images: Vec<Listed>,
    pub repositories: Vec<RepositoryStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub image: Image,
    /// Absent if the service did not create the image.
    pub origin: Option<Origin>,
    /// For the newest image of a repository: whether it may be outdated.
    pub stale: Option<bool>,
    /// The profiles that use the image.
    pub profiles: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryStatus {
    pub repository: Arc<Repository>,
    pub state: RepositoryState,
    /// The current image of the repository.
    pub image: Option<(String, Origin)>,
    pub stale: bool,
    pub building: bool,
}

/// The images that were removed, or that a dry run would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    pub images: Vec<Image>,
    /// The size of their layers. It is computed only for requested collections.
    pub layer_bytes: u64,
    pub build_cache_bytes: u64,
}

impl Pruned {
    /// Returns the number of freed bytes.
    pub fn bytes(&self) -> u64 {
        self.layer_bytes + self.build_cache_bytes
    }
}

#[derive(Debug)]
pub enum Message {
    Pull {
        image: String,
        follower: RpcReplyPort<Follower>,
    },
    Build {
        request: Box<BuildRequest>,
        follower: RpcReplyPort<Follower>,
    },
    /// Checks a repository now, and builds its image if it is outdated.
    Refresh {
        repository: String,
        force: bool,
        follower: RpcReplyPort<Result<Follower, ImageError>>,
    },
    List {
        listing: RpcReplyPort<Result<Listing, ImageError>>,
    },
    Prune {
        dry_run: bool,
        pruned: RpcReplyPort<Result<Pruned, ImageError>>,
    },
    /// A job has ended. `head` is the observed commit of the repository's branch.
    Ended {
        work: Work,
        head: Option<String>,
        outcome: Outcome,
    },
    Tick,
}

/// The work of a job. Each piece of work has at most one job at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Work {
    Pull(String),
    Build(u64),
    Refresh(String),
}

#[derive(Debug)]
pub struct Builder;

#[derive(Debug)]
pub struct State {
    setup: Arc<BuilderSetup>,
    /// Each build takes one permit. A collection that holds all permits knows that no build is under way.
    slots: Arc<Semaphore>,
    jobs: HashMap<Work, Job>,
    builds: u64,
    repository_states: BTreeMap<String, RepositoryState>,
    collected_at: Instant,
    collecting: Option<AbortOnDropHandle<()>>,
}

impl Actor for Builder {
    type Msg = Message;
    type State = State;
    type Arguments = Arc<BuilderSetup>;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        setup: Arc<BuilderSetup>,
    ) -> Result<Self::State, ActorProcessingErr> {
        work::describe_metrics();
        let state = State {
            slots: Arc::new(Semaphore::new(setup.limits.builds_at_once)),
            jobs: HashMap::new(),
            builds: 0,
            repository_states: setup
                .repositories
                .keys()
                .map(|name| (name.clone(), RepositoryState::default()))
                .collect(),
            collected_at: Instant::now(),
            collecting: None,
            setup,
        };
        let _ = myself.cast(Message::Tick);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Pull { image, follower } => drop(follower.send(state.pull(&myself, image))),
            Message::Build { request, follower } => drop(follower.send(state.build(&myself, *request))),
            Message::Refresh { repository, force, follower } => {
                drop(follower.send(state.refresh(&myself, &repository, force)));
            }
            Message::List { listing } => {
                let (setup, repository_states) = (Arc::clone(&state.setup), state.repository_states.clone());
                let building = state.refreshing();
                tokio::spawn(async move { listing.send(work::list(&setup, &repository_states, &building).await) });
            }
            Message::Prune { dry_run, pruned } => {
                let (setup, slots) = (Arc::clone(&state.setup), Arc::clone(&state.slots));
                tokio::spawn(
                    async move { pruned.send(work::prune(&setup, &slots, Occasion::Requested, dry_run).await) },
                );
            }
            Message::Ended { work, head, outcome } => state.ended(work, head, outcome),
            Message::Tick => {
                state.tick(&myself);
                // Armed after the tick, so that ticks never queue up.
                myself.send_after(TICK, || Message::Tick);
            }
        }
        Ok(())
    }
}

impl State {
    fn pull(&mut self, myself: &ActorRef<Message>, image: String) -> Follower {
        let job = self.jobs.entry(Work::Pull(image.clone())).or_insert_with(|| {
            let setup = Arc::clone(&self.setup);
            let work = Work::Pull(image.clone());
            Job::start(myself, work, |reporter| async move { (None, work::pull(&setup, image, &reporter).await) })
        });
        job.follow()
    }

    fn build(&mut self, myself: &ActorRef<Message>, request: BuildRequest) -> Follower {
        self.builds += 1;
        let (setup, slots) = (Arc::clone(&self.setup), Arc::clone(&self.slots));
        let work = Work::Build(self.builds);
        let mut job = Job::start(myself, work.clone(), |reporter| async move {
            (None, work::build(&setup, &slots, request, &reporter).await)
        });
        let follower = job.follow();
        self.jobs.insert(work, job);
        follower
    }

    fn refresh(&mut self, myself: &ActorRef<Message>, name: &str, force: bool) -> Result<Follower, ImageError> {
        let Some(repository) = self.setup.repositories.get(name) else {
            return Err(ImageError::NoSuchRepository { repository: name.to_owned() });
        };
        let job = self.jobs.entry(Work::Refresh(name.to_owned())).or_insert_with(|| {
            self.repository_states.entry(name.to_owned()).or_default().begin_check(self.setup.clock.now());
            let (setup, slots) = (Arc::clone(&self.setup), Arc::clone(&self.slots));
            let repository = Arc::clone(repository);
            Job::start(myself, Work::Refresh(name.to_owned()), |reporter| async move {
                work::refresh(&setup, &slots, &repository, force, &reporter).await
            })
        });
        Ok(job.follow())
    }

    fn ended(&mut self, work: Work, head: Option<String>, outcome: Outcome) {
        if let Work::Refresh(name) = &work {
            let state = self.repository_states.entry(name.clone()).or_default();
            if let Err(error) = &outcome {
                tracing::warn!(repository = name, %error, "repository image not updated; keeping the last one");
            }
            state.ended(head, outcome.as_ref().err().cloned(), self.setup.clock.now());
        }
        if let Some(job) = self.jobs.remove(&work) {
            job.finish(outcome);
        }
    }

    fn tick(&mut self, myself: &ActorRef<Message>) {
        let now: Timestamp = self.setup.clock.now();
        let is_due = |(name, repository): &(&String, &Arc<Repository>)| {
            let under_way = self.jobs.contains_key(&Work::Refresh((*name).clone()));
            !under_way && self.repository_states.get(*name).is_none_or(|state| state.is_due(repository, now))
        };
        let due: Vec<String> = self.setup.repositories.iter().filter(is_due).map(|(name, _)| name.clone()).collect();
        for name in due {
            let _ = self.refresh(myself, &name, false);
        }
        let idle = self.collecting.as_ref().is_none_or(AbortOnDropHandle::is_finished);
        if idle && self.collected_at.elapsed() >= self.setup.collection.interval {
            self.collected_at = Instant::now();
            let (setup, slots) = (Arc::clone(&self.setup), Arc::clone(&self.slots));
            let collecting = async move {
                if let Err(error) = work::prune(&setup, &slots, Occasion::Regular, false).await {
                    tracing::warn!(%error, "garbage collection of images failed; retrying");
                }
            };
            self.collecting = Some(AbortOnDropHandle::new(tokio::spawn(collecting)));
        }
    }

    fn refreshing(&self) -> BTreeSet<String> {
        let name = |work: &Work| match work {
            Work::Refresh(name) => Some(name.clone()),
            _ => None,
        };
        self.jobs.keys().filter_map(name).collect()
    }
}

#[cfg(test)]
mod tests;
