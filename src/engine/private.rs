//! A private Docker engine, for a host without an engine.
//!
//! ```text
//! start ─▶ alive from an earlier run? ─ yes ─▶ adopted ─┐
//!                     └─ no ─▶ spawned ─────────────────┴─▶ answers ─▶ exited? ─▶ pause ─▶ spawned …
//! ```
//!
//! The private engine is a `dockerd` with its own data, sockets, bridge and addresses. It restores containers that
//! outlived it, so neither its exit nor that of the service ends a sandbox: both may be killed, and the next start
//! adopts the running containers. Like any Docker engine it writes the host's firewall rules, so it is only for a host
//! without another one.

mod bridge;
mod process;

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use sandboxd_actors::ports::engine::Engine;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::docker::DockerEngine;
use process::Process;

/// From the start of dockerd to its first answer.
const START_LIMIT: Duration = Duration::from_secs(60);
const START_POLL: Duration = Duration::from_millis(50);
/// From the stop signal to the exit.
const STOP_LIMIT: Duration = Duration::from_secs(30);

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// An engine that ran this long did not exit because of its start.
const SETTLED: Duration = Duration::from_secs(60);

const LOG_LIMIT: u64 = 16 << 20;

/// Why the private engine does not run.
#[derive(Debug, thiserror::Error)]
pub enum PrivateEngineError {
    #[error("a private engine needs root; run the service as root or set engine.private = false")]
    NotRoot,
    #[error("{program} is neither in PATH nor in /usr/sbin; the private engine needs it (Debian: {package})")]
    NoProgram { program: &'static str, package: &'static str },
    #[error("cannot prepare {path} for the private engine: {error}")]
    Prepare { path: PathBuf, error: io::Error },
    #[error("no free addresses for the private engine: every /16 block of 10.0.0.0/8 is routed on this host")]
    NoAddresses,
    #[error("cannot read the routes of this host: {0}")]
    Routes(io::Error),
    #[error("`{command}` failed: {message}")]
    Bridge { command: String, message: String },
    #[error("cannot start dockerd: {0}")]
    Spawn(io::Error),
    #[error("dockerd exited during its start; see {log}")]
    Ended { log: PathBuf },
    #[error("dockerd did not answer within {START_LIMIT:?}; see {log}")]
    Silent { log: PathBuf },
}

/// A running private engine. [`PrivateEngine::stop`] stops it. Dropping it leaves the engine running for the next
/// start.
#[derive(Debug)]
pub struct PrivateEngine {
    host: String,
    stop: CancellationToken,
    supervisor: AbortOnDropHandle<()>,
}

impl PrivateEngine {
    /// Starts the engine whose data is in `directory`, or adopts it if it runs, and waits until it answers.
    pub async fn start(directory: &Path) -> Result<Self, PrivateEngineError> {
        let engine = Dockerd::prepare(directory)?;
        let mut process = match Process::alive(&engine.pid_file(), &engine.runtime) {
            Some(earlier) => earlier,
            None => engine.spawn().await?,
        };
        tokio::select! {
            () = engine.answers() => {}
            () = process.ended() => return Err(PrivateEngineError::Ended { log: engine.log() }),
            () = tokio::time::sleep(START_LIMIT) => {
                process.signal(Signal::TERM);
                return Err(PrivateEngineError::Silent { log: engine.log() });
            }
        }
        let (host, stop) = (engine.host(), CancellationToken::new());
        let supervisor = AbortOnDropHandle::new(tokio::spawn(engine.supervise(process, stop.clone())));
        Ok(Self { host, stop, supervisor })
    }

    /// Returns the engine's host, for [`DockerEngine::connect`].
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Stops the engine, not its containers.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = self.supervisor.await;
    }
}

struct Dockerd {
    program: PathBuf,
    /// Persistent data: images, containers, networks, the log.
    directory: PathBuf,
    /// Data until the next boot. The path is short, because the path of a socket is limited to 108 bytes.
    runtime: PathBuf,
    id: String,
}

impl Dockerd {
    fn prepare(directory: &Path) -> Result<Self, PrivateEngineError> {
        if !rustix::process::geteuid().is_root() {
            return Err(PrivateEngineError::NotRoot);
        }
        let program = find("dockerd", "docker.io")?;
        let create = |path: &Path| {
            let failed = |error| PrivateEngineError::Prepare { path: path.to_owned(), error };
            fs::create_dir_all(path).and_then(|()| path.canonicalize()).map_err(failed)
        };
        let directory = create(directory)?;
        let id = format!("{:08x}", super::fnv1a(directory.as_os_str().as_encoded_bytes()));
        let runtime = create(Path::new(&format!("/run/sandboxd-private-{id}")))?;
        // The host's /etc/docker/daemon.json is for another engine. The operator may configure this engine here.
        let config = directory.join("daemon.json");
        if !config.exists() {
            fs::write(&config, "{}\n").map_err(|error| PrivateEngineError::Prepare { path: config, error })?;
        }
        Ok(Self { program, directory, runtime, id })
    }

