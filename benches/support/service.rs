//! The shipped service in its own process, on the real engine. Its instance, network and directory are removed when the
//! benchmark ends.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListNetworksOptionsBuilder, RemoveContainerOptionsBuilder,
};
use rustix::process::{Pid, Signal};
use sandboxd::client::Client;
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};

/// The label of everything that a benchmark creates beside the service, with the instance as its value.
pub(crate) const LABEL: &str = "sandboxd.test";

const START_LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Service {
    pub(crate) client: Client,
    pub(crate) docker: Docker,
    pub(crate) instance: String,
    pub(crate) process: Child,
    /// The directory of the `socket` and of all state.
    pub(crate) directory: tempfile::TempDir,
}

impl Service {
    #[allow(dead_code, reason = "not every benchmark has the default profile alone")]
    pub(crate) async fn start() -> Result<Self, Box<dyn Error>> {
        Self::start_with("").await
    }

    /// Starts the service with additional profiles in TOML.
    pub(crate) async fn start_with(profiles: &str) -> Result<Self, Box<dyn Error>> {
        let directory = tempfile::tempdir()?;
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("volumes"))?;
        let instance = format!("bench-{}", std::process::id());
        std::fs::write(at("sandboxd.toml"), configuration(directory.path(), &instance) + profiles)?;
        let mut process = Command::new(env!("CARGO_BIN_EXE_sandboxd"))
            .arg("--config")
            .arg(at("sandboxd.toml"))
            .stderr(File::create(at("log"))?)
            .spawn()?;
        match connect(&at("socket"), &mut process).await {
            Ok((client, docker)) => Ok(Self { client, docker, instance, process, directory }),
            Err(error) => {
                stop(&mut process);
                let log = std::fs::read_to_string(at("log")).unwrap_or_default();
                Err(format!("the service did not start: {error}\n{log}").into())
            }
        }
    }

    /// Returns the parameters of a create for this chat. Creates its volume if it is missing.
    #[allow(dead_code, reason = "not every benchmark asks for the default profile")]
    pub(crate) fn create_params(&self, chat: &str) -> Result<Value, Box<dyn Error>> {
        let volume = self.directory.path().join("volumes").join(chat);
        std::fs::create_dir_all(&volume)?;
        Ok(json!({ "chat_id": chat, "agent_id": "bench", "volume_host_path": volume }))
    }

    /// Returns the peak memory in KiB.
    #[allow(dead_code, reason = "not every benchmark asks")]
    pub(crate) fn peak_memory(&self) -> Result<u64, Box<dyn Error>> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("the kernel counts it")?;
        Ok(peak.trim().trim_end_matches("kB").trim().parse()?)
    }

    async fn clean_up(docker: Docker, instance: String) -> Result<(), bollard::errors::Error> {
        let force = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        for label in [format!("sandboxd.instance={instance}"), format!("{LABEL}={instance}")] {
            let filters = HashMap::from([("label", vec![label])]);
            let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
            for container in docker.list_containers(Some(options)).await? {
                docker.remove_container(&container.id.unwrap_or_default(), Some(force.clone())).await?;
            }
            let options = ListNetworksOptionsBuilder::default().filters(&filters).build();
            for network in docker.list_networks(Some(options)).await? {
                docker.remove_network(&network.id.unwrap_or_default()).await?;
            }
        }
        Ok(())
    }
}

impl Drop for Service {
    /// On another thread: a destructor cannot wait for the benchmark's runtime.
    fn drop(&mut self) {
        stop(&mut self.process);
        let (docker, instance) = (self.docker.clone(), self.instance.clone());
        let clean_up = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(Self::clean_up(docker, instance))
        });
        if let Ok(Err(error)) = clean_up.join() {
            eprintln!("cannot clean up: {error}");
        }
    }
}

/// Returns the image of every sandbox.
pub(crate) fn image() -> String {
    std::env::var("SANDBOXD_TEST_IMAGE").unwrap_or_else(|_| "sandboxd-busybox:test".to_owned())
}

/// Returns the default configuration with other paths and lifetimes. Metrics are on, as by default: they have a cost.
fn configuration(directory: &Path, instance: &str) -> String {
    let directory = directory.display();
    let image = image();
    format!(
        r#"
        instance.name = "{instance}"
        engine.network = "sandboxd-{instance}"
        socket.path = "{directory}/socket"
        state.dir = "{directory}/state"
        chats.root = "{directory}/state/chats"
        mounts.dependencies_source = "{directory}/state/dependencies"
        mounts.lambda_tools_source = "{directory}/state/lambda-tools"
        volumes.roots = ["{directory}/volumes"]
        metrics.listen = "127.0.0.1:0"
        profiles.default.image = "{image}"
        profiles.default.ttl = "1h"
        "#
    )
}

/// Waits until the service answers, and connects to the engine that it has found.
async fn connect(socket: &Path, process: &mut Child) -> Result<(Client, Docker), Box<dyn Error>> {
    let started = Instant::now();
    let client = loop {
        match Client::connect(socket).await {
            Ok(client) => break client,
            Err(error) if started.elapsed() > START_LIMIT => return Err(error.into()),
            Err(_) => {}
        }
        if let Some(status) = process.try_wait()? {
            return Err(status.to_string().into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let info: Value = client.call(Method::SystemInfo, json!({})).await?;
    let host = info["engine"]["host"].as_str().ok_or("no engine answers")?;
    Ok((client, Docker::connect_with_host(host)?))
}

fn stop(process: &mut Child) {
    let asked = Pid::from_child(process);
    let _ = rustix::process::kill_process(asked, Signal::TERM);
    let _ = process.wait();
}
