//! A pass over an engine and a journal in memory. Root is a fake: it returns the active chats, and records the
//! adoptions.

use std::path::Path;
use std::sync::Mutex;

use async_trait::async_trait;

use super::*;
use crate::chat::{Rules, TeardownLimits};
use crate::domain::container::{MountPoints, compose};
use crate::domain::create_request::CreateRequest;
use crate::domain::create_request::tests::request;
use crate::domain::host_path::HostPath;
use crate::domain::ids::{ContainerId, SessionId};
use crate::domain::profile::User;
use crate::engine::bounded::{Bounded, EngineLimits};
use crate::journal::JournalHandle;
use crate::journal::memory::{Fault, MemoryJournal};
use crate::pool::claims::Claims;
use crate::ports::chat_directories::{ChatDirectories, DirectoryError};
use crate::ports::clock::{Clock, SystemClock};
use crate::ports::engine::fake::{FakeEngine, Fault as EngineFault};
use crate::ports::engine::{ContainerState, Exit, Observed, Operation};
use crate::ports::probe::{NotReady, Probe};
use crate::reconciler::plan::Because;

const PATIENCE: Duration = Duration::from_secs(30);

struct Stage {
    engine: FakeEngine,
    journal: MemoryJournal,
    world: Arc<World>,
    reconciler: ActorRef<Message>,
    root: Arc<Mutex<RootState>>,
}

/// The answers of the fake root, and the messages that it got.
#[derive(Debug, Default)]
struct RootState {
    adopted: BTreeSet<ChatId>,
    /// The sandboxes that got an actor, and the records on disk at that time.
    adopts: Vec<(Vec<Sandbox>, Vec<Sandbox>)>,
}

struct Root(Arc<Mutex<RootState>>, MemoryJournal);

impl Actor for Root {
    type Msg = root::Message;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<root::Message>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<root::Message>,
        message: root::Message,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let mut state = self.0.lock().unwrap();
        match message {
            root::Message::Chats { chats, .. } => {
                let routes = state.adopted.iter().map(|chat| (*chat, None)).collect();
                let _ = chats.send(root::Chats { is_listed: true, total: state.adopted.len(), routes });
            }
            root::Message::Reconciled { results, done } => {
                if !results.adopted.is_empty() {
                    let sandboxes: Vec<_> = results.adopted.into_iter().map(|sandbox| *sandbox).collect();
                    state.adopted.extend(sandboxes.iter().map(|sandbox| sandbox.chat));
                    state.adopts.push((sandboxes, self.1.sandboxes()));
                }
                let _ = done.send(());
            }
            _ => {}
        }
        Ok(())
    }
}

/// Probe and directories, which no test here uses.
struct Unused;

#[async_trait]
impl Probe for Unused {
    async fn http(&self, _: std::net::SocketAddr, _: &str) -> Result<(), NotReady> {
        unreachable!()
    }
    async fn tcp(&self, _: std::net::SocketAddr) -> Result<(), NotReady> {
        unreachable!()
    }
}

#[async_trait]
impl ChatDirectories for Unused {
    async fn prepare(&self, _: ChatId, _: Option<User>) -> Result<HostPath, DirectoryError> {
        unreachable!()
    }

    async fn remove(&self, _: ChatId) -> Result<bool, DirectoryError> {
        unreachable!()
    }

    async fn finish_removals(&self) -> Result<(), DirectoryError> {
        Ok(())
    }

    async fn list(&self) -> Result<Vec<ChatId>, DirectoryError> {
        Ok(Vec::new())
    }

    async fn changed_at(&self, _: ChatId) -> Result<Option<Timestamp>, DirectoryError> {
        Ok(None)
    }

    async fn mark_used(&self, _: ChatId) -> Result<(), DirectoryError> {
        Ok(())
    }
}

fn path(text: &str) -> HostPath {
    HostPath::from_canonical(Path::new(text)).unwrap()
}

