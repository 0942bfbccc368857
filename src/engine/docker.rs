//! Docker, and engines with the same API, such as Podman.
//!
//! Each file is one subject: the engine's socket ([`locate`]), container creation ([`create`]), container state
//! ([`observe`]), the network ([`network`]), container output ([`logs`]), snapshots ([`snapshot`]), engine events
//! ([`events`]), the guest ([`guest`]), images ([`images`]), the engine's configuration ([`condition`]), and error
//! mapping ([`errors`]).
//!
//! The service starts even if no engine answers: each call looks for the engine until one is found. A found engine is
//! never replaced by another. Otherwise "auto" could switch to a second engine while the first restarts, and every
//! sandbox would look removed.

mod archive;
mod condition;
mod create;
mod errors;
mod events;
mod guest;
mod images;
mod locate;
mod logs;
mod network;
mod observe;
mod snapshot;

pub use images::Registries;
pub use locate::InvalidHost;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use bollard::query_parameters::{
    CreateContainerOptions, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, RenameContainerOptionsBuilder,
    StopContainerOptionsBuilder,
};
use sandboxd_actors::domain::container::ContainerSpec;
use sandboxd_actors::domain::ids::{ChatId, ContainerId, ContainerName, InstanceName, SnapshotId};
use sandboxd_actors::domain::labels;
use sandboxd_actors::domain::snapshot::{Snapshot, SnapshotOrigin};
use sandboxd_actors::ports::clock::Timestamp;
use sandboxd_actors::ports::engine::events::EngineEvents;
use sandboxd_actors::ports::engine::logs::{EngineLogs, LogRange};
use sandboxd_actors::ports::engine::{
    Engine, EngineError, EngineIdentity, NetworkSpec, Observed, Operation, SnapshotRemoval,
};
use tokio::sync::OnceCell;

use errors::{Failure, OrGone};
use locate::{Hosts, Located};

/// The interval between two removal calls while the engine already removes the container.
const REMOVAL_POLL: Duration = Duration::from_millis(100);

/// An engine with the Docker API.
#[derive(Debug)]
pub struct DockerEngine {
    hosts: Hosts,
    located: OnceCell<Located>,
    registries: Registries,
}

impl DockerEngine {
    /// Creates the adapter without connecting yet. `host` is `auto` or `unix:///path/to/socket`.
    pub fn connect(host: &str) -> Result<Self, InvalidHost> {
        Ok(Self { hosts: Hosts::parse(host)?, located: OnceCell::new(), registries: Registries::default() })
    }

    /// Sets the registries at which pulls and builds sign in.
    pub fn with_registries(self, registries: Registries) -> Self {
        Self { registries, ..self }
    }

    /// Returns every socket at which this engine is or may be found. A process with access to one of them owns the
    /// host.
    pub fn sockets(&self) -> Vec<PathBuf> {
        self.hosts.sockets()
    }

    async fn client(&self) -> Result<&bollard::Docker, EngineError> {
        Ok(&self.located().await?.docker)
    }

    async fn located(&self) -> Result<&Located, EngineError> {
        self.located.get_or_try_init(|| self.hosts.locate()).await
    }
}

#[async_trait]
impl Engine for DockerEngine {
    async fn identify(&self) -> Result<EngineIdentity, EngineError> {
        let Located { docker, host } = self.located().await?;
        let version = docker.version().await.during(Operation::Identify)?;
        let components = version.components.unwrap_or_default();
        let podman = components.iter().any(|component| component.name.contains("Podman"));
        Ok(EngineIdentity {
            kind: if podman { "podman" } else { "docker" }.to_owned(),
            version: version.version.unwrap_or_default(),
            // Requests name no API version, so the engine answers in its newest one.
            api_version: version.api_version.unwrap_or_default(),
            host: host.clone(),
        })
    }

    async fn ensure_network(&self, network: &NetworkSpec) -> Result<(), EngineError> {
        network::ensure(self.client().await?, network).await
    }

    async fn image_id(&self, image: &str) -> Result<Option<String>, EngineError> {
        let answer = self.client().await?.inspect_image(image).await;
        Ok(answer.or_gone(Operation::ImageId)?.and_then(|image| image.id))
    }

    async fn rename(&self, container: &ContainerId, name: &ContainerName) -> Result<(), EngineError> {
        let options = RenameContainerOptionsBuilder::default().name(name.as_str()).build();
        let answer = self.client().await?.rename_container(container.as_str(), options).await;
        answer.map_err(|error| errors::rename_error(container, name, error))
    }

