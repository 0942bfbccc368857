//! Images: pulled and built when asked for, built of repositories when those have moved, removed when nobody needs
//! them.
//!
//! ```text
//! pull ──┐                       ┌── one job per image, however many ask for it
//! build ─┼─▶ mailbox ─▶ job ─────┼── one per build
//! tick ──┘      ▲        │       └── one per repository
//!               └─ended──┘  progress and outcome go to whoever follows the job
//! ```
//!
//! A job belongs to nobody who waits for it: it goes on when they go away. What to build and what to remove is decided
//! in [`repository_image`] and [`garbage_collection`]; the mailbox never waits for the engine.

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
pub use job::{Following, Outcome};
use repository_image::{Repository, RepositoryState};

/// How often it is looked whether something is due.
const TICK: Duration = Duration::from_secs(1);

/// All that the builder works with.
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
    pub collecting: Collecting,
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
    /// For everything that the engine answers at once.
    pub ask: Duration,
    pub builds_at_once: usize,
}

/// When images are removed that nobody asked to remove.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Collecting {
    pub interval: Duration,
    pub watermarks: Watermarks,
    /// Also those that somebody else has made.
    pub all: bool,
}

/// An image that somebody wants to be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRequest {
    pub tag: String,
    pub directory: PathBuf,
    pub dockerfile: String,
    pub arguments: BTreeMap<String, String>,
}

/// What came of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    pub image: String,
    pub id: String,
    /// Of the repository that it was made from.
    pub commit: Option<String>,
    /// Whether there was anything to do.
    pub changed: bool,
}

/// What there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub images: Vec<Listed>,
    pub repositories: Vec<RepositoryStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub image: Image,
    /// Absent where we did not make it.
    pub origin: Option<Origin>,
    /// Of the newest image of a repository: whether it may be out of date.
    pub stale: Option<bool>,
    /// The profiles that name it.
    pub profiles: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryStatus {
    pub repository: Arc<Repository>,
    pub standing: RepositoryState,
    /// The image that it has now.
    pub image: Option<(String, Origin)>,
    pub stale: bool,
    pub building: bool,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    pub images: Vec<Image>,
    /// Of the layers that went with them. Told only to those who ask.
    pub layer_bytes: u64,
    pub build_cache_bytes: u64,
}

impl Pruned {
    /// What was freed in all.
    pub fn bytes(&self) -> u64 {
        self.layer_bytes + self.build_cache_bytes
    }
}

#[derive(Debug)]
pub enum Message {
    Pull {
        image: String,
        following: RpcReplyPort<Following>,
    },
    Build {
        request: Box<BuildRequest>,
        following: RpcReplyPort<Following>,
    },
    /// Looks at a repository now, and builds its image if need be.
    Refresh {
        repository: String,
        force: bool,
        following: RpcReplyPort<Result<Following, ImageError>>,
    },
    List {
        listing: RpcReplyPort<Result<Listing, ImageError>>,
    },
    Prune {
        dry_run: bool,
        pruned: RpcReplyPort<Result<Pruned, ImageError>>,
    },
    /// A job is over. `head` is where a repository's branch was seen.
    Ended {
        work: Work,
        head: Option<String>,
        outcome: Outcome,
    },
    Tick,
}

/// What a job does. There is one for each at a time.
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
    shop: Arc<BuilderSetup>,
    /// Each build takes one; a collection that has all of them is sure that none is under way.
    slots: Arc<Semaphore>,
    jobs: HashMap<Work, Job>,
    builds: u64,
    standings: BTreeMap<String, RepositoryState>,
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
        shop: Arc<BuilderSetup>,
    ) -> Result<Self::State, ActorProcessingErr> {
        work::describe_metrics();
        let state = State {
            slots: Arc::new(Semaphore::new(shop.limits.builds_at_once)),
            jobs: HashMap::new(),
            builds: 0,
            standings: shop.repositories.keys().map(|name| (name.clone(), RepositoryState::default())).collect(),
            collected_at: Instant::now(),
            collecting: None,
            shop,
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
            Message::Pull { image, following } => drop(following.send(state.pull(&myself, image))),
            Message::Build { request, following } => drop(following.send(state.build(&myself, *request))),
            Message::Refresh { repository, force, following } => {
                drop(following.send(state.refresh(&myself, &repository, force)));
            }
            Message::List { listing } => {
                let (shop, standings) = (Arc::clone(&state.shop), state.standings.clone());
                let building = state.refreshing();
                tokio::spawn(async move { listing.send(work::list(&shop, &standings, &building).await) });
            }
            Message::Prune { dry_run, pruned } => {
                let (shop, slots) = (Arc::clone(&state.shop), Arc::clone(&state.slots));
                tokio::spawn(async move { pruned.send(work::prune(&shop, &slots, Occasion::Asked, dry_run).await) });
            }
            Message::Ended { work, head, outcome } => state.ended(work, head, outcome),
            Message::Tick => {
                state.tick(&myself);
                // Only now, so that slow handling cannot pile them up.
                myself.send_after(TICK, || Message::Tick);
            }
        }
        Ok(())
    }
}

