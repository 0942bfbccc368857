//! The small sections: settings of the service itself.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tracing_subscriber::EnvFilter;

use super::duration::{self, at_least, duration, limit};
use super::section::{Parsed, Section};
use super::source::Raw;
use super::values::{absolute_path, choice, list, listen, optional, path_below_root, serialize_listen, text, whole};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Instance {
    /// Part of every container's name, so that several instances can share an engine.
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct State {
    pub dir: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Http {
    #[serde(serialize_with = "serialize_listen")]
    pub listen: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metrics {
    #[serde(serialize_with = "serialize_listen")]
    pub listen: Option<SocketAddr>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chats {
    /// The parent of the chat directories.
    pub root: PathBuf,
    /// How long the directory of a chat without a sandbox is kept. `None`: until it is removed on request.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "duration::serialize_optional")]
    pub retention: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Volumes {
    /// A caller's volume must lie below one of these.
    pub roots: Vec<PathBuf>,
}

/// The mount points in the guest, and the sources of the shared directories.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mounts {
    pub chat: PathBuf,
    pub volume: PathBuf,
    pub dependencies: PathBuf,
    pub lambda_tools: PathBuf,
    pub dependencies_source: PathBuf,
    pub lambda_tools_source: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reaper {
    #[serde(serialize_with = "duration::serialize")]
    pub tick: Duration,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reconciler {
    #[serde(serialize_with = "duration::serialize")]
    pub interval: Duration,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Events {
    /// The number of latest events that the journal keeps.
    pub keep: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Leases {
    /// The longest lease, so that a vanished caller does not hold a sandbox for ever.
    #[serde(serialize_with = "duration::serialize")]
    pub max: Duration,
    /// Each lease uses memory, and every save of a record includes the durable ones.
    pub max_per_sandbox: usize,
}

/// The limits on sandboxes. `None`: no limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SandboxLimits {
    pub sandboxes: Option<usize>,
    pub per_workspace: Option<usize>,
    pub per_agent: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshots {
    /// How many of the newest snapshots of each chat are kept.
    pub keep: usize,
    /// The longest age of a snapshot.
    #[serde(serialize_with = "duration::serialize")]
    pub max_age: Duration,
    /// The interval between two removals of surplus or old snapshots.
    #[serde(serialize_with = "duration::serialize")]
    pub interval: Duration,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Teardown {
    /// The time between the stop request and the kill.
    #[serde(serialize_with = "duration::serialize")]
    pub graceful: Duration,
    #[serde(serialize_with = "duration::serialize")]
    pub remove: Duration,
    /// The limit of one attempt with all its steps.
    #[serde(serialize_with = "duration::serialize")]
    pub total: Duration,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Log {
    pub format: LogFormat,
    pub filter: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Human,
    Json,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shutdown {
    /// The time for requests in progress before the service exits.
    #[serde(serialize_with = "duration::serialize")]
    pub grace: Duration,
}

/// A shorter period would keep a core busy.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);

/// A shorter retention would keep no directory at all.
const SHORTEST_RETENTION: Duration = Duration::from_secs(1);

impl Instance {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Instance { name: section.get("name", "default", instance_name) }
    }
}

impl State {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        State { dir: section.get("dir", "/var/lib/sandboxd", path_below_root) }
    }
}

impl Http {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Http {
            listen: section.get("listen", "off", listen),
            token_file: section.get("token_file", "", optional(absolute_path)),
        }
    }
}

impl Metrics {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Metrics { listen: section.get("listen", "127.0.0.1:9464", listen) }
    }
}

impl Chats {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Chats {
            root: section.get("root", "/var/lib/sandboxd/chats", path_below_root),
            retention: section.get("retention", "", optional(at_least(SHORTEST_RETENTION))),
        }
    }
}

impl Volumes {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Volumes { roots: section.get("roots", "", list(path_below_root)) }
    }
}

impl Mounts {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Mounts {
            chat: section.get("chat", "/chat", path_below_root),
            volume: section.get("volume", "/volume", path_below_root),
            dependencies: section.get("dependencies", "/dependencies", path_below_root),
            lambda_tools: section.get("lambda_tools", "/lambda-tools", path_below_root),
            dependencies_source: section.get("dependencies_source", "/var/lib/sandboxd/dependencies", path_below_root),
            lambda_tools_source: section.get("lambda_tools_source", "/var/lib/sandboxd/lambda-tools", path_below_root),
        }
    }
}

impl Reaper {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Reaper { tick: section.get("tick", "1s", at_least(SHORTEST_PERIOD)) }
    }
}

impl Events {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Events { keep: section.get("keep", "100000", whole(1, 1 << 32)) }
    }
}

impl Leases {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Leases {
            max: section.get("max", "1h", limit),
            max_per_sandbox: section.get("max_per_sandbox", "64", whole(1, 1 << 16)),
        }
    }
}

impl SandboxLimits {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        SandboxLimits {
            sandboxes: section.get("sandboxes", "", optional(whole(1, 1 << 24))),
            per_workspace: section.get("per_workspace", "", optional(whole(1, 1 << 24))),
            per_agent: section.get("per_agent", "", optional(whole(1, 1 << 24))),
        }
    }
}

impl Snapshots {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Snapshots {
            keep: section.get("keep", "5", whole(1, 1 << 16)),
            max_age: section.get("max_age", "30d", limit),
            interval: section.get("interval", "10m", at_least(SHORTEST_PERIOD)),
        }
    }
}

impl Reconciler {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Reconciler { interval: section.get("interval", "60s", at_least(SHORTEST_PERIOD)) }
    }
}

impl Teardown {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Teardown {
            graceful: section.get("graceful", "3s", duration),
            remove: section.get("remove", "5s", limit),
            total: section.get("total", "10s", limit),
        }
    }
}

impl Log {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let formats = [("human", LogFormat::Human), ("json", LogFormat::Json)];
        Log {
            format: section.get("format", "human", choice(&formats)),
            filter: section.get("filter", "info", log_filter),
        }
    }
}

impl Shutdown {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Shutdown { grace: section.get("grace", "20s", duration) }
    }
}

fn instance_name(raw: &Raw) -> Parsed<String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    match raw.text() {
        Some(name) if (1..=31).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('-') => {
            Ok(name.into())
        }
        _ => Err(raw.refuse("at most 31 of a-z, 0-9 and -, not starting with -")),
    }
}

fn log_filter(raw: &Raw) -> Parsed<String> {
    let filter = text(raw).map_err(|_| raw.refuse(r#"a filter such as "info" or "sandboxd=debug,warn""#))?;
    match EnvFilter::builder().parse(&filter) {
        Ok(_) => Ok(filter),
        Err(error) => Err(raw.refuse(format_args!(r#"a filter such as "info" or "sandboxd=debug,warn" ({error})"#))),
    }
}
