//! Tests of the engine port's contract against a real engine: `DOCKER_HOST`, or the usual sockets.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::engine::{TestInstance, eventually};
use futures_util::StreamExt;
use sandboxd::engine::docker::DockerEngine;
use sandboxd_actors::domain::container::ContainerSpec;
use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::{ChatId, ContainerId, SessionId, SnapshotId};
use sandboxd_actors::domain::profile::{Limits, Network, User};
use sandboxd_actors::domain::snapshot::{Parent, SnapshotOrigin};
use sandboxd_actors::ports::engine::events::{EngineEvent, EngineEvents, EventKind, EventSubject};
use sandboxd_actors::ports::engine::{ContainerState, Engine, EngineError, Exit, Health, NetworkSpec, SnapshotRemoval};
use tokio::net::{UnixListener, UnixStream};

fn missing_container() -> ContainerId {
    ContainerId::new("0123456789abcdef")
}

fn field<'a>(lines: &'a [String], name: &str) -> &'a str {
    let value = |line: &'a String| line.strip_prefix(name).and_then(|rest| rest.strip_prefix(':'));
    lines.iter().find_map(value).unwrap_or_else(|| panic!("no {name} in {lines:?}")).trim()
}

// ---- the engine ----

#[tokio::test]
async fn the_engine_reports_its_identity() {
    let instance = TestInstance::new();
    let identity = instance.engine.identify().await.unwrap();
    assert!(["docker", "podman"].contains(&identity.kind.as_str()), "{identity:?}");
    assert!(!identity.version.is_empty() && !identity.api_version.is_empty(), "{identity:?}");
    assert!(identity.host.starts_with("unix:///"), "{identity:?}");
}

#[tokio::test]
async fn an_engine_that_comes_late_is_found_by_the_next_call() {
    let instance = TestInstance::new();
    let real = instance.engine.identify().await.unwrap().host;
    let socket = instance.path("late.sock");
    let late = DockerEngine::connect(&format!("unix://{}", socket.display())).unwrap();

    let error = late.inspect("any").await.unwrap_err();
    assert!(matches!(error, EngineError::Unreachable { .. }) && !error.may_have_happened(), "{error}");
    assert!(error.to_string().contains("late.sock"), "{error}");

    std::os::unix::fs::symlink(real.strip_prefix("unix://").unwrap(), &socket).unwrap();
    assert_eq!(late.inspect("any").await, Ok(None));

    std::fs::remove_file(&socket).unwrap();
    let error = late.inspect("any").await.unwrap_err();
    assert!(matches!(error, EngineError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_call_that_breaks_off_may_have_happened() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let instance = TestInstance::new();
    let socket = instance.path("broken.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 65536];
            let length = stream.read(&mut request).await.unwrap();
            if request[..length].starts_with(b"GET /_ping") {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nOK").await.unwrap();
            }
        }
    });
    let broken = DockerEngine::connect(&format!("unix://{}", socket.display())).unwrap();
    let error = broken.create(&instance.spec("true")).await.unwrap_err();
    assert!(matches!(error, EngineError::Interrupted { .. }) && error.may_have_happened(), "{error}");
    server.abort();
}

#[tokio::test]
async fn an_image_is_there_or_not() {
    let instance = TestInstance::new();
    let id = instance.engine.image_id(&crate::engine::test_image()).await.expect("an answer");
    assert!(id.is_some_and(|id| id.starts_with("sha256:")));
    assert_eq!(instance.engine.image_id("sandboxd-no-such-image:none").await, Ok(None));
}

#[tokio::test]
async fn a_network_is_made_once_however_many_ask() {
    let instance = TestInstance::new();
    let network = instance.network();
    let asked = (0..6).map(|_| instance.engine.ensure_network(&network));
    for answer in futures_util::future::join_all(asked).await {
        answer.unwrap();
    }
    let all = instance.raw().await.list_networks(None).await.unwrap();
    assert_eq!(all.iter().filter(|one| one.name.as_deref() == Some(&network.name)).count(), 1);
}

#[tokio::test]
async fn a_network_whose_name_contains_anothers_is_another() {
    let instance = TestInstance::new();
    instance.engine.ensure_network(&instance.network()).await.unwrap();
    let mut shorter = instance.network();
    shorter.name.pop();
    instance.engine.ensure_network(&shorter).await.unwrap();
    let found = instance.raw().await.inspect_network(&shorter.name, None).await.unwrap();
    assert_eq!(found.name, Some(shorter.name));
}

// ---- lifecycle of a container ----

