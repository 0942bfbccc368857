//! Tests of a sandbox's container as the engine describes it and as the guest sees it.

use std::os::unix::fs::MetadataExt;

use bollard::models::{ContainerInspectResponse, HostConfig};
use serde_json::{Value, json};

use crate::containers::{Containers, id_of};
use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::installation::Installation;

/// A sandbox, and the engine's view of its container.
struct Made {
    sandbox: Value,
    containers: Containers,
}

impl Made {
    async fn by(service: &Daemon, params: &CreateParams) -> Self {
        Self { sandbox: service.created(params).await, containers: service.containers().await }
    }

    fn id(&self) -> &str {
        id_of(&self.sandbox)
    }

    async fn shell(&self, script: &str) -> String {
        self.containers.shell(self.id(), script).await
    }

    async fn inspect(&self) -> ContainerInspectResponse {
        self.containers.inspect(self.id()).await
    }

    async fn host_config(&self) -> HostConfig {
        self.inspect().await.host_config.expect("a host's configuration")
    }
}

#[tokio::test]
async fn the_chats_directory_and_the_volume_are_shared_with_the_host_and_writable() {
    let service = Daemon::start("mounts.chat = '/home/chat'\nprofiles.default.network = 'none'").await;
    let chat = service.new_chat();
    std::fs::write(chat.volume().join("given"), "by the host").expect("written");
    let made = Made::by(&service, &chat).await;
    assert_eq!(
        made.shell("cat /volume/given; echo mine > /volume/made; echo mine > /home/chat/made").await,
        "by the host"
    );
    let directory = service.path("chats").join(chat.chat_id());
    for made_inside in [chat.volume().join("made"), directory.join("made")] {
        assert_eq!(std::fs::read_to_string(&made_inside).expect("written"), "mine\n", "{made_inside:?}");
    }

    // Files of the chat are there for its next sandbox.
    service.delete(&chat).await.expect("deleted");
    assert_eq!(Made::by(&service, &chat).await.shell("cat /home/chat/made").await, "mine\n");
}

#[tokio::test]
async fn shared_directories_are_made_at_start_up_and_cannot_be_written() {
    let service = Daemon::start("mounts.lambda_tools = '/opt/tools'\nprofiles.default.network = 'none'").await;
    for (source, word) in [("dependencies", "numpy"), ("lambda-tools", "search")] {
        std::fs::write(service.path(source).join("given"), word).expect("the directory was made");
    }
    let made = Made::by(&service, &service.new_chat()).await;
    assert_eq!(made.shell("cat /dependencies/given /opt/tools/given").await, "numpysearch");
    for place in ["/dependencies", "/opt/tools"] {
        let refused = made.shell(&format!("touch {place}/made; rm {place}/given; mount -o remount,rw {place}")).await;
        assert_eq!(refused.matches("Read-only file system").count(), 2, "{refused}");
    }
    assert!(!service.path("dependencies").join("made").exists());
    assert!(service.path("lambda-tools").join("given").exists());
}

#[tokio::test]
async fn the_environment_is_the_agent_the_profile_and_the_request() {
    let service = Daemon::start(
        "[profiles.default]
         network = 'none'
         env = { PROXY = 'http://proxy:3128', STAGE = 'configured' }",
    )
    .await;
    let chat = service.new_chat().with("agent_id", "agent = 7");
    let made = Made::by(&service, &chat.with("env", json!({ "STAGE": "asked for", "TOKEN": "t0p=s3cret\n" }))).await;
    let shown = made.shell("echo \"$AGENT_ID|$PROXY|$STAGE|$TOKEN|\"").await;
    assert_eq!(shown, "agent = 7|http://proxy:3128|asked for|t0p=s3cret\n|\n");
    let reserved = service.refused(&service.new_chat().with("env", json!({ "AGENT_ID": "forged" }))).await;
    assert_eq!(reserved.data.details["field"], "env");
}

#[tokio::test]
async fn labels_have_the_owner_and_the_deadlines() {
    let service = Daemon::start("profiles.default = { port = 9000, network = 'none' }").await;
    let chat = service.new_chat();
    let secret = json!({ "TOKEN": "t0p-s3cret" });
    let made = Made::by(&service, &chat.with("env", secret).with("ttl", 100).with("idle_timeout", 7.5)).await;
    let labels = made.inspect().await.config.and_then(|config| config.labels).expect("labels");
    let label = |name: &str| labels.get(&format!("sandboxd.{name}")).map(String::as_str).unwrap_or_default();
    for (name, value) in [
        ("managed", "true"),
        ("instance", service.name()),
        ("chat-id", chat.chat_id()),
        ("session-id", made.sandbox["session_id"].as_str().expect("a text")),
        ("agent-id", "agent"),
        ("volume", &chat.volume().display().to_string()),
        ("port", "9000"),
        ("profile", "default"),
        ("idle-timeout", "7.5"),
    ] {
        assert_eq!(label(name), value, "{name}");
    }
    for (name, field) in [("created-at", "created_at"), ("expires-at", "expires_at")] {
        let promised = made.sandbox[field].as_str().expect("a time").trim_end_matches('Z');
        assert!(label(name).starts_with(promised), "{name}: {} for {promised}", label(name));
    }
    assert!(!label("schema").is_empty() && !label("spec-hash").is_empty(), "{labels:?}");
    assert!(labels.values().all(|value| !value.contains("s3cret")), "{labels:?}");
}

