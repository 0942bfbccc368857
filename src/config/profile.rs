//! `[profiles.<name>]`: the settings of a sandbox.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::capability::capability;
use super::duration::{self, limit};
use super::engine::network_name;
use super::identity::{User, user};
use super::language::{self, Language};
use super::secret::{Secret, secret};
use super::section::{Parsed, Section};
use super::size::{self, Size};
use super::source::{Raw, Refusal};
use super::values::{choice, flag, list, optional, path_below_root, plain_name, port, table_name, whole};
use crate::images::base;

/// The settings of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Profile {
    pub image: String,
    /// Empty: the image's command.
    pub command: Vec<String>,
    /// The port of the sandbox's service.
    pub port: u16,
    /// The longest life of a sandbox, regardless of activity.
    #[serde(serialize_with = "duration::serialize")]
    pub ttl: Duration,
    /// The longest time without activity.
    #[serde(serialize_with = "duration::serialize")]
    pub idle_timeout: Duration,
    pub memory: Size,
    pub cpus: f64,
    pub pids: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Size>,
    #[serde(skip_serializing_if = "Network::is_shared")]
    pub network: Network,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    pub read_only_root: bool,
    pub init: bool,
    /// `None`: the engine's default runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// The capabilities that are not dropped; upper case, without `CAP_`.
    pub capabilities: Vec<String>,
    pub on_expire: OnExpire,
    /// Whether a sandbox is saved as a snapshot when it is deleted.
    pub snapshot_on_delete: bool,
    /// The limit of sandboxes of this profile.
    pub max_sandboxes: Option<usize>,
    pub restart: Restart,
    pub env: BTreeMap<String, Secret>,
    /// Further directories of the host, by their path in the guest.
    pub mounts: BTreeMap<PathBuf, HostMount>,
    /// The sizes of tmpfs mounts, by their path in the guest.
    pub tmpfs: BTreeMap<PathBuf, Size>,
    pub readiness: Readiness,
    pub pool: Pool,
    /// The interpreters, by language.
    pub languages: BTreeMap<String, Language>,
}

/// A directory of the host that every sandbox of a profile mounts. Written `"/srv/models"`, or `"/srv/models:rw"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostMount {
    pub source: PathBuf,
    pub read_only: bool,
}

impl Serialize for HostMount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mode = if self.read_only { "" } else { ":rw" };
        serializer.serialize_str(&format!("{}{mode}", self.source.display()))
    }
}

/// The network of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// `engine.network`.
    Shared,
    /// No network.
    Blocked,
    Named(String),
}

/// The action at the expiry of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnExpire {
    Delete,
    Stop,
    Pause,
    Snapshot,
}

/// Whether a sandbox that exited is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    Never,
    OnFailure,
}

/// The readiness probe of a new sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Readiness {
    pub kind: ReadinessKind,
    pub path: String,
    /// `None`: the profile's port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    #[serde(serialize_with = "duration::serialize")]
    pub timeout: Duration,
}

/// The kind of a readiness probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadinessKind {
    /// A started sandbox is ready.
    None,
    Http,
    Tcp,
    /// The image's health check.
    Health,
}

/// The settings of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pool {
    pub size: u32,
    pub spare: u32,
    pub hints: u32,
    #[serde(serialize_with = "duration::serialize")]
    pub max_age: Duration,
}

/// The least memory limit that the engine accepts.
const LEAST_MEMORY: Size = Size::from_bytes(6 << 20);
const LEAST_DISK: Size = Size::from_bytes(1 << 20);
const LEAST_TMPFS: Size = Size::from_bytes(4 << 10);

impl Profile {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Profile {
            image: section.get("image", base::TAG, image),
            command: section.get("command", "", list(argument)),
            port: section.get("port", "8080", port),
            ttl: section.get("ttl", "4h", limit),
            idle_timeout: section.get("idle_timeout", "2h", limit),
            memory: section.get("memory", "1GiB", size::at_least(LEAST_MEMORY)),
            cpus: section.get("cpus", "1.0", cpus),
            pids: section.get("pids", "256", whole(1, 1 << 22)),
            disk: section.get("disk", "", optional(size::at_least(LEAST_DISK))),
            network: section.get("network", "", network),
            user: section.get("user", "", optional(user)),
            read_only_root: section.get("read_only_root", "false", flag),
            init: section.get("init", "true", flag),
            runtime: section.get("runtime", "", optional(runtime)),
            capabilities: section.get("capabilities", "", list(capability)),
            on_expire: section.get(
                "on_expire",
                "delete",
                choice(&[
                    ("delete", OnExpire::Delete),
                    ("stop", OnExpire::Stop),
                    ("pause", OnExpire::Pause),
                    ("snapshot", OnExpire::Snapshot),
                ]),
            ),
            snapshot_on_delete: section.get("snapshot_on_delete", "false", flag),
            max_sandboxes: section.get("max_sandboxes", "", optional(whole(1, 1 << 24))),
            restart: section.get(
                "restart",
                "never",
                choice(&[("never", Restart::Never), ("on-failure", Restart::OnFailure)]),
            ),
            env: section.map("env", variable_name, secret),
            mounts: section.map("mounts", mount_point, host_mount),
            tmpfs: section.map("tmpfs", mount_point, size::at_least(LEAST_TMPFS)),
            readiness: section.section("readiness", Readiness::read),
            pool: section.section("pool", Pool::read),
            languages: section.sections("languages", &language::BUILT_IN, table_name("language"), Language::read),
        }
    }
}