#[tokio::test]
async fn a_name_is_given_once() {
    let instance = TestInstance::new();
    let spec = instance.spec("true");
    instance.engine.create(&spec).await.unwrap();
    assert_eq!(instance.engine.create(&spec).await, Err(EngineError::NameTaken { name: spec.name.to_string() }));
}

#[tokio::test]
async fn a_missing_image_is_named() {
    let instance = TestInstance::new();
    let image = "sandboxd-no-such-image:none".to_owned();
    let spec = ContainerSpec { image: image.clone(), ..instance.spec("true") };
    assert_eq!(instance.engine.create(&spec).await, Err(EngineError::ImageNotFound { image }));
}

#[tokio::test]
async fn a_container_is_seen_as_created_running_and_gone() {
    let instance = TestInstance::new();
    instance.engine.ensure_network(&instance.network()).await.unwrap();
    let mut spec = instance.spec("exec sleep infinity");
    spec.network = Network::Named(instance.network().name);
    let id = instance.engine.create(&spec).await.unwrap();

    let created = instance.engine.inspect(spec.name.as_str()).await.unwrap().unwrap();
    assert_eq!((created.state, created.started_at, created.address), (ContainerState::Created, None, None));
    assert_eq!((&created.id, created.name.as_str()), (&id, spec.name.as_str()));
    assert_eq!((created.image, created.health), (spec.image.clone(), None));
    // The image's labels are among them.
    assert!(spec.labels.iter().all(|(label, value)| created.labels.get(label) == Some(value)), "{:?}", created.labels);

    instance.engine.start(&id).await.unwrap();
    instance.engine.start(&id).await.unwrap();
    let running = instance.observe(&id).await;
    assert_eq!(running.state, ContainerState::Running);
    assert!(running.started_at.is_some() && running.address.is_some(), "{running:?}");

    instance.engine.remove(&id).await.unwrap();
    assert_eq!(instance.engine.inspect(id.as_str()).await, Ok(None));
    assert_eq!(instance.engine.inspect(spec.name.as_str()).await, Ok(None));
}

#[tokio::test]
async fn a_missing_container_can_be_stopped_and_removed_but_not_started() {
    let instance = TestInstance::new();
    let gone = EngineError::NoSuchContainer { container: missing_container().to_string() };
    assert_eq!(instance.engine.start(&missing_container()).await, Err(gone.clone()));
    assert_eq!(instance.engine.log_tail(&missing_container(), 5).await, Err(gone));
    assert_eq!(instance.engine.stop(&missing_container(), Duration::ZERO).await, Ok(()));
    assert_eq!(instance.engine.remove(&missing_container()).await, Ok(()));
    assert_eq!(instance.engine.inspect(missing_container().as_str()).await, Ok(None));
}

#[tokio::test]
async fn removals_at_the_same_time_all_succeed() {
    let instance = TestInstance::new();
    let id = instance.launch(&instance.spec("exec sleep infinity")).await;
    let removals = (0..4).map(|_| instance.engine.remove(&id));
    for answer in futures_util::future::join_all(removals).await {
        assert_eq!(answer, Ok(()));
    }
    assert_eq!(instance.engine.inspect(id.as_str()).await, Ok(None));
}

#[tokio::test]
async fn a_stopped_container_had_its_grace() {
    let instance = TestInstance::new();
    let id =
        instance.launch(&instance.spec("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.1; done")).await;
    eventually("it is up", || async {
        instance.engine.log_tail(&id, 1).await.unwrap().contains(&"up".to_owned()).then_some(())
    })
    .await;
    instance.engine.stop(&id, Duration::from_secs(20)).await.unwrap();
    instance.engine.stop(&id, Duration::from_secs(20)).await.unwrap();
    assert_eq!(instance.exit(&id).await, Exit { code: 7, oom_killed: false });
    assert_eq!(instance.engine.log_tail(&id, 1).await.unwrap(), ["bye"]);
}

#[tokio::test]
async fn a_grace_of_zero_is_a_kill() {
    let instance = TestInstance::new();
    let id = instance.launch(&instance.spec("trap '' TERM; while :; do sleep 0.1; done")).await;
    instance.engine.stop(&id, Duration::ZERO).await.unwrap();
    assert_eq!(instance.exit(&id).await.signal(), Some(9));
}

#[tokio::test]
async fn an_oom_kill_differs_from_other_exits() {
    let instance = TestInstance::new();
    let mut spec = instance.spec("exec tail /dev/zero");
    spec.limits = Limits { memory_bytes: 16 << 20, ..spec.limits };
    let id = instance.launch(&spec).await;
    // The engine may report the cause shortly after the exit.
    let exit =
        eventually("it is out of memory", || async { Some(instance.exit(&id).await).filter(|exit| exit.oom_killed) })
            .await;
    assert_eq!(exit, Exit { code: 137, oom_killed: true });
}