#[tokio::test]
async fn limits_are_those_of_the_profile() {
    let service =
        Daemon::start("profiles.default = { memory = '48MiB', cpus = 0.25, pids = 12, network = 'none' }").await;
    let made = Made::by(&service, &service.new_chat()).await;
    let config = made.host_config().await;
    assert_eq!((config.memory, config.memory_swap), (Some(48 << 20), Some(48 << 20)));
    assert_eq!((config.nano_cpus, config.pids_limit), (Some(250_000_000), Some(12)));
    let forked = made.shell("for n in $(seq 30); do sleep 5 & done; echo all forked").await;
    assert!(!forked.contains("all forked") && forked.contains("fork"), "{forked}");
}

#[tokio::test]
async fn a_disk_limit_is_kept_or_refused_with_its_reason() {
    let service = Daemon::start("profiles.default = { disk = '20MiB', network = 'none' }").await;
    let chat = service.new_chat();
    match service.create(&chat).await {
        Ok(sandbox) => {
            let id = id_of(&sandbox);
            let script = "head -c 40000000 /dev/zero > /big && echo written";
            let shown = service.containers().await.shell(id, script).await;
            assert!(!shown.contains("written"), "{shown}");
        }
        Err(failure) => {
            assert_eq!(failure.data.kind.as_str(), "sandbox_start_failed");
            assert!(failure.message.contains("storage driver"), "{failure:?}");
            assert_eq!(service.containers().await.count().await, 0);
        }
    }
}

#[tokio::test]
async fn the_network_is_made_at_start_up_and_is_where_sandboxes_are() {
    let installation = Installation::new("[profiles.other]");
    let (shared, other) = (format!("{}-a", installation.name()), format!("{}-b", installation.name()));
    let mut installation = installation;
    installation.configure(&format!("engine.network = '{shared}'\nprofiles.other.network = '{other}'"));
    let docker = installation.containers().await.docker;
    docker.inspect_network(&shared, None).await.expect_err("not there yet");

    // The second start finds the networks.
    for _ in 0..2 {
        let service = installation.start().await;
        for network in [&shared, &other] {
            let made = docker.inspect_network(network, None).await.expect("made");
            assert_eq!(made.labels.expect("labels")["sandboxd.instance"], service.name());
        }
        installation = service.stop().await;
    }
    let service = installation.start().await;
    for (profile, network) in [("default", &shared), ("other", &other)] {
        let made = Made::by(&service, &service.new_chat().with("profile", profile)).await;
        let networks = made.inspect().await.network_settings.and_then(|settings| settings.networks).expect("networks");
        assert_eq!(networks.keys().collect::<Vec<_>>(), [network]);
        assert_eq!(made.sandbox["endpoint"]["ip"], json!(networks[network].ip_address));
    }
}

#[tokio::test]
async fn sandboxes_cannot_reach_each_other() {
    let service = Daemon::start("profiles.default.command = ['httpd', '-f', '-p', '8080', '-h', '/www']\nprofiles.default.readiness.kind = 'http'").await;
    let (one, other) = (Made::by(&service, &service.new_chat()).await, Made::by(&service, &service.new_chat()).await);
    let address = other.sandbox["endpoint"]["ip"].as_str().expect("an address");
    let shown = one.shell(&format!("nc -w 1 {address} 8080 < /dev/null 2>&1 && echo reached")).await;
    assert!(!shown.contains("reached"), "{shown}");
}

#[tokio::test]
async fn a_blocked_network_leaves_only_loopback() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let made = Made::by(&service, &service.new_chat()).await;
    assert_eq!(made.sandbox["endpoint"], Value::Null);
    assert_eq!(made.shell("ls /sys/class/net").await, "lo\n");
}

#[tokio::test]
async fn a_sandbox_is_hardened_under_every_profile() {
    let service = Daemon::start(
        "profiles.default.network = 'none'\nprofiles.given = { network = 'none', capabilities = ['CHOWN'] }",
    )
    .await;
    let made = Made::by(&service, &service.new_chat()).await;
    let status = made.shell("cat /proc/1/status; echo; cat /proc/1/comm; id -u; hostname").await;
    for line in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{line}:\t0000000000000000")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    assert!(status.contains("\ninit\n"), "pid 1 is ours: {status}");
    let config = made.host_config().await;
    assert_eq!((config.privileged, config.init), (Some(false), Some(false)), "one init is enough");
    assert_eq!(config.cap_drop.as_deref(), Some(["ALL".to_owned()].as_slice()));
    assert_eq!(config.ipc_mode.as_deref(), Some("private"));
    for refused in ["chown 1000 /tmp", "mount -t tmpfs none /mnt", "mknod /tmp/sda b 8 0", "ping -c 1 127.0.0.1"] {
        let shown = made.shell(&format!("mkdir -p /mnt; {refused} && echo done")).await;
        assert!(!shown.contains("done"), "{refused}: {shown}");
    }

    let given = Made::by(&service, &service.new_chat().with("profile", "given")).await;
    assert_eq!(given.shell("touch /tmp/x; chown 1000 /tmp/x; stat -c %u /tmp/x").await, "1000\n");
}

