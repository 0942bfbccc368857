//! A running core on an engine in memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandboxd_actors::chat::{Rules, TeardownLimits, World};
use sandboxd_actors::domain::container::MountPoints;
use sandboxd_actors::domain::create_request::CreateRequest;
use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{ChatId, ContainerId};
use sandboxd_actors::domain::profile::{Limits, Network, OnExpire, Profile, Readiness, ReadinessCheck, Restart, User};
use sandboxd_actors::domain::sandbox::{Sandbox, Status};
use sandboxd_actors::engine::bounded::{Bounded, EngineLimits};
use sandboxd_actors::journal::JournalHandle;
use sandboxd_actors::journal::memory::MemoryJournal;
use sandboxd_actors::ports::chat_directories::{ChatDirectories, DirectoryError};
use sandboxd_actors::ports::clock::SystemClock;
use sandboxd_actors::ports::engine::Operation;
use sandboxd_actors::ports::engine::events::EventKind;
use sandboxd_actors::ports::engine::fake::FakeEngine;
use sandboxd_actors::ports::probe::{NotReady, Probe};
use sandboxd_actors::reconciler::Trigger;
use sandboxd_actors::sandboxes::{Intervals, Sandboxes};

pub(crate) const MEMORY_LIMIT: u64 = 1 << 30;

/// One run of the core. Engine and journal, with their contents, outlive it.
pub(crate) struct Service {
    pub(crate) sandboxes: Sandboxes,
    pub(crate) engine: FakeEngine,
}

impl Service {
    /// Starts a service that has listed its engine, as before serving requests.
    pub(crate) async fn start(engine: &FakeEngine, journal: &MemoryJournal) -> Self {
        let service = Self::unlisted(engine, journal).await;
        service.sandboxes.reconcile(Trigger::Start, false).await.expect("an engine without faults can be listed");
        service
    }

    pub(crate) async fn unlisted(engine: &FakeEngine, journal: &MemoryJournal) -> Self {
        let limit = Duration::from_secs(20);
        let (journal, contents) =
            JournalHandle::start(journal.clone(), limit, None).await.expect("a journal in memory can be read");
        let limits = EngineLimits {
            identify: limit,
            network: limit,
            image: limit,
            create: limit,
            start: limit,
            inspect: limit,
            list: limit,
            logs: limit,
            commit: limit,
        };
        let profile = profile();
        let world = World {
            instance: "default".parse().expect("a name"),
            engine: Bounded::new(Arc::new(engine.clone()), limits),
            engine_queue: sandboxd_actors::engine::fair_queue::EngineQueue::new(64),
            queue_limit: Duration::from_secs(60),
            capacity: Default::default(),
            probe: Arc::new(AlwaysReady),
            directories: Arc::new(AlwaysReady),
            guests: Arc::new(sandboxd_actors::ports::guest::NoGuestSetup),
            slots: Arc::new(sandboxd_actors::ports::slot::NoSlots),
            claims: Arc::default(),
            clock: Arc::new(SystemClock),
            mounts: MountPoints {
                chat: "/chat".into(),
                volume: "/volume".into(),
                dependencies: "/dependencies".into(),
                lambda_tools: "/lambda-tools".into(),
                dependencies_source: path("/srv/dependencies"),
                lambda_tools_source: path("/srv/lambda-tools"),
            },
            teardown: TeardownLimits { graceful: limit, remove: limit, total: limit },
            journal,
            cleanups: Default::default(),
            addresses: Default::default(),
            retention: sandboxd_actors::domain::snapshot::retention::Retention {
                keep: 5,
                max_age: Duration::from_secs(3600),
            },
            rules: Rules {
                trust: Duration::from_secs(3600),
                profiles: Arc::new(BTreeMap::from([(profile.name.clone(), profile)])),
                max_leases: 4,
                max_lease: Duration::from_secs(3600),
            },
        };
        // Periodic work finds no change.
        let intervals = Intervals { reap: Duration::from_secs(3600), reconcile: Duration::from_secs(3600) };
        let (sandboxes, _) = Sandboxes::start(world, contents, intervals).await.expect("root starts");
        Self { sandboxes, engine: engine.clone() }
    }

