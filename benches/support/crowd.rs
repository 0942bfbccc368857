//! A host with very many sandboxes of an earlier run: labelled containers on an engine in memory, and records in a real
//! journal.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sandboxd::journal::SqliteJournal;
use sandboxd::probe::NetworkProbe;
use sandboxd::storage::chat_directories::DirectoriesOnDisk;
use sandboxd::storage::file_system::FileSystem;
use sandboxd_actors::chat::effects::discover::Found;
use sandboxd_actors::chat::{Rules, TeardownLimits, World};
use sandboxd_actors::domain::container::{ContainerSpec, MountPoints, compose};
use sandboxd_actors::domain::create_request::CreateRequest;
use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{ChatId, ContainerId, InstanceName};
use sandboxd_actors::domain::profile::{Limits, Network, OnExpire, Profile, Readiness, ReadinessCheck, Restart};
use sandboxd_actors::engine::bounded::{Bounded, EngineLimits};
use sandboxd_actors::journal::{Entry, Journal, JournalHandle};
use sandboxd_actors::pool::claims::Claims;
use sandboxd_actors::ports::clock::{SystemClock, Timestamp};
use sandboxd_actors::ports::engine::fake::FakeEngine;
use sandboxd_actors::ports::engine::{ContainerState, Observed};
use sandboxd_actors::sandboxes::{Intervals, Sandboxes};
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Longer than any operation here takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Short, so that there are many ticks to measure.
const TICK: Duration = Duration::from_millis(5);

const KEEP_EVENTS: u64 = 10_000;

pub(crate) struct Crowd {
    pub(crate) size: usize,
    pub(crate) directory: PathBuf,
    born_at: Timestamp,
    instance: InstanceName,
    profile: Arc<Profile>,
}

impl Crowd {
    pub(crate) fn new(size: usize, directory: &Path, born_at: Timestamp) -> Outcome<Self> {
        let (directory, instance) = (directory.canonicalize()?, "default".parse()?);
        Ok(Self { size, directory, born_at, instance, profile: Arc::new(profile()?) })
    }

    /// Returns the n-th chat. A chat beyond the crowd's size has no sandbox.
    pub(crate) fn chat(&self, n: usize) -> ChatId {
        // Spread like random ids, and the same in every process.
        ChatId::new(Uuid::from_u128((n as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)))
    }

    pub(crate) fn request(&self, n: usize) -> Outcome<CreateRequest> {
        Ok(CreateRequest {
            chat: self.chat(n),
            agent: format!("agent-{}", n % 100).parse()?,
            workspace: None,
            volume: Some(HostPath::from_canonical(&self.directory.join(format!("volumes/{n}")))?),
            profile: Arc::clone(&self.profile),
            profile_named: false,
            snapshot: None,
            environment: Environment::default(),
            // All deadlines differ.
            ttl: Some(self.profile.ttl + Duration::from_millis(n as u64)),
            idle_timeout: None,
        })
    }

    /// Writes the records of all sandboxes to the journal.
    pub(crate) fn record(&self) -> Outcome<()> {
        let mut journal = self.journal()?;
        let mut entries = vec![Entry::Rebuilt];
        for n in 0..self.size {
            let found = Found::recognise(self.container(n)?.0, &self.instance, &Claims::default())?;
            entries.push(Entry::Save(Box::new(found.sandbox(self.born_at))));
        }
        Ok(journal.commit(&entries)?)
    }

    /// Returns an engine with the containers of all sandboxes.
    pub(crate) fn engine(&self) -> Outcome<FakeEngine> {
        let engine = FakeEngine::new();
        for n in 0..self.size {
            let (observed, spec) = self.container(n)?;
            engine.place(observed, spec);
        }
        Ok(engine)
    }

