//! Checks the host, the engine and the configuration, with advice for each problem.
//!
//! [`Doctor::examine`] gathers [`findings`] from the engine, the core and the host; [`judgement`] turns them into
//! checks. Both are read-only, so that read-only callers may use them.

pub mod check;
pub mod findings;
mod host;
pub mod judgement;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use sandboxd_actors::domain::ids::InstanceName;
use sandboxd_actors::domain::profile;
use sandboxd_actors::engine::bounded::Bounded;
use sandboxd_actors::pool;
use sandboxd_actors::ports::engine::{EngineError, NetworkSpec};
use sandboxd_actors::ports::images::Images;
use sandboxd_actors::ports::slot::Slots;
use sandboxd_actors::sandboxes::Sandboxes;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::engine::condition::EngineCondition;
use crate::profiles::Profiles;
use crate::server::access::Allowed;
use crate::service::callers;
use crate::storage::file_system::{FileSystem, Links, Own};
use check::Checks;
use findings::{Descriptors, Directory, Findings, Found, Instance, Network, Pool, ProfileImage, VolumeRoot};

/// A journal that takes longer than this counts as failed.
const JOURNAL_LIMIT: Duration = Duration::from_secs(5);

/// The sources of the findings.
pub struct Doctor {
    pub instance: InstanceName,
    pub engine: Bounded,
    pub condition: Arc<dyn EngineCondition>,
    pub images: Arc<dyn Images>,
    pub sandboxes: Sandboxes,
    pub slots: Arc<dyn Slots>,
    pub profiles: Arc<Profiles>,
    pub networks: Vec<NetworkSpec>,
    pub settings: Settings,
    pub file_system: FileSystem,
    /// Cancelled once the instance is locked and the start-up is complete.
    pub reconciled: CancellationToken,
}

/// The settings that the doctor needs.
#[derive(Debug, Clone)]
pub struct Settings {
    pub state_dir: PathBuf,
    pub chats_root: PathBuf,
    pub volume_roots: Vec<PathBuf>,
    pub socket: PathBuf,
    pub allowed: Allowed,
    pub max_connections: usize,
    pub max_sandboxes: Option<usize>,
    /// In percent of the engine's disk.
    pub image_watermark: f64,
    /// The time limit of a call to the engine.
    pub engine_limit: Duration,
}

impl Settings {
    pub fn of(config: &Config) -> Self {
        Settings {
            state_dir: config.state.dir.clone(),
            chats_root: config.chats.root.clone(),
            volume_roots: config.volumes.roots.clone(),
            socket: config.socket.path.clone(),
            allowed: callers::allowed(config),
            max_connections: config.socket.max_connections,
            max_sandboxes: config.limits.sandboxes,
            image_watermark: config.images.gc.high_watermark.into(),
            engine_limit: config.engine.timeouts.connect,
        }
    }
}

