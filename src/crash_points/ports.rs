//! Ports with a boundary before and after each call.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandboxd_actors::domain::container::{Binding, ContainerSpec};
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{ChatId, ContainerId, ContainerName, InstanceName, SessionId, SlotId, SnapshotId};
use sandboxd_actors::domain::profile::User;
use sandboxd_actors::domain::sandbox::Sandbox;
use sandboxd_actors::domain::snapshot::{Snapshot, SnapshotOrigin};
use sandboxd_actors::journal::{Contents, Entry, EventPage, Journal, JournalError, LifecycleEvent};
use sandboxd_actors::pool::claims::Claim;
use sandboxd_actors::ports::chat_directories::{ChatDirectories, DirectoryError};
use sandboxd_actors::ports::clock::Timestamp;
use sandboxd_actors::ports::engine::events::EngineEvents;
use sandboxd_actors::ports::engine::logs::{EngineLogs, LogRange};
use sandboxd_actors::ports::engine::{Engine, EngineError, EngineIdentity, NetworkSpec, Observed, SnapshotRemoval};
use sandboxd_actors::ports::guest::GuestSetup;
use sandboxd_actors::ports::slot::{LateBinding, NotBound, Slots};

use super::{CrashPoints, Side};

pub(super) fn engine(points: &Arc<CrashPoints>, inner: Arc<dyn Engine>) -> Arc<dyn Engine> {
    Arc::new(WithCrashPoints { points: Arc::clone(points), inner })
}

pub(super) fn directories(points: &Arc<CrashPoints>, inner: Arc<dyn ChatDirectories>) -> Arc<dyn ChatDirectories> {
    Arc::new(WithCrashPoints { points: Arc::clone(points), inner })
}

pub(super) fn journal<J: Journal>(points: &Arc<CrashPoints>, inner: J) -> impl Journal + use<J> {
    WithCrashPoints { points: Arc::clone(points), inner }
}

pub(super) fn slots(points: &Arc<CrashPoints>, inner: Arc<dyn Slots>) -> Arc<dyn Slots> {
    Arc::new(WithCrashPoints { points: Arc::clone(points), inner })
}

struct WithCrashPoints<P> {
    points: Arc<CrashPoints>,
    inner: P,
}

impl<P> WithCrashPoints<P> {
    async fn around<T>(&self, name: &'static str, call: impl Future<Output = T>) -> T {
        self.points.reach(Side::Before, name);
        let outcome = call.await;
        self.points.reach(Side::After, name);
        outcome
    }

    fn around_blocking<T>(&mut self, name: &'static str, call: impl FnOnce(&mut P) -> T) -> T {
        self.points.reach(Side::Before, name);
        let outcome = call(&mut self.inner);
        self.points.reach(Side::After, name);
        outcome
    }
}

#[async_trait]
impl Engine for WithCrashPoints<Arc<dyn Engine>> {
    async fn identify(&self) -> Result<EngineIdentity, EngineError> {
        self.around("engine.identify", self.inner.identify()).await
    }

    async fn ensure_network(&self, network: &NetworkSpec) -> Result<(), EngineError> {
        self.around("engine.ensure_network", self.inner.ensure_network(network)).await
    }

    async fn image_id(&self, image: &str) -> Result<Option<String>, EngineError> {
        self.around("engine.image_id", self.inner.image_id(image)).await
    }

    async fn rename(&self, container: &ContainerId, name: &ContainerName) -> Result<(), EngineError> {
        self.around("engine.rename", self.inner.rename(container, name)).await
    }

    async fn create(&self, container: &ContainerSpec) -> Result<ContainerId, EngineError> {
        self.around("engine.create", self.inner.create(container)).await
    }

    async fn start(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.around("engine.start", self.inner.start(container)).await
    }

    async fn inspect(&self, id_or_name: &str) -> Result<Option<Observed>, EngineError> {
        self.around("engine.inspect", self.inner.inspect(id_or_name)).await
    }

    async fn list(&self, instance: &InstanceName) -> Result<Vec<Observed>, EngineError> {
        self.around("engine.list", self.inner.list(instance)).await
    }

    async fn pause(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.around("engine.pause", self.inner.pause(container)).await
    }

    async fn unpause(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.around("engine.unpause", self.inner.unpause(container)).await
    }

    async fn stop(&self, container: &ContainerId, grace: Duration) -> Result<(), EngineError> {
        self.around("engine.stop", self.inner.stop(container, grace)).await
    }

    async fn remove(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.around("engine.remove", self.inner.remove(container)).await
    }

    async fn commit(&self, container: &ContainerId, origin: &SnapshotOrigin) -> Result<Snapshot, EngineError> {
        self.around("engine.commit", self.inner.commit(container, origin)).await
    }

    async fn snapshot(&self, instance: &InstanceName, id: SnapshotId) -> Result<Option<Snapshot>, EngineError> {
        self.around("engine.snapshot", self.inner.snapshot(instance, id)).await
    }

