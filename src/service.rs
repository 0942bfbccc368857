//! The one place where everything is put together: ports to their adapters, the core, the socket.
//!
//! ```text
//! start: socket, unanswered ─▶ journal ─▶ core ─▶ engine: network, reconciliation ─▶ serving
//! stop:  no new requests ─▶ answers under way ─▶ chats settle ─▶ gone; sandboxes stay
//! ```
//!
//! An engine that is silent at start does not keep the service from starting: chats then look for themselves, and
//! network and reconciliation follow as soon as it answers.

mod groundwork;

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ractor::SpawnErr;
use sandboxd_actors::chat::{Rules, TeardownLimits, World};
use sandboxd_actors::clock::{Clock, SystemClock};
use sandboxd_actors::engine::bounded::{Bounded, EngineLimits};
use sandboxd_actors::engine::turns::Turns;
use sandboxd_actors::engine::{Engine, NetworkSpec};
use sandboxd_actors::ids::{InstanceName, InvalidId};
use sandboxd_actors::images::Images;
use sandboxd_actors::interior::Interiors;
use sandboxd_actors::journal::{Journal, JournalError, JournalHandle};
use sandboxd_actors::labels;
use sandboxd_actors::profile::Network;
use sandboxd_actors::root::census::Capacity;
use sandboxd_actors::sandboxes::{Rhythm, Sandboxes};
use sandboxd_actors::snapshot::retention::Retention;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::chat_directories::DirectoriesOnDisk;
use crate::config::{Config, Principal};
#[cfg(debug_assertions)]
use crate::crash_points::CrashPoints;
use crate::doctor::{Doctor, Settings};
use crate::engine::claimed::ClaimedLabels;
use crate::engine::condition::EngineCondition;
use crate::engine::inside::EngineInside;
use crate::host_paths::VolumePolicy;
use crate::instance_lock::InstanceLockError;
use crate::interiors::{InteriorsOnDisk, StandIns};
use crate::languages::Languages;
use crate::probe::NetworkProbe;
use crate::profiles::{self, ProfileError, Profiles};
use crate::server::access::{Access, Allowed, UnknownAccount};
use crate::server::accounts::Accounts;
use crate::server::handler::Handler;
use crate::server::inside::{Steering, Syncs};
use crate::server::listener::{BindError, Listener, SocketOptions};
use crate::server::{Limits, Server};
use crate::systemd;
use crate::workshop::workshop;
use groundwork::{Groundwork, GroundworkError};

/// How long a sandbox that was seen alive is handed out again without another look.
const TRUST: Duration = Duration::from_secs(1);

/// How long anybody waits for the journal.
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
    #[cfg(debug_assertions)]
    #[error(transparent)]
    CrashPoint(#[from] crate::crash_points::InvalidCrashPoint),
    #[error("the supervision tree did not start: {0}")]
    Spawn(#[from] SpawnErr),
    #[error("the root of the supervision tree ended")]
    RootEnded,
    #[error("the journal ended")]
    JournalEnded,
}

/// A service that is ready to serve.
#[derive(Debug)]
pub struct Service {
    sandboxes: Sandboxes,
    root_ended: JoinHandle<()>,
    server: Server,
    listener: Listener,
    grace: Duration,
    /// Resolves only if the instance turns out to be somebody else's.
    groundwork: JoinHandle<Option<InstanceLockError>>,
    /// Ends what goes on in the background.
    background: CancellationToken,
    /// What was promised is there again.
    reconciled: CancellationToken,
}

/// What the service is given of the outside.
pub struct Outside<J> {
    pub engine: Arc<dyn Engine>,
    /// The same one, for work in its containers.
    pub inside: Arc<dyn EngineInside>,
    /// The same one, for its images.
    pub images: Arc<dyn Images>,
    /// The same one, for how it was set up.
    pub condition: Arc<dyn EngineCondition>,
    /// Never handed to a sandbox.
    pub engine_sockets: Vec<PathBuf>,
    pub journal: J,
    /// A listening socket that somebody else keeps open across restarts.
    pub listener: Option<UnixListener>,
}

impl<J> std::fmt::Debug for Outside<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside").field("engine_sockets", &self.engine_sockets).finish_non_exhaustive()
    }
}