impl Readiness {
    fn read(section: &mut Section<'_>) -> Self {
        let kinds = [
            ("none", ReadinessKind::None),
            ("http", ReadinessKind::Http),
            ("tcp", ReadinessKind::Tcp),
            ("health", ReadinessKind::Health),
        ];
        Readiness {
            kind: section.get("kind", "none", choice(&kinds)),
            path: section.get("path", "/", url_path),
            port: section.get("port", "", optional(port)),
            timeout: section.get("timeout", "30s", limit),
        }
    }
}

impl Pool {
    fn read(section: &mut Section<'_>) -> Self {
        Pool {
            size: section.get("size", "0", whole(0, 1000)),
            spare: section.get("spare", "0", whole(0, 1000)),
            hints: section.get("hints", "4", whole(0, 1000)),
            max_age: section.get("max_age", "25m", limit),
        }
    }
}

pub(super) fn image(raw: &Raw) -> Parsed<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    match raw.text() {
        Some(name) if name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain) => {
            Ok(name.into())
        }
        _ => Err(raw.refuse(r#"an image such as "python:3.13-slim""#)),
    }
}

/// Parses any text, which may be empty.
pub(super) fn argument(raw: &Raw) -> Parsed<String> {
    match raw.text() {
        Some(text) if !text.contains('\0') => Ok(text.into()),
        _ => Err(raw.refuse("a string")),
    }
}

/// Parses a number of CPUs. The minimum is the least that the kernel can schedule; the engine checks the host's
/// maximum.
fn cpus(raw: &Raw) -> Parsed<f64> {
    raw.number()
        .filter(|cpus| (0.01..=4096.0).contains(cpus))
        .ok_or_else(|| raw.refuse("a number of CPUs from 0.01 to 4096"))
}

fn network(raw: &Raw) -> Parsed<Network> {
    match raw.text() {
        Some("") => Ok(Network::Shared),
        Some("none") => Ok(Network::Blocked),
        _ => network_name(raw).map(Network::Named),
    }
}

fn runtime(raw: &Raw) -> Parsed<String> {
    plain_name(raw).ok_or_else(|| raw.refuse(r#"the name of a runtime, such as "runsc""#))
}

fn url_path(raw: &Raw) -> Parsed<String> {
    match raw.text() {
        Some(path) if path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic()) => Ok(path.into()),
        _ => Err(raw.refuse(r#"a path such as "/health""#)),
    }
}

fn variable_name(name: &str) -> Parsed<String> {
    let plain = |c: char| c.is_ascii_graphic() && c != '=';
    match !name.is_empty() && name.chars().all(plain) {
        true => Ok(name.into()),
        false => Err(Refusal("expected the name of an environment variable".into())),
    }
}

fn mount_point(path: &str) -> Parsed<PathBuf> {
    path_below_root(&Raw::Text(path.into()))
}

/// Parses a source with an optional mode. A colon separates them here and in the engine's API, so no path may contain
/// one.
fn host_mount(raw: &Raw) -> Parsed<HostMount> {
    let expected = || raw.refuse(r#"a directory of the host such as "/srv/models" or "/srv/models:rw""#);
    let text = raw.text().ok_or_else(expected)?;
    let (source, read_only) = match text.split_once(':') {
        None => (text, true),
        Some((source, "ro")) => (source, true),
        Some((source, "rw")) => (source, false),
        Some(_) => return Err(expected()),
    };
    let source = path_below_root(&Raw::Text(source.into())).map_err(|_| expected())?;
    Ok(HostMount { source, read_only })
}

impl Network {
    fn is_shared(&self) -> bool {
        *self == Network::Shared
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Network::Shared => "",
            Network::Blocked => "none",
            Network::Named(name) => name,
        })
    }
}
