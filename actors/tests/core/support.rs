//! A running core whose ports are controlled by the test.

mod clock;
mod directories;
mod guests;
mod probe;
mod slots;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandboxd_actors::chat::{Rules, TeardownLimits, World};
use sandboxd_actors::domain::container::{ContainerSpec, MountPoints, compose};
use sandboxd_actors::domain::create_request::CreateRequest;
use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{ChatId, ContainerId, InstanceName, SessionId};
use sandboxd_actors::domain::outcome::{Created, SandboxError, StartFailure};
use sandboxd_actors::domain::profile::{Limits, Network, OnExpire, PoolTargets, Profile, Readiness, ReadinessCheck};
use sandboxd_actors::domain::sandbox::{Sandbox, Status};
use sandboxd_actors::engine::bounded::{Bounded, EngineLimits};
use sandboxd_actors::engine::fair_queue::EngineQueue;
use sandboxd_actors::journal::JournalHandle;
use sandboxd_actors::journal::memory::MemoryJournal;
use sandboxd_actors::pool::claims::Claims;
use sandboxd_actors::ports::clock::{Clock, Timestamp};
use sandboxd_actors::ports::engine::fake::FakeEngine;
use sandboxd_actors::ports::engine::{ContainerState, EngineError, Observed, Operation};
use sandboxd_actors::reconciler::Trigger;
use sandboxd_actors::reconciler::plan::Action;
use sandboxd_actors::root::limits::Capacity;
use sandboxd_actors::sandboxes::{Intervals, Sandboxes};

pub(crate) use clock::TestClock;
pub(crate) use directories::{Done, TestDirectories};
use guests::TestGuests;
pub(crate) use probe::{Behaviour, TestProbe};
pub(crate) use slots::TestSlots;

/// A sandbox observed within this time is reused without an inspect.
pub(crate) const TRUST: Duration = Duration::from_secs(2);
/// The limit of every engine call.
pub(crate) const ENGINE_LIMIT: Duration = Duration::from_secs(20);
const JOURNAL_LIMIT: Duration = Duration::from_secs(30);
pub(crate) const TEARDOWN: TeardownLimits =
    TeardownLimits { graceful: Duration::from_secs(3), remove: Duration::from_secs(5), total: Duration::from_secs(10) };

/// One run of the core. Its engine, with its containers, outlives it.
pub(crate) struct Service {
    pub(crate) sandboxes: Sandboxes,
    pub(crate) engine: FakeEngine,
    pub(crate) clock: TestClock,
    pub(crate) probe: TestProbe,
    pub(crate) directories: TestDirectories,
    pub(crate) journal: MemoryJournal,
    pub(crate) slots: TestSlots,
    /// The configured profile.
    pub(crate) profile: Arc<Profile>,
}

impl Service {
    /// Starts a service that has listed its engine, as before serving requests.
    pub(crate) async fn start() -> Self {
        let service = Self::unlisted(FakeEngine::new()).await;
        service.adopt().await.expect("an engine without faults can be listed");
        service
    }

    /// Starts a service that has not listed its engine yet.
    pub(crate) async fn unlisted(engine: FakeEngine) -> Self {
        Self::with_permits(engine, 64).await
    }

    pub(crate) async fn with_permits(engine: FakeEngine, permits: usize) -> Self {
        Self::with(instance(), engine, MemoryJournal::default(), permits).await
    }

    /// Starts a service with these limits that has not listed its engine yet.
    pub(crate) async fn limited(engine: FakeEngine, capacity: Capacity) -> Self {
        Self::build(instance(), engine, MemoryJournal::default(), 64, request().profile, capacity).await
    }

    /// Starts a service with this profile that has listed its engine.
    pub(crate) async fn with_profile(profile: Arc<Profile>) -> Self {
        Self::with_profile_and_permits(64, profile).await
    }

    /// The same, with this number of engine permits.
    pub(crate) async fn with_profile_and_permits(permits: usize, profile: Arc<Profile>) -> Self {
        let (engine, journal) = (FakeEngine::new(), MemoryJournal::default());
        let service = Self::build(instance(), engine, journal, permits, profile, Capacity::default()).await;
        service.adopt().await.expect("an engine without faults can be listed");
        service
    }

    /// Starts a service with a pool.
    pub(crate) async fn pooled(engine: FakeEngine, pool: PoolTargets) -> Self {
        let profile = Arc::new(Profile { pool, ..(*request().profile).clone() });
        Self::build(instance(), engine, MemoryJournal::default(), 64, profile, Capacity::default()).await
    }

    /// Starts a service with this number of engine permits and this expiry action.
    pub(crate) async fn with_expiry(permits: usize, on_expire: OnExpire) -> Self {
        Self::with_profile_and_permits(permits, Arc::new(Profile { on_expire, ..(*request().profile).clone() })).await
    }