#[tokio::test]
async fn an_instance_sees_its_own_containers_only() {
    let (ours, theirs) = (TestInstance::new(), TestInstance::new());
    ours.engine.ensure_network(&ours.network()).await.unwrap();
    let mut spec = ours.spec("exec sleep infinity");
    spec.network = Network::Named(ours.network().name);
    let running = ours.launch(&spec).await;
    let created = ours.engine.create(&ours.spec("true")).await.unwrap();
    let ended = ours.launch(&ours.spec("exit 3")).await;
    ours.exit(&ended).await;
    theirs.engine.create(&theirs.spec("true")).await.unwrap();

    let listed = ours.engine.list(&ours.name).await.unwrap();
    let seen: HashSet<_> = listed.iter().map(|container| container.id.clone()).collect();
    assert_eq!(seen, HashSet::from([running.clone(), created.clone(), ended.clone()]));
    for container in listed {
        let whole = ours.observe(&container.id).await;
        assert_eq!((&container.name, &container.image, &container.labels), (&whole.name, &whole.image, &whole.labels));
        assert_eq!(container.address, whole.address);
        if container.id == ended {
            assert_eq!(container.state, ContainerState::Exited(None));
        } else {
            assert_eq!(container.state, whole.state);
        }
    }
}

#[tokio::test]
async fn a_health_check_is_seen_to_succeed_and_to_fail() {
    let instance = TestInstance::new();
    let mut spec = instance.spec("exec httpd -f -p 8080 -h /www");
    spec.image = "sandboxd-healthcheck:test".into();
    let healthy = instance.launch(&spec).await;
    let mut spec = instance.spec("exec sleep infinity");
    spec.image = "sandboxd-healthcheck:test".into();
    let unhealthy = instance.launch(&spec).await;
    let becomes = |id: ContainerId, health: Health| {
        let instance = &instance;
        async move {
            eventually("its health is known", || async {
                (instance.observe(&id).await.health == Some(health)).then_some(())
            })
            .await
        }
    };
    becomes(healthy, Health::Healthy).await;
    becomes(unhealthy, Health::Unhealthy).await;
}

// ---- events ----

#[tokio::test]
async fn events_of_a_container_come_in_order() {
    let instance = TestInstance::new();
    let mut events = EventStream::by(&instance).await;
    let (chat, spec) = instance.chat_spec("exit 3");
    let id = instance.launch(&spec).await;
    assert_eq!(
        events.next().await,
        EngineEvent { container: id.clone(), subject: EventSubject::Chat(chat), kind: EventKind::Started }
    );
    assert_eq!(events.next().await.kind, EventKind::Died);
    // An inspection after the event must already show the exit.
    let exit = Exit { code: 3, oom_killed: false };
    assert_eq!(instance.observe(&id).await.state, ContainerState::Exited(Some(exit)));
    instance.engine.remove(&id).await.unwrap();
    assert_eq!(
        events.next().await,
        EngineEvent { container: id, subject: EventSubject::Chat(chat), kind: EventKind::Destroyed }
    );
}

#[tokio::test]
async fn an_oom_kill_is_an_event() {
    let instance = TestInstance::new();
    let mut events = EventStream::by(&instance).await;
    let (_, mut spec) = instance.chat_spec("exec tail /dev/zero");
    spec.limits = Limits { memory_bytes: 16 << 20, ..spec.limits };
    instance.launch(&spec).await;
    let kinds = events.until(&[EventKind::OutOfMemory, EventKind::Died]).await;
    assert_eq!(kinds[0], EventKind::Started);
}

#[tokio::test]
async fn stops_and_pauses_are_events() {
    let instance = TestInstance::new();
    let mut events = EventStream::by(&instance).await;
    let (_, spec) = instance.chat_spec("exec sleep infinity");
    let id = instance.launch(&spec).await;
    let raw = instance.raw().await;
    raw.pause_container(id.as_str()).await.unwrap();
    raw.unpause_container(id.as_str()).await.unwrap();
    assert_eq!(events.until(&[EventKind::Resumed]).await, [EventKind::Started, EventKind::Paused, EventKind::Resumed]);
    instance.engine.stop(&id, Duration::ZERO).await.unwrap();
    events.until(&[EventKind::Died, EventKind::Stopped]).await;
}

