//! An engine in memory, for the faults and the scale that a real one cannot show. Every call can be made to fail, to be
//! carried out and then fail, to wait for a gate, or to never answer; and every call is counted.

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

/// Cheap to clone; all clones are the same engine.
#[derive(Debug, Clone)]
pub struct FakeEngine {
    inner: Arc<Mutex<Inner>>,
    /// Changes with every call that begins or ends, for tests that wait for one.
    activity: Arc<watch::Sender<u64>>,
}

#[derive(Debug, Default)]
struct Inner {
    containers: BTreeMap<ContainerId, FakeContainer>,
    snapshots: BTreeMap<String, Snapshot>,
    networks: Vec<String>,
    missing_images: Vec<String>,
    /// How often each was rebuilt.
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

    /// The next call of this kind meets this fault; further faults queue up.
    pub fn fail_next(&self, operation: Operation, fault: Fault) {
        self.inner().faults.entry(operation).or_default().push_back(fault);
    }

    /// Every call of this kind meets this fault, until [`FakeEngine::heal`].
    pub fn fail_always(&self, operation: Operation, fault: Fault) {
        self.inner().standing_faults.insert(operation, fault);
    }

    pub fn heal(&self) {
        let mut inner = self.inner();
        inner.faults.clear();
        inner.standing_faults.clear();
    }

    /// The next call of this kind waits at the gate that is returned.
    pub fn hold_next(&self, operation: Operation) -> Gate {
        let gate = Gate::default();
        self.fail_next(operation, Fault::Hold(gate.clone()));
        gate
    }

    /// The next call of this kind is carried out, and its answer waits at the gate that is returned.
    pub fn hold_next_answer(&self, operation: Operation) -> Gate {
        let gate = Gate::default();
        self.fail_next(operation, Fault::HoldAnswer(gate.clone()));
        gate
    }

    pub fn lose_image(&self, image: &str) {
        self.inner().missing_images.push(image.to_owned());
    }

    /// The image's name stands for another image from now on.
    pub fn rebuild_image(&self, image: &str) {
        *self.inner().rebuilt.entry(image.to_owned()).or_default() += 1;
    }

    /// Containers get no address from now on.
    pub fn without_addresses(&self) {
        self.inner().addressless = true;
    }

    /// Ends a container's first process, as a crash would.
    pub fn end(&self, container: &ContainerId, exit: Exit, log: &[&str]) {
        let Inner { containers, watchers, .. } = &mut *self.inner();
        if let Some(container) = containers.get_mut(container) {
            container.observed.state = ContainerState::Exited(Some(exit));
            container.log.extend(log.iter().map(|line| Printed::now(LogStream::Stdout, line)));
            if exit.oom_killed {
                watchers.tell(&container.observed, EventKind::OutOfMemory);
            }
            watchers.tell(&container.observed, EventKind::Died);
        }
        self.activity.send_modify(|count| *count += 1);
    }

    /// Prints a line, as the container's first process would.
    pub fn print(&self, container: &ContainerId, stream: LogStream, line: &str) {
        if let Some(container) = self.inner().containers.get_mut(container) {
            container.log.push(Printed::now(stream, line));
        }
        self.activity.send_modify(|count| *count += 1);
    }

    /// Pauses a container, or lets it go on, behind the service's back.
    pub fn set_paused(&self, container: &ContainerId, paused: bool) {
        let _ = self.inner().switch(container, paused);
    }

    pub fn set_health(&self, container: &ContainerId, health: Health) {
        let Inner { containers, watchers, .. } = &mut *self.inner();
        if let Some(container) = containers.get_mut(container) {
            container.observed.health = Some(health);
            if health == Health::Unhealthy {
                watchers.tell(&container.observed, EventKind::Unhealthy);
            }
        }
    }

    /// Removes a container behind the service's back.
    pub fn vanish(&self, container: &ContainerId) {
        self.inner().remove(container);
    }

    /// Tells those who watch of something that may not have happened at all.
    pub fn claim(&self, container: &ContainerId, what: EventKind) {
        let inner = self.inner();
        if let Some(container) = inner.containers.get(container) {
            inner.watchers.tell(&container.observed, what);
        }
    }

    /// Ends every stream of events with an error. Whether they can be opened again is for [`Operation::Watch`]'s
    /// faults to say.
    pub fn break_streams(&self) {
        self.inner().watchers.break_off();
    }

