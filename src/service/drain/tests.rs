//! Which slots a drain removes, on a fake engine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use sandboxd_actors::domain::container::ContainerSpec;
use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::ids::{ContainerId, ContainerName, SlotId};
use sandboxd_actors::domain::profile::{Limits, Network};
use sandboxd_actors::journal::Draft;
use sandboxd_actors::journal::memory::MemoryJournal;
use sandboxd_actors::pool::claims::Claim;
use sandboxd_actors::ports::clock::{Clock, SystemClock};
use sandboxd_actors::ports::engine::Operation;
use sandboxd_actors::ports::engine::fake::{FakeEngine, Fault};

use super::claims::tests::sandbox;
use super::*;

/// An instance without a running service, with the state of its last one.
struct Host {
    place: tempfile::TempDir,
    config: Config,
    engine: FakeEngine,
    journal: MemoryJournal,
}

impl Host {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let path = |name: &str| place.path().join(name).display().to_string();
        let settings = format!(
            "state.dir = '{}'\nchats.root = '{}'\nteardown.remove = '200ms'\nengine.timeouts.inspect = '200ms'",
            path("state"),
            path("chats")
        );
        let file = place.path().join("sandboxd.toml");
        std::fs::write(&file, settings).expect("written");
        for directory in ["state/slots", "chats"] {
            std::fs::create_dir_all(place.path().join(directory)).expect("created");
        }
        let config = Config::load(Some(&file), std::iter::empty::<(String, String)>()).expect("valid");
        Self { place, config, engine: FakeEngine::new(), journal: MemoryJournal::new() }
    }

    fn instance(&self) -> InstanceName {
        self.config.instance.name.parse().expect("a name")
    }

    /// Creates a container of this instance with the labels of a slot, without a directory.
    async fn slot(&self) -> (SlotId, ContainerId) {
        let slot = SlotId::random();
        let labels = SlotLabels {
            instance: self.instance(),
            slot,
            profile: "default".parse().expect("a name"),
            spec_hash: "hash".into(),
            image_id: "id".into(),
            created_at: SystemClock.now(),
        };
        let spec = ContainerSpec {
            name: ContainerName::of_slot(&self.instance(), slot),
            image: "image".into(),
            entry_point: None,
            command: Vec::new(),
            environment: Environment::default(),
            labels: labels.encode(),
            mounts: Vec::new(),
            tmpfs: BTreeMap::new(),
            network: Network::Blocked,
            limits: Limits { memory_bytes: 1 << 20, cpus: 1.0, pids: 8, disk_bytes: None },
            user: None,
            read_only_root: false,
            runtime: None,
            capabilities: Vec::new(),
        };
        (slot, self.engine.create(&spec).await.expect("created"))
    }

    fn directory(&self, slot: SlotId) -> PathBuf {
        self.place.path().join("state/slots").join(slot.to_string())
    }

    async fn write(&self, drafts: Vec<Draft>) {
        let (journal, _) = JournalHandle::start(self.journal.clone(), JOURNAL_LIMIT, None).await.expect("loaded");
        journal.write(drafts).await.expect("written");
    }

    async fn drained(&self) -> Result<usize, DrainError> {
        let lock = InstanceLock::acquire_in(self.place.path(), &self.instance(), "memory").expect("free");
        let engine = Bounded::new(Arc::new(self.engine.clone()), engine_limits(&self.config));
        let drain = Drain { instance: self.instance(), engine, _lock: lock };
        let removed = drain.remove_slots(&self.config, self.journal.clone());
        tokio::time::timeout(Duration::from_secs(20), removed).await.expect("each call to the engine has a deadline")
    }

    fn left(&self) -> Vec<ContainerId> {
        self.engine.containers().into_iter().map(|container| container.id).collect()
    }
}

/// Returns the journal entries of a sandbox that was this slot.
fn claimed(slot: SlotId, container: &ContainerId) -> [Draft; 2] {
    let sandbox = sandbox();
    let claim = Claim {
        slot,
        session: sandbox.session,
        chat: sandbox.chat,
        container: container.clone(),
        labels: BTreeMap::new(),
        environment: Environment::default(),
        mounts: BTreeMap::new(),
    };
    [Draft::Save(Box::new(sandbox)), Draft::Claim(Arc::new(claim))]
}

#[tokio::test]
async fn slots_without_a_claim_are_removed_with_and_without_a_directory() {
    let host = Host::new();
    let ((free, _), (_, _), (chats, kept)) = (host.slot().await, host.slot().await, host.slot().await);
    std::fs::create_dir(host.directory(free)).expect("created");
    host.write(claimed(chats, &kept).into_iter().chain([Draft::Rebuilt]).collect()).await;
    assert_eq!(host.drained().await.expect("drained"), 2);
    assert_eq!(host.left(), [kept]);
    assert!(!host.directory(free).exists());
}

#[tokio::test]
async fn a_slot_that_a_lost_journal_may_have_known_as_a_sandbox_stays() {
    let host = Host::new();
    let ((free, _), (_, unknown)) = (host.slot().await, host.slot().await);
    std::fs::create_dir(host.directory(free)).expect("created");
    assert_eq!(host.drained().await.expect("drained"), 1);
    assert_eq!(host.left(), [unknown]);
}

#[tokio::test]
async fn a_slot_counts_as_removed_once_the_engine_does_not_list_it() {
    let host = Host::new();
    host.slot().await;
    host.write(vec![Draft::Rebuilt]).await;
    host.engine.fail_next(Operation::Remove, Fault::FalseSuccess);
    assert_eq!(host.drained().await.expect("drained"), 1);
    assert_eq!(host.left(), []);
}

#[tokio::test]
async fn an_engine_that_does_not_answer_is_not_waited_for() {
    let host = Host::new();
    host.slot().await;
    host.write(vec![Draft::Rebuilt]).await;
    host.engine.fail_always(Operation::Remove, Fault::Hang);
    let error = host.drained().await.expect_err("not removed");
    assert!(matches!(error, DrainError::Engine(EngineError::TimedOut { .. })), "{error}");
    assert_eq!(host.left().len(), 1);
}
