//! The service in the test's process: a real socket, the real core and a fake engine.

// Each test binary uses a part of this module.
#![allow(dead_code)]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::FutureExt;
use sandboxd::config::Config;
use sandboxd::doctor::{Doctor, Settings};
use sandboxd::engine::condition::{Condition, Enforced, EngineCondition, NetworkCondition};
use sandboxd::engine::guest::NoGuestAccess;
use sandboxd::guest::{GuestsOnDisk, GuestsViaEngine};
use sandboxd::languages::Languages;
use sandboxd::probe::NetworkProbe;
use sandboxd::server::access::{Access, Allowed};
use sandboxd::server::accounts::Accounts;
use sandboxd::server::guest::{Attachments, Syncs};
use sandboxd::server::handler::Handler;
use sandboxd::server::listener::{Listener, SocketOptions};
use sandboxd::server::{Limits, Server};
use sandboxd::storage::chat_directories::DirectoriesOnDisk;
use sandboxd::storage::file_system::FileSystem;
use sandboxd::storage::volumes::VolumePolicy;
use sandboxd_actors::builder::garbage_collection::Watermarks;
use sandboxd_actors::builder::repository_image::Repository;
use sandboxd_actors::builder::{BuilderLimits, BuilderSetup, CollectionSettings};
use sandboxd_actors::chat::{Rules, TeardownLimits, World};
use sandboxd_actors::domain::container::MountPoints;
use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::SessionId;
use sandboxd_actors::domain::profile::{
    Limits as Resources, Network, OnExpire, Profile, Readiness, ReadinessCheck, Restart,
};
use sandboxd_actors::domain::subnet::AddressRange;
use sandboxd_actors::engine::bounded::{Bounded, EngineLimits};
use sandboxd_actors::journal::JournalHandle;
use sandboxd_actors::journal::memory::MemoryJournal;
use sandboxd_actors::ports::chat_directories::DirectoryError;
use sandboxd_actors::ports::clock::SystemClock;
use sandboxd_actors::ports::engine::fake::FakeEngine;
use sandboxd_actors::ports::engine::{EngineError, NetworkSpec};
use sandboxd_actors::ports::guest::{GuestSetup, Guests, NotBegun, Started};
use sandboxd_actors::ports::images::fake::{FakeImages, FakeSources};
use sandboxd_actors::reconciler::Trigger;
use sandboxd_actors::sandboxes::{Intervals, Sandboxes};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Longer than any correct operation in these tests takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The longest lease.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(600);

/// The maximum number of leases of one sandbox.
pub(crate) const MAX_LEASES: usize = 64;

/// The shortest request.
pub(crate) const INFO: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"system.info\"}\n";

pub(crate) struct Service {
    pub(crate) engine: FakeEngine,
    pub(crate) journal: MemoryJournal,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) socket: PathBuf,
    pub(crate) volume: String,
    pub(crate) shutdown: CancellationToken,
    pub(crate) serving: JoinHandle<()>,
    _directory: tempfile::TempDir,
}

impl Service {
    pub(crate) async fn start() -> Self {
        Self::with_limits(Limits::default()).await
    }

    pub(crate) async fn with_limits(limits: Limits) -> Self {
        Self::with(limits, &Allowed::default()).await
    }

