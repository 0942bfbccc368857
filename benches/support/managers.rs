//! The managers that can give a chat a container which serves its files: this service, warm and cold, and others.

use std::collections::HashMap;
use std::error::Error;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::RemoveContainerOptionsBuilder;
use sandboxd::client::Client;
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

use crate::service::{self, Service};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// As in the service's profiles.
const COMMAND: [&str; 6] = ["httpd", "-f", "-p", "8080", "-h", "/volume"];

const POOL_LIMIT: Duration = Duration::from_secs(120);

/// A chat whose directory holds one file with the chat's id.
#[derive(Clone)]
pub(crate) struct Chat {
    pub(crate) id: String,
    pub(crate) directory: PathBuf,
}

/// A chat's container, by the id that its manager uses.
pub(crate) struct Started {
    pub(crate) handle: String,
    pub(crate) ip: IpAddr,
}

#[async_trait]
pub(crate) trait Manager: Sync {
    fn name(&self) -> &str;

    /// Returns once the manager reports the container, which may not serve yet.
    async fn start(&self, chat: &Chat) -> Outcome<Started>;

    async fn end(&self, handle: &str) -> Outcome<()>;

    /// Waits until the manager has done its work ahead of a start.
    async fn prepare(&self) -> Outcome<()> {
        Ok(())
    }
}

/// This service, called over its socket, with one profile.
pub(crate) struct Sandboxd {
    pub(crate) client: Client,
    pub(crate) profile: &'static str,
    /// The expected `launch` of a create.
    pub(crate) launch: &'static str,
    /// The number of slots that must be free before a start.
    pub(crate) slots: u64,
}

#[async_trait]
impl Manager for Sandboxd {
    fn name(&self) -> &str {
        self.profile
    }

    async fn start(&self, chat: &Chat) -> Outcome<Started> {
        let params = json!({
            "chat_id": chat.id, "agent_id": "bench", "volume_host_path": chat.directory, "profile": self.profile,
        });
        let created: Value = self.client.call(Method::SandboxCreate, params).await?;
        if created["outcome"] != "created" || created["launch"] != self.launch {
            return Err(format!("not a {} start: {created}", self.launch).into());
        }
        let ip = created["endpoint"]["ip"].as_str().ok_or("it has an address")?.parse()?;
        Ok(Started { handle: chat.id.clone(), ip })
    }

    async fn end(&self, handle: &str) -> Outcome<()> {
        Ok(self.client.call::<Value>(Method::SandboxDelete, json!({ "chat_id": handle })).await.map(drop)?)
    }