fn points() -> MountPoints {
    MountPoints {
        chat: "/chat".into(),
        volume: "/volume".into(),
        dependencies: "/dependencies".into(),
        lambda_tools: "/lambda-tools".into(),
        dependencies_source: path("/srv/dependencies"),
        lambda_tools_source: path("/srv/tools"),
    }
}

fn long_ago() -> Timestamp {
    SystemClock.now() - TimeDelta::hours(1)
}

/// Puts a running container of the chat on the engine. Returns its sandbox.
fn place(engine: &FakeEngine, chat: ChatId, created_at: Timestamp) -> Sandbox {
    let request = CreateRequest { chat, ttl: Some(PATIENCE * 1000), ..request() };
    let instance = "default".parse().unwrap();
    let spec = compose(&instance, &points(), &request, path("/srv/chat"), SessionId::random(), created_at);
    let observed = Observed {
        id: ContainerId::new(format!("container of {chat}")),
        name: spec.name.to_string(),
        image: spec.image.clone(),
        labels: spec.labels.clone(),
        state: ContainerState::Running,
        started_at: Some(created_at),
        address: None,
        health: None,
    };
    engine.place(observed.clone(), spec);
    Found::recognise(observed, &instance, &Claims::default()).unwrap().sandbox(created_at)
}

fn chat(n: u8) -> ChatId {
    ChatId::new(uuid::Uuid::from_u128(n.into()))
}

impl Stage {
    /// A service whose journal holds these records, or has no history.
    async fn starting(records: Option<Vec<Sandbox>>, engine: FakeEngine) -> Self {
        let journal = MemoryJournal::new();
        let (handle, _) = JournalHandle::start(journal.clone(), PATIENCE, None).await.unwrap();
        Self::with(records, engine, journal, handle).await
    }

    /// The same for a paused clock, which does not wait for the journal's thread.
    async fn starting_paused(records: Vec<Sandbox>, engine: FakeEngine) -> Self {
        let journal = MemoryJournal::new();
        let (handle, _) = JournalHandle::start_in_place(journal.clone(), PATIENCE).await.unwrap();
        Self::with(Some(records), engine, journal, handle).await
    }

    async fn with(
        records: Option<Vec<Sandbox>>,
        engine: FakeEngine,
        journal: MemoryJournal,
        handle: JournalHandle,
    ) -> Self {
        if let Some(records) = &records {
            let records = records.iter().cloned().map(|record| Draft::Save(Box::new(record)));
            handle.write(records.chain([Draft::Rebuilt]).collect()).await.unwrap();
        }
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
        let world = Arc::new(World {
            instance: "default".parse().unwrap(),
            engine: Bounded::new(Arc::new(engine.clone()), limits),
            engine_queue: crate::engine::fair_queue::EngineQueue::new(1),
            queue_limit: Duration::from_secs(60),
            capacity: Default::default(),
            probe: Arc::new(Unused),
            directories: Arc::new(Unused),
            guests: Arc::new(crate::ports::guest::NoGuestSetup),
            slots: Arc::new(crate::ports::slot::NoSlots),
            claims: Arc::default(),
            clock: Arc::new(SystemClock),
            mounts: points(),
            teardown: TeardownLimits { graceful: PATIENCE, remove: PATIENCE, total: PATIENCE },
            journal: handle,
            rules: Rules { trust: PATIENCE, profiles: Arc::default(), max_leases: 4, max_lease: PATIENCE },
            cleanups: Default::default(),
            addresses: Default::default(),
            retention: crate::domain::snapshot::retention::Retention { keep: 5, max_age: Duration::from_secs(3600) },
        });
        let fresh = records.is_none();
        let contents = Contents {
            sandboxes: records.unwrap_or_default(),
            claims: Vec::new(),
            claims_in_files: false,
            last_event: 0,
            fresh,
        };
        let state = Arc::new(Mutex::new(RootState::default()));
        let (root, _) = Root::spawn(None, Root(Arc::clone(&state), journal.clone()), ()).await.unwrap();
        let arguments = Arguments {
            world: Arc::clone(&world),
            root,
            interval: PATIENCE * 1000,
            unadopted: Some(Arc::new(contents)),
            started_at: SystemClock.now(),
        };
        let (reconciler, _) = Reconciler::spawn(None, Reconciler, arguments).await.unwrap();
        Self { engine, journal, world, reconciler, root: state }
    }