    fn host(&self) -> String {
        format!("unix://{}/docker.sock", self.runtime.display())
    }

    fn pid_file(&self) -> PathBuf {
        self.runtime.join("docker.pid")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("dockerd.log")
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    async fn spawn(&self) -> Result<Process, PrivateEngineError> {
        let bridge = bridge::up(&self.id, &self.directory.join("block")).await?;
        // dockerd does not start while a pid file of an earlier process exists.
        for file in [self.pid_file(), self.runtime.join("exec/containerd/containerd.pid")] {
            if Process::alive(&file, &self.runtime).is_none() {
                let _ = fs::remove_file(file);
            }
        }
        let option = |name: &str, value: &Path| {
            let mut option = OsString::from(format!("--{name}="));
            option.push(value);
            option
        };
        let log = self.open_log().map_err(|error| PrivateEngineError::Prepare { path: self.log(), error })?;
        let mut command = Command::new(&self.program);
        command
            .arg(format!("--host={}", self.host()))
            .arg(option("config-file", &self.directory.join("daemon.json")))
            .arg(option("data-root", &self.data()))
            .arg(option("exec-root", &self.runtime.join("exec")))
            .arg(option("pidfile", &self.pid_file()))
            .arg(format!("--bridge={}", bridge.name))
            .arg(format!("--default-address-pool=base={},size=24", bridge.pool))
            // The engine shares a containerd of the host, separated by the namespace.
            .arg(format!("--containerd-namespace=sandboxd-{}", self.id))
            .arg(format!("--containerd-plugins-namespace=sandboxd-{}-plugins", self.id))
            .args(["--group=root", "--live-restore"])
            .env("PATH", search_path())
            .stdin(Stdio::null())
            .stderr(log.try_clone().map_err(PrivateEngineError::Spawn)?)
            .stdout(log)
            // An interrupt at the terminal must reach the service only.
            .process_group(0);
        // The service manager's variables are for the service, not for its child.
        for variable in ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "WATCHDOG_USEC", "WATCHDOG_PID", "DOCKER_HOST"] {
            command.env_remove(variable);
        }
        let process = command.spawn().and_then(Process::child).map_err(PrivateEngineError::Spawn)?;
        tracing::info!(host = self.host(), "private engine started");
        Ok(process)
    }

    async fn answers(&self) {
        let host = self.host();
        let engine = DockerEngine::connect(&host).expect("a socket's path is absolute");
        while engine.identify().await.is_err() {
            tokio::time::sleep(START_POLL).await;
        }
    }

    async fn supervise(self, mut process: Process, stop: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        loop {
            let since = Instant::now();
            tokio::select! {
                () = stop.cancelled() => return self.end(process).await,
                () = process.ended() => tracing::error!(log = %self.log().display(), "private engine exited"),
            }
            if since.elapsed() > SETTLED {
                pause = FIRST_PAUSE;
            }
            process = loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                }
                match self.spawn().await {
                    Ok(process) => break process,
                    Err(error) => tracing::error!(%error, "cannot restart the private engine; retrying"),
                }
            };
        }
    }

    async fn end(&self, mut process: Process) {
        let idle = self.is_idle().await;
        process.signal(Signal::TERM);
        if tokio::time::timeout(STOP_LIMIT, process.ended()).await.is_err() {
            tracing::warn!("private engine did not stop in time; killing it");
            process.signal(Signal::KILL);
            process.ended().await;
        }
        // Running sandboxes still need the bridge and the mount.
        if idle {
            bridge::down(&self.id).await;
            // dockerd mounts its data onto itself, and does not unmount it after a kill.
            let _ = rustix::mount::unmount(self.data(), UnmountFlags::empty());
        }
        tracing::info!("private engine stopped");
    }

    /// Returns whether certainly no container runs.
    async fn is_idle(&self) -> bool {
        let Ok(docker) = bollard::Docker::connect_with_unix(&self.host(), 5, bollard::API_DEFAULT_VERSION) else {
            return false;
        };
        docker.list_containers(None).await.is_ok_and(|running| running.is_empty())
    }

    fn open_log(&self) -> io::Result<fs::File> {
        let path = self.log();
        if fs::metadata(&path).is_ok_and(|log| log.len() > LOG_LIMIT) {
            fs::rename(&path, path.with_extension("log.old"))?;
        }
        OpenOptions::new().append(true).create(true).open(path)
    }
}

/// Returns `PATH` extended by Debian's directories for system administration.
fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

fn find(program: &'static str, package: &'static str) -> Result<PathBuf, PrivateEngineError> {
    std::env::split_paths(&search_path())
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
        .ok_or(PrivateEngineError::NoProgram { program, package })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = find("sandboxd-no-such-program", "docker.io").unwrap_err().to_string();
        assert!(error.contains("sandboxd-no-such-program") && error.contains("docker.io"), "{error}");
    }
}
