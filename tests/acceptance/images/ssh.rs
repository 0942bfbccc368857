//! Tests of repositories behind a real ssh server.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{CreateContainerOptions, LogsOptionsBuilder, RemoveContainerOptionsBuilder};
use futures_util::TryStreamExt;
use sandboxd_protocol::error::Error;
use serde_json::{Value, json};

use super::repositories::{Upstream, configured, shell};
use crate::containers::Containers;
use crate::daemon::Daemon;
use crate::engine::{blocking, eventually};
use crate::installation::Installation;

/// An ssh server that lets one key access one repository as the user git.
struct GitHost {
    containers: Containers,
    container: String,
    address: String,
}

impl GitHost {
    async fn start(place: &Installation, keys: &Path, repository: &Path) -> Self {
        let containers = place.containers().await;
        let bind = |from: &Path, to: &str| format!("{}:{to}:ro", from.display());
        let body = ContainerCreateBody {
            image: Some("sandboxd-git-host:test".into()),
            labels: Some(HashMap::from([("sandboxd.test".into(), "git-host".into())])),
            host_config: Some(HostConfig {
                binds: Some(vec![bind(keys, "/keys"), bind(repository, "/srv/app.git")]),
                ..Default::default()
            }),
            ..Default::default()
        };
        let created = containers.docker.create_container(None::<CreateContainerOptions>, body).await.expect("created");
        let mut host = Self { containers, container: created.id, address: String::new() };
        host.containers.docker.start_container(&host.container, None).await.expect("started");
        eventually("it listens", || async { host.log().await.contains("Server listening").then_some(()) }).await;
        // The user git does not own the repository.
        host.containers.shell(&host.container, "git config --system safe.directory '*'").await;
        let inspected = host.containers.docker.inspect_container(&host.container, None).await.expect("it is there");
        let networks = inspected.network_settings.and_then(|settings| settings.networks).expect("networks");
        host.address = networks.into_values().find_map(|network| network.ip_address).expect("an address");
        host
    }

    fn url(&self) -> String {
        format!("ssh://git@{}/srv/app.git", self.address)
    }

    async fn log(&self) -> String {
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).build();
        let pieces: Vec<_> =
            self.containers.docker.logs(&self.container, Some(options)).try_collect().await.expect("its log");
        pieces.into_iter().map(|piece| piece.to_string()).collect()
    }
}

impl Drop for GitHost {
    fn drop(&mut self) {
        let (docker, container) = (self.containers.docker.clone(), self.container.clone());
        blocking(async move {
            let options = RemoveContainerOptionsBuilder::default().force(true).build();
            let _ = docker.remove_container(&container, Some(options)).await;
        });
    }
}

/// Creates a key pair and returns the public key.
fn make_key(file: &Path) -> String {
    let path = file.to_str().expect("UTF-8");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path]).status();
    assert!(made.expect("ssh-keygen is installed").success());
    std::fs::read_to_string(file.with_extension("pub")).expect("a public key")
}

#[tokio::test]
async fn a_key_opens_a_repository_at_a_known_host_alone() {
    let place = Installation::new("");
    let upstream = Upstream::named(&place, "app");
    let keys = place.path("keys");
    std::fs::create_dir(&keys).expect("a directory");
    // A user of the container reads this.
    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o755)).expect("open");
    let host_key = make_key(&keys.join("host"));
    let other_key = make_key(&place.path("other"));
    let key = place.path("key");
    std::fs::write(keys.join("authorized"), make_key(&key)).expect("written");
    let body = std::fs::read_to_string(&key).expect("a key").lines().nth(1).expect("its body").to_owned();

    let host = GitHost::start(&place, &keys, &upstream.bare).await;
    let known = place.path("known_hosts");
    let (good, bad) = (format!("{} {host_key}", host.address), format!("{} {other_key}", host.address));
    let settings = |key: &Path| {
        format!("every = '1h'\ncredentials_file = '{}'\nknown_hosts = '{}'", key.display(), known.display())
    };
    let (mut installation, _) = configured(&host.url(), &settings(&key));
    installation.configure("log.filter = 'trace'");
    let service = installation.start().await;
    let refresh = async |service: &Daemon| -> Result<Value, Error> {
        service.call("image.refresh", json!({ "repository": "app" })).await
    };

    for (content, why) in [(String::new(), "not known"), (bad, "another key")] {
        std::fs::write(&known, content).expect("written");
        let refused = refresh(&service).await.expect_err(why);
        assert_eq!(refused.data.kind.as_str(), "repository_unavailable", "{why}");
        assert!(refused.message.contains("Host key verification failed"), "{why}: {refused:?}");
    }
    let log = host.log().await;
    assert!(!log.contains("publickey"), "the key was offered: {log}");

    std::fs::write(&known, &good).expect("written");
    refresh(&service).await.expect("built");
    assert_eq!(shell(&service, "cat /srv/app/greeting").await, "hello");
    assert!(host.log().await.contains("Accepted publickey for git"));
    assert!(!service.log().contains(&body), "the key is in the log");
    assert_eq!(std::fs::read_to_string(&known).expect("readable"), good, "it is only read");
    eventually("no temporary files are left", || async {
        let left = std::fs::read_dir(service.path("state/repositories")).expect("a directory");
        let names = left.map(|entry| entry.expect("an entry").file_name()).collect::<Vec<_>>();
        (names == ["app.git"]).then_some(())
    })
    .await;

    let (installation, _) = configured(&host.url(), &settings(&place.path("other")));
    let service = installation.start().await;
    let refused = refresh(&service).await.expect_err("not let in");
    assert!(refused.message.contains("Permission denied"), "{refused:?}");
}