    /// Starts another instance on the same engine, with a journal of its own.
    pub(crate) async fn another_instance(&self) -> Self {
        let another = "another".parse().expect("a name");
        let service = Self::with(another, self.engine.clone(), MemoryJournal::default(), 64).await;
        service.adopt().await.expect("an engine without faults can be listed");
        service
    }

    async fn with(instance: InstanceName, engine: FakeEngine, journal: MemoryJournal, permits: usize) -> Self {
        Self::build(instance, engine, journal, permits, request().profile, Capacity::default()).await
    }

    async fn build(
        instance: InstanceName,
        engine: FakeEngine,
        journal: MemoryJournal,
        permits: usize,
        profile: Arc<Profile>,
        capacity: Capacity,
    ) -> Self {
        let (handle, contents) =
            JournalHandle::start_in_place(journal.clone(), JOURNAL_LIMIT).await.expect("the journal opens");
        let profiles = [(profile.name.clone(), Arc::clone(&profile))].into();
        let slots = TestSlots::default();
        let claims = Arc::new(Claims::default());
        contents.claims.iter().cloned().for_each(|claim| claims.insert(claim));
        let (clock, probe, directories) = (TestClock::default(), TestProbe::default(), TestDirectories::default());
        let limits = EngineLimits {
            identify: ENGINE_LIMIT,
            network: ENGINE_LIMIT,
            image: ENGINE_LIMIT,
            create: ENGINE_LIMIT,
            start: ENGINE_LIMIT,
            inspect: ENGINE_LIMIT,
            list: ENGINE_LIMIT,
            logs: ENGINE_LIMIT,
            commit: ENGINE_LIMIT,
        };
        let world = World {
            instance,
            engine: Bounded::new(Arc::new(engine.clone()), limits),
            engine_queue: EngineQueue::new(permits),
            queue_limit: Duration::from_secs(60),
            capacity,
            probe: Arc::new(probe.clone()),
            directories: Arc::new(directories.clone()),
            guests: Arc::new(TestGuests),
            slots: Arc::new(slots.clone()),
            claims,
            clock: Arc::new(clock.clone()),
            mounts: mount_points(),
            teardown: TEARDOWN,
            journal: handle,
            rules: Rules {
                trust: TRUST,
                profiles: Arc::new(profiles),
                max_leases: 4,
                max_lease: Duration::from_secs(3600),
            },
            cleanups: Default::default(),
            addresses: Default::default(),
            retention: sandboxd_actors::domain::snapshot::retention::Retention {
                keep: 5,
                max_age: Duration::from_secs(3600),
            },
        };
        let intervals = Intervals { reap: Duration::from_secs(1), reconcile: Duration::from_secs(3600) };
        let (sandboxes, _) = Sandboxes::start(world, contents, intervals).await.expect("root starts");
        Self { sandboxes, engine, clock, probe, directories, journal, slots, profile }
    }

    /// Reconciles with the engine. Returns the number of actions on sandboxes, and of containers that were left alone.
    pub(crate) async fn adopt(&self) -> Result<(usize, usize), EngineError> {
        let report = self.sandboxes.reconcile(Trigger::Start, false).await?;
        let left = report.actions.iter().filter(|action| matches!(action, Action::Leave { .. })).count();
        Ok((report.actions.len() - left, left))
    }

    /// Starts the next run of the service on the same engine and journal. It has not listed the engine yet.
    pub(crate) async fn next_run(&self) -> Self {
        let (engine, journal, profile) = (self.engine.clone(), self.journal.clone(), Arc::clone(&self.profile));
        Self::build(instance(), engine, journal, 64, profile, Capacity::default()).await
    }

    /// Creates a sandbox; the create must succeed.
    pub(crate) async fn created(&self, request: &CreateRequest) -> Created {
        self.sandboxes.create(request.clone()).await.expect("the create succeeds")
    }

    /// Creates a sandbox; the create must fail.
    pub(crate) async fn start_failure(&self, request: &CreateRequest) -> StartFailure {
        start_failure(self.sandboxes.create(request.clone()).await)
    }

    /// Starts a create that runs while the test does other things.
    pub(crate) fn creating(&self, request: &CreateRequest) -> tokio::task::JoinHandle<Result<Created, SandboxError>> {
        let (sandboxes, request) = (self.sandboxes.clone(), request.clone());
        tokio::spawn(async move { sandboxes.create(request).await })
    }

    pub(crate) async fn sandbox(&self, chat: ChatId) -> Option<Sandbox> {
        self.sandboxes.get(chat).await.expect("the chat can be asked")
    }

    /// Returns the only container.
    pub(crate) fn container(&self) -> Observed {
        let mut containers = self.engine.containers();
        assert_eq!(containers.len(), 1, "{containers:?}");
        containers.remove(0)
    }

