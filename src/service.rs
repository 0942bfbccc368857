//! Builds the service: connects the ports to their adapters, and starts the core and the socket.
//!
//! ```text
//! start: bind the socket ─▶ journal ─▶ core ─▶ engine: networks, reconciliation ─▶ serve
//! stop:  no new requests ─▶ open requests are answered ─▶ chats finish their work ─▶ exit; sandboxes stay
//! ```
//!
//! The service also starts while the engine does not answer: each chat then inspects its own container, and networks
//! and reconciliation follow once the engine answers.

mod background;
pub mod callers;
mod claims;
pub mod drain;
mod start_up;

use std::convert::Infallible;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ractor::SpawnErr;
use sandboxd_actors::chat::{Rules, TeardownLimits, World};
use sandboxd_actors::domain::ids::{InstanceName, InvalidId};
use sandboxd_actors::domain::labels;
use sandboxd_actors::domain::profile::Network;
use sandboxd_actors::domain::snapshot::retention::Retention;
use sandboxd_actors::domain::subnet::AddressRange;
use sandboxd_actors::engine::bounded::{Bounded, EngineLimits};
use sandboxd_actors::engine::fair_queue::EngineQueue;
use sandboxd_actors::journal::{Journal, JournalError, JournalHandle};
use sandboxd_actors::pool::claims::Claims;
use sandboxd_actors::ports::clock::{Clock, SystemClock};
use sandboxd_actors::ports::engine::{Engine, NetworkSpec};
use sandboxd_actors::ports::guest::Guests;
use sandboxd_actors::ports::images::Images;
use sandboxd_actors::root::limits::Capacity;
use sandboxd_actors::sandboxes::{Intervals, Sandboxes};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Size};
#[cfg(feature = "crash-points")]
use crate::crash_points::CrashPoints;
use crate::doctor::{Doctor, Settings};
use crate::engine::condition::EngineCondition;
use crate::engine::guest::EngineGuest;
use crate::guest::{GuestsOnDisk, GuestsViaEngine};
use crate::images::builder::builder_setup;
use crate::languages::Languages;
use crate::probe::NetworkProbe;
use crate::profiles::{self, ProfileError, Profiles};
use crate::server::guest::{Attachments, Syncs};
use crate::server::handler::Handler;
use crate::server::listener::{BindError, Listener};
use crate::server::{Limits, Server};
use crate::storage::chat_directories::DirectoriesOnDisk;
use crate::storage::file_system::FileSystem;
use crate::storage::volumes::VolumePolicy;
use crate::systemd;
use background::Background;
use start_up::{Resumed, StartUp, StartUpError};

/// The time for which a sandbox that was observed running is returned without another inspection.
const TRUST: Duration = Duration::from_secs(1);

