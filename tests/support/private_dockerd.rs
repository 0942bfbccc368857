//! A `dockerd` of one test, which may stop, kill and freeze it. Its data, sockets and network namespace are its own.
//! All of them are removed when the test ends, even if it fails.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use sandboxd::engine::docker::DockerEngine;
use sandboxd_actors::ports::engine::Engine;
use tokio::sync::{Mutex, MutexGuard};

use crate::engine::eventually;
use crate::engine_place::{EnginePlace, copy_test_image};

/// Only one such engine runs at a time: under load, several would slow each other down.
static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

pub(crate) struct PrivateDockerd {
    process: Option<Child>,
    /// Dropped after the process, whose leftovers are in this place.
    place: EnginePlace,
    namespace: NetworkNamespace,
    live_restore: bool,
    _exclusive: MutexGuard<'static, ()>,
}

impl PrivateDockerd {
    /// Starts an engine that answers and has the tests' image. With live restore, containers outlive it.
    pub(crate) async fn start(live_restore: bool) -> Self {
        let exclusive = EXCLUSIVE.lock().await;
        let directory = tempfile::tempdir().expect("a directory");
        // Short, because the path of a socket is limited to 108 bytes.
        let runtime =
            tempfile::Builder::new().prefix("sandboxd-outage-").tempdir_in("/run").expect("a directory").keep();
        let place = EnginePlace { directory, runtime };
        fs::write(place.directory.path().join("daemon.json"), "{}").expect("written");
        let namespace = NetworkNamespace::new();
        let mut engine = Self { process: None, place, namespace, live_restore, _exclusive: exclusive };
        engine.start_again().await;
        copy_test_image(&engine.host()).await;
        engine
    }

    pub(crate) fn host(&self) -> String {
        format!("unix://{}/docker.sock", self.place.runtime.display())
    }

    /// Returns the directory of the containers' metadata, which shows containers even while the engine is down.
    pub(crate) fn container_directories(&self) -> PathBuf {
        self.place.directory.path().join("data/containers")
    }

    /// Sends SIGTERM and waits for the exit.
    pub(crate) async fn terminate(&mut self) {
        self.signal(Signal::TERM);
        self.ended().await;
    }

    pub(crate) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }

    /// Freezes the engine until the guard is dropped. The kernel still accepts connections.
    pub(crate) fn freeze(&self) -> Frozen {
        self.signal(Signal::STOP);
        Frozen(self.pid())
    }

    /// Starts the engine again. Returns once it answers.
    pub(crate) async fn start_again(&mut self) {
        // A stale pid file would prevent the next start.
        for file in ["docker.pid", "exec/containerd/containerd.pid"] {
            let file = self.place.runtime.join(file);
            let pid = fs::read_to_string(&file).ok().and_then(|pid| Pid::from_raw(pid.trim().parse().ok()?));
            if !self.place.processes().iter().any(|(process, _)| Some(*process) == pid) {
                let _ = fs::remove_file(file);
            }
        }
        self.process = Some(self.command().spawn().expect("dockerd can be run"));
        let engine = DockerEngine::connect(&self.host()).expect("a valid host");
        let process = self.process.as_mut().expect("it was just started");
        eventually("dockerd answers", || {
            let exit = process.try_wait().expect("a child");
            assert!(exit.is_none(), "dockerd ended: {exit:?}");
            async { engine.identify().await.ok() }
        })
        .await;
    }

    fn command(&self) -> Command {
        let (runtime, directory) = (self.place.runtime.display(), self.place.directory.path().display());
        let id = self.place.runtime.file_name().and_then(|name| name.to_str()).expect("a plain name");
        let log = File::options().create(true).append(true).open(self.log()).expect("a log");
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.namespace.path()))
            .args(["--", "dockerd"])
            .arg(format!("--host=unix://{runtime}/docker.sock"))
            .arg(format!("--pidfile={runtime}/docker.pid"))
            .arg(format!("--exec-root={runtime}/exec"))
            .arg(format!("--data-root={directory}/data"))
            .arg(format!("--config-file={directory}/daemon.json"))
            .arg(format!("--containerd-namespace={id}"))
            .arg(format!("--containerd-plugins-namespace={id}-plugins"))
            .arg(format!("--live-restore={}", self.live_restore))
            .args(["--bridge=none", "--group=root"])
            .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
            .env_remove("DOCKER_HOST")
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log"))
            .stdout(log)
            // An interrupt at the terminal reaches only the tests, which then end the engine.
            .process_group(0);
        command
    }

    fn log(&self) -> PathBuf {
        self.place.directory.path().join("dockerd.log")
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.process.as_ref().expect("it was started"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// Reaps the process; otherwise its pid would stay in use.
    async fn ended(&mut self) {
        let process = self.process.as_mut().expect("it was started");
        eventually("dockerd ends", || std::future::ready(process.try_wait().expect("a child"))).await;
    }
}

/// The number of log lines that a failed test prints.
const SHOWN_LOG_LINES: usize = 30;

impl Drop for PrivateDockerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.log()).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("dockerd's log:\n{}", lines[lines.len().saturating_sub(SHOWN_LOG_LINES)..].join("\n"));
        }
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A frozen engine. It continues on drop.
pub(crate) struct Frozen(Pid);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// A network namespace that outlives every run of the engine, as networks do. It ends with the test's process at the
/// latest.
struct NetworkNamespace(File);

impl NetworkNamespace {
    fn new() -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "--", "sh", "-c", "ip link set lo up && echo && cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare can be run");
        holder.stdout.as_mut().expect("it is piped").read_exact(&mut [0]).expect("a namespace");
        let namespace = File::open(format!("/proc/{}/ns/net", holder.id())).expect("it can be held");
        drop(holder.stdin.take());
        holder.wait().expect("it ends");
        Self(namespace)
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}