#[tokio::test]
async fn a_paused_container_makes_no_progress_and_can_be_resumed_stopped_and_removed() {
    let instance = TestInstance::new();
    let (_, spec) = instance.chat_spec("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done");
    let id = instance.launch(&spec).await;
    eventually("it is up", || async {
        instance.engine.log_tail(&id, 1).await.unwrap().contains(&"up".to_owned()).then_some(())
    })
    .await;
    instance.engine.pause(&id).await.unwrap();
    assert_eq!(instance.observe(&id).await.state, ContainerState::Paused);
    assert!(matches!(instance.engine.pause(&id).await, Err(EngineError::Refused { .. })));
    instance.engine.unpause(&id).await.unwrap();
    assert_eq!(instance.observe(&id).await.state, ContainerState::Running);
    assert!(matches!(instance.engine.unpause(&id).await, Err(EngineError::Refused { .. })));

    instance.engine.pause(&id).await.unwrap();
    instance.engine.stop(&id, Duration::from_secs(10)).await.unwrap();
    let exit = Exit { code: 3, oom_killed: false };
    assert_eq!(instance.observe(&id).await.state, ContainerState::Exited(Some(exit)), "it goes on to end gracefully");
    instance.engine.start(&id).await.unwrap();
    instance.engine.pause(&id).await.unwrap();
    instance.engine.remove(&id).await.unwrap();
    assert_eq!(instance.engine.inspect(id.as_str()).await, Ok(None));
    let gone = EngineError::NoSuchContainer { container: id.to_string() };
    assert_eq!(instance.engine.pause(&id).await, Err(gone.clone()));
    assert_eq!(instance.engine.unpause(&id).await, Err(gone));
}

#[tokio::test]
async fn a_failing_health_check_is_an_event() {
    let instance = TestInstance::new();
    let mut events = EventStream::by(&instance).await;
    let (_, mut spec) = instance.chat_spec("exec sleep infinity");
    spec.image = "sandboxd-healthcheck:test".into();
    instance.launch(&spec).await;
    assert_eq!(events.until(&[EventKind::Unhealthy]).await, [EventKind::Started, EventKind::Unhealthy]);
}

#[tokio::test]
async fn an_instance_gets_events_of_its_own_sandboxes_only() {
    let (ours, theirs) = (TestInstance::new(), TestInstance::new());
    let mut events = EventStream::by(&ours).await;
    theirs.launch(&theirs.chat_spec("true").1).await;
    // A container of this instance without a chat.
    ours.launch(&ours.spec("true")).await;
    let id = ours.launch(&ours.chat_spec("exec sleep infinity").1).await;
    assert_eq!(events.next().await.container, id);
}

#[tokio::test]
async fn no_event_is_lost_between_opening_a_stream_and_its_first_use() {
    let instance = TestInstance::new();
    let events = EventStream::by(&instance).await;
    let (_, spec) = instance.chat_spec("true");
    let id = instance.launch(&spec).await;
    instance.exit(&id).await;
    instance.engine.remove(&id).await.unwrap();
    let mut events = events;
    let kinds = events.until(&[EventKind::Started, EventKind::Died, EventKind::Destroyed]).await;
    assert_eq!(kinds, [EventKind::Started, EventKind::Died, EventKind::Destroyed]);
}

#[tokio::test]
async fn a_stream_whose_engine_goes_away_ends_with_an_error() {
    let instance = TestInstance::new();
    let proxy = Proxy::to(&instance).await;
    let engine = DockerEngine::connect(&proxy.host()).unwrap();
    let mut events = engine.watch(&instance.name).await.unwrap();
    let (_, spec) = instance.chat_spec("exec sleep infinity");
    instance.launch(&spec).await;
    assert_eq!(events.next().await.unwrap().unwrap().kind, EventKind::Started);

    proxy.close();
    let error = events.next().await.unwrap().unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(events.next().await.is_none());
    let error = engine.watch(&instance.name).await.map(drop).unwrap_err();
    assert!(matches!(error, EngineError::Unreachable { .. }), "{error}");
}

/// The event stream of an instance. A test that waits for a missing event fails after 30 seconds.
struct EventStream(EngineEvents);

impl EventStream {
    async fn by(instance: &TestInstance) -> Self {
        Self(instance.engine.watch(&instance.name).await.unwrap())
    }

    async fn next(&mut self) -> EngineEvent {
        let next = tokio::time::timeout(Duration::from_secs(30), self.0.next()).await.expect("another event");
        next.expect("the stream goes on").unwrap()
    }