/// The time limit of a journal operation.
const JOURNAL_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("instance.name: {0}")]
    Instance(#[from] InvalidId),
    #[error(transparent)]
    Profiles(#[from] ProfileError),
    #[error("{key}: {source}")]
    Setting { key: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("socket: {0}")]
    Socket(#[from] BindError),
    #[cfg(feature = "crash-points")]
    #[error(transparent)]
    CrashPoint(#[from] crate::crash_points::InvalidCrashPoint),
    #[error("cannot start the supervision tree: {0}")]
    Spawn(#[from] SpawnErr),
    #[error("the root actor of the supervision tree ended")]
    RootEnded,
    #[error("the journal ended")]
    JournalEnded,
    #[error("a background task failed: {0}")]
    Background(JoinError),
}

/// A started service with its socket.
#[derive(Debug)]
pub struct Service {
    sandboxes: Sandboxes,
    root_ended: JoinHandle<()>,
    server: Server,
    listener: Listener,
    grace: Duration,
    background: Background,
    /// Cancelled once the start-up is complete.
    reconciled: CancellationToken,
}

/// The external dependencies of the service.
pub struct Dependencies<J> {
    pub engine: Arc<dyn Engine>,
    /// The same engine, for commands and files in containers.
    pub engine_guest: Arc<dyn EngineGuest>,
    /// The same engine, for its images.
    pub images: Arc<dyn Images>,
    /// The same engine, for its configuration.
    pub condition: Arc<dyn EngineCondition>,
    /// The engine's sockets, which are never mounted into a sandbox.
    pub engine_sockets: Vec<PathBuf>,
    pub journal: J,
    /// A listening socket that systemd keeps open across restarts.
    pub listener: Option<UnixListener>,
}

impl<J> std::fmt::Debug for Dependencies<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dependencies").field("engine_sockets", &self.engine_sockets).finish_non_exhaustive()
    }
}

impl Service {
    /// Starts the service. [`Service::run`] answers the socket.
    pub async fn start(config: &Config, dependencies: Dependencies<impl Journal>) -> Result<Self, ServiceError> {
        let instance: InstanceName = config.instance.name.parse()?;
        let profiles = Arc::new(profiles::profiles(&config.profiles, &config.engine.network)?);
        let socket = callers::socket_options(config)?;
        let access = callers::access(config)?;
        let file_system =
            FileSystem::new(&config.state.dir, &config.chats.root).map_err(setting("the file system workers"))?;
        let policy = async |key, roots: &[PathBuf]| {
            let own = [&config.state.dir, &config.chats.root, &config.socket.path];
            let reserved = own.into_iter().chain(&dependencies.engine_sockets).cloned();
            VolumePolicy::new(file_system.clone(), roots.to_vec(), reserved).await.map_err(setting(key))
        };
        let volumes = policy("volumes.roots", &config.volumes.roots).await?;
        let contexts = policy("images.context_roots", &config.images.context_roots).await?.with_roots_allowed();
        #[cfg(feature = "crash-points")]
        let crash_points = CrashPoints::from_environment(std::env::vars_os())?;
        #[cfg(feature = "crash-points")]
        let dependencies = crash_points.wrap_dependencies(dependencies);
        // Bound before the journal is read and the engine is called: a second service, started by mistake, must not
        // treat the first one's new containers as incomplete. Callers that connect meanwhile wait.
        let listener = match dependencies.listener {
            Some(listener) => Listener::from_std(listener).map_err(setting("the inherited socket"))?,
            None => Listener::bind(&socket).await?,
        };
        for excluded in callers::excluded_callers_of(&config.socket.path, config) {
            tracing::warn!(advice = excluded.advice(), "{excluded}");
        }
        let (journal, contents) = JournalHandle::start(dependencies.journal, JOURNAL_LIMIT, None).await?;
        let rules = Rules {
            trust: TRUST,
            profiles: Arc::clone(&profiles),
            max_leases: config.leases.max_per_sandbox,
            max_lease: config.leases.max,
        };
        let claims = Arc::new(Claims::default());
        let guests = GuestsOnDisk::open(&config.state.dir, Arc::clone(&claims), file_system.clone());
        let guests = guests.map_err(setting("state.dir"))?;
        claims::load(&claims, &contents, &guests, &journal).await?;
        let directories =
            DirectoriesOnDisk::open(&config.chats.root, file_system.clone()).map_err(setting("chats.root"))?;
        let syncs = Syncs::default();
        let mut world =
            world(config, &instance, dependencies.engine, journal, rules, Arc::clone(&guests), directories)?;
        world.guests = syncs.removed_with(world.guests);
        #[cfg(feature = "crash-points")]
        let world = crash_points.wrap_world(world);
        let (engine, slots) = (world.engine.clone(), Arc::clone(&world.slots));

        let intervals = Intervals { reap: config.reaper.tick, reconcile: config.reconciler.interval };
        let builder_setup =
            builder_setup(config, &instance, Arc::clone(&dependencies.images)).map_err(setting("state.dir"))?;
        let (sandboxes, root_ended) =
            Sandboxes::start_with(world, contents, intervals, Some(Arc::new(builder_setup))).await?;
        let (mut background, reconciled) = (Background::default(), CancellationToken::new());
        let mut start_up = StartUp {
            engine: engine.clone(),
            sandboxes: sandboxes.clone(),
            networks: networks(config, &instance, &profiles),
            instance: instance.clone(),
            lock: None,
            guests: Arc::clone(&guests),
            reconciled: reconciled.clone(),
            resumed: Resumed::default(),
        };
        match start_up.attempt().await {
            Err(error @ StartUpError::Instance(_)) => return Err(error.into()),
            Err(StartUpError::Engine(error)) => {
                tracing::warn!(%error, "engine does not answer; serving without it");
            }
            Ok(()) => {}
        }
        background.spawn(async { StartUpError::from(start_up.run().await).into() });
        let pruning = prune_snapshots(engine.clone(), instance.clone(), retention(config), config.snapshots.interval);
        background.spawn(async { match pruning.await {} });
        let pruning = prune_chat_directories(sandboxes.clone(), config.chats.retention);
        background.spawn(async { match pruning.await {} });
        if let Some(limit) = systemd::watchdog_limit() {
            let watch = systemd::watch_progress(sandboxes.clone(), limit, systemd::feed_watchdog);
            background.spawn(async { match watch.await {} });
        }

        let doctor = Doctor {
            instance: instance.clone(),
            engine: engine.clone(),
            condition: dependencies.condition,
            images: dependencies.images,
            sandboxes: sandboxes.clone(),
            slots,
            networks: networks(config, &instance, &profiles),
            profiles: Arc::clone(&profiles),
            settings: Settings::of(config),
            file_system: file_system.clone(),
            reconciled: reconciled.clone(),
        };
        let handler = Handler {
            instance,
            sandboxes: sandboxes.clone(),
            guests,
            guests_via_engine: GuestsViaEngine::new(dependencies.engine_guest, config.state.dir.clone(), file_system),
            engine,
            doctor,
            volumes,
            contexts,
            profiles,
            languages: Languages::new(&config.profiles),
            clock: Arc::new(SystemClock),
            max_lease: config.leases.max,
            attachments: Attachments::default(),
            syncs,
            started: Instant::now(),
        };
        let server = Server::new(handler, limits(config), access);
        let grace = config.shutdown.grace;
        Ok(Self { sandboxes, root_ended, server, listener, grace, background, reconciled })
    }

    /// Serves until `stop` is cancelled, then finishes open requests. Sandboxes stay.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ServiceError> {
        let Service { sandboxes, mut root_ended, server, listener, grace, mut background, reconciled } = self;
        let serving = tokio::spawn(server.serve(listener, stop.clone(), grace));
        tokio::spawn(stop.clone().run_until_cancelled_owned(systemd::report_ready(reconciled)));
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            // No request can be answered any more, so the service ends and the service manager restarts it.
            _ = &mut root_ended => Err(ServiceError::RootEnded),
            () = sandboxes.journal().ended() => Err(ServiceError::JournalEnded),
            failure = background.failed() => Err(failure),
        };
        tracing::info!("service stopping");
        systemd::report_stopping();
        stop.cancel();
        let stopping = Instant::now();
        let _ = serving.await;
        sandboxes.shut_down(grace.saturating_sub(stopping.elapsed())).await;
        background.end();
        tracing::info!("service stopped; sandboxes stay");
        outcome
    }
}

