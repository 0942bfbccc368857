//! A fake engine in memory, for faults and scale that a real engine cannot show. Tests make any call fail, take effect
//! and then fail, wait for a gate, or never answer. Every call is counted.

mod faults;
mod logs;
mod watchers;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::events::{EngineEvents, EventKind};
use super::logs::{EngineLogs, LogRange, LogStream};
use super::{ContainerState, Engine, EngineError, EngineIdentity, Exit, Health, NetworkSpec, Observed, Operation};
use crate::domain::container::ContainerSpec;
use crate::domain::ids::{ChatId, ContainerId, ContainerName, InstanceName, SnapshotId};
use crate::domain::labels;
use crate::domain::profile::Network;
use crate::domain::snapshot::{Snapshot, SnapshotOrigin, image_name};
use crate::ports::clock::{Clock, SystemClock, Timestamp};
use crate::ports::engine::SnapshotRemoval;

pub use faults::{Fault, Gate};
use logs::Printed;
use watchers::Watchers;

/// An engine in memory. It is cheap to clone, and all clones are the same engine.
#[derive(Debug, Clone)]
pub struct FakeEngine {
    inner: Arc<Mutex<Inner>>,
    /// Changes when a call begins or ends, for tests that wait for one.
    activity: Arc<watch::Sender<u64>>,
}

#[derive(Debug, Default)]
struct Inner {
    containers: BTreeMap<ContainerId, FakeContainer>,
    snapshots: BTreeMap<String, Snapshot>,
    networks: Vec<String>,
    missing_images: Vec<String>,
    /// The number of rebuilds of each image.
    rebuilt: BTreeMap<String, u32>,
    addressless: bool,
    watchers: Watchers,
    faults: HashMap<Operation, VecDeque<Fault>>,
    standing_faults: HashMap<Operation, Fault>,
    calls: HashMap<Operation, usize>,
    under_way: HashMap<Operation, usize>,
    most_under_way: HashMap<Operation, usize>,
    created: u32,
    name_clashes: usize,
    most_at_once: usize,
}

#[derive(Debug, Clone)]
struct FakeContainer {
    spec: ContainerSpec,
    observed: Observed,
    log: Vec<Printed>,
}

impl Default for FakeEngine {
    fn default() -> Self {
        Self { inner: Arc::default(), activity: Arc::new(watch::Sender::new(0)) }
    }
}

impl FakeEngine {
    pub fn new() -> Self {
        Self::default()
    }

    /// Injects the fault into the next call of this kind; further faults queue up.
    pub fn fail_next(&self, operation: Operation, fault: Fault) {
        self.inner().faults.entry(operation).or_default().push_back(fault);
    }

    /// Injects the fault into every call of this kind until [`FakeEngine::heal`].
    pub fn fail_always(&self, operation: Operation, fault: Fault) {
        self.inner().standing_faults.insert(operation, fault);
    }

    pub fn heal(&self) {
        let mut inner = self.inner();
        inner.faults.clear();
        inner.standing_faults.clear();
    }

    /// Blocks the next call of this kind at the returned gate.
    pub fn hold_next(&self, operation: Operation) -> Gate {
        let gate = Gate::default();
        self.fail_next(operation, Fault::Hold(gate.clone()));
        gate
    }

    /// Blocks the answer to the next call of this kind at the returned gate. The call takes effect at once.
    pub fn hold_next_answer(&self, operation: Operation) -> Gate {
        let gate = Gate::default();
        self.fail_next(operation, Fault::HoldAnswer(gate.clone()));
        gate
    }

    pub fn lose_image(&self, image: &str) {
        self.inner().missing_images.push(image.to_owned());
    }

    /// Moves the image's name to another image.
    pub fn rebuild_image(&self, image: &str) {
        *self.inner().rebuilt.entry(image.to_owned()).or_default() += 1;
    }

    /// Gives no address to containers that start from now on.
    pub fn without_addresses(&self) {
        self.inner().addressless = true;
    }