    /// Returns all events up to the last of the awaited ones, which may come in any order.
    async fn until(&mut self, awaited: &[EventKind]) -> Vec<EventKind> {
        let mut kinds = Vec::new();
        while !awaited.iter().all(|kind| kinds.contains(kind)) {
            kinds.push(self.next().await.kind);
        }
        kinds
    }
}

/// A proxy in front of the engine that a test can close.
struct Proxy {
    socket: PathBuf,
    serving: tokio::task::JoinHandle<()>,
}

impl Proxy {
    async fn to(instance: &TestInstance) -> Self {
        let host = instance.engine.identify().await.unwrap().host;
        let engine = PathBuf::from(host.strip_prefix("unix://").unwrap());
        let socket = instance.path("proxy.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let serving = tokio::spawn(async move {
            // The connections end with this task.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let engine = engine.clone();
                connections.spawn(async move {
                    let mut engine = UnixStream::connect(engine).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut engine).await;
                });
            }
        });
        Self { socket, serving }
    }

    fn host(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    fn close(&self) {
        std::fs::remove_file(&self.socket).unwrap();
        self.serving.abort();
    }
}

// ---- logs ----

#[tokio::test]
async fn the_last_lines_come_in_order_from_both_streams() {
    let instance = TestInstance::new();
    let script = "for n in 1 2 3 4 5; do echo out $n; echo err $n >&2; done";
    let lines = instance.output(&instance.spec(script)).await;
    // Each stream is transported separately, so only the order within one stream is certain.
    for stream in ["out", "err"] {
        let of_stream: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix(stream)).collect();
        assert_eq!(of_stream, [" 1", " 2", " 3", " 4", " 5"]);
    }
}

#[tokio::test]
async fn no_more_than_the_last_lines_are_read() {
    let instance = TestInstance::new();
    let id = instance.launch(&instance.spec("seq 1000; printf unended")).await;
    instance.exit(&id).await;
    assert_eq!(instance.engine.log_tail(&id, 3).await.unwrap(), ["999", "1000", "unended"]);
    assert_eq!(instance.engine.log_tail(&id, 0).await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_line_of_megabytes_is_cut() {
    let instance = TestInstance::new();
    let lines = instance.output(&instance.spec("yes | tr -d '\\n' | head -c 1000000; echo; echo end")).await;
    assert_eq!(lines.last().unwrap(), "end");
    assert!(lines.iter().all(|line| line.len() < 5000));
}

#[tokio::test]
async fn a_container_that_never_started_has_no_logs() {
    let instance = TestInstance::new();
    let id = instance.engine.create(&instance.spec("true")).await.unwrap();
    assert_eq!(instance.engine.log_tail(&id, 5).await, Ok(Vec::new()));
}

// ---- container settings ----

#[tokio::test]
async fn a_sandbox_has_no_privileges_and_an_init() {
    let instance = TestInstance::new();
    let script = "cat /proc/self/status; echo init: $(cat /proc/1/comm); echo host: $(hostname)";
    let lines = instance.output(&instance.spec(script)).await;
    for capabilities in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(&lines, capabilities), "0000000000000000", "{capabilities}");
    }
    assert_eq!(field(&lines, "NoNewPrivs"), "1");
    assert_eq!(field(&lines, "Seccomp"), "2");
    assert_ne!(field(&lines, "init"), "sh");
    assert_eq!(field(&lines, "host"), "sandbox");
}

#[tokio::test]
async fn capabilities_are_given_back_one_by_one() {
    let instance = TestInstance::new();
    let mut spec = instance.spec("cat /proc/self/status");
    spec.capabilities = vec!["NET_BIND_SERVICE".into()];
    let lines = instance.output(&spec).await;
    assert_eq!(field(&lines, "CapEff"), "0000000000000400");
    assert_eq!(field(&lines, "CapBnd"), "0000000000000400");
}

#[tokio::test]
async fn limits_reach_the_engine() {
    let instance = TestInstance::new();
    let id = instance.engine.create(&instance.spec("true")).await.unwrap();
    let config = instance.raw().await.inspect_container(id.as_str(), None).await.unwrap().host_config.unwrap();
    assert_eq!(config.memory, Some(64 << 20));
    assert_eq!(config.memory_swap, Some(64 << 20));
    assert_eq!(config.nano_cpus, Some(500_000_000));
    assert_eq!(config.pids_limit, Some(32));
    assert_eq!(config.privileged, Some(false));
    let restart = config.restart_policy.and_then(|policy| policy.name).map(|name| name.to_string());
    assert!(["", "no"].contains(&restart.unwrap_or_default().as_str()));
    assert_eq!(config.log_config.unwrap().config.unwrap()["max-size"], "8m");
}