    async fn pass(&self) -> Result<Report, EngineError> {
        self.pass_with(false).await
    }

    async fn pass_with(&self, dry_run: bool) -> Result<Report, EngineError> {
        let pass = |report| Message::Pass { because: Trigger::Request, dry_run, report: Some(report) };
        ask(&self.reconciler, pass).await.unwrap()
    }

    /// Adds a chat to the active chats, as if it had been served meanwhile.
    fn add_active(&self, chat: ChatId) {
        self.root.lock().unwrap().adopted.insert(chat);
    }

    async fn write(&self, draft: Draft) {
        self.world.journal.write(vec![draft]).await.unwrap();
    }

    /// The chats that got an actor in the last pass, with their status.
    fn adopted(&self) -> Vec<(ChatId, Status)> {
        let root = self.root.lock().unwrap();
        let (sandboxes, _) = root.adopts.last().expect("a chat got an actor");
        sandboxes.iter().map(|sandbox| (sandbox.chat, sandbox.status)).collect()
    }
}

#[tokio::test]
async fn an_acknowledged_live_sandbox_gets_its_actor_without_another_write() {
    let engine = FakeEngine::new();
    let record = place(&engine, chat(1), long_ago());
    let stage = Stage::starting(Some(vec![record]), engine).await;
    let commits = stage.journal.commits();
    stage.pass().await.unwrap();
    assert_eq!(stage.adopted(), [(chat(1), Status::Running)]);
    assert_eq!(stage.journal.commits(), commits);
}

#[tokio::test]
async fn a_pass_never_overwrites_the_writes_of_a_chat() {
    let engine = FakeEngine::new();
    place(&engine, chat(1), SystemClock.now());
    let stage = Stage::starting(Some(vec![]), engine).await;
    stage.pass().await.unwrap();
    assert_eq!(stage.adopted(), [(chat(1), Status::Deleting)], "unless the chat has an actor by now");
    assert!(stage.journal.sandboxes().is_empty(), "the chat may have just created it");
}

#[tokio::test]
async fn a_sandbox_that_was_deleted_before_the_first_pass_does_not_come_back() {
    let gone = place(&FakeEngine::new(), chat(1), long_ago());
    let stage = Stage::starting(Some(vec![gone.clone()]), FakeEngine::new()).await;
    stage.write(Draft::Remove { chat: gone.chat, session: gone.session }).await;
    assert!(stage.pass().await.unwrap().actions.is_empty());
}

#[tokio::test]
async fn a_record_without_a_container_is_still_a_promise() {
    let vanished = place(&FakeEngine::new(), chat(1), long_ago());
    let stage = Stage::starting(Some(vec![vanished]), FakeEngine::new()).await;
    stage.pass().await.unwrap();
    assert_eq!(stage.adopted(), [(chat(1), Status::Failed)]);
}

#[tokio::test]
async fn a_pass_that_cannot_list_makes_no_change_and_the_next_pass_succeeds() {
    let engine = FakeEngine::new();
    let record = place(&engine, chat(1), long_ago());
    let stage = Stage::starting(Some(vec![record]), engine).await;
    stage.engine.fail_next(Operation::List, EngineFault::unreachable());
    assert!(stage.pass().await.is_err());
    assert!(stage.root.lock().unwrap().adopts.is_empty());
    stage.pass().await.unwrap();
    assert_eq!(stage.adopted(), [(chat(1), Status::Running)]);
}

