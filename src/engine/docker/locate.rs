//! Finds the engine: at the configured socket, or at the first of the usual sockets that answers.

use std::path::PathBuf;
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker};
use sandboxd_actors::ports::engine::EngineError;

use super::errors;

/// Longer than any deadline of the core, so that the core's deadline always ends a call.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// A socket that accepts and does not answer must not block the search of the next ones.
const PING_LIMIT: Duration = Duration::from_secs(3);

/// An engine host that is neither `auto` nor a local socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected \"auto\" or \"unix:///path/to/socket\", got {0:?}")]
pub struct InvalidHost(String);

/// A connection to an engine that has answered.
#[derive(Debug)]
pub(super) struct Located {
    pub(super) docker: Docker,
    pub(super) host: String,
}

/// The hosts to try, in this order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    pub(super) fn parse(host: &str) -> Result<Self, InvalidHost> {
        match host {
            "auto" => Ok(Self::usual(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))),
            named if is_local(named) => Ok(Self(vec![named.to_owned()])),
            other => Err(InvalidHost(other.to_owned())),
        }
    }

    fn usual(variable: impl Fn(&str) -> Option<String>) -> Self {
        let runtime_dir = variable("XDG_RUNTIME_DIR");
        let below = |dir: &Option<String>, path: &str| dir.as_ref().map(|dir| format!("unix://{dir}/{path}"));
        let hosts = [
            variable("DOCKER_HOST"),
            Some("unix:///var/run/docker.sock".to_owned()),
            Some("unix:///run/docker.sock".to_owned()),
            below(&runtime_dir, "docker.sock"),
            below(&variable("HOME"), ".docker/run/docker.sock"),
            below(&runtime_dir, "podman/podman.sock"),
            Some("unix:///run/podman/podman.sock".to_owned()),
        ];
        Self(hosts.into_iter().flatten().collect())
    }

    pub(super) fn sockets(&self) -> Vec<PathBuf> {
        self.0.iter().filter_map(|host| host.strip_prefix("unix://")).map(PathBuf::from).collect()
    }

    pub(super) async fn locate(&self) -> Result<Located, EngineError> {
        let mut tried = Vec::new();
        for host in &self.0 {
            match ping(host).await {
                Ok(docker) => {
                    tracing::info!(%host, "engine found");
                    return Ok(Located { docker, host: host.clone() });
                }
                Err(why) => tried.push(format!("{host} ({why})")),
            }
        }
        Err(EngineError::Unreachable { message: format!("no engine answers at {}", tried.join(", ")) })
    }
}

/// The engine must be on this host, because sandboxes mount directories of this host.
fn is_local(host: &str) -> bool {
    host.strip_prefix("unix://").is_some_and(|path| path.starts_with('/'))
}

async fn ping(host: &str) -> Result<Docker, String> {
    if !is_local(host) {
        return Err("not a socket of this host".to_owned());
    }
    let docker = Docker::connect_with_unix(host, CLIENT_TIMEOUT.as_secs(), API_DEFAULT_VERSION)
        .map_err(|error| errors::message(&error))?;
    match tokio::time::timeout(PING_LIMIT, docker.ping()).await {
        Ok(Ok(_)) => Ok(docker),
        Ok(Err(error)) => Err(errors::message(&error)),
        Err(_) => Err(format!("no answer within {PING_LIMIT:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_host_is_the_only_one_tried() {
        assert_eq!(Hosts::parse("unix:///a/b.sock"), Ok(Hosts(vec!["unix:///a/b.sock".into()])));
        for bad in [
            "",
            "docker",
            "unix://",
            "unix://relative",
            "/run/docker.sock",
            "https://x",
            "ssh://x",
            "tcp://127.0.0.1:2375",
        ] {
            assert_eq!(Hosts::parse(bad), Err(InvalidHost(bad.into())));
        }
    }

    #[test]
    fn auto_looks_where_the_environment_says_then_for_docker_then_for_podman() {
        let hosts = Hosts::usual(|name| match name {
            "DOCKER_HOST" => Some("unix:///mine.sock".into()),
            "XDG_RUNTIME_DIR" => Some("/run/user/7".into()),
            _ => None,
        });
        assert_eq!(
            hosts.0,
            [
                "unix:///mine.sock",
                "unix:///var/run/docker.sock",
                "unix:///run/docker.sock",
                "unix:///run/user/7/docker.sock",
                "unix:///run/user/7/podman/podman.sock",
                "unix:///run/podman/podman.sock",
            ]
        );
        assert_eq!(hosts.sockets()[0], PathBuf::from("/mine.sock"));
    }
}