    /// Resolves once the chat's sandbox is in this status.
    pub(crate) async fn until_status(&self, chat: ChatId, status: Status) {
        let reached = async {
            while self.sandbox(chat).await.is_none_or(|sandbox| sandbox.status != status) {
                tokio::task::yield_now().await;
            }
        };
        in_time(reached).await;
    }

    /// Resolves once no chat has an actor.
    pub(crate) async fn until_all_retired(&self) {
        self.until_served(0).await;
    }

    pub(crate) async fn until_served(&self, chats: usize) {
        let served = async {
            while self.sandboxes.count().await != chats {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        in_time(served).await;
    }

    /// Resolves once the engine has no containers.
    pub(crate) async fn until_empty(&self) {
        in_time(self.engine.until(|engine| engine.containers().is_empty())).await;
    }

    pub(crate) async fn reached(&self, operation: Operation) {
        in_time(self.engine.reached(operation, 1)).await;
    }
}

/// Fails a test whose condition never comes true.
pub(crate) async fn in_time<T>(condition: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), condition).await.expect("the condition comes true")
}

pub(crate) fn start_failure(answer: Result<Created, SandboxError>) -> StartFailure {
    match answer {
        Err(SandboxError::StartFailed { failure, .. }) => failure,
        other => panic!("expected a failed start, got {other:?}"),
    }
}

/// A request for a new chat.
pub(crate) fn request() -> CreateRequest {
    request_for(ChatId::new(uuid::Uuid::new_v4()))
}

pub(crate) fn request_for(chat: ChatId) -> CreateRequest {
    CreateRequest {
        chat,
        agent: "agent".parse().unwrap(),
        workspace: None,
        volume: Some(path("/data/volume")),
        profile: Arc::new(Profile {
            name: "default".parse().unwrap(),
            image: "image".into(),
            command: vec![],
            port: 8080,
            network: Network::Named("sandboxd".into()),
            environment: Environment::default(),
            limits: Limits { memory_bytes: 1 << 30, cpus: 1.0, pids: 256, disk_bytes: None },
            user: None,
            read_only_root: false,
            init: true,
            mounts: vec![],
            tmpfs: Default::default(),
            runtime: None,
            capabilities: vec![],
            readiness: Readiness { check: ReadinessCheck::None, timeout: Duration::from_secs(30) },
            ttl: Duration::from_secs(300),
            idle_timeout: Duration::from_secs(7200),
            on_expire: Default::default(),
            snapshot_on_delete: false,
            restart: Default::default(),
            pool: Default::default(),
            max_sandboxes: None,
        }),
        profile_named: false,
        snapshot: None,
        environment: Environment::default(),
        ttl: None,
        idle_timeout: None,
    }
}

/// A request whose sandbox must pass the check within the limit.
pub(crate) fn ready_when(check: ReadinessCheck, timeout: Duration) -> CreateRequest {
    let mut request = request();
    Arc::make_mut(&mut request.profile).readiness = Readiness { check, timeout };
    request
}

/// Puts a container on the engine, as a leftover of an earlier run of the service.
pub(crate) fn leave(
    engine: &FakeEngine,
    request: &CreateRequest,
    state: ContainerState,
    created_at: Timestamp,
) -> SessionId {
    let session = SessionId::random();
    let spec = compose(&instance(), &mount_points(), request, path("/srv/chat"), session, created_at);
    engine.place(observed(&spec, state), spec);
    session
}

pub(crate) fn observed(spec: &ContainerSpec, state: ContainerState) -> Observed {
    Observed {
        id: ContainerId::new(uuid::Uuid::new_v4().to_string()),
        name: spec.name.to_string(),
        image: spec.image.clone(),
        labels: spec.labels.clone(),
        state,
        started_at: None,
        address: Some([10, 0, 0, 1].into()),
        health: None,
    }
}

/// The container of a request, to be changed and placed by the test.
pub(crate) fn spec(request: &CreateRequest, now: &TestClock) -> ContainerSpec {
    compose(&instance(), &mount_points(), request, path("/srv/chat"), SessionId::random(), now.now())
}

pub(crate) fn instance() -> InstanceName {
    "default".parse().unwrap()
}

fn mount_points() -> MountPoints {
    MountPoints {
        chat: "/chat".into(),
        volume: "/volume".into(),
        dependencies: "/dependencies".into(),
        lambda_tools: "/lambda-tools".into(),
        dependencies_source: path("/srv/dependencies"),
        lambda_tools_source: path("/srv/lambda-tools"),
    }
}

pub(crate) fn path(text: &str) -> HostPath {
    HostPath::from_canonical(Path::new(text)).unwrap()
}