/// Periodically removes expired snapshots and the drafts of unfinished ones.
async fn prune_snapshots(
    engine: Bounded,
    instance: InstanceName,
    retention: Retention,
    interval: Duration,
) -> Infallible {
    let started_at = SystemClock.now();
    loop {
        let now = SystemClock.now();
        let pruned = async {
            engine.remove_drafts(&instance, started_at, now).await?;
            retention.enforce(&engine, &instance, None, now).await
        };
        if let Err(error) = pruned.await {
            tracing::warn!(%error, "pruning of snapshots failed");
        }
        tokio::time::sleep(interval).await;
    }
}

/// Finishes interrupted removals of chat directories, then periodically removes directories that are older than the
/// retention, if one is set.
async fn prune_chat_directories(sandboxes: Sandboxes, retention: Option<Duration>) -> Infallible {
    if let Err(error) = sandboxes.finish_chat_removals().await {
        tracing::warn!(%error, "finishing interrupted removals of chat directories failed");
    }
    let Some(keep) = retention else { return std::future::pending().await };
    loop {
        match sandboxes.prune_chat_directories(keep).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "chat directories pruned"),
            Err(error) => tracing::warn!(%error, "listing chat directories failed"),
        }
        tokio::time::sleep((keep / 4).clamp(Duration::from_secs(1), Duration::from_secs(3600))).await;
    }
}