    /// Ends a container's first process, as in a crash.
    pub fn end(&self, container: &ContainerId, exit: Exit, log: &[&str]) {
        let Inner { containers, watchers, .. } = &mut *self.inner();
        if let Some(container) = containers.get_mut(container) {
            container.observed.state = ContainerState::Exited(Some(exit));
            container.log.extend(log.iter().map(|line| Printed::now(LogStream::Stdout, line)));
            if exit.oom_killed {
                watchers.publish(&container.observed, EventKind::OutOfMemory);
            }
            watchers.publish(&container.observed, EventKind::Died);
        }
        self.activity.send_modify(|count| *count += 1);
    }

    /// Adds a line to the output of the container's first process.
    pub fn print(&self, container: &ContainerId, stream: LogStream, line: &str) {
        if let Some(container) = self.inner().containers.get_mut(container) {
            container.log.push(Printed::now(stream, line));
        }
        self.activity.send_modify(|count| *count += 1);
    }

    /// Pauses or resumes a container externally.
    pub fn set_paused(&self, container: &ContainerId, paused: bool) {
        let _ = self.inner().set_paused(container, paused);
    }

    pub fn set_health(&self, container: &ContainerId, health: Health) {
        let Inner { containers, watchers, .. } = &mut *self.inner();
        if let Some(container) = containers.get_mut(container) {
            container.observed.health = Some(health);
            if health == Health::Unhealthy {
                watchers.publish(&container.observed, EventKind::Unhealthy);
            }
        }
    }

    /// Removes a container externally.
    pub fn vanish(&self, container: &ContainerId) {
        self.inner().remove(container);
    }

    /// Publishes an event that need not be true.
    pub fn report_event(&self, container: &ContainerId, kind: EventKind) {
        let inner = self.inner();
        if let Some(container) = inner.containers.get(container) {
            inner.watchers.publish(&container.observed, kind);
        }
    }

    /// Ends every event stream with an error. The faults of [`Operation::Watch`] apply to a new stream.
    pub fn break_streams(&self) {
        self.inner().watchers.disconnect();
    }

    /// Returns the number of open event streams.
    pub fn streams(&self) -> usize {
        self.inner().watchers.count()
    }

    /// Adds a container that the service did not create.
    pub fn place(&self, observed: Observed, spec: ContainerSpec) {
        let container = FakeContainer { spec, observed: observed.clone(), log: Vec::new() };
        self.inner().containers.insert(observed.id, container);
    }

    pub fn containers(&self) -> Vec<Observed> {
        self.inner().containers.values().map(|container| container.observed.clone()).collect()
    }

    pub fn specs(&self) -> Vec<ContainerSpec> {
        self.inner().containers.values().map(|container| container.spec.clone()).collect()
    }