#[tokio::test]
async fn a_container_requested_by_an_earlier_service_is_removed_also_after_the_first_pass() {
    let earlier = SystemClock.now() - TimeDelta::seconds(1);
    let stage = Stage::starting(Some(vec![]), FakeEngine::new()).await;
    stage.pass().await.unwrap();
    place(&stage.engine, chat(1), earlier);
    // This container may still be acknowledged.
    place(&stage.engine, chat(2), SystemClock.now());
    stage.pass().await.unwrap();
    assert_eq!(stage.adopted(), [(chat(1), Status::Deleting)]);
}

#[tokio::test]
async fn a_dry_run_reports_and_makes_no_change() {
    let engine = FakeEngine::new();
    place(&engine, chat(1), long_ago());
    let stage = Stage::starting(None, engine).await;
    let report = stage.pass_with(true).await.unwrap();
    let [Action::Adopt { because: Because::AdoptedFromLabels, .. }] = &report.actions[..] else { panic!("{report:?}") };
    assert!(stage.root.lock().unwrap().adopts.is_empty());
    assert!(stage.journal.sandboxes().is_empty() && stage.world.journal.is_fresh());
    assert_eq!(stage.pass().await.unwrap().actions.len(), 1, "and it is still to be done");
}

#[tokio::test]
async fn after_the_first_pass_a_container_is_removed_only_if_the_journal_has_no_record_of_it() {
    let stage = Stage::starting(Some(vec![]), FakeEngine::new()).await;
    stage.pass().await.unwrap();
    let promised = place(&stage.engine, chat(1), long_ago());
    place(&stage.engine, chat(2), long_ago());
    stage.write(Draft::Save(Box::new(promised))).await;
    stage.pass().await.unwrap();
    assert_eq!(stage.adopted(), [(chat(1), Status::Running), (chat(2), Status::Deleting)]);
}