impl std::fmt::Debug for Doctor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doctor").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Doctor {
    pub async fn examine(&self) -> Checks {
        judgement::judge(&self.gather().await)
    }

    async fn gather(&self) -> Findings {
        let settings = &self.settings;
        let (engine, condition, networks, images, image_disk, journal, pools, count) = tokio::join!(
            async { self.engine.identify().await.map_err(to_text) },
            self.within_limit(self.condition.condition()),
            self.within_limit(self.networks()),
            async { self.images().await.map_err(to_text) },
            self.within_limit(self.images.disk()),
            self.journal(),
            self.sandboxes.pools(),
            self.sandboxes.count(),
        );
        let (state, chats, volumes) = tokio::join!(
            self.directory(Own::State, "state.dir", &settings.state_dir),
            self.directory(Own::Chats, "chats.root", &settings.chats_root),
            join_all(settings.volume_roots.iter().map(|root| self.volume_root(root))),
        );
        Findings {
            engine,
            condition,
            instance: Instance { name: self.instance.to_string(), is_reconciled: self.reconciled.is_cancelled() },
            networks,
            images,
            image_disk,
            watermark: settings.image_watermark,
            slots: findings::Slots {
                late_binding: self.slots.late_binding(),
                pools: pools.into_iter().map(|pool| self.pool(pool)).collect(),
            },
            journal,
            state,
            chats,
            volumes,
            descriptors: Descriptors {
                limit: host::descriptor_limit(),
                connections: settings.max_connections as u64,
                sandboxes: settings.max_sandboxes.unwrap_or(count) as u64,
            },
            open_ports: host::open_ports(),
            is_networked: self.profiles.values().any(|profile| profile.network != profile::Network::Blocked),
            callers: host::callers(&settings.socket, &settings.allowed),
            user: host::user(),
        }
    }

    async fn directory(&self, own: Own, key: &'static str, path: &Path) -> Directory {
        let checked = path.to_owned();
        let found = self.file_system.own(own, move || host::directory(key, &checked)).await;
        found.unwrap_or_else(|error| Directory { key, path: path.to_owned(), place: Err(to_text(error)) })
    }

    async fn volume_root(&self, root: &Path) -> VolumeRoot {
        let is_there = self.file_system.open(root, Links::Follow).await.is_ok();
        VolumeRoot { path: root.to_owned(), is_there }
    }

    async fn networks(&self) -> Result<Vec<Network>, EngineError> {
        let checks = self.networks.iter().map(async |network| {
            let there = self.condition.networks(&network.name).await?;
            Ok(Network { name: network.name.clone(), isolated: network.isolated, there })
        });
        try_join_all(checks).await
    }

    async fn images(&self) -> Result<Vec<ProfileImage>, EngineError> {
        let checks = self.profiles.values().map(async |profile| {
            let is_there = self.engine.image_id(&profile.image).await?.is_some();
            Ok(ProfileImage { profile: profile.name.to_string(), image: profile.image.clone(), is_there })
        });
        try_join_all(checks).await
    }

    /// Checks that the journal answers and its last write succeeded. Does not write, because the caller may be
    /// read-only.
    async fn journal(&self) -> Found<()> {
        let journal = self.sandboxes.journal();
        let used = async {
            journal.flush().await.map_err(to_text)?;
            journal.events(u64::MAX >> 1, None, 1).await.map_err(to_text)?;
            journal.failure().map_or(Ok(()), |error| Err(format!("the last write to the journal failed: {error}")))
        };
        match tokio::time::timeout(JOURNAL_LIMIT, used).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("the journal did not answer within {JOURNAL_LIMIT:?}")),
        }
    }

    /// Checks that the journal, and the directories of new sandboxes beside it, can be written. Does not write, because
    /// the caller may be read-only; the journal itself retries after a failure.
    pub async fn state_is_writable(&self) -> Found<()> {
        if let Some(error) = self.sandboxes.journal().failure() {
            return Err(to_text(error));
        }
        let place = self.settings.state_dir.clone();
        let space = self.file_system.own(Own::State, move || host::has_space(&place)).await;
        let error = space.map_err(to_text).and_then(|found| found).err();
        let shown = self.settings.state_dir.display();
        error.map_or(Ok(()), |error| Err(format!("the directory {shown} (state.dir) cannot be written: {error}")))
    }

    fn pool(&self, status: pool::Status) -> Pool {
        let configured = self.profiles.get(&status.profile);
        Pool {
            is_wanted: configured.is_some_and(|profile| profile.pool.size > 0),
            problem: status.late_binding.err().or(status.last_error),
            profile: status.profile.to_string(),
        }
    }

    /// Returns the engine's answer, or an error after the time limit.
    async fn within_limit<T, E: std::fmt::Display>(&self, answer: impl Future<Output = Result<T, E>>) -> Found<T> {
        let limit = self.settings.engine_limit;
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer.map_err(to_text),
            Err(_) => Err(format!("the engine did not answer within {limit:?}")),
        }
    }
}

fn to_text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