impl State {
    fn pull(&mut self, myself: &ActorRef<Message>, image: String) -> Following {
        let job = self.jobs.entry(Work::Pull(image.clone())).or_insert_with(|| {
            let shop = Arc::clone(&self.shop);
            let work = Work::Pull(image.clone());
            Job::start(myself, work, |reporter| async move { (None, work::pull(&shop, image, &reporter).await) })
        });
        job.follow()
    }

    fn build(&mut self, myself: &ActorRef<Message>, request: BuildRequest) -> Following {
        self.builds += 1;
        let (shop, slots) = (Arc::clone(&self.shop), Arc::clone(&self.slots));
        let work = Work::Build(self.builds);
        let mut job = Job::start(myself, work.clone(), |reporter| async move {
            (None, work::build(&shop, &slots, request, &reporter).await)
        });
        let following = job.follow();
        self.jobs.insert(work, job);
        following
    }

    fn refresh(&mut self, myself: &ActorRef<Message>, name: &str, force: bool) -> Result<Following, ImageError> {
        let Some(repository) = self.shop.repositories.get(name) else {
            return Err(ImageError::NoSuchRepository { repository: name.to_owned() });
        };
        let job = self.jobs.entry(Work::Refresh(name.to_owned())).or_insert_with(|| {
            self.standings.entry(name.to_owned()).or_default().looks(self.shop.clock.now());
            let (shop, slots) = (Arc::clone(&self.shop), Arc::clone(&self.slots));
            let repository = Arc::clone(repository);
            Job::start(myself, Work::Refresh(name.to_owned()), |reporter| async move {
                work::refresh(&shop, &slots, &repository, force, &reporter).await
            })
        });
        Ok(job.follow())
    }

    fn ended(&mut self, work: Work, head: Option<String>, outcome: Outcome) {
        if let Work::Refresh(name) = &work {
            let standing = self.standings.entry(name.clone()).or_default();
            if let Err(error) = &outcome {
                tracing::warn!(repository = name, %error, "a repository's image is not up to date; the last one stays");
            }
            standing.ended(head, outcome.as_ref().err().cloned(), self.shop.clock.now());
        }
        if let Some(job) = self.jobs.remove(&work) {
            job.finish(outcome);
        }
    }

    fn tick(&mut self, myself: &ActorRef<Message>) {
        let now: Timestamp = self.shop.clock.now();
        let is_due = |(name, repository): &(&String, &Arc<Repository>)| {
            let under_way = self.jobs.contains_key(&Work::Refresh((*name).clone()));
            !under_way && self.standings.get(*name).is_none_or(|standing| standing.is_due(repository, now))
        };
        let due: Vec<String> = self.shop.repositories.iter().filter(is_due).map(|(name, _)| name.clone()).collect();
        for name in due {
            let _ = self.refresh(myself, &name, false);
        }
        let idle = self.collecting.as_ref().is_none_or(AbortOnDropHandle::is_finished);
        if idle && self.collected_at.elapsed() >= self.shop.collecting.interval {
            self.collected_at = Instant::now();
            let (shop, slots) = (Arc::clone(&self.shop), Arc::clone(&self.slots));
            let collecting = async move {
                if let Err(error) = work::prune(&shop, &slots, Occasion::Regular, false).await {
                    tracing::warn!(%error, "images could not be collected; it is tried again");
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