impl Service {
    /// Starts everything up to the socket.
    pub async fn start(config: &Config, outside: Outside<impl Journal>) -> Result<Self, ServiceError> {
        let instance: InstanceName = config.instance.name.parse()?;
        let profiles = Arc::new(profiles::profiles(&config.profiles, &config.engine.network)?);
        let socket = socket_options(config)?;
        let access = access(config)?;
        let volumes = volume_policy(config, "volumes.roots", &config.volumes.roots, &outside.engine_sockets)?;
        let contexts =
            volume_policy(config, "images.context_roots", &config.images.context_roots, &outside.engine_sockets)?;
        #[cfg(debug_assertions)]
        let crash_points = CrashPoints::from_environment(std::env::vars_os())?;
        #[cfg(debug_assertions)]
        let outside = crash_points.around_outside(outside);
        // Before the journal is read and the engine is touched: a second service that was started by mistake must not
        // take what the first one is creating for something half made. Whoever connects meanwhile waits.
        let listener = match outside.listener {
            Some(listener) => Listener::from_std(listener).map_err(setting("the inherited socket"))?,
            None => Listener::bind(&socket).await?,
        };
        let (journal, contents) = JournalHandle::start(outside.journal, JOURNAL_LIMIT, None).await?;
        let rules = Rules { trust: TRUST, profiles: Arc::clone(&profiles), max_leases: config.leases.max_per_sandbox };
        let interiors = Arc::new(InteriorsOnDisk::open(&config.state.dir).map_err(setting("state.dir"))?);
        let world = world(config, &instance, outside.engine, journal, rules, Arc::clone(&interiors))?;
        #[cfg(debug_assertions)]
        let world = crash_points.around_world(world);
        let (engine, slots) = (world.engine.clone(), Arc::clone(&world.slots));

        let rhythm = Rhythm { reap: config.reaper.tick, reconcile: config.reconciler.interval };
        let workshop = workshop(config, &instance, Arc::clone(&outside.images)).map_err(setting("state.dir"))?;
        let (sandboxes, root_ended) = Sandboxes::start_with(world, contents, rhythm, Some(Arc::new(workshop))).await?;
        let (background, reconciled) = (CancellationToken::new(), CancellationToken::new());
        let mut groundwork = Groundwork {
            engine: engine.clone(),
            sandboxes: sandboxes.clone(),
            networks: networks(config, &instance, &profiles),
            instance: instance.clone(),
            lock: None,
            interiors: Arc::clone(&interiors),
            reconciled: reconciled.clone(),
        };
        match groundwork.lay().await {
            Err(error @ GroundworkError::Instance(_)) => return Err(error.into()),
            Err(GroundworkError::Engine(error)) => {
                tracing::warn!(%error, "the engine does not answer yet; serving without it");
            }
            Ok(()) => {}
        }
        let groundwork = tokio::spawn(background.clone().run_until_cancelled_owned(groundwork.keep()));
        let pruning = prune_snapshots(engine.clone(), instance.clone(), retention(config), config.snapshots.interval);
        tokio::spawn(background.clone().run_until_cancelled_owned(pruning));
        if let Some(limit) = systemd::watchdog_limit() {
            let watch = systemd::watch_progress(sandboxes.clone(), limit, systemd::feed_watchdog);
            tokio::spawn(background.clone().run_until_cancelled_owned(watch));
        }

        let doctor = Doctor {
            instance: instance.clone(),
            engine: engine.clone(),
            condition: outside.condition,
            images: outside.images,
            sandboxes: sandboxes.clone(),
            slots,
            networks: networks(config, &instance, &profiles),
            profiles: Arc::clone(&profiles),
            settings: Settings::of(config),
            settled: reconciled.clone(),
        };
        let handler = Handler {
            instance,
            sandboxes: sandboxes.clone(),
            interiors,
            stand_ins: StandIns::new(outside.inside, config.state.dir.clone()),
            engine,
            doctor,
            volumes,
            contexts,
            profiles,
            languages: Languages::new(&config.profiles),
            clock: Arc::new(SystemClock),
            max_lease: config.leases.max,
            steering: Steering::default(),
            syncs: Syncs::default(),
            started: Instant::now(),
        };
        let server = Server::new(handler, limits(config), access);
        let grace = config.shutdown.grace;
        Ok(Self { sandboxes, root_ended, server, listener, grace, groundwork, background, reconciled })
    }

    /// Serves until `stop` is cancelled, and then until what was under way is done. Sandboxes stay.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ServiceError> {
        let Service { sandboxes, mut root_ended, server, listener, grace, mut groundwork, background, reconciled } =
            self;
        let serving = tokio::spawn(server.serve(listener, stop.clone(), grace));
        tokio::spawn(stop.clone().run_until_cancelled_owned(systemd::report_ready(reconciled)));
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            // Nothing can be answered any more: better to be started again.
            _ = &mut root_ended => Err(ServiceError::RootEnded),
            () = sandboxes.journal().ended() => Err(ServiceError::JournalEnded),
            // The engine was silent at start, so that this could not be known by then.
            Ok(Some(taken)) = &mut groundwork => Err(GroundworkError::from(taken).into()),
        };
        tracing::info!("stopping");
        systemd::stopping();
        stop.cancel();
        let stopping = Instant::now();
        let _ = serving.await;
        sandboxes.shut_down(grace.saturating_sub(stopping.elapsed())).await;
        background.cancel();
        tracing::info!("stopped; sandboxes stay");
        outcome
    }
}