    /// Returns the snapshots, in the order of their creation.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.inner().snapshots.values().cloned().collect()
    }

    pub fn networks(&self) -> Vec<String> {
        self.inner().networks.clone()
    }

    /// Returns the number of calls of this kind that have begun.
    pub fn calls(&self, operation: Operation) -> usize {
        self.inner().calls.get(&operation).copied().unwrap_or_default()
    }

    /// Returns the maximum number of concurrent calls of this kind.
    pub fn most_under_way(&self, operation: Operation) -> usize {
        self.inner().most_under_way.get(&operation).copied().unwrap_or_default()
    }

    /// Returns the maximum number of containers that had the same name at the same time.
    pub fn most_at_once(&self) -> usize {
        self.inner().most_at_once
    }

    /// Returns the number of creations that failed because the name was in use.
    pub fn name_clashes(&self) -> usize {
        self.inner().name_clashes
    }

    /// Resolves when this number of calls of this kind have begun.
    pub async fn reached(&self, operation: Operation, calls: usize) {
        self.until(|engine| engine.calls(operation) >= calls).await;
    }

    /// Resolves when the condition holds. It is checked again when a call begins or ends.
    pub async fn until(&self, condition: impl Fn(&Self) -> bool) {
        let mut activity = self.activity.subscribe();
        while !condition(self) {
            if activity.changed().await.is_err() {
                return;
            }
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Executes a call with the planned fault, if there is one.
    async fn call<T>(
        &self,
        operation: Operation,
        work: impl FnOnce(&mut Inner) -> Result<T, EngineError> + Send,
    ) -> Result<T, EngineError> {
        let _running = RunningCall::begin(self, operation);
        let fault = {
            let mut inner = self.inner();
            let planned = inner.faults.get_mut(&operation).and_then(VecDeque::pop_front);
            planned.or_else(|| inner.standing_faults.get(&operation).cloned())
        };
        match fault {
            None => work(&mut self.inner()),
            Some(Fault::Fail(error)) => Err(error),
            Some(Fault::DoThenFail(error)) => work(&mut self.inner()).and(Err(error)),
            Some(Fault::FalseSuccess) => {
                let mut inner = self.inner();
                let (containers, watchers) = (inner.containers.clone(), std::mem::take(&mut inner.watchers));
                let answer = work(&mut inner);
                (inner.containers, inner.watchers) = (containers, watchers);
                answer
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Panic) => panic!("the fake engine panics on request in {operation}"),
            Some(Fault::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                work(&mut self.inner())
            }
            Some(Fault::Hold(gate)) => {
                gate.passed().await;
                work(&mut self.inner())
            }
            Some(Fault::HoldAnswer(gate)) => {
                let answer = work(&mut self.inner());
                gate.passed().await;
                answer
            }
        }
    }
}

/// Counts a call as running until it ends or is dropped.
struct RunningCall<'a> {
    engine: &'a FakeEngine,
    operation: Operation,
}

impl<'a> RunningCall<'a> {
    fn begin(engine: &'a FakeEngine, operation: Operation) -> Self {
        let mut inner = engine.inner();
        *inner.calls.entry(operation).or_default() += 1;
        let now = inner.under_way.entry(operation).or_default();
        *now += 1;
        let now = *now;
        let most = inner.most_under_way.entry(operation).or_default();
        *most = now.max(*most);
        drop(inner);
        engine.activity.send_modify(|count| *count += 1);
        Self { engine, operation }
    }
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        if let Some(now) = self.engine.inner().under_way.get_mut(&self.operation) {
            *now -= 1;
        }
        self.engine.activity.send_modify(|count| *count += 1);
    }
}

#[async_trait]
impl Engine for FakeEngine {
    async fn identify(&self) -> Result<EngineIdentity, EngineError> {
        self.call(Operation::Identify, |_| {
            Ok(EngineIdentity {
                kind: "fake".into(),
                version: "1".into(),
                api_version: "1".into(),
                host: "memory".into(),
            })
        })
        .await
    }

    async fn ensure_network(&self, network: &NetworkSpec) -> Result<(), EngineError> {
        self.call(Operation::EnsureNetwork, |inner| {
            if !inner.networks.contains(&network.name) {
                inner.networks.push(network.name.clone());
            }
            Ok(())
        })
        .await
    }

    async fn image_id(&self, image: &str) -> Result<Option<String>, EngineError> {
        self.call(Operation::ImageId, |inner| {
            let is_there = !inner.missing_images.iter().any(|missing| missing == image);
            let version = inner.rebuilt.get(image).copied().unwrap_or_default();
            Ok(is_there.then(|| format!("{image}@{version}")))
        })
        .await
    }