#[tokio::test]
async fn a_sandbox_known_by_labels_is_on_disk_before_it_has_an_actor() {
    let engine = FakeEngine::new();
    place(&engine, chat(1), long_ago());
    let stage = Stage::starting(None, engine).await;
    stage.pass().await.unwrap();
    assert_eq!(stage.adopted(), [(chat(1), Status::Running)]);
    let (_, on_disk) = &stage.root.lock().unwrap().adopts[0];
    assert_eq!(on_disk.len(), 1);
    assert!(!stage.world.journal.is_fresh(), "from now on, a container without a record was never promised");
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_saved_is_not_adopted_and_labels_stay_trusted() {
    let engine = FakeEngine::new();
    place(&engine, chat(1), long_ago());
    let stage = Stage::starting(None, engine).await;
    stage.journal.fail_always(Fault::full());
    assert!(stage.pass().await.is_err());
    assert!(stage.root.lock().unwrap().adopts.is_empty());
    assert!(stage.world.journal.is_fresh());
    stage.journal.heal();
    stage.pass().await.unwrap();
    assert_eq!(stage.adopted(), [(chat(1), Status::Running)]);
    assert!(!stage.world.journal.is_fresh());
}

#[tokio::test]
async fn labels_stay_trusted_until_a_chat_that_looks_for_itself_has_its_record() {
    let engine = FakeEngine::new();
    let sandbox = place(&engine, chat(1), long_ago());
    let stage = Stage::starting(None, engine).await;
    stage.add_active(chat(1));
    stage.pass().await.unwrap();
    assert!(stage.world.journal.is_fresh(), "its actor may still have to inspect its container");
    stage.write(Draft::Save(Box::new(sandbox))).await;
    stage.pass().await.unwrap();
    assert!(!stage.world.journal.is_fresh());
}

#[tokio::test]
async fn a_container_being_created_does_not_keep_labels_trusted() {
    let stage = Stage::starting(None, FakeEngine::new()).await;
    place(&stage.engine, chat(1), SystemClock.now() + TimeDelta::seconds(1));
    stage.add_active(chat(1));
    stage.pass().await.unwrap();
    assert!(!stage.world.journal.is_fresh(), "no journal that is lost can have promised it");
}

#[tokio::test]
async fn an_adoption_by_lookup_is_saved_or_fails() {
    let engine = FakeEngine::new();
    let sandbox = place(&engine, chat(1), long_ago());
    let stage = Stage::starting(None, engine).await;
    stage.journal.fail_next(Fault::full());
    assert!(find_sandbox(&stage.world, chat(1)).await.is_err());
    let found = find_sandbox(&stage.world, chat(1)).await.unwrap().unwrap();
    assert_eq!((found.status, found.session), (Status::Running, sandbox.session));
    assert_eq!(stage.journal.sandboxes(), [*found]);
}

#[tokio::test]
async fn a_lookup_finds_the_writes_of_a_failed_actor() {
    let engine = FakeEngine::new();
    let sandbox = place(&engine, chat(1), long_ago());
    let stage = Stage::starting(Some(vec![]), engine).await;
    let begun = stage.journal.commits();
    let gate = stage.journal.hold_next();
    stage.world.journal.write_later(vec![Draft::Save(Box::new(sandbox.clone()))]);
    stage.journal.reached(begun + 1).await;
    let renewed = Sandbox { expires_at: sandbox.expires_at + PATIENCE, ..sandbox };
    stage.world.journal.write_later(vec![Draft::Save(Box::new(renewed.clone()))]);
    let mut finding = Box::pin(find_sandbox(&stage.world, chat(1)));
    assert!(futures_util::poll!(&mut finding).is_pending());
    gate.open();
    assert_eq!(finding.await.unwrap().unwrap().expires_at, renewed.expires_at);
}

/// `count` sandboxes whose containers have ended.
fn ended(engine: &FakeEngine, count: u8) -> Vec<Sandbox> {
    let end = |n| {
        let sandbox = place(engine, chat(n), long_ago());
        let exit = Exit { code: 3, oom_killed: false };
        engine.end(sandbox.container.as_ref().unwrap(), exit, &[]);
        sandbox
    };
    (1..=count).map(end).collect()
}

#[tokio::test(start_paused = true)]
async fn ended_containers_are_inspected_concurrently() {
    let engine = FakeEngine::new();
    let records = ended(&engine, 100);
    engine.fail_always(Operation::Inspect, EngineFault::Delay(Duration::from_millis(10)));
    let stage = Stage::starting_paused(records, engine).await;
    stage.pass().await.unwrap();
    assert_eq!(stage.adopted().len(), 100);
    assert_eq!(stage.engine.calls(Operation::Inspect), 100);
    let at_once = stage.engine.most_under_way(Operation::Inspect);
    assert!((2..=INSPECTS_AT_ONCE).contains(&at_once), "{at_once}");
}

#[tokio::test]
async fn a_container_whose_record_says_that_it_ended_is_not_inspected() {
    let engine = FakeEngine::new();
    let records = ended(&engine, 5).into_iter().map(|record| Sandbox { status: Status::Failed, ..record });
    let stage = Stage::starting(Some(records.collect()), engine).await;
    stage.pass().await.unwrap();
    assert_eq!(stage.adopted().len(), 5);
    assert_eq!(stage.engine.calls(Operation::Inspect), 0);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_does_not_answer_inspects_does_not_hold_up_a_pass() {
    let engine = FakeEngine::new();
    let records = ended(&engine, 40);
    engine.fail_always(Operation::Inspect, EngineFault::Hang);
    let stage = Stage::starting_paused(records, engine).await;
    let started = tokio::time::Instant::now();
    stage.pass().await.unwrap();
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    assert!(stage.adopted().iter().all(|(_, status)| *status == Status::Failed));
}
