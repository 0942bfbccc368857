//! Tests of the private engine: start, kill, restart, adoption by the next service, and stop without leftovers.
//!
//! The engine writes firewall rules, so the test runs itself again in a network namespace of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::engine::{TestInstance, eventually};
use crate::engine_place::{EnginePlace, copy_test_image};
use futures_util::StreamExt;
use rustix::process::{Pid, Signal, kill_process};
use sandboxd::engine::private::{PrivateEngine, PrivateEngineError};
use sandboxd_actors::domain::profile::Network;
use sandboxd_actors::domain::subnet::{AddressRange, Subnet};
use sandboxd_actors::ports::engine::ContainerState;

const INSIDE: &str = "SANDBOXD_TEST_IN_NAMESPACE";

#[test]
fn a_private_engine_restarts_keeps_its_containers_and_leaves_no_trace() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if !rustix::process::geteuid().is_root() {
        let refused = runtime.block_on(PrivateEngine::start(tempfile::tempdir().unwrap().path())).unwrap_err();
        return assert!(matches!(refused, PrivateEngineError::NotRoot), "{refused}");
    }
    if std::env::var_os(INSIDE).is_some() {
        return runtime.block_on(story());
    }
    let name = "private_engine::a_private_engine_restarts_keeps_its_containers_and_leaves_no_trace";
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
    let (place, engine) = with_engine().await;
    let EnginePlace { directory, runtime } = &place;
    let host = engine.host().to_owned();
    copy_test_image(&host).await;
    let instance = TestInstance::on(&host);
    instance.engine.ensure_network(&instance.network()).await.unwrap();
    let mut spec = instance.spec("exec sleep infinity");
    spec.network = Network::Named(instance.network().name);
    let container = instance.launch(&spec).await;
    let before = instance.observe(&container).await;
    assert_network(&instance).await;
    let mut events = instance.engine.watch(&instance.name).await.unwrap();

    // The service restarts a killed engine; the container keeps running.
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

    // A service whose predecessor was killed finds the engine.
    drop(engine);
    let engine = PrivateEngine::start(directory.path()).await.unwrap();
    assert_eq!((engine.host(), pid(runtime)), (host.as_str(), Some(second)));

    // A stop while a container runs leaves the engine running.
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

    // A stop without containers removes the engine completely.
    drop(instance);
    engine.stop().await;
    assert_eq!(place.processes(), []);
    assert_eq!(place.mounts(), Vec::<String>::new());
    let links = Command::new("ip").args(["-brief", "link"]).output().unwrap().stdout;
    let links = String::from_utf8(links).unwrap();
    assert!(!links.contains("sbxd-"), "{links}");
}

/// Asserts that the service has chosen the address block and the bridge's name. The engine is on this host's network,
/// and firewall rules need the name.
async fn assert_network(instance: &TestInstance) {
    let docker = instance.raw().await;
    let network = docker.inspect_network(instance.name.as_str(), None).await.unwrap();
    let config = network.ipam.unwrap().config.unwrap().remove(0);
    let block: Subnet = config.subnet.unwrap().parse().unwrap();
    let (AddressRange::Free { prefix }, bridge) = (instance.network().addresses, network.options.unwrap()) else {
        panic!("another range")
    };
    assert_eq!(block.prefix(), prefix, "the engine's own pool has blocks of /24");
    let bridge = &bridge["com.docker.network.bridge.name"];
    assert!(Command::new("ip").args(["link", "show", "dev", bridge]).status().unwrap().success(), "{bridge}");
    // A second network gets another address block.
    let mut second = instance.network();
    second.name.push('2');
    instance.engine.ensure_network(&second).await.unwrap();
    let second = docker.inspect_network(&second.name, None).await.unwrap();
    let other: Subnet = second.ipam.unwrap().config.unwrap().remove(0).subnet.unwrap().parse().unwrap();
    assert!(other.prefix() == prefix && !other.overlaps(block), "{other} {block}");
    docker.remove_network(&second.id.unwrap()).await.unwrap();
}

async fn with_engine() -> (EnginePlace, PrivateEngine) {
    let directory = tempfile::tempdir().unwrap();
    let engine = PrivateEngine::start(directory.path()).await.unwrap();
    let socket = Path::new(engine.host().strip_prefix("unix://").unwrap());
    let runtime = socket.parent().unwrap().to_owned();
    (EnginePlace { directory, runtime }, engine)
}

fn pid(runtime: &Path) -> Option<Pid> {
    fs::read_to_string(runtime.join("docker.pid")).ok()?.trim().parse().ok().and_then(Pid::from_raw)
}