    async fn rename(&self, container: &ContainerId, name: &ContainerName) -> Result<(), EngineError> {
        self.call(Operation::Rename, |inner| {
            if inner.containers.values().any(|other| other.observed.name == name.as_str()) {
                return Err(EngineError::NameTaken { name: name.to_string() });
            }
            inner.existing(container)?.observed.name = name.to_string();
            Ok(())
        })
        .await
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<ContainerId, EngineError> {
        self.call(Operation::Create, |inner| inner.create(spec)).await
    }

    async fn start(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.call(Operation::Start, |inner| inner.start(container)).await
    }

    async fn inspect(&self, id_or_name: &str) -> Result<Option<Observed>, EngineError> {
        self.call(Operation::Inspect, |inner| {
            let by_id = inner.containers.get(&ContainerId::new(id_or_name));
            let found = by_id.or_else(|| inner.containers.values().find(|other| other.observed.name == id_or_name));
            Ok(found.map(|container| container.observed.clone()))
        })
        .await
    }

    async fn list(&self, instance: &InstanceName) -> Result<Vec<Observed>, EngineError> {
        self.call(Operation::List, |inner| {
            let ours = |labels: &BTreeMap<String, String>| {
                labels.contains_key(labels::MANAGED)
                    && labels.get(labels::INSTANCE).is_some_and(|name| name == instance.as_str())
            };
            let observed = inner.containers.values().map(|container| &container.observed);
            Ok(observed.filter(|observed| ours(&observed.labels)).cloned().collect())
        })
        .await
    }

    async fn pause(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.call(Operation::Pause, |inner| inner.set_paused(container, true)).await
    }

    async fn unpause(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.call(Operation::Unpause, |inner| inner.set_paused(container, false)).await
    }

    async fn stop(&self, container: &ContainerId, _grace: Duration) -> Result<(), EngineError> {
        self.call(Operation::Stop, |inner| {
            let Inner { containers, watchers, .. } = inner;
            if let Some(container) = containers.get_mut(container)
                && is_alive(&container.observed)
            {
                container.observed.state = ContainerState::Exited(Some(Exit { code: 143, oom_killed: false }));
                watchers.publish(&container.observed, EventKind::Died);
                watchers.publish(&container.observed, EventKind::Stopped);
            }
            Ok(())
        })
        .await
    }

    async fn remove(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.call(Operation::Remove, |inner| {
            inner.remove(container);
            Ok(())
        })
        .await
    }

    async fn commit(&self, container: &ContainerId, origin: &SnapshotOrigin) -> Result<Snapshot, EngineError> {
        self.call(Operation::Commit, |inner| {
            inner.existing(container)?;
            let snapshot = Snapshot { origin: origin.clone(), size_bytes: 1 << 20 };
            inner.snapshots.insert(origin.image_name(), snapshot.clone());
            Ok(snapshot)
        })
        .await
    }

    async fn snapshot(&self, instance: &InstanceName, id: SnapshotId) -> Result<Option<Snapshot>, EngineError> {
        self.call(Operation::Snapshot, |inner| Ok(inner.snapshots.get(&image_name(instance, id)).cloned())).await
    }

    async fn snapshots(&self, instance: &InstanceName, chat: Option<ChatId>) -> Result<Vec<Snapshot>, EngineError> {
        self.call(Operation::Snapshots, |inner| {
            let matches = |snapshot: &&Snapshot| {
                snapshot.origin.instance == *instance && chat.is_none_or(|chat| snapshot.origin.chat == chat)
            };
            Ok(inner.snapshots.values().filter(matches).cloned().collect())
        })
        .await
    }

    async fn remove_snapshot(&self, instance: &InstanceName, id: SnapshotId) -> Result<SnapshotRemoval, EngineError> {
        self.call(Operation::RemoveSnapshot, |inner| {
            let image = image_name(instance, id);
            if inner.containers.values().any(|container| container.observed.image == image) {
                return Ok(SnapshotRemoval::InUse);
            }
            let removed = inner.snapshots.remove(&image).is_some();
            Ok(if removed { SnapshotRemoval::Removed } else { SnapshotRemoval::NotFound })
        })
        .await
    }

    async fn remove_drafts(&self, _: &InstanceName, _: Timestamp) -> Result<(), EngineError> {
        self.call(Operation::RemoveDrafts, |_| Ok(())).await
    }

    async fn log_tail(&self, container: &ContainerId, lines: usize) -> Result<Vec<String>, EngineError> {
        self.call(Operation::LogTail, |inner| {
            let container = inner.existing(container)?;
            let skipped = container.log.len().saturating_sub(lines);
            Ok(container.log[skipped..].iter().map(|printed| printed.line.clone()).collect())
        })
        .await
    }

    async fn logs(&self, container: &ContainerId, range: LogRange) -> Result<EngineLogs, EngineError> {
        let beginning = self.call(Operation::Logs, |inner| Ok(logs::beginning(&inner.existing(container)?.log, range)));
        Ok(logs::stream(self.clone(), container.clone(), beginning.await?, range.follow))
    }

    async fn watch(&self, instance: &InstanceName) -> Result<EngineEvents, EngineError> {
        self.call(Operation::Watch, |inner| Ok(inner.watchers.open(instance))).await
    }
}

fn is_alive(container: &Observed) -> bool {
    matches!(container.state, ContainerState::Running | ContainerState::Paused)
}

impl Inner {
    fn create(&mut self, spec: &ContainerSpec) -> Result<ContainerId, EngineError> {
        if self.missing_images.contains(&spec.image) {
            return Err(EngineError::ImageNotFound { image: spec.image.clone() });
        }
        if self.containers.values().any(|other| other.observed.name == spec.name.as_str()) {
            self.name_clashes += 1;
            return Err(EngineError::NameTaken { name: spec.name.to_string() });
        }
        self.created += 1;
        let id = ContainerId::new(format!("{:064x}", self.created));
        let observed = Observed {
            id: id.clone(),
            name: spec.name.to_string(),
            image: spec.image.clone(),
            labels: spec.labels.clone(),
            state: ContainerState::Created,
            started_at: None,
            address: None,
            health: None,
        };
        self.containers.insert(id.clone(), FakeContainer { spec: spec.clone(), observed, log: Vec::new() });
        let namesakes = self.containers.values().filter(|other| other.observed.name == spec.name.as_str()).count();
        self.most_at_once = self.most_at_once.max(namesakes);
        Ok(id)
    }