/// Removes snapshots that were kept for long enough, and what is left of those that were never finished, from time to
/// time.
async fn prune_snapshots(engine: Bounded, instance: InstanceName, retention: Retention, interval: Duration) {
    let started_at = SystemClock.now();
    loop {
        let now = SystemClock.now();
        let swept = async {
            engine.remove_drafts(&instance, started_at, now).await?;
            retention.enforce(&engine, &instance, None, now).await
        };
        if let Err(error) = swept.await {
            tracing::warn!(%error, "not all snapshots could be looked at");
        }
        tokio::time::sleep(interval).await;
    }
}

fn world(
    config: &Config,
    instance: &InstanceName,
    engine: Arc<dyn Engine>,
    journal: JournalHandle,
    rules: Rules,
    interiors: Arc<InteriorsOnDisk>,
) -> Result<World, ServiceError> {
    let directories = DirectoriesOnDisk::open(&config.chats.root).map_err(setting("chats.root"))?;
    let timeouts = &config.engine.timeouts;
    let limits = EngineLimits {
        identify: timeouts.connect,
        network: timeouts.network,
        image: timeouts.image,
        create: timeouts.create,
        start: timeouts.start,
        inspect: timeouts.inspect,
        list: timeouts.list,
        logs: timeouts.logs,
        commit: timeouts.commit,
    };
    Ok(World {
        instance: instance.clone(),
        engine: Bounded::new(ClaimedLabels::around(engine, Arc::clone(&interiors)), limits),
        turns: Turns::new(config.engine.max_operations),
        queue_limit: config.engine.queue_timeout,
        capacity: Capacity {
            sandboxes: config.limits.sandboxes,
            per_workspace: config.limits.per_workspace,
            per_agent: config.limits.per_agent,
        },
        probe: Arc::new(NetworkProbe),
        directories: Arc::new(directories),
        interiors: Arc::clone(&interiors) as Arc<dyn Interiors>,
        slots: interiors,
        clock: Arc::new(SystemClock),
        mounts: profiles::mount_points(&config.mounts)?,
        teardown: TeardownLimits {
            graceful: config.teardown.graceful,
            remove: config.teardown.remove,
            total: config.teardown.total,
        },
        journal,
        rules,
        retention: retention(config),
    })
}

fn retention(config: &Config) -> Retention {
    Retention { keep: config.snapshots.keep, max_age: config.snapshots.max_age }
}

/// Every network that a profile uses.
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
        labels: labels::ownership(instance),
    };
    names.into_iter().map(spec).collect()
}

fn volume_policy(
    config: &Config,
    key: &'static str,
    roots: &[PathBuf],
    engine_sockets: &[PathBuf],
) -> Result<VolumePolicy, ServiceError> {
    let own = [&config.state.dir, &config.chats.root, &config.socket.path];
    let reserved = own.into_iter().chain(engine_sockets).cloned();
    VolumePolicy::new(roots.to_vec(), reserved).map_err(setting(key))
}

fn access(config: &Config) -> Result<Access, ServiceError> {
    let names = |principals: &[Principal]| principals.iter().map(ToString::to_string).collect();
    let mut allowed = Allowed {
        users: names(&config.socket.allow_users),
        groups: names(&config.socket.allow_groups),
        read_only_groups: names(&config.socket.read_only_groups),
    };
    allowed.groups.extend(config.socket.group.iter().map(ToString::to_string));
    Access::new(&allowed, Accounts::of_host()).map_err(|unknown| {
        let key = match &unknown {
            UnknownAccount::User(_) => "socket.allow_users",
            UnknownAccount::Group(name) if names(&config.socket.allow_groups).contains(name) => "socket.allow_groups",
            UnknownAccount::Group(_) => "socket.read_only_groups",
        };
        setting(key)(unknown)
    })
}

fn limits(config: &Config) -> Limits {
    let socket = &config.socket;
    Limits {
        max_connections: socket.max_connections,
        max_line: usize::try_from(socket.max_line.bytes()).unwrap_or(usize::MAX),
        max_in_flight: socket.max_in_flight,
        max_output: usize::try_from(socket.max_output.bytes()).unwrap_or(usize::MAX),
        ..Limits::default()
    }
}

fn setting<E: std::error::Error + Send + Sync + 'static>(key: &'static str) -> impl Fn(E) -> ServiceError {
    move |source| ServiceError::Setting { key, source: Box::new(source) }
}

fn socket_options(config: &Config) -> Result<SocketOptions, ServiceError> {
    let socket = &config.socket;
    let gid = match &socket.group {
        None => None,
        Some(Principal::Id(gid)) => Some(*gid),
        Some(Principal::Name(name)) => {
            let unknown = || UnknownAccount::Group(name.clone());
            Some(Accounts::of_host().gid(name).ok_or_else(unknown).map_err(setting("socket.group"))?)
        }
    };
    Ok(SocketOptions { path: socket.path.clone(), mode: socket.mode.bits(), gid })
}