#[tokio::test]
async fn a_sandbox_cannot_fork_past_its_limit() {
    let instance = TestInstance::new();
    let mut spec = instance.spec("for n in $(seq 20); do sleep 60 & done; echo all forked");
    spec.limits.pids = 8;
    let lines = instance.output(&spec).await;
    assert!(lines.iter().any(|line| line.contains("fork")) && !lines.contains(&"all forked".into()), "{lines:?}");
}

#[tokio::test]
async fn a_disk_limit_is_kept_or_refused_with_its_reason() {
    let instance = TestInstance::new();
    let mut spec = instance.spec("head -c 40000000 /dev/zero > /big && echo written");
    spec.limits.disk_bytes = Some(20 << 20);
    match instance.engine.create(&spec).await {
        Ok(id) => {
            instance.engine.start(&id).await.unwrap();
            assert_ne!(instance.exit(&id).await.code, 0);
        }
        Err(EngineError::Refused { message, .. }) => assert!(message.contains("storage driver"), "{message}"),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn mounts_are_writable_or_not_as_asked() {
    let instance = TestInstance::new();
    let (writable, read_only) = (instance.mount("/rw", false), instance.mount("/ro", true));
    std::fs::write(read_only.source.as_path().join("given"), "from the host\n").unwrap();
    let mut spec = instance.spec("exec 2>&1; echo hello > /rw/file; cat /ro/given; touch /ro/file || echo refused");
    spec.mounts = vec![writable.clone(), read_only.clone()];
    let lines = instance.output(&spec).await;
    assert_eq!((lines[0].as_str(), lines.last().unwrap().as_str()), ("from the host", "refused"));
    assert_eq!(std::fs::read_to_string(writable.source.as_path().join("file")).unwrap(), "hello\n");
    assert!(!read_only.source.as_path().join("file").exists());
}

#[tokio::test]
async fn a_missing_mount_source_is_refused_and_not_created() {
    let instance = TestInstance::new();
    let path = instance.path("").canonicalize().unwrap().join("missing");
    let mut mount = instance.mount("/rw", false);
    mount.source = HostPath::from_canonical(&path).unwrap();
    let mut spec = instance.spec("true");
    spec.mounts = vec![mount];
    let refused = match instance.engine.create(&spec).await {
        Ok(id) => instance.engine.start(&id).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(refused, EngineError::Refused { .. }) && refused.to_string().contains("missing"), "{refused}");
    assert!(!path.exists());
}

#[tokio::test]
async fn environment_and_user_are_as_asked() {
    let instance = TestInstance::new();
    let mut spec = instance.spec("echo $GREETING; id -u; id -g");
    spec.environment = Environment::default().with("GREETING", "hello = world");
    spec.user = Some(User { uid: 1234, gid: 2345 });
    assert_eq!(instance.output(&spec).await, ["hello = world", "1234", "2345"]);
}

#[tokio::test]
async fn the_image_command_runs_unless_the_spec_has_one() {
    let instance = TestInstance::new();
    let mut spec = instance.spec("");
    spec.command.clear();
    let id = instance.launch(&spec).await;
    assert_eq!(instance.observe(&id).await.state, ContainerState::Running);
}

#[tokio::test]
async fn a_read_only_root_leaves_a_place_to_write() {
    let instance = TestInstance::new();
    let mut spec = instance.spec("exec 2>&1; touch /file || echo refused; touch /tmp/file && echo written");
    spec.read_only_root = true;
    spec.user = Some(User { uid: 1234, gid: 2345 });
    let lines = instance.output(&spec).await;
    assert_eq!(lines[1..], ["refused", "written"]);
}

#[tokio::test]
async fn writable_memory_has_its_size() {
    let instance = TestInstance::new();
    let mut spec =
        instance.spec("head -c 2000000 /dev/zero > /scratch/big; wc -c < /scratch/big; touch /file && echo no");
    spec.tmpfs = [("/scratch".to_owned(), 1 << 20)].into();
    spec.read_only_root = true;
    spec.user = Some(User { uid: 1234, gid: 2345 });
    let lines = instance.output(&spec).await;
    assert!(lines.contains(&(1 << 20).to_string()) && !lines.contains(&"no".into()), "{lines:?}");
}

#[tokio::test]
async fn a_runtime_that_the_engine_does_not_know_is_refused() {
    let instance = TestInstance::new();
    let mut spec = instance.spec("true");
    spec.runtime = Some("no-such-runtime".into());
    let refused = match instance.engine.create(&spec).await {
        Ok(id) => instance.engine.start(&id).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(refused.to_string().contains("no-such-runtime"), "{refused}");
}

#[tokio::test]
async fn a_program_that_is_not_in_the_image_is_refused() {
    let instance = TestInstance::new();
    let mut spec = instance.spec("");
    spec.command = vec!["/no/such/program".into()];
    let id = instance.engine.create(&spec).await.unwrap();
    // Under the engine's own init, the start succeeds and the program fails afterwards.
    match instance.engine.start(&id).await {
        Ok(()) => assert_eq!(instance.exit(&id).await.code, 127),
        Err(error) => assert!(error.to_string().contains("/no/such/program"), "{error}"),
    }
}

#[tokio::test]
async fn a_blocked_network_is_loopback_alone() {
    let instance = TestInstance::new();
    let id = instance.launch(&instance.spec("ls /sys/class/net; exec sleep infinity")).await;
    assert_eq!(instance.observe(&id).await.address, None);
    eventually("it has printed", || async {
        Some(instance.engine.log_tail(&id, 9).await.unwrap()).filter(|lines| lines == &["lo"])
    })
    .await;
}

#[tokio::test]
async fn a_network_that_does_not_exist_is_refused_by_name() {
    let instance = TestInstance::new();
    let mut spec = instance.spec("true");
    spec.network = Network::Named("sandboxd-no-such-network".into());
    let refused = match instance.engine.create(&spec).await {
        Ok(id) => instance.engine.start(&id).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(refused, EngineError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("sandboxd-no-such-network"), "{refused}");
}

#[tokio::test]
async fn the_host_reaches_every_sandbox_and_they_reach_each_other_unless_isolated() {
    for isolated in [true, false] {
        let instance = TestInstance::new();
        let network = NetworkSpec { isolated, ..instance.network() };
        instance.engine.ensure_network(&network).await.unwrap();
        let on_it =
            |script: &str| ContainerSpec { network: Network::Named(network.name.clone()), ..instance.spec(script) };
        let server = instance.launch(&on_it("exec httpd -f -p 8080 -h /www")).await;
        let address = instance.observe(&server).await.address.unwrap();
        eventually("the host reaches it", || async { tokio::net::TcpStream::connect((address, 8080)).await.ok() })
            .await;

        let client = on_it(&format!("nc -w 2 {address} 8080 < /dev/null 2>&1 && echo reached"));
        let expected = if isolated { "nc: timed out" } else { "reached" };
        assert_eq!(instance.output(&client).await, [expected]);
    }
}

// ---- snapshots ----

fn origin(instance: &TestInstance) -> SnapshotOrigin {
    SnapshotOrigin {
        id: SnapshotId::next(),
        instance: instance.name.clone(),
        chat: ChatId::new(uuid::Uuid::new_v4()),
        session: SessionId::random(),
        profile: "default".parse().unwrap(),
        label: "a label".parse().ok(),
        parent: Parent::Image(crate::engine::test_image()),
        created_at: chrono::Utc::now(),
    }
}

#[tokio::test]
async fn a_snapshot_has_the_committed_files_and_is_found_by_its_id_and_its_chat() {
    let instance = TestInstance::new();
    let engine = &instance.engine;
    let mut spec = instance.spec("echo kept >/kept; sleep 60");
    spec.environment = Environment::checked([("TOKEN".to_owned(), "s3cret".to_owned())]).unwrap();
    let container = instance.launch(&spec).await;
    eventually("it is written", || async {
        let options = bollard::query_parameters::ContainerArchiveInfoOptionsBuilder::default().path("/kept").build();
        instance.raw().await.get_container_archive_info(container.as_str(), Some(options)).await.ok()
    })
    .await;
    let (one, other) = (origin(&instance), origin(&instance));
    let snapshot = engine.commit(&container, &one).await.unwrap();
    assert_eq!(snapshot.origin, one);
    assert_eq!(instance.observe(&container).await.state, ContainerState::Running, "it goes on");
    engine.pause(&container).await.unwrap();
    engine.commit(&container, &other).await.unwrap();
    assert_eq!(instance.observe(&container).await.state, ContainerState::Paused, "it stands still as before");

    assert_eq!(engine.snapshot(&instance.name, one.id).await, Ok(Some(snapshot.clone())));
    assert_eq!(engine.snapshot(&instance.name, SnapshotId::next()).await, Ok(None));
    assert_eq!(engine.snapshots(&instance.name, Some(one.chat)).await.unwrap(), [snapshot]);
    assert_eq!(engine.snapshots(&instance.name, None).await.unwrap().len(), 2);
    assert_eq!(engine.snapshots(&"another".parse().unwrap(), None).await, Ok(Vec::new()));

    let mut restored = instance.spec("cat /kept; echo \"<$TOKEN>\"");
    restored.image = one.image_name();
    assert_eq!(instance.output(&restored).await, ["kept", "<>"]);
}

#[tokio::test]
async fn a_snapshot_is_removed_once_no_container_is_made_of_it() {
    let instance = TestInstance::new();
    let engine = &instance.engine;
    let container = instance.launch(&instance.spec("sleep 60")).await;
    let origin = origin(&instance);
    engine.commit(&container, &origin).await.unwrap();
    let mut spec = instance.spec("sleep 60");
    spec.image = origin.image_name();
    let restored = instance.launch(&spec).await;
    assert_eq!(engine.remove_snapshot(&instance.name, origin.id).await, Ok(SnapshotRemoval::InUse));
    engine.remove(&restored).await.unwrap();
    assert_eq!(engine.remove_snapshot(&instance.name, origin.id).await, Ok(SnapshotRemoval::Removed));
    assert_eq!(engine.remove_snapshot(&instance.name, origin.id).await, Ok(SnapshotRemoval::NotFound));
    assert_eq!(engine.snapshot(&instance.name, origin.id).await, Ok(None));
    assert_eq!(instance.observe(&container).await.state, ContainerState::Running);
}

#[tokio::test]
async fn a_commit_of_a_missing_container_fails_and_leaves_no_image() {
    let instance = TestInstance::new();
    let committed = instance.engine.commit(&missing_container(), &origin(&instance)).await;
    assert!(matches!(committed, Err(EngineError::NoSuchContainer { .. })), "{committed:?}");
    assert_eq!(instance.engine.snapshots(&instance.name, None).await, Ok(Vec::new()));
}

#[tokio::test]
async fn leftovers_of_an_interrupted_commit_are_removed() {
    let instance = TestInstance::new();
    let container = instance.launch(&instance.spec("sleep 60")).await;
    let labels = std::collections::HashMap::from([(
        sandboxd_actors::domain::snapshot::DRAFT.to_owned(),
        instance.name.to_string(),
    )]);
    let config = bollard::models::ContainerConfig { labels: Some(labels), ..Default::default() };
    let options = bollard::query_parameters::CommitContainerOptionsBuilder::default().container(container.as_str());
    let docker = instance.raw().await;
    let draft = docker.commit_container(options.build(), config).await.unwrap().id;
    let hour = chrono::TimeDelta::hours(1);
    instance.engine.remove_drafts(&instance.name, chrono::Utc::now() - hour).await.unwrap();
    assert!(docker.inspect_image(&draft).await.is_ok(), "the commit may still be in progress");
    instance.engine.remove_drafts(&"another".parse().unwrap(), chrono::Utc::now() + hour).await.unwrap();
    assert!(docker.inspect_image(&draft).await.is_ok(), "it is another's");
    instance.engine.remove_drafts(&instance.name, chrono::Utc::now() + hour).await.unwrap();
    assert!(docker.inspect_image(&draft).await.is_err());
}

// ---- imported images ----

fn archive(content: &str) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_data(&mut header, "content", content.as_bytes()).unwrap();
    archive.into_inner().unwrap()
}

#[tokio::test]
async fn an_imported_image_takes_the_place_of_the_one_before_it() {
    let instance = TestInstance::new();
    let engine = DockerEngine::connect(&crate::engine::engine_host()).unwrap();
    let docker = instance.raw().await;
    let tag = format!("{}:import", instance.name);
    let import = async |parts: Vec<std::io::Result<Vec<u8>>>| {
        let instructions = vec!["USER 1000:1000".to_owned(), "LABEL made.by=test".to_owned()];
        engine.import_image(&tag, instructions, futures_util::stream::iter(parts)).await
    };
    let broken = import(vec![Ok(archive("half")[..700].to_vec()), Err(std::io::Error::other("broken off"))]).await;
    assert!(broken.is_err() && docker.inspect_image(&tag).await.is_err(), "{broken:?}");
    let first = import(vec![Ok(archive("one"))]).await.unwrap();
    let second = import(vec![Ok(archive("two"))]).await.unwrap();
    assert!(docker.inspect_image(&first).await.is_err(), "it has no name any more");
    let image = docker.inspect_image(&tag).await.unwrap();
    let config = image.config.unwrap();
    assert_eq!((image.id, config.user.as_deref()), (Some(second), Some("1000:1000")));
    assert_eq!(config.labels.unwrap()["made.by"], "test");
    docker.remove_image(&tag, None::<bollard::query_parameters::RemoveImageOptions>, None).await.unwrap();
}