    fn start(&mut self, container: &ContainerId) -> Result<(), EngineError> {
        let (addressless, number) = (self.addressless, self.created);
        let container = self.existing(container)?;
        container.observed.state = ContainerState::Running;
        container.observed.started_at = Some(SystemClock.now());
        if container.spec.network != Network::Blocked && !addressless {
            container.observed.address = Some(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number)));
        }
        let started = container.observed.clone();
        self.watchers.publish(&started, EventKind::Started);
        Ok(())
    }

    fn set_paused(&mut self, container: &ContainerId, paused: bool) -> Result<(), EngineError> {
        use ContainerState::{Paused, Running};
        let (operation, from, to, kind) = match paused {
            true => (Operation::Pause, Running, Paused, EventKind::Paused),
            false => (Operation::Unpause, Paused, Running, EventKind::Resumed),
        };
        let container = self.existing(container)?;
        if container.observed.state != from {
            let message = format!("it is {:?}", container.observed.state);
            return Err(EngineError::Refused { operation, message });
        }
        container.observed.state = to;
        let changed = container.observed.clone();
        self.watchers.publish(&changed, kind);
        Ok(())
    }

    fn remove(&mut self, container: &ContainerId) {
        let Some(removed) = self.containers.remove(container) else { return };
        if is_alive(&removed.observed) {
            self.watchers.publish(&removed.observed, EventKind::Died);
        }
        self.watchers.publish(&removed.observed, EventKind::Destroyed);
    }

    fn existing(&mut self, container: &ContainerId) -> Result<&mut FakeContainer, EngineError> {
        let missing = || EngineError::NoSuchContainer { container: container.to_string() };
        self.containers.get_mut(container).ok_or_else(missing)
    }
}