    async fn snapshots(&self, instance: &InstanceName, chat: Option<ChatId>) -> Result<Vec<Snapshot>, EngineError> {
        self.around("engine.snapshots", self.inner.snapshots(instance, chat)).await
    }

    async fn remove_snapshot(&self, instance: &InstanceName, id: SnapshotId) -> Result<SnapshotRemoval, EngineError> {
        self.around("engine.remove_snapshot", self.inner.remove_snapshot(instance, id)).await
    }

    async fn remove_drafts(&self, instance: &InstanceName, before: Timestamp) -> Result<(), EngineError> {
        self.around("engine.remove_drafts", self.inner.remove_drafts(instance, before)).await
    }

    async fn log_tail(&self, container: &ContainerId, lines: usize) -> Result<Vec<String>, EngineError> {
        self.around("engine.log_tail", self.inner.log_tail(container, lines)).await
    }

    /// Has no crash point: it changes no state, and no action of the service depends on it.
    async fn logs(&self, container: &ContainerId, range: LogRange) -> Result<EngineLogs, EngineError> {
        self.inner.logs(container, range).await
    }

    async fn watch(&self, instance: &InstanceName) -> Result<EngineEvents, EngineError> {
        self.around("engine.watch", self.inner.watch(instance)).await
    }
}

#[async_trait]
impl ChatDirectories for WithCrashPoints<Arc<dyn ChatDirectories>> {
    async fn prepare(&self, chat: ChatId, user: Option<User>) -> Result<HostPath, DirectoryError> {
        self.around("directories.prepare", self.inner.prepare(chat, user)).await
    }

    async fn remove(&self, chat: ChatId) -> Result<bool, DirectoryError> {
        self.around("directories.remove", self.inner.remove(chat)).await
    }

    async fn finish_removals(&self) -> Result<(), DirectoryError> {
        self.inner.finish_removals().await
    }

    async fn list(&self) -> Result<Vec<ChatId>, DirectoryError> {
        self.inner.list().await
    }

    async fn changed_at(&self, chat: ChatId) -> Result<Option<Timestamp>, DirectoryError> {
        self.inner.changed_at(chat).await
    }

    async fn mark_used(&self, chat: ChatId) -> Result<(), DirectoryError> {
        self.inner.mark_used(chat).await
    }
}

#[async_trait]
impl Slots for WithCrashPoints<Arc<dyn Slots>> {
    fn late_binding(&self) -> Result<LateBinding, String> {
        self.inner.late_binding()
    }

    async fn prepare(&self, slot: SlotId, places: &[String]) -> Result<GuestSetup, DirectoryError> {
        self.around("slots.prepare", self.inner.prepare(slot, places)).await
    }

    async fn wait(&self, slot: SlotId, places: &[String]) -> Result<(), NotBound> {
        self.inner.wait(slot, places).await
    }

    async fn is_free(&self, slot: SlotId) -> Result<bool, DirectoryError> {
        self.inner.is_free(slot).await
    }

    async fn take(&self, slot: SlotId, session: SessionId) -> Result<(), DirectoryError> {
        self.around("slots.take", self.inner.take(slot, session)).await
    }

    async fn bind(&self, slot: SlotId, session: SessionId, binding: &Binding) -> Result<(), NotBound> {
        self.around("slots.bind", self.inner.bind(slot, session, binding)).await
    }

    async fn remember(&self, claim: &Claim) -> Result<(), DirectoryError> {
        self.around("slots.remember", self.inner.remember(claim)).await
    }

    async fn open_again(&self, session: SessionId) -> Result<(), NotBound> {
        self.inner.open_again(session).await
    }

    async fn bind_again(&self, session: SessionId) -> Result<(), NotBound> {
        self.inner.bind_again(session).await
    }

    async fn retain(&self, slots: &HashSet<SlotId>) {
        self.inner.retain(slots).await;
    }

    async fn clear(&self, slot: SlotId) {
        self.around("slots.clear", self.inner.clear(slot)).await;
    }
}

impl<J: Journal> Journal for WithCrashPoints<J> {
    fn load(&mut self) -> Result<Contents, JournalError> {
        self.around_blocking("journal.load", J::load)
    }

    fn sandbox(&mut self, chat: ChatId) -> Result<Option<Sandbox>, JournalError> {
        self.around_blocking("journal.sandbox", |journal| journal.sandbox(chat))
    }

    /// Has no crash point: it changes no state.
    fn sessions(&mut self) -> Result<Vec<SessionId>, JournalError> {
        self.inner.sessions()
    }

    fn commit(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        self.around_blocking("journal.commit", |journal| journal.commit(entries))
    }

    fn events(&mut self, after: u64, chat: Option<ChatId>, limit: usize) -> Result<EventPage, JournalError> {
        self.around_blocking("journal.events", |journal| journal.events(after, chat, limit))
    }

    fn last_events(&mut self, chat: ChatId, limit: usize) -> Result<Vec<LifecycleEvent>, JournalError> {
        self.around_blocking("journal.last_events", |journal| journal.last_events(chat, limit))
    }
}