    pub(crate) async fn with(limits: Limits, allowed: &Allowed) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        // Other users must be able to reach the socket, and be refused there.
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).expect("opened");
        let place = directory.path().canonicalize().expect("canonical");
        for name in ["volumes/v", "dependencies", "tools"] {
            std::fs::create_dir_all(place.join(name)).expect("created");
        }
        let engine = FakeEngine::new();
        let journal = MemoryJournal::new();
        let (handle, contents) = JournalHandle::start(journal.clone(), PATIENCE, None).await.expect("loaded");
        let profiles = Arc::new(BTreeMap::from(["default", "other"].map(profile)));
        let rules = Rules {
            trust: Duration::from_secs(1),
            profiles: Arc::clone(&profiles),
            max_leases: MAX_LEASES,
            max_lease: MAX_LEASE,
        };
        let file_system = FileSystem::new(&place.join("state"), &place.join("chats")).expect("a pool");
        let guests = GuestsOnDisk::open(&place.join("state"), Arc::default(), file_system.clone()).expect("a state");
        let policy = VolumePolicy::new(file_system.clone(), [place.join("volumes")], []).await.expect("a root");
        let syncs = Syncs::default();
        let mut world = world(&place, engine.clone(), handle, rules, Arc::clone(&guests), file_system.clone());
        world.guests = syncs.removed_with(world.guests);
        let (instance, bounded) = (world.instance.clone(), world.engine.clone());
        let rhythm = Intervals { reap: Duration::from_millis(20), reconcile: Duration::from_secs(3600) };
        let images = FakeImages::new();
        images.add("sandbox:1", BTreeMap::new());
        let builder_setup = Some(Arc::new(builder_setup(&images)));
        let (sandboxes, _) = Sandboxes::start_with(world, contents, rhythm, builder_setup).await.expect("started");
        sandboxes.reconcile(Trigger::Start, false).await.expect("listed");
        let doctor = Doctor {
            instance: instance.clone(),
            engine: bounded.clone(),
            condition: Arc::new(FitEngine),
            images: Arc::new(images),
            sandboxes: sandboxes.clone(),
            slots: Arc::new(sandboxd_actors::ports::slot::NoSlots),
            profiles: Arc::clone(&profiles),
            networks: vec![NetworkSpec {
                name: "sandboxd".into(),
                isolated: true,
                addresses: AddressRange::EngineChoice,
                labels: BTreeMap::new(),
            }],
            settings: settings(&place, &limits),
            file_system: file_system.clone(),
            reconciled: reconciled(),
        };
        let handler = Handler {
            instance,
            sandboxes: sandboxes.clone(),
            guests,
            guests_via_engine: GuestsViaEngine::new(Arc::new(NoGuestAccess), place.join("state"), file_system.clone()),
            engine: bounded,
            doctor,
            volumes: policy.clone(),
            contexts: policy.clone(),
            profiles,
            languages: languages(&place),
            clock: Arc::new(SystemClock),
            max_lease: MAX_LEASE,
            attachments: Attachments::default(),
            syncs,
            started: Instant::now(),
        };
        let access = Access::new(allowed, Accounts::of_host()).expect("no names");
        let socket = place.join("sandboxd.sock");
        let options = SocketOptions { path: socket.clone(), mode: 0o666, gid: None };
        let listener = Listener::bind(&options).await.expect("bound");
        let shutdown = CancellationToken::new();
        let server = Server::new(handler, limits, access);
        let serving = tokio::spawn(server.serve(listener, shutdown.clone(), PATIENCE));
        let volume = place.join("volumes/v").to_str().expect("UTF-8").to_owned();
        Self { engine, journal, sandboxes, socket, volume, shutdown, serving, _directory: directory }
    }

    pub(crate) async fn connect(&self) -> Caller {
        Caller::new(UnixStream::connect(&self.socket).await.expect("connected"))
    }

    /// Returns the line of a create request for this chat.
    pub(crate) fn create(&self, id: u64, chat: &str) -> String {
        let params = json!({ "chat_id": chat, "agent_id": "agent", "volume_host_path": self.volume });
        request(id, "sandbox.create", &params)
    }
}

pub(crate) fn chat() -> String {
    Uuid::new_v4().to_string()
}

pub(crate) fn request(id: u64, method: &str, params: &Value) -> String {
    format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
}

/// A connection to the service, with access to single bytes.
pub(crate) struct Caller {
    pub(crate) source: BufReader<OwnedReadHalf>,
    pub(crate) sink: OwnedWriteHalf,
}

impl Caller {
    pub(crate) fn new(stream: UnixStream) -> Self {
        let (source, sink) = stream.into_split();
        Self { source: BufReader::new(source), sink }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.sink.write_all(bytes.as_ref()).await.expect("sent");
    }

    /// Returns the next line, or `None` once the service has closed the connection.
    pub(crate) async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.source.read_line(&mut line)).await.expect("an answer in time");
        match read {
            Ok(0) => None,
            Ok(_) => Some(line),
            // The service closed the connection with unread input.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) async fn next(&mut self) -> Option<Value> {
        let line = self.line().await?;
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}")))
    }

    /// Returns whether no bytes have arrived yet.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.source.fill_buf().now_or_never().is_none()
    }

    pub(crate) async fn answer(&mut self) -> Value {
        self.next().await.expect("an answer, not the end")
    }

    pub(crate) async fn ask(&mut self, line: impl AsRef<[u8]>) -> Value {
        self.send(line).await;
        self.answer().await
    }
}