    /// Creates a sandbox for a new chat.
    pub(crate) async fn sandbox(&self) -> (ChatId, ContainerId) {
        let created = self.sandboxes.create(request()).await.expect("the create succeeds");
        (created.sandbox.chat, created.sandbox.container.expect("it has a container"))
    }

    pub(crate) async fn status(&self, chat: ChatId) -> Option<Status> {
        self.sandboxes.get(chat).await.expect("the chat can be asked").map(|sandbox| sandbox.status)
    }

    /// Returns the failed sandbox. The engine is not inspected for it.
    pub(crate) async fn failed(&self, chat: ChatId) -> Sandbox {
        let failing = async {
            loop {
                let sandbox = self.sandboxes.get(chat).await.expect("the chat can be asked").expect("it is kept");
                if sandbox.status == Status::Failed {
                    return sandbox;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        in_time(failing).await
    }

    /// Resolves once the core has processed all earlier events.
    pub(crate) async fn until_processed(&self, witness: &ContainerId) {
        let inspects = self.engine.calls(Operation::Inspect);
        // The stream is ordered, and an inspect of the witness follows its event.
        self.engine.report_event(witness, EventKind::Died);
        in_time(self.engine.reached(Operation::Inspect, inspects + 1)).await;
    }

    /// Resolves once `count` streams are open.
    pub(crate) async fn streams(&self, count: usize) {
        let open = async {
            while self.engine.streams() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        in_time(open).await;
    }
}

/// Fails a test whose condition never comes true.
pub(crate) async fn in_time<T>(condition: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), condition).await.expect("the condition comes true")
}

/// A request for a new chat.
pub(crate) fn request() -> CreateRequest {
    CreateRequest {
        chat: ChatId::new(uuid::Uuid::new_v4()),
        agent: "agent".parse().expect("an id"),
        workspace: None,
        volume: Some(path("/data/volume")),
        profile: profile(),
        profile_named: false,
        snapshot: None,
        environment: Environment::default(),
        ttl: None,
        idle_timeout: None,
    }
}

fn profile() -> Arc<Profile> {
    Arc::new(Profile {
        name: "default".parse().expect("a name"),
        image: "image".into(),
        command: vec![],
        port: 8080,
        network: Network::Named("sandboxd".into()),
        environment: Environment::default(),
        limits: Limits { memory_bytes: MEMORY_LIMIT, cpus: 1.0, pids: 256, disk_bytes: None },
        user: None,
        read_only_root: false,
        init: true,
        mounts: vec![],
        tmpfs: BTreeMap::new(),
        runtime: None,
        capabilities: vec![],
        readiness: Readiness { check: ReadinessCheck::None, timeout: Duration::from_secs(30) },
        ttl: Duration::from_secs(3600),
        idle_timeout: Duration::from_secs(3600),
        on_expire: OnExpire::Delete,
        snapshot_on_delete: false,
        restart: Restart::Never,
        pool: Default::default(),
        max_sandboxes: None,
    })
}

fn path(text: &str) -> HostPath {
    HostPath::from_canonical(Path::new(text)).expect("a canonical path")
}

/// Probe and directories that always succeed.
struct AlwaysReady;

#[async_trait]
impl Probe for AlwaysReady {
    async fn http(&self, _: SocketAddr, _: &str) -> Result<(), NotReady> {
        Ok(())
    }

    async fn tcp(&self, _: SocketAddr) -> Result<(), NotReady> {
        Ok(())
    }
}

#[async_trait]
impl ChatDirectories for AlwaysReady {
    async fn prepare(&self, chat: ChatId, _: Option<User>) -> Result<HostPath, DirectoryError> {
        Ok(path(&format!("/srv/chats/{chat}")))
    }

    async fn remove(&self, _: ChatId) -> Result<bool, DirectoryError> {
        Ok(false)
    }

    async fn finish_removals(&self) -> Result<(), DirectoryError> {
        Ok(())
    }

    async fn list(&self) -> Result<Vec<ChatId>, DirectoryError> {
        Ok(Vec::new())
    }

    async fn changed_at(&self, _: ChatId) -> Result<Option<sandboxd_actors::ports::clock::Timestamp>, DirectoryError> {
        Ok(None)
    }

    async fn mark_used(&self, _: ChatId) -> Result<(), DirectoryError> {
        Ok(())
    }
}