    async fn prepare(&self) -> Outcome<()> {
        if self.slots == 0 {
            return Ok(());
        }
        let began = Instant::now();
        loop {
            let status: Value = self.client.call(Method::PoolStatus, json!({})).await?;
            let pools = status["pools"].as_array().cloned().unwrap_or_default();
            let pool = pools.iter().find(|pool| pool["profile"] == self.profile).ok_or("the profile has a pool")?;
            if pool["free"] == self.slots && pool["coming"] == 0 {
                return Ok(());
            }
            if began.elapsed() > POOL_LIMIT {
                return Err(format!("the pool is not full: {pool}").into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The engine calls that every manager makes in the end. Only a pool can be faster.
pub(crate) struct EngineApi {
    docker: Docker,
    network: String,
    labels: HashMap<String, String>,
}

impl EngineApi {
    pub(crate) fn new(service: &Service) -> Self {
        Self { docker: service.docker.clone(), network: network(service), labels: labels(service) }
    }
}

#[async_trait]
impl Manager for EngineApi {
    fn name(&self) -> &str {
        "engine's API (bollard)"
    }

    async fn start(&self, chat: &Chat) -> Outcome<Started> {
        let body = ContainerCreateBody {
            image: Some(service::image()),
            cmd: Some(COMMAND.map(String::from).to_vec()),
            labels: Some(self.labels.clone()),
            host_config: Some(HostConfig {
                binds: Some(vec![format!("{}:/volume", chat.directory.display())]),
                network_mode: Some(self.network.clone()),
                ..Default::default()
            }),
            ..Default::default()
        };
        let handle = self.docker.create_container(None, body).await?.id;
        self.docker.start_container(&handle, None).await?;
        let inspected = self.docker.inspect_container(&handle, None).await?;
        let mut networks = inspected.network_settings.and_then(|settings| settings.networks).unwrap_or_default();
        let address = networks.remove(&self.network).and_then(|network| network.ip_address);
        Ok(Started { handle, ip: address.ok_or("it has an address")?.parse()? })
    }

    async fn end(&self, handle: &str) -> Outcome<()> {
        let force = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        Ok(self.docker.remove_container(handle, Some(force)).await?)
    }
}

/// The `docker` program, once for each step.
pub(crate) struct DockerProgram {
    host: String,
    network: String,
    label: String,
}

impl DockerProgram {
    pub(crate) fn new(service: &Service, host: &str) -> Self {
        let label = format!("{}={}", service::LABEL, service.instance);
        Self { host: host.to_owned(), network: network(service), label }
    }

    async fn docker(&self, arguments: &[&str]) -> Outcome<String> {
        let output = Command::new("docker").args(["--host", &self.host]).args(arguments).output().await?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }
}

#[async_trait]
impl Manager for DockerProgram {
    fn name(&self) -> &str {
        "docker run"
    }

    async fn start(&self, chat: &Chat) -> Outcome<Started> {
        let (volume, image) = (format!("{}:/volume", chat.directory.display()), service::image());
        let options = ["run", "-d", "--network", &self.network, "--label", &self.label, "-v", &volume, &image];
        let handle = self.docker(&[&options[..], &COMMAND].concat()).await?;
        let address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
        let ip = self.docker(&["inspect", "-f", address, &handle]).await?.parse()?;
        Ok(Started { handle, ip })
    }

    async fn end(&self, handle: &str) -> Outcome<()> {
        self.docker(&["rm", "-f", "-v", handle]).await.map(drop)
    }
}

/// A manager written in Python, in a persistent process: see `benches/peers/peer.py`.
pub(crate) struct PythonPeer {
    name: String,
    streams: Mutex<(ChildStdin, Lines<BufReader<ChildStdout>>)>,
    process: Child,
}

impl PythonPeer {
    pub(crate) async fn new(kind: &str, python: &Path, service: &Service, host: &str) -> Outcome<Self> {
        if !python.exists() {
            return Err("its package is not installed: see scripts/bench".into());
        }
        let mut process = Command::new(python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/peer.py"))
            .args([kind, &service::image(), &network(service), &json!(labels(service)).to_string()])
            .env("DOCKER_HOST", host)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let stdin = process.stdin.take().ok_or("it has an input")?;
        let mut lines = BufReader::new(process.stdout.take().ok_or("it has an output")?).lines();
        answer(&mut lines).await?;
        let name = if kind == "llm-sandbox" { "llm-sandbox, from its pool" } else { kind };
        Ok(Self { name: name.to_owned(), streams: Mutex::new((stdin, lines)), process })
    }

    /// Returns once the peer has removed its containers, such as a pool.
    pub(crate) async fn close(self) -> Outcome<()> {
        let Self { streams, mut process, .. } = self;
        drop(streams);
        Ok(process.wait().await.map(drop)?)
    }

    async fn ask(&self, line: String) -> Outcome<String> {
        let (stdin, lines) = &mut *self.streams.lock().await;
        stdin.write_all(line.as_bytes()).await?;
        answer(lines).await
    }
}

async fn answer(lines: &mut Lines<BufReader<ChildStdout>>) -> Outcome<String> {
    let line = lines.next_line().await?.ok_or("it has ended")?;
    if line.starts_with("failed") { Err(line.into()) } else { Ok(line) }
}

#[async_trait]
impl Manager for PythonPeer {
    fn name(&self) -> &str {
        &self.name
    }

    async fn start(&self, chat: &Chat) -> Outcome<Started> {
        let answer = self.ask(format!("start {}\n", chat.directory.display())).await?;
        let (handle, ip) = answer.split_once(' ').ok_or("it says where")?;
        Ok(Started { handle: handle.to_owned(), ip: ip.parse()? })
    }

    async fn end(&self, handle: &str) -> Outcome<()> {
        self.ask(format!("end {handle}\n")).await.map(drop)
    }
}

/// Returns the service's network. All managers use it: the network affects the start time.
fn network(service: &Service) -> String {
    format!("sandboxd-{}", service.instance)
}

fn labels(service: &Service) -> HashMap<String, String> {
    HashMap::from([(service::LABEL.to_owned(), service.instance.clone())])
}
