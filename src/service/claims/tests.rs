use std::collections::BTreeMap;
use std::time::Duration;

use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::ids::{ChatId, ContainerId, ContainerName, SessionId, SlotId};
use sandboxd_actors::domain::labels;
use sandboxd_actors::domain::sandbox::{Reason, Sandbox, Status};
use sandboxd_actors::journal::memory::MemoryJournal;
use sandboxd_actors::pool::claims::Claim;
use sandboxd_actors::ports::clock::{Clock, SystemClock};
use sandboxd_actors::ports::slot::Slots;

use super::*;
use crate::storage::file_system::FileSystem;

const LIMIT: Duration = Duration::from_secs(30);

/// The state that a service with one warm sandbox leaves for its next run.
struct Host {
    state: tempfile::TempDir,
    journal: MemoryJournal,
    sandbox: Sandbox,
    slot: SlotId,
}

pub(in crate::service) fn sandbox() -> Sandbox {
    let (chat, now) = (ChatId::new(uuid::Uuid::new_v4()), SystemClock.now());
    Sandbox {
        session: SessionId::random(),
        chat,
        agent: "agent".parse().expect("an id"),
        workspace: None,
        volume: None,
        profile: "default".parse().expect("a name"),
        image: "image".into(),
        snapshot: None,
        container_name: ContainerName::of(&"default".parse().expect("a name"), chat),
        container: Some(ContainerId::new("c")),
        endpoint: None,
        status: Status::Running,
        reason: Reason::Ready,
        message: None,
        created_at: now,
        started_at: Some(now),
        last_activity_at: now,
        expires_at: now,
        idle_timeout: LIMIT,
        held_until: None,
        held_by: Vec::new(),
        durable_leases: Vec::new(),
    }
}

impl Host {
    async fn new() -> Self {
        let sandbox = sandbox();
        let host = Self {
            state: tempfile::tempdir().expect("a directory"),
            journal: MemoryJournal::new(),
            slot: SlotId::random(),
            sandbox,
        };
        let guests = host.guests(&Arc::default());
        std::fs::create_dir(host.directory()).expect("created");
        guests.remember(&host.claim()).await.expect("stored");
        host
    }

    fn claim(&self) -> Claim {
        Claim {
            slot: self.slot,
            session: self.sandbox.session,
            chat: self.sandbox.chat,
            container: ContainerId::new("c"),
            labels: BTreeMap::from([(labels::CHAT_ID.to_owned(), self.sandbox.chat.to_string())]),
            environment: Environment::default().with("TOKEN", "t0k3n"),
            mounts: BTreeMap::new(),
        }
    }

    fn directory(&self) -> std::path::PathBuf {
        self.state.path().join("sandboxes").join(self.sandbox.session.to_string())
    }

    fn guests(&self, claims: &Arc<Claims>) -> Arc<GuestsOnDisk> {
        let file_system = FileSystem::new(self.state.path(), self.state.path()).expect("a pool");
        GuestsOnDisk::open(self.state.path(), Arc::clone(claims), file_system).expect("a state")
    }

    /// Returns the sessions with a claim after a start, in the index and in the journal.
    async fn started(&self) -> (Vec<SessionId>, Vec<SessionId>) {
        let (journal, contents) = JournalHandle::start(self.journal.clone(), LIMIT, None).await.expect("loaded");
        let claims = Arc::new(Claims::default());
        load(&claims, &contents, &self.guests(&claims), &journal).await.expect("written");
        let sessions = |claims: Vec<Arc<Claim>>| claims.iter().map(|claim| claim.session).collect();
        (sessions(claims.all()), sessions(self.journal.claims()))
    }

    async fn write(&self, drafts: Vec<Draft>) {
        let (journal, _) = JournalHandle::start(self.journal.clone(), LIMIT, None).await.expect("loaded");
        journal.write(drafts).await.expect("written");
    }
}

#[tokio::test]
async fn a_copy_counts_for_a_new_journal_and_is_no_entry_before_its_sandbox_is_adopted() {
    let host = Host::new().await;
    assert_eq!(host.started().await, (vec![host.sandbox.session], vec![]));
}

#[tokio::test]
async fn a_copy_is_ignored_if_the_journal_has_a_history() {
    let host = Host::new().await;
    host.write(vec![Draft::Save(Box::new(host.sandbox.clone())), Draft::Rebuilt]).await;
    assert_eq!(host.started().await, (vec![], vec![]));
}

#[tokio::test]
async fn a_claim_needs_no_copy() {
    let host = Host::new().await;
    std::fs::remove_dir_all(host.directory()).expect("removed");
    let entries = [Draft::Save(Box::new(host.sandbox.clone())), Draft::Claim(Arc::new(host.claim())), Draft::Rebuilt];
    host.write(entries.into()).await;
    assert_eq!(host.started().await, (vec![host.sandbox.session], vec![host.sandbox.session]));
}

#[tokio::test]
async fn the_files_of_an_older_service_become_entries_once() {
    let host = Host::new().await;
    host.write(vec![Draft::Save(Box::new(host.sandbox.clone())), Draft::Rebuilt]).await;
    host.journal.predates_claims();
    assert_eq!(host.started().await, (vec![host.sandbox.session], vec![host.sandbox.session]));
    std::fs::remove_dir_all(host.directory()).expect("removed");
    assert_eq!(host.started().await, (vec![host.sandbox.session], vec![host.sandbox.session]));
}

#[tokio::test]
async fn a_directory_that_a_power_failure_has_moved_back_is_restored_to_its_session() {
    let host = Host::new().await;
    let entries = [Draft::Save(Box::new(host.sandbox.clone())), Draft::Claim(Arc::new(host.claim())), Draft::Rebuilt];
    host.write(entries.into()).await;
    let slot = host.state.path().join("slots").join(host.slot.to_string());
    std::fs::rename(host.directory(), &slot).expect("moved");
    host.started().await;
    assert!(host.directory().is_dir());
    assert_eq!(std::fs::read_link(&slot).expect("a link"), host.directory());
}
