//! `[engine]`: the container engine and its use.

use std::path::PathBuf;
use std::time::Duration;

use sandboxd_actors::domain::subnet::{AddressRange, PREFIXES};
use serde::{Serialize, Serializer};

use super::duration::{self, limit};
use super::section::{Parsed, Section};
use super::source::Raw;
use super::values::{choice, flag, path_below_root, plain_name, whole};

/// The settings of the engine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Engine {
    pub kind: EngineKind,
    pub host: EngineHost,
    /// Whether to start a private engine if no engine answers.
    pub private: bool,
    /// Created at start-up if it does not exist.
    pub network: String,
    /// Whether sandboxes on the network cannot reach each other.
    pub network_isolated: bool,
    /// The addresses of the network, if it has to be created.
    #[serde(serialize_with = "serialize_range")]
    pub network_subnet: AddressRange,
    /// The number of concurrent creations, stops, removals, pauses and snapshots.
    pub max_operations: usize,
    /// How long a creation waits in the engine queue.
    #[serde(serialize_with = "duration::serialize")]
    pub queue_timeout: Duration,
    pub timeouts: Timeouts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    Docker,
}

/// The host of the engine. A remote engine is not possible, because sandboxes mount directories of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineHost {
    /// The first of the usual sockets that answers.
    Auto,
    Socket(PathBuf),
}

/// The limits of engine calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Timeouts {
    #[serde(serialize_with = "duration::serialize")]
    pub connect: Duration,
    #[serde(serialize_with = "duration::serialize")]
    pub create: Duration,
    #[serde(serialize_with = "duration::serialize")]
    pub start: Duration,
    #[serde(serialize_with = "duration::serialize")]
    pub inspect: Duration,
    #[serde(serialize_with = "duration::serialize")]
    pub list: Duration,
    #[serde(serialize_with = "duration::serialize")]
    pub network: Duration,
    #[serde(serialize_with = "duration::serialize")]
    pub image: Duration,
    #[serde(serialize_with = "duration::serialize")]
    pub logs: Duration,
    #[serde(serialize_with = "duration::serialize")]
    pub commit: Duration,
}

impl Engine {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Engine {
            kind: section.get("kind", "docker", choice(&[("docker", EngineKind::Docker)])),
            host: section.get("host", "auto", host),
            private: section.get("private", "false", flag),
            network: section.get("network", "sandboxd", network_name),
            network_isolated: section.get("network_isolated", "true", flag),
            network_subnet: section.get("network_subnet", "/16", network_subnet),
            max_operations: section.get("max_operations", "4", whole(1, 256)),
            queue_timeout: section.get("queue_timeout", "60s", limit),
            timeouts: section.section("timeouts", Timeouts::read),
        }
    }
}

impl Timeouts {
    fn read(section: &mut Section<'_>) -> Self {
        Timeouts {
            connect: section.get("connect", "5s", limit),
            create: section.get("create", "60s", limit),
            start: section.get("start", "60s", limit),
            inspect: section.get("inspect", "10s", limit),
            list: section.get("list", "30s", limit),
            network: section.get("network", "30s", limit),
            image: section.get("image", "10s", limit),
            logs: section.get("logs", "5s", limit),
            commit: section.get("commit", "5m", limit),
        }
    }
}

/// Parses the name of a network. Reserved names are refused: `host` would give a sandbox the network of this host.
pub(super) fn network_name(raw: &Raw) -> Parsed<String> {
    match raw.text() {
        Some("host" | "none" | "default") => Err(raw.refuse("a network of the engine's own")),
        _ => plain_name(raw).ok_or_else(|| raw.refuse(r#"the name of a network, such as "sandboxd""#)),
    }
}

fn network_subnet(raw: &Raw) -> Parsed<AddressRange> {
    raw.text().and_then(|text| text.parse().ok()).ok_or_else(|| {
        let (shortest, longest) = (PREFIXES.start(), PREFIXES.end());
        raw.refuse(format_args!(
            r#""engine", a size from "/{shortest}" to "/{longest}", or a block of such a size as "10.1.0.0/16""#
        ))
    })
}

fn serialize_range<S: Serializer>(range: &AddressRange, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(range)
}

fn host(raw: &Raw) -> Parsed<EngineHost> {
    let expected = r#""auto" or a socket such as "unix:///run/docker.sock""#;
    let text = raw.text().ok_or_else(|| raw.refuse(expected))?;
    if text == "auto" {
        return Ok(EngineHost::Auto);
    }
    let path = text.strip_prefix("unix://").unwrap_or(text);
    path_below_root(&Raw::Text(path.into())).map(EngineHost::Socket).map_err(|_| raw.refuse(expected))
}

impl Serialize for EngineHost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            EngineHost::Auto => serializer.serialize_str("auto"),
            EngineHost::Socket(path) => serializer.collect_str(&format_args!("unix://{}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_found_or_is_a_local_socket() {
        let docker = Ok(EngineHost::Socket("/run/docker.sock".into()));
        assert_eq!(host(&Raw::String("auto".into())), Ok(EngineHost::Auto));
        assert_eq!(host(&Raw::String("unix:///run/docker.sock".into())), docker);
        assert_eq!(host(&Raw::String("/run/docker.sock".into())), docker);
        for wrong in ["", "tcp://10.0.0.1:2375", "unix://docker.sock", "docker.sock", "unix:///"] {
            assert!(host(&Raw::String(wrong.into())).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_subnet_is_a_size_a_block_or_the_engines_choice() {
        let parse = |text: &str| network_subnet(&Raw::String(text.into()));
        assert_eq!(parse("/20"), Ok(AddressRange::Free { prefix: 20 }));
        assert_eq!(parse("engine"), Ok(AddressRange::EngineChoice));
        assert_eq!(parse("10.7.0.0/16"), Ok(AddressRange::Exactly("10.7.0.0/16".parse().expect("a block"))));
        let refused = parse("10.7.0.1/16").expect_err("bits beyond the prefix").0;
        assert!(refused.contains("from \"/12\" to \"/28\""), "{refused}");
    }

    #[test]
    fn a_network_is_never_the_hosts() {
        assert_eq!(network_name(&Raw::String("my_net-1.x".into())), Ok("my_net-1.x".into()));
        for wrong in ["", "host", "none", "default", "container:abc", "-x", "a b"] {
            assert!(network_name(&Raw::String(wrong.into())).is_err(), "{wrong:?}");
        }
    }
}