    /// How many streams of events are open.
    pub fn streams(&self) -> usize {
        self.inner().watchers.count()
    }

    /// Puts a container there that nobody asked this engine for.
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

    /// In the order in which they were made.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.inner().snapshots.values().cloned().collect()
    }

    pub fn networks(&self) -> Vec<String> {
        self.inner().networks.clone()
    }

    /// How many calls of this kind have begun.
    pub fn calls(&self, operation: Operation) -> usize {
        self.inner().calls.get(&operation).copied().unwrap_or_default()
    }

    /// The largest number of calls of this kind that there ever were at once.
    pub fn most_under_way(&self, operation: Operation) -> usize {
        self.inner().most_under_way.get(&operation).copied().unwrap_or_default()
    }

    /// The largest number of containers with one name that there ever was.
    pub fn most_at_once(&self) -> usize {
        self.inner().most_at_once
    }

    /// How often a container was refused because its name was taken.
    pub fn name_clashes(&self) -> usize {
        self.inner().name_clashes
    }

    /// Resolves once so many calls of this kind have begun.
    pub async fn reached(&self, operation: Operation, calls: usize) {
        self.until(|engine| engine.calls(operation) >= calls).await;
    }

    /// Resolves once the condition holds; looks again whenever a call begins or ends.
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

    /// Meets whatever fault is planned, carrying the call out before, after or not at all.
    async fn call<T>(
        &self,
        operation: Operation,
        work: impl FnOnce(&mut Inner) -> Result<T, EngineError> + Send,
    ) -> Result<T, EngineError> {
        let _under_way = UnderWay::begin(self, operation);
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
            Some(Fault::Panic) => panic!("the fake engine was told to panic in {operation}"),
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

/// A call from its beginning to its end, which may be that the caller drops it.
struct UnderWay<'a> {
    engine: &'a FakeEngine,
    operation: Operation,
}

impl<'a> UnderWay<'a> {
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

impl Drop for UnderWay<'_> {
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
        self.call(Operation::Pause, |inner| inner.switch(container, true)).await
    }

    async fn unpause(&self, container: &ContainerId) -> Result<(), EngineError> {
        self.call(Operation::Unpause, |inner| inner.switch(container, false)).await
    }

    async fn stop(&self, container: &ContainerId, _grace: Duration) -> Result<(), EngineError> {
        self.call(Operation::Stop, |inner| {
            let Inner { containers, watchers, .. } = inner;
            if let Some(container) = containers.get_mut(container)
                && is_alive(&container.observed)
            {
                container.observed.state = ContainerState::Exited(Some(Exit { code: 143, oom_killed: false }));
                watchers.tell(&container.observed, EventKind::Died);
                watchers.tell(&container.observed, EventKind::Stopped);
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
            let asked = |snapshot: &&Snapshot| {
                snapshot.origin.instance == *instance && chat.is_none_or(|chat| snapshot.origin.chat == chat)
            };
            Ok(inner.snapshots.values().filter(asked).cloned().collect())
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
        self.watchers.tell(&started, EventKind::Started);
        Ok(())
    }

    fn switch(&mut self, container: &ContainerId, paused: bool) -> Result<(), EngineError> {
        use ContainerState::{Paused, Running};
        let (operation, from, to, what) = match paused {
            true => (Operation::Pause, Running, Paused, EventKind::Paused),
            false => (Operation::Unpause, Paused, Running, EventKind::Resumed),
        };
        let container = self.existing(container)?;
        if container.observed.state != from {
            let message = format!("it is {:?}", container.observed.state);
            return Err(EngineError::Refused { operation, message });
        }
        container.observed.state = to;
        let switched = container.observed.clone();
        self.watchers.tell(&switched, what);
        Ok(())
    }

    fn remove(&mut self, container: &ContainerId) {
        let Some(removed) = self.containers.remove(container) else { return };
        if is_alive(&removed.observed) {
            self.watchers.tell(&removed.observed, EventKind::Died);
        }
        self.watchers.tell(&removed.observed, EventKind::Destroyed);
    }

    fn existing(&mut self, container: &ContainerId) -> Result<&mut FakeContainer, EngineError> {
        let missing = || EngineError::NoSuchContainer { container: container.to_string() };
        self.containers.get_mut(container).ok_or_else(missing)
    }
}
