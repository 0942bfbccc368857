//! The containers of one service as the engine reports them, without the service in between.

use std::collections::HashMap;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::exec::StartExecResults;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, EventMessage, ExecConfig, HostConfig,
};
use bollard::query_parameters::{
    CreateContainerOptions, EventsOptionsBuilder, KillContainerOptions, ListContainersOptionsBuilder,
    RemoveContainerOptionsBuilder,
};
use futures_util::{Stream, StreamExt};
use serde_json::Value;

use crate::engine::{blocking, eventually, test_image};

#[derive(Clone)]
pub(crate) struct Containers {
    pub(crate) docker: Docker,
    instance: String,
}

impl Containers {
    pub(crate) fn of(docker: Docker, instance: &str) -> Self {
        Self { docker, instance: instance.to_owned() }
    }

    /// Returns all containers, running or not.
    pub(crate) async fn all(&self) -> Vec<ContainerSummary> {
        let options = ListContainersOptionsBuilder::default().all(true).filters(&self.ours()).build();
        self.docker.list_containers(Some(options)).await.expect("a list")
    }

    pub(crate) async fn count(&self) -> usize {
        self.all().await.len()
    }

    /// Returns the id of the only container, once it exists.
    pub(crate) async fn only(&self) -> String {
        eventually("there is a container", || async {
            let mut all = self.all().await;
            assert!(all.len() <= 1, "{all:?}");
            all.pop().and_then(|container| container.id)
        })
        .await
    }

    pub(crate) async fn none_is_left(&self) {
        eventually("no container is left", || async { self.all().await.is_empty().then_some(()) }).await;
    }

    pub(crate) async fn inspect(&self, id: &str) -> ContainerInspectResponse {
        self.docker.inspect_container(id, None).await.expect("it is there")
    }

    pub(crate) async fn is_running(&self, id: &str) -> bool {
        let answer = self.docker.inspect_container(id, None).await;
        answer.ok().and_then(|container| container.state?.running).unwrap_or(false)
    }

    /// Returns the output of the sandbox's shell, both streams together.
    pub(crate) async fn shell(&self, id: &str, script: &str) -> String {
        let command = ["sh", "-c", script].map(String::from).to_vec();
        let config = ExecConfig {
            cmd: Some(command),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            ..Default::default()
        };
        let exec = self.docker.create_exec(id, config).await.expect("a command").id;
        let StartExecResults::Attached { output, .. } =
            self.docker.start_exec(&exec, None).await.expect("it can be started")
        else {
            panic!("detached")
        };
        let text = |chunk: Result<LogOutput, _>| String::from_utf8_lossy(&chunk.expect("output").into_bytes()).into();
        let chunks: Vec<String> = output.map(text).collect().await;
        chunks.concat()
    }

    pub(crate) async fn kill(&self, id: &str) {
        self.docker.kill_container(id, None::<KillContainerOptions>).await.expect("killed");
        eventually("it has ended", || async { (!self.is_running(id).await).then_some(()) }).await;
    }

    pub(crate) async fn remove(&self, id: &str) {
        remove(&self.docker, id).await.expect("removed");
    }

    /// Creates a container that does not belong to the service.
    pub(crate) async fn create_foreign(&self, name: &str) -> ForeignContainer {
        let id = self.create(Some(name), HashMap::from([("sandboxd.test".into(), "foreign".into())])).await;
        let foreign = ForeignContainer { id, docker: self.docker.clone() };
        self.docker.start_container(&foreign.id, None).await.expect("started");
        foreign
    }

    /// Creates a container without a chat. Its engine event comes after all earlier ones.
    pub(crate) async fn create_marker(&self) -> String {
        let ours = [("sandboxd.managed", "true"), ("sandboxd.instance", &self.instance)];
        self.create(None, ours.map(|(label, value)| (label.to_owned(), value.to_owned())).into()).await
    }

    async fn create(&self, name: Option<&str>, labels: HashMap<String, String>) -> String {
        let body = ContainerCreateBody {
            image: Some(test_image()),
            labels: Some(labels),
            host_config: Some(HostConfig { network_mode: Some("none".into()), ..Default::default() }),
            ..Default::default()
        };
        let options = CreateContainerOptions { name: name.map(String::from), ..Default::default() };
        self.docker.create_container(Some(options), body).await.expect("created").id
    }

    /// Streams the creations and removals of containers from now on, in order.
    pub(crate) fn creations_and_removals(&self) -> impl Stream<Item = EventMessage> + Send + 'static {
        let mut filters = self.ours();
        filters.insert("event", vec!["create".to_owned(), "destroy".to_owned()]);
        let now = chrono::Utc::now().timestamp().to_string();
        let options = EventsOptionsBuilder::default().since(&now).filters(&filters).build();
        self.docker.events(Some(options)).map(|event| event.expect("an event"))
    }

    fn ours(&self) -> HashMap<&'static str, Vec<String>> {
        HashMap::from([("label", vec![format!("sandboxd.instance={}", self.instance)])])
    }
}

/// Returns the container id of a created sandbox.
pub(crate) fn id_of(sandbox: &Value) -> &str {
    sandbox["container_id"].as_str().expect("a container's id")
}

/// A container that does not belong to the service. It is removed on drop.
pub(crate) struct ForeignContainer {
    pub(crate) id: String,
    docker: Docker,
}

impl ForeignContainer {
    pub(crate) async fn is_running(&self) -> bool {
        let answer = self.docker.inspect_container(&self.id, None).await;
        answer.ok().and_then(|container| container.state?.running).unwrap_or(false)
    }
}

impl Drop for ForeignContainer {
    fn drop(&mut self) {
        let (docker, id) = (self.docker.clone(), self.id.clone());
        blocking(async move { drop(remove(&docker, &id).await) });
    }
}

async fn remove(docker: &Docker, id: &str) -> Result<(), bollard::errors::Error> {
    let options = RemoveContainerOptionsBuilder::default().force(true).build();
    docker.remove_container(id, Some(options)).await
}
