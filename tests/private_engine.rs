//! The engine of our own, for real: started, killed, found again, and stopped without a trace.
//!
//! It writes firewall rules, so the test runs itself again in a network namespace that ends with it.

#[path = "support/engine.rs"]
#[allow(dead_code, reason = "the conformance suite needs more of it")]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bollard::query_parameters::ImportImageOptions;
use futures_util::{StreamExt, TryStreamExt};
use rustix::process::{Pid, Signal, kill_process};
use sandboxd::engine::docker::DockerEngine;
use sandboxd::engine::private::{PrivateEngine, PrivateEngineError};
use sandboxd_actors::engine::{ContainerState, Engine};
use sandboxd_actors::profile::Network;
use support::{TestInstance, eventually};

const INSIDE: &str = "SANDBOXD_TEST_IN_NAMESPACE";

#[test]
fn a_private_engine_comes_back_keeps_its_containers_and_leaves_nothing() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if !rustix::process::geteuid().is_root() {
        let refused = runtime.block_on(PrivateEngine::start(tempfile::tempdir().unwrap().path())).unwrap_err();
        return assert!(matches!(refused, PrivateEngineError::NotRoot), "{refused}");
    }
    if std::env::var_os(INSIDE).is_some() {
        return runtime.block_on(story());
    }
    let name = "a_private_engine_comes_back_keeps_its_containers_and_leaves_nothing";
    let status = Command::new("unshare")
        .args(["--net", "--"])
        .arg(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success());
}

async fn story() {
    let (place, engine) = Place::with_engine().await;
    let Place { directory, runtime } = &place;
    let host = engine.host().to_owned();
    copy_test_image(&host).await;
    let instance = TestInstance::on(&host);
    instance.engine.ensure_network(&instance.network()).await.unwrap();
    let mut spec = instance.spec("exec sleep infinity");
    spec.network = Network::Named(instance.network().name);
    let container = instance.launch(&spec).await;
    let before = instance.observe(&container).await;
    let mut events = instance.engine.watch(&instance.name).await.unwrap();

    // Killed, it comes back, and its container never noticed.
    let first = pid(runtime).unwrap();
    kill_process(first, Signal::KILL).unwrap();
    let second = eventually("it is started again", || async {
        let answers = instance.engine.identify().await.is_ok();
        pid(runtime).filter(|pid| answers && *pid != first)
    })
    .await;
    assert_eq!(instance.observe(&container).await, before);
    assert!(events.next().await.unwrap().is_err());
    assert!(events.next().await.is_none());

    // Found again by a service whose predecessor was killed.
    drop(engine);
    let engine = PrivateEngine::start(directory.path()).await.unwrap();
    assert_eq!((engine.host(), pid(runtime)), (host.as_str(), Some(second)));

    // Stopped while a container runs, it leaves that alone.
    let mut events = instance.engine.watch(&instance.name).await.unwrap();
    engine.stop().await;
    assert!(events.next().await.unwrap().is_err());
    assert!(instance.engine.identify().await.is_err());
    let engine = PrivateEngine::start(directory.path()).await.unwrap();
    assert_eq!(instance.observe(&container).await, before);
    instance.engine.remove(&container).await.unwrap();
    let ended = instance.launch(&instance.spec("exit 3")).await;
    assert_eq!(instance.exit(&ended).await.code, 3);
    assert_eq!(instance.observe(&ended).await.state, ContainerState::Exited(Some(instance.exit(&ended).await)));

    // Stopped when none runs, it leaves nothing.
    drop(instance);
    engine.stop().await;
    assert_eq!(processes(runtime), []);
    assert_eq!(place.mounts(), Vec::<String>::new());
    let links = Command::new("ip").args(["-brief", "link"]).output().unwrap().stdout;
    let links = String::from_utf8(links).unwrap();
    assert!(!links.contains("sbxd-"), "{links}");
}

/// The private engine has no image, and nothing can be pulled: it is given the one of the other tests.
async fn copy_test_image(host: &str) {
    let image = support::test_image();
    let theirs = TestInstance::new().raw().await;
    let saved: Vec<_> = theirs.export_image(&image).try_collect().await.unwrap();
    let ours = bollard::Docker::connect_with_host(host).unwrap();
    let pieces = futures_util::stream::iter(saved);
    let mut loading = ours.import_image(ImportImageOptions::default(), bollard::body_stream(pieces), None);
    while let Some(step) = loading.next().await {
        step.unwrap();
    }
    assert_eq!(DockerEngine::connect(host).unwrap().has_image(&image).await, Ok(true));
}

fn pid(runtime: &Path) -> Option<Pid> {
    fs::read_to_string(runtime.join("docker.pid")).ok()?.trim().parse().ok().and_then(Pid::from_raw)
}

/// Those whose arguments contain the engine's own place.
fn processes(runtime: &Path) -> Vec<(Pid, String)> {
    let mark = runtime.to_str().unwrap();
    let process = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let arguments = String::from_utf8_lossy(&fs::read(entry.path().join("cmdline")).ok()?).replace('\0', " ");
        arguments.contains(mark).then_some((pid, arguments))
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(process).collect()
}

/// Where the engine lives. Whatever the test leaves there when it fails goes with it.
struct Place {
    directory: tempfile::TempDir,
    runtime: PathBuf,
}

impl Place {
    async fn with_engine() -> (Self, PrivateEngine) {
        let directory = tempfile::tempdir().unwrap();
        let engine = PrivateEngine::start(directory.path()).await.unwrap();
        let socket = Path::new(engine.host().strip_prefix("unix://").unwrap());
        let runtime = socket.parent().unwrap().to_owned();
        (Self { directory, runtime }, engine)
    }

    fn mounts(&self) -> Vec<String> {
        let places = [self.runtime.to_str().unwrap(), self.directory.path().to_str().unwrap()];
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        points.filter(|point| places.iter().any(|place| point.starts_with(place))).map(str::to_owned).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for (pid, _) in processes(&self.runtime) {
            let _ = kill_process(pid, Signal::KILL);
        }
        for point in self.mounts().iter().rev() {
            let _ = Command::new("umount").args(["--lazy", point]).status();
        }
        let _ = fs::remove_dir_all(&self.runtime);
    }
}