fn engine_limits(config: &Config) -> EngineLimits {
    let timeouts = &config.engine.timeouts;
    EngineLimits {
        identify: timeouts.connect,
        network: timeouts.network,
        image: timeouts.image,
        create: timeouts.create,
        start: timeouts.start,
        inspect: timeouts.inspect,
        list: timeouts.list,
        logs: timeouts.logs,
        commit: timeouts.commit,
    }
}

fn world(
    config: &Config,
    instance: &InstanceName,
    engine: Arc<dyn Engine>,
    journal: JournalHandle,
    rules: Rules,
    guests: Arc<GuestsOnDisk>,
    directories: DirectoriesOnDisk,
) -> Result<World, ServiceError> {
    Ok(World {
        instance: instance.clone(),
        engine: Bounded::new(engine, engine_limits(config)),
        engine_queue: EngineQueue::new(config.engine.max_operations),
        queue_limit: config.engine.queue_timeout,
        capacity: Capacity {
            sandboxes: config.limits.sandboxes,
            per_workspace: config.limits.per_workspace,
            per_agent: config.limits.per_agent,
        },
        probe: Arc::new(NetworkProbe),
        directories: Arc::new(directories),
        guests: Arc::clone(&guests) as Arc<dyn Guests>,
        claims: Arc::clone(guests.claims()),
        slots: guests,
        clock: Arc::new(SystemClock),
        mounts: profiles::mount_points(&config.mounts)?,
        teardown: TeardownLimits {
            graceful: config.teardown.graceful,
            remove: config.teardown.remove,
            total: config.teardown.total,
        },
        journal,
        rules,
        cleanups: Default::default(),
        addresses: Default::default(),
        retention: retention(config),
    })
}

fn retention(config: &Config) -> Retention {
    Retention { keep: config.snapshots.keep, max_age: config.snapshots.max_age }
}

/// Returns every network that a profile uses.
fn networks(config: &Config, instance: &InstanceName, profiles: &Profiles) -> Vec<NetworkSpec> {
    let mut names: Vec<&str> = vec![&config.engine.network];
    names.extend(profiles.values().filter_map(|profile| match &profile.network {
        Network::Named(name) => Some(name.as_str()),
        Network::Blocked => None,
    }));
    names.sort_unstable();
    names.dedup();
    let spec = |name: &str| NetworkSpec {
        name: name.to_owned(),
        isolated: config.engine.network_isolated,
        addresses: match config.engine.network_subnet {
            // The configured subnet is for the shared network; the networks of profiles get subnets of the same size.
            AddressRange::Exactly(subnet) if name != config.engine.network => {
                AddressRange::Free { prefix: subnet.prefix() }
            }
            addresses => addresses,
        },
        labels: labels::ownership(instance),
    };
    names.into_iter().map(spec).collect()
}

fn limits(config: &Config) -> Limits {
    let socket = &config.socket;
    let bytes = |size: Size| usize::try_from(size.bytes()).unwrap_or(usize::MAX);
    Limits {
        max_connections: socket.max_connections,
        max_line: bytes(socket.max_line),
        max_in_flight: socket.max_in_flight,
        max_output: bytes(socket.max_output),
        max_memory: bytes(socket.max_memory),
        max_memory_per_connection: bytes(socket.max_memory_per_connection),
        ..Limits::default()
    }
}

fn setting<E: std::error::Error + Send + Sync + 'static>(key: &'static str) -> impl Fn(E) -> ServiceError {
    move |source| ServiceError::Setting { key, source: Box::new(source) }
}
