//! The one place where everything is put together: ports to their adapters, the core, the socket.
//!
//! ```text
//! start: directories ─▶ socket, unanswered ─▶ core ─▶ engine: network, adoption ─▶ serving
//! stop:  no new requests ─▶ answers under way ─▶ chats settle ─▶ gone; sandboxes stay
//! ```
//!
//! An engine that is silent at start does not keep the service from starting: chats then look for themselves, and
//! network and adoption follow as soon as it answers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ractor::SpawnErr;
use sandboxd_actors::chat::{TeardownLimits, World};
use sandboxd_actors::clock::SystemClock;
use sandboxd_actors::engine::bounded::{Bounded, EngineLimits};
use sandboxd_actors::engine::{Engine, EngineError, NetworkSpec};
use sandboxd_actors::ids::{InstanceName, InvalidId};
use sandboxd_actors::labels;
use sandboxd_actors::profile::Network;
use sandboxd_actors::sandboxes::Sandboxes;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::chat_directories::DirectoriesOnDisk;
use crate::config::{Config, Principal};
use crate::host_paths::VolumePolicy;
use crate::probe::NetworkProbe;
use crate::profiles::{self, ProfileError, Profiles};
use crate::server::access::{Access, Allowed, UnknownAccount};
use crate::server::accounts::Accounts;
use crate::server::handler::Handler;
use crate::server::listener::{BindError, Listener, SocketOptions};
use crate::server::{Limits, Server};

/// How long a sandbox that was seen alive is handed out again without another look.
const TRUST: Duration = Duration::from_secs(1);

/// Between two tries to reach an engine that was silent at start.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("instance.name: {0}")]
    Instance(#[from] InvalidId),
    #[error(transparent)]
    Profiles(#[from] ProfileError),
    #[error("{key}: {source}")]
    Setting { key: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("state.dir: {path}: {source}")]
    State { path: PathBuf, source: io::Error },
    #[error("socket: {0}")]
    Socket(#[from] BindError),
    #[error("the supervision tree did not start: {0}")]
    Spawn(#[from] SpawnErr),
    #[error("the root of the supervision tree ended")]
    RootEnded,
}

/// A service that is ready to serve.
#[derive(Debug)]
pub struct Service {
    sandboxes: Sandboxes,
    root_ended: JoinHandle<()>,
    server: Server,
    listener: Listener,
    grace: Duration,
    /// Ends what goes on in the background.
    background: CancellationToken,
}

impl Service {
    /// Starts everything up to the socket. `engine_sockets` are never handed to a sandbox.
    pub async fn start(
        config: &Config,
        engine: Arc<dyn Engine>,
        engine_sockets: &[PathBuf],
    ) -> Result<Self, ServiceError> {
        let instance: InstanceName = config.instance.name.parse()?;
        let profiles = Arc::new(profiles::profiles(&config.profiles, &config.engine.network)?);
        let socket = socket_options(config)?;
        let access = access(config)?;
        make_state_directory(&config.state.dir)?;
        let world = world(config, &instance, engine)?;
        let volumes = volume_policy(config, engine_sockets)?;
        let engine = world.engine.clone();

        // Before the engine is touched: a second service that was started by mistake must not take what the first one
        // is creating for something half made. Whoever connects meanwhile waits.
        let listener = Listener::bind(&socket).await?;
        let (sandboxes, root_ended) = Sandboxes::start(world).await?;
        let background = CancellationToken::new();
        let groundwork = Groundwork {
            engine: engine.clone(),
            sandboxes: sandboxes.clone(),
            networks: networks(config, &instance, &profiles),
        };
        if let Err(error) = groundwork.lay().await {
            tracing::warn!(%error, "the engine does not answer yet; serving without it");
            tokio::spawn(background.clone().run_until_cancelled_owned(groundwork.lay_when_it_answers()));
        }

        let handler =
            Handler { instance, sandboxes: sandboxes.clone(), engine, volumes, profiles, started: Instant::now() };
        let server = Server::new(handler, limits(config), access);
        Ok(Self { sandboxes, root_ended, server, listener, grace: config.shutdown.grace, background })
    }

    /// Serves until `stop` is cancelled, and then until what was under way is done. Sandboxes stay.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ServiceError> {
        let Service { sandboxes, mut root_ended, server, listener, grace, background } = self;
        let serving = tokio::spawn(server.serve(listener, stop.clone(), grace));
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            // Nothing can be answered any more: better to be started again.
            _ = &mut root_ended => Err(ServiceError::RootEnded),
        };
        tracing::info!("stopping");
        stop.cancel();
        background.cancel();
        let stopping = Instant::now();
        let _ = serving.await;
        sandboxes.shut_down(grace.saturating_sub(stopping.elapsed())).await;
        tracing::info!("stopped; sandboxes stay");
        outcome
    }
}

/// What the engine has to have before sandboxes can be made on it, and what it may have from an earlier run.
struct Groundwork {
    engine: Bounded,
    sandboxes: Sandboxes,
    networks: Vec<NetworkSpec>,
}

impl Groundwork {
    async fn lay(&self) -> Result<(), EngineError> {
        for network in &self.networks {
            self.engine.ensure_network(network).await?;
        }
        let adoption = self.sandboxes.adopt().await?;
        metrics::counter!("sandboxd_adoptions_total", "result" => "adopted").increment(adoption.adopted as u64);
        metrics::counter!("sandboxd_adoptions_total", "result" => "skipped").increment(adoption.skipped as u64);
        tracing::info!(adopted = adoption.adopted, skipped = adoption.skipped, "the engine answers");
        Ok(())
    }

    async fn lay_when_it_answers(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            tokio::time::sleep(pause).await;
            match self.lay().await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, "the engine does not answer yet"),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn world(config: &Config, instance: &InstanceName, engine: Arc<dyn Engine>) -> Result<World, ServiceError> {
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
    };
    Ok(World {
        instance: instance.clone(),
        engine: Bounded::new(engine, limits),
        engine_slots: Arc::new(Semaphore::new(config.engine.max_operations)),
        probe: Arc::new(NetworkProbe),
        directories: Arc::new(directories),
        clock: Arc::new(SystemClock),
        mounts: profiles::mount_points(&config.mounts)?,
        teardown: TeardownLimits {
            graceful: config.teardown.graceful,
            remove: config.teardown.remove,
            total: config.teardown.total,
        },
        trust: TRUST,
    })
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

fn volume_policy(config: &Config, engine_sockets: &[PathBuf]) -> Result<VolumePolicy, ServiceError> {
    let own = [&config.state.dir, &config.chats.root, &config.socket.path];
    let reserved = own.into_iter().chain(engine_sockets).cloned();
    VolumePolicy::new(config.volumes.roots.clone(), reserved).map_err(setting("volumes.roots"))
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

fn make_state_directory(path: &Path) -> Result<(), ServiceError> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(path)
        .map_err(|source| ServiceError::State { path: path.to_owned(), source })
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