#[tokio::test]
async fn an_unprivileged_user_can_write_to_its_chats_directory_and_to_no_others() {
    let service = Daemon::start("profiles.default = { user = '1234:2345', network = 'none' }").await;
    let chat = service.new_chat();
    let made = Made::by(&service, &chat).await;
    assert_eq!(made.shell("id -u; id -g; echo mine > /chat/made; cat /chat/made").await, "1234\n2345\nmine\n");
    let written = service.path("chats").join(chat.chat_id()).join("made").metadata().expect("written");
    assert_eq!((written.uid(), written.gid()), (1234, 2345));
    assert!(made.shell("touch /etc/made").await.contains("Permission denied"));
}

#[tokio::test]
async fn a_profile_sets_the_other_readable_and_writable_paths() {
    let mut installation = Installation::new("");
    for (directory, word) in [("models", "weights"), ("cache", "cached")] {
        std::fs::create_dir(installation.path(directory)).expect("a directory");
        std::fs::write(installation.path(directory).join("given"), word).expect("written");
    }
    let (models, cache) = (installation.path("models"), installation.path("cache"));
    installation.configure(&format!(
        "[profiles.default]
         network = 'none'
         read_only_root = true
         mounts = {{ '/models' = '{}', '/cache' = '{}:rw' }}
         tmpfs = {{ '/scratch' = '1MiB' }}",
        models.display(),
        cache.display()
    ));
    let service = installation.start().await;
    let made = Made::by(&service, &service.new_chat()).await;
    assert_eq!(made.shell("cat /models/given /cache/given").await, "weightscached");
    for refused in ["/made", "/etc/made", "/models/made"] {
        assert!(made.shell(&format!("touch {refused}")).await.contains("Read-only file system"), "{refused}");
    }
    for writable in ["/cache/made", "/scratch/made", "/tmp/made", "/chat/made", "/volume/made"] {
        assert_eq!(made.shell(&format!("echo yes > {writable}; cat {writable}")).await, "yes\n", "{writable}");
    }
    assert!(cache.join("made").exists());
    assert_eq!(
        made.shell("head -c 2000000 /dev/zero 2>&1 > /scratch/big; wc -c < /scratch/big").await.lines().last(),
        Some("1044480")
    );
}

#[tokio::test]
async fn a_create_may_name_a_profile() {
    let service = Daemon::start(
        "profiles.default.network = 'none'\nprofiles.small = { memory = '20MiB', port = 1234, network = 'none' }",
    )
    .await;
    let made = Made::by(&service, &service.new_chat().with("profile", "small")).await;
    assert_eq!(made.sandbox["profile"], "small");
    assert_eq!(made.host_config().await.memory, Some(20 << 20));

    let failure = service.refused(&service.new_chat().with("profile", "large")).await;
    assert_eq!((failure.data.kind.as_str(), &failure.data.details["field"]), ("invalid_params", &json!("profile")));
    assert!(failure.message.contains("default, small"), "{failure:?}");
}

#[tokio::test]
async fn an_image_that_the_engine_does_not_have_is_named() {
    let service = Daemon::start("profiles.default.image = 'sandboxd-no-such-image:none'").await;
    let failure = service.refused(&service.new_chat()).await;
    assert_eq!((failure.data.kind.as_str(), failure.data.retryable), ("image_not_found", false));
    assert_eq!(failure.data.details["image"], "sandboxd-no-such-image:none");
    assert_eq!(service.list().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_foreign_container_under_the_chats_name_is_reported_and_left_alone() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let containers = service.containers().await;
    let chat = service.new_chat();
    let name = format!("sandboxd-{}-{}", service.name(), chat.chat_id());
    let foreign = containers.create_foreign(&name).await;
    let failure = service.refused(&chat).await;
    assert_eq!(failure.data.kind.as_str(), "sandbox_start_failed");
    let details = &failure.data.details;
    assert_eq!((&details["cause"], &details["container_id"]), (&json!("name_taken"), &json!(foreign.id)));
    assert!(failure.message.contains(&name) && failure.message.contains(&foreign.id), "{failure:?}");

    assert_eq!(service.delete(&chat).await.expect("an answer")["result"], "not_found");
    assert!(containers.is_running(&foreign.id).await);
    drop(foreign);
    assert_eq!(service.created(&chat).await["outcome"], "created");
}