    async fn create(&self, container: &ContainerSpec) -> Result<ContainerId, EngineError> {
        let name = CreateContainerOptions { name: Some(container.name.to_string()), ..Default::default() };
        let client = self.client().await?;
        let program = match container.entry_point {
            Some(_) => {
                let image = client.inspect_image(&container.image).await.or_gone(Operation::Create)?;
                let missing = || EngineError::ImageNotFound { image: container.image.clone() };
                create::ImageProgram::of(image.ok_or_else(missing)?)
            }
            None => create::ImageProgram::default(),
        };
        let answer = client.create_container(Some(name), create::body(container, program)).await;
        answer.map(|created| ContainerId::new(created.id)).map_err(|error| errors::create_error(container, error))
    }

    async fn start(&self, container: &ContainerId) -> Result<(), EngineError> {
        let answer = self.client().await?.start_container(container.as_str(), None).await;
        answer.map_err(|error| errors::container_error(Operation::Start, container, error))
    }

    async fn inspect(&self, id_or_name: &str) -> Result<Option<Observed>, EngineError> {
        let answer = self.client().await?.inspect_container(id_or_name, None).await;
        answer.or_gone(Operation::Inspect)?.map(observe::inspected).transpose()
    }

    async fn list(&self, instance: &InstanceName) -> Result<Vec<Observed>, EngineError> {
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&HashMap::from([("label", labels_of(instance))]))
            .build();
        let answer = self.client().await?.list_containers(Some(options)).await;
        answer.during(Operation::List)?.into_iter().map(observe::listed).collect()
    }

    async fn pause(&self, container: &ContainerId) -> Result<(), EngineError> {
        let answer = self.client().await?.pause_container(container.as_str()).await;
        answer.map_err(|error| errors::container_error(Operation::Pause, container, error))
    }

    async fn unpause(&self, container: &ContainerId) -> Result<(), EngineError> {
        let answer = self.client().await?.unpause_container(container.as_str()).await;
        answer.map_err(|error| errors::container_error(Operation::Unpause, container, error))
    }

    async fn stop(&self, container: &ContainerId, grace: Duration) -> Result<(), EngineError> {
        // The engine counts in whole seconds. Rounding up keeps a short grace from becoming zero, which is a kill.
        let seconds = i32::try_from(grace.as_millis().div_ceil(1000)).unwrap_or(i32::MAX);
        let options = StopContainerOptionsBuilder::default().t(seconds).build();
        let answer = self.client().await?.stop_container(container.as_str(), Some(options)).await;
        answer.or_gone(Operation::Stop).map(drop)
    }

    async fn remove(&self, container: &ContainerId) -> Result<(), EngineError> {
        let docker = self.client().await?;
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        // The removal in progress may still fail, so this call repeats its own instead of waiting for that one. The
        // caller's deadline ends the loop.
        loop {
            match docker.remove_container(container.as_str(), Some(options.clone())).await {
                Err(error) if errors::is_removal_in_progress(&error) => tokio::time::sleep(REMOVAL_POLL).await,
                answer => return answer.or_gone(Operation::Remove).map(drop),
            }
        }
    }

    async fn commit(&self, container: &ContainerId, origin: &SnapshotOrigin) -> Result<Snapshot, EngineError> {
        snapshot::commit(self.client().await?, container, origin).await
    }

    async fn snapshot(&self, instance: &InstanceName, id: SnapshotId) -> Result<Option<Snapshot>, EngineError> {
        snapshot::inspect(self.client().await?, instance, id).await
    }

    async fn snapshots(&self, instance: &InstanceName, chat: Option<ChatId>) -> Result<Vec<Snapshot>, EngineError> {
        snapshot::list(self.client().await?, instance, chat).await
    }

    async fn remove_snapshot(&self, instance: &InstanceName, id: SnapshotId) -> Result<SnapshotRemoval, EngineError> {
        snapshot::remove(self.client().await?, instance, id).await
    }

    async fn remove_drafts(&self, instance: &InstanceName, before: Timestamp) -> Result<(), EngineError> {
        snapshot::remove_drafts(self.client().await?, instance, before).await
    }

    async fn log_tail(&self, container: &ContainerId, lines: usize) -> Result<Vec<String>, EngineError> {
        logs::tail(self.client().await?, container, lines).await
    }

    async fn logs(&self, container: &ContainerId, range: LogRange) -> Result<EngineLogs, EngineError> {
        logs::open(self.client().await?, container, range).await
    }

    async fn watch(&self, instance: &InstanceName) -> Result<EngineEvents, EngineError> {
        events::watch(self.client().await?, instance).await
    }
}

/// Returns the label filter for this instance's containers.
fn labels_of(instance: &InstanceName) -> Vec<String> {
    vec![format!("{}=true", labels::MANAGED), format!("{}={instance}", labels::INSTANCE)]
}