/// Returns the error kind of an answer.
pub(crate) fn kind(answer: &Value) -> &str {
    answer["error"]["data"]["kind"].as_str().unwrap_or_else(|| panic!("no error: {answer}"))
}

/// Asserts that the connection still answers.
pub(crate) async fn is_usable(caller: &mut Caller) {
    let answer = caller.ask("{\"jsonrpc\":\"2.0\",\"id\":\"still\",\"method\":\"system.info\"}\n").await;
    assert_eq!(answer["id"], "still", "{answer}");
    assert_eq!(answer["result"]["protocol"], 1, "{answer}");
}

/// Starts each sandbox's init as a process of this machine: the fake engine starts none.
struct LocalInits {
    guests: Arc<GuestsOnDisk>,
    running: Mutex<HashMap<SessionId, LocalInit>>,
}

/// Ends with every process below it, as a container does.
struct LocalInit(Child);

impl Drop for LocalInit {
    fn drop(&mut self) {
        if let Some(pid) = self.0.id() {
            kill_tree(pid);
        }
    }
}

fn kill_tree(pid: u32) {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children.flat_map(|line| numbers(&line)).collect();
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    children.into_iter().for_each(kill_tree);
}

fn numbers(line: &str) -> Vec<u32> {
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[async_trait]
impl Guests for LocalInits {
    async fn prepare(&self, session: SessionId, _: bool) -> Result<Option<GuestSetup>, DirectoryError> {
        let setup = self.guests.prepare(session, false).await?.expect("an init");
        let [program, run] = [0, 1].map(|index| Path::new(setup.mounts[index].source.as_str()));
        let init = Command::new(program)
            .envs(setup.environment.iter().map(|(name, value)| (name, value)))
            .env("SANDBOXD_INIT_SOCKET", run.join("socket"))
            .current_dir(run)
            .kill_on_drop(true)
            .spawn()
            .expect("an init");
        self.running.lock().expect("no panic").insert(session, LocalInit(init));
        Ok(Some(setup))
    }

    /// The mounts are those of this machine.
    async fn begin(&self, _: Started<'_>) -> Result<(), NotBegun> {
        Ok(())
    }

    async fn clear(&self, session: SessionId) {
        self.running.lock().expect("no panic").remove(&session);
        self.guests.clear(session).await;
    }

    fn has_inherited(&self) -> bool {
        self.guests.has_inherited()
    }

    async fn retain(&self, known: &HashSet<SessionId>) {
        self.guests.retain(known).await;
    }
}

/// An engine setup without problems.
pub(crate) struct FitEngine;

#[async_trait]
impl EngineCondition for FitEngine {
    async fn condition(&self) -> Result<Condition, EngineError> {
        Ok(Condition { limits: Enforced { memory: true, cpus: true, pids: true }, live_restore: true })
    }

    async fn networks(&self, _: &str) -> Result<Vec<NetworkCondition>, EngineError> {
        let subnet = "172.20.0.0/16".parse().ok();
        Ok(vec![NetworkCondition { isolated: true, bridge: Some("sandboxd".into()), subnet, containers: 2 }])
    }
}

fn settings(place: &Path, limits: &Limits) -> Settings {
    Settings {
        state_dir: place.join("state"),
        chats_root: place.join("chats"),
        volume_roots: vec![place.join("volumes")],
        socket: place.join("sandboxd.sock"),
        allowed: Allowed::default(),
        max_connections: limits.max_connections,
        max_sandboxes: Some(100),
        image_watermark: 85.0,
        engine_limit: Duration::from_secs(1),
    }
}

fn reconciled() -> CancellationToken {
    let reconciled = CancellationToken::new();
    reconciled.cancel();
    reconciled
}

/// Returns the built-in languages. The other profile also has a shell language with a preamble and limits.
fn languages(place: &Path) -> Languages {
    let settings = r#"[profiles.other.languages.piped-sh]
        command = ["sh", "-s"]
        preamble = "greeting=hello"
        stdin = true
        timeout = "500ms"
        max_output = "32"
    "#;
    let file = place.join("sandboxd.toml");
    std::fs::write(&file, settings).expect("written");
    let config = Config::load(Some(&file), std::iter::empty::<(String, String)>()).expect("valid");
    Languages::new(&config.profiles)
}

fn world(
    place: &Path,
    engine: FakeEngine,
    journal: JournalHandle,
    rules: Rules,
    guests: Arc<GuestsOnDisk>,
    file_system: FileSystem,
) -> World {
    let second = Duration::from_secs(1);
    let limits = EngineLimits {
        identify: second,
        network: second,
        image: second,
        create: 10 * second,
        start: 10 * second,
        inspect: second,
        list: second,
        logs: second,
        commit: second,
    };
    let host_path = |name: &str| HostPath::from_canonical(&place.join(name)).expect("canonical");
    World {
        instance: "default".parse().expect("a name"),
        engine: Bounded::new(Arc::new(engine), limits),
        engine_queue: sandboxd_actors::engine::fair_queue::EngineQueue::new(4),
        queue_limit: Duration::from_secs(60),
        capacity: Default::default(),
        probe: Arc::new(NetworkProbe),
        directories: Arc::new(DirectoriesOnDisk::open(&place.join("chats"), file_system).expect("a root")),
        guests: Arc::new(LocalInits { guests, running: Mutex::default() }),
        slots: Arc::new(sandboxd_actors::ports::slot::NoSlots),
        claims: Arc::default(),
        clock: Arc::new(SystemClock),
        mounts: MountPoints {
            chat: "/chat".into(),
            volume: "/volume".into(),
            dependencies: "/dependencies".into(),
            lambda_tools: "/lambda-tools".into(),
            dependencies_source: host_path("dependencies"),
            lambda_tools_source: host_path("tools"),
        },
        teardown: TeardownLimits { graceful: second, remove: second, total: 3 * second },
        journal,
        rules,
        cleanups: Default::default(),
        addresses: Default::default(),
        retention: sandboxd_actors::domain::snapshot::retention::Retention {
            keep: 5,
            max_age: Duration::from_secs(3600),
        },
    }
}

/// Returns an image builder over images in memory, one of them from a repository.
fn builder_setup(images: &FakeImages) -> BuilderSetup {
    let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
    let repository = Repository {
        name: "app".into(),
        url: "https://git.example.com/team/app.git".into(),
        branch: "main".into(),
        submodules: false,
        base: "sandbox:1".into(),
        tag: "sandboxd-app:latest".into(),
        directory: "/repository".into(),
        install: vec![],
        build: vec!["make".into()],
        warm_up: vec![],
        every: hour,
        stale_after: hour,
        timeout: minute,
    };
    BuilderSetup {
        instance: "default".parse().expect("a name"),
        images: Arc::new(images.clone()),
        sources: Arc::new(FakeSources::at("8f2b1c6d0e3a4f5b6c7d8e9f0a1b2c3d4e5f6a7b")),
        clock: Arc::new(SystemClock),
        repositories: BTreeMap::from([(repository.name.clone(), Arc::new(repository))]),
        profiles: BTreeMap::from(["default", "other"].map(|name| (name.to_owned(), "sandbox:1".to_owned()))),
        limits: BuilderLimits { pull: minute, build: minute, ask: minute, builds_at_once: 1 },
        collection: CollectionSettings { interval: hour, watermarks: Watermarks { high: 85.0, low: 75.0 }, all: false },
    }
}

fn profile(name: &str) -> (sandboxd_actors::domain::ids::ProfileName, Arc<Profile>) {
    let name: sandboxd_actors::domain::ids::ProfileName = name.parse().expect("a name");
    let profile = Profile {
        name: name.clone(),
        image: "sandbox:1".into(),
        command: vec![],
        port: 8080,
        network: Network::Named("sandboxd".into()),
        environment: Environment::default(),
        limits: Resources { memory_bytes: 1 << 30, cpus: 1.0, pids: 256, disk_bytes: None },
        mounts: vec![],
        tmpfs: BTreeMap::new(),
        user: None,
        read_only_root: false,
        init: true,
        runtime: None,
        capabilities: vec![],
        readiness: Readiness { check: ReadinessCheck::None, timeout: Duration::from_secs(5) },
        ttl: Duration::from_secs(300),
        idle_timeout: Duration::from_secs(7200),
        on_expire: OnExpire::Delete,
        snapshot_on_delete: false,
        restart: Restart::Never,
        pool: Default::default(),
        max_sandboxes: None,
    };
    (name, Arc::new(profile))
}
