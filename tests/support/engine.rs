//! A real engine for a test, with an instance of the test's own. Its containers, snapshots and networks are removed
//! when the test ends, even if it fails.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bollard::query_parameters::{ListImagesOptionsBuilder, ListNetworksOptionsBuilder, RemoveImageOptionsBuilder};
use sandboxd::engine::docker::DockerEngine;
use sandboxd_actors::domain::container::{ContainerSpec, Mount};
use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{ChatId, ContainerId, ContainerName, InstanceName};
use sandboxd_actors::domain::labels;
use sandboxd_actors::domain::profile::{Limits, Network};
use sandboxd_actors::domain::subnet::AddressRange;
use sandboxd_actors::ports::engine::{ContainerState, Engine, EngineError, Exit, NetworkSpec, Observed};
use uuid::Uuid;

/// Returns the engine's address for the tests; `scripts/engine up` prints one.
pub(crate) fn engine_host() -> String {
    std::env::var("DOCKER_HOST").unwrap_or_else(|_| "auto".to_owned())
}

pub(crate) fn test_image() -> String {
    std::env::var("SANDBOXD_TEST_IMAGE").unwrap_or_else(|_| "sandboxd-busybox:test".to_owned())
}

pub(crate) struct TestInstance {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) name: InstanceName,
    directory: tempfile::TempDir,
}

impl TestInstance {
    pub(crate) fn new() -> Self {
        Self::on(&engine_host())
    }

    pub(crate) fn on(host: &str) -> Self {
        let name = format!("test-{}", &Uuid::new_v4().simple().to_string()[..12]);
        Self {
            engine: Arc::new(DockerEngine::connect(host).expect("a valid host")),
            name: name.parse().expect("a valid name"),
            directory: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    /// Returns a container without a network that runs `script`.
    pub(crate) fn spec(&self, script: &str) -> ContainerSpec {
        ContainerSpec {
            entry_point: None,
            name: ContainerName::of(&self.name, ChatId::new(Uuid::new_v4())),
            image: test_image(),
            command: ["sh", "-c", script].map(String::from).to_vec(),
            environment: Environment::default(),
            labels: labels::ownership(&self.name),
            mounts: Vec::new(),
            tmpfs: BTreeMap::new(),
            network: Network::Blocked,
            limits: Limits { memory_bytes: 64 << 20, cpus: 0.5, pids: 32, disk_bytes: None },
            user: None,
            read_only_root: false,
            runtime: None,
            capabilities: Vec::new(),
        }
    }

    /// Returns a container that runs `script` for a new chat, under that chat's name.
    pub(crate) fn chat_spec(&self, script: &str) -> (ChatId, ContainerSpec) {
        let chat = ChatId::new(Uuid::new_v4());
        let mut spec = ContainerSpec { name: ContainerName::of(&self.name, chat), ..self.spec(script) };
        spec.labels.insert(labels::CHAT_ID.to_owned(), chat.to_string());
        (chat, spec)
    }

    /// Returns a network of the test's own. Where the engine may write firewall rules, the network isolates sandboxes
    /// from each other.
    pub(crate) fn network(&self) -> NetworkSpec {
        NetworkSpec {
            name: self.name.to_string(),
            isolated: true,
            addresses: AddressRange::Free { prefix: 20 },
            labels: labels::ownership(&self.name),
        }
    }

    /// Returns a mount at `target` of a host directory that every user may write to.
    pub(crate) fn mount(&self, target: &str, read_only: bool) -> Mount {
        use std::os::unix::fs::PermissionsExt;
        let path = self.directory.path().join(Uuid::new_v4().to_string());
        std::fs::create_dir(&path).expect("a directory");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).expect("its mode");
        let source = HostPath::from_canonical(&path.canonicalize().expect("it exists")).expect("a plain path");
        Mount { source, target: target.to_owned(), read_only, propagated: false }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) async fn launch(&self, spec: &ContainerSpec) -> ContainerId {
        let id = self.engine.create(spec).await.expect("created");
        self.engine.start(&id).await.expect("started");
        id
    }

    pub(crate) async fn observe(&self, id: &ContainerId) -> Observed {
        self.engine.inspect(id.as_str()).await.expect("an answer").expect("it is there")
    }

    /// Waits until the container has exited.
    pub(crate) async fn exit(&self, id: &ContainerId) -> Exit {
        eventually("the container ends", || async {
            match self.observe(id).await.state {
                ContainerState::Exited(exit) => exit,
                _ => None,
            }
        })
        .await
    }

    /// Returns the output of a container until its exit.
    pub(crate) async fn output(&self, spec: &ContainerSpec) -> Vec<String> {
        let id = self.launch(spec).await;
        self.exit(&id).await;
        self.engine.log_tail(&id, 1000).await.expect("its output")
    }

    /// Returns the engine's own client, for data that the port does not show.
    pub(crate) async fn raw(&self) -> bollard::Docker {
        raw(&*self.engine).await.expect("it answers")
    }

    async fn clean_up(engine: Arc<dyn Engine>, name: InstanceName) {
        for container in engine.list(&name).await.unwrap_or_default() {
            let _ = engine.remove(&container.id).await;
        }
        for snapshot in engine.snapshots(&name, None).await.unwrap_or_default() {
            let _ = engine.remove_snapshot(&name, snapshot.origin.id).await;
        }
        let _ = engine.remove_drafts(&name, chrono::DateTime::<chrono::Utc>::MAX_UTC).await;
        let Ok(raw) = raw(&*engine).await else { return };
        let ours = format!("{}={name}", labels::INSTANCE);
        let options = ListNetworksOptionsBuilder::default().filters(&HashMap::from([("label", vec![ours])])).build();
        for network in raw.list_networks(Some(options)).await.unwrap_or_default() {
            let _ = raw.remove_network(&network.id.unwrap_or_default()).await;
        }
        let ours = format!("sandboxd.image.instance={name}");
        let options = ListImagesOptionsBuilder::default().filters(&HashMap::from([("label", vec![ours])])).build();
        let force = RemoveImageOptionsBuilder::default().force(true).build();
        for image in raw.list_images(Some(options)).await.unwrap_or_default() {
            let _ = raw.remove_image(&image.id, Some(force.clone()), None).await;
        }
    }
}

impl Drop for TestInstance {
    fn drop(&mut self) {
        let (engine, name) = (Arc::clone(&self.engine), self.name.clone());
        blocking(Self::clean_up(engine, name));
    }
}

/// Runs a future to its end on another thread: a destructor cannot wait for the test's runtime.
pub(crate) fn blocking(work: impl Future<Output = ()> + Send + 'static) {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(work);
    });
    let _ = thread.join();
}

/// Polls `ask` until it returns a value, for at most 30 seconds.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(label: &str, mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), asking)
        .await
        .unwrap_or_else(|_| panic!("not within the time limit: {label}"))
}

/// Returns the engine's own client, for data that the port does not show.
pub(crate) async fn raw(engine: &dyn Engine) -> Result<bollard::Docker, EngineError> {
    let host = engine.identify().await?.host;
    Ok(bollard::Docker::connect_with_host(&host).expect("it was found there"))
}