    /// Reads the journal and starts the core, without a reconciliation.
    pub(crate) async fn start(&self, engine: &FakeEngine) -> Outcome<Sandboxes> {
        let (journal, contents) = JournalHandle::start(self.journal()?, PATIENCE, None).await?;
        let profiles = Arc::new(BTreeMap::from([(self.profile.name.clone(), Arc::clone(&self.profile))]));
        let limits = EngineLimits {
            identify: PATIENCE,
            network: PATIENCE,
            image: PATIENCE,
            create: PATIENCE,
            start: PATIENCE,
            inspect: PATIENCE,
            list: PATIENCE,
            logs: PATIENCE,
            commit: PATIENCE,
        };
        let file_system = FileSystem::new(&self.directory.join("state"), &self.directory.join("chats"))?;
        let world = World {
            instance: self.instance.clone(),
            engine: Bounded::new(Arc::new(engine.clone()), limits),
            engine_queue: sandboxd_actors::engine::fair_queue::EngineQueue::new(4),
            queue_limit: Duration::from_secs(60),
            capacity: Default::default(),
            probe: Arc::new(NetworkProbe),
            directories: Arc::new(DirectoriesOnDisk::open(&self.directory.join("chats"), file_system)?),
            guests: Arc::new(sandboxd_actors::ports::guest::NoGuestSetup),
            slots: Arc::new(sandboxd_actors::ports::slot::NoSlots),
            claims: Arc::default(),
            clock: Arc::new(SystemClock),
            mounts: self.mounts()?,
            teardown: TeardownLimits { graceful: PATIENCE, remove: PATIENCE, total: PATIENCE },
            journal,
            rules: Rules {
                trust: Duration::from_secs(1),
                profiles,
                max_leases: 64,
                max_lease: Duration::from_secs(3600),
            },
            cleanups: Default::default(),
            addresses: Default::default(),
            retention: sandboxd_actors::domain::snapshot::retention::Retention {
                keep: 5,
                max_age: Duration::from_secs(3600),
            },
        };
        let rhythm = Intervals { reap: TICK, reconcile: Duration::from_secs(3600) };
        Ok(Sandboxes::start(world, contents, rhythm).await?.0)
    }

    fn journal(&self) -> Outcome<SqliteJournal> {
        Ok(SqliteJournal::open(&self.directory.join("journal.sqlite"), &self.instance, KEEP_EVENTS)?)
    }

    fn container(&self, n: usize) -> Outcome<(Observed, ContainerSpec)> {
        let chat_directory = HostPath::from_canonical(&self.directory.join(format!("chats/{n}")))?;
        let session = Uuid::from_u128(n as u128).to_string().parse()?;
        let (request, mounts) = (self.request(n)?, self.mounts()?);
        let spec = compose(&self.instance, &mounts, &request, chat_directory, session, self.born_at);
        let observed = Observed {
            id: ContainerId::new(format!("{n:064x}")),
            name: spec.name.to_string(),
            image: spec.image.clone(),
            labels: spec.labels.clone(),
            state: ContainerState::Running,
            started_at: Some(self.born_at),
            address: Some([10, (n >> 16) as u8, (n >> 8) as u8, n as u8].into()),
            health: None,
        };
        Ok((observed, spec))
    }

    fn mounts(&self) -> Outcome<MountPoints> {
        Ok(MountPoints {
            chat: "/chat".into(),
            volume: "/volume".into(),
            dependencies: "/dependencies".into(),
            lambda_tools: "/lambda-tools".into(),
            dependencies_source: HostPath::from_canonical(&self.directory.join("dependencies"))?,
            lambda_tools_source: HostPath::from_canonical(&self.directory.join("lambda-tools"))?,
        })
    }
}

fn profile() -> Outcome<Profile> {
    Ok(Profile {
        name: "default".parse()?,
        image: "registry.example/sandboxes/python:3.13".into(),
        command: vec![],
        port: 8080,
        network: Network::Named("sandboxd".into()),
        environment: Environment::default(),
        limits: Limits { memory_bytes: 1 << 30, cpus: 1.0, pids: 256, disk_bytes: None },
        mounts: vec![],
        tmpfs: BTreeMap::new(),
        user: None,
        read_only_root: false,
        init: true,
        runtime: None,
        capabilities: vec![],
        readiness: Readiness { check: ReadinessCheck::None, timeout: PATIENCE },
        ttl: Duration::from_secs(24 * 3600),
        idle_timeout: Duration::from_secs(48 * 3600),
        on_expire: OnExpire::Delete,
        snapshot_on_delete: false,
        restart: Restart::Never,
        pool: Default::default(),
        max_sandboxes: None,
    })
}
