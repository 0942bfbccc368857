//! Profiles: the named settings of sandboxes, from the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::container::Mount;
use crate::domain::environment::Environment;
use crate::domain::ids::ProfileName;

/// The named settings of a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub name: ProfileName,
    pub image: String,
    /// Empty: the image's own command.
    pub command: Vec<String>,
    /// The port of the sandbox's own service.
    pub port: u16,
    pub network: Network,
    pub environment: Environment,
    pub limits: Limits,
    /// Mounts in addition to the directories of every sandbox.
    pub mounts: Vec<Mount>,
    /// Writable memory: the path in the guest and the size in bytes.
    pub tmpfs: BTreeMap<String, u64>,
    pub user: Option<User>,
    pub read_only_root: bool,
    /// Whether the guest has init, through which the service works in it.
    pub init: bool,
    /// An OCI runtime of the engine, such as `runsc`; the engine's default if absent.
    pub runtime: Option<String>,
    /// The capabilities of the sandbox. All others are dropped.
    pub capabilities: Vec<String>,
    pub readiness: Readiness,
    pub ttl: Duration,
    pub idle_timeout: Duration,
    pub on_expire: OnExpire,
    /// Save a deleted sandbox as a snapshot, unless the caller of the delete decides otherwise.
    pub snapshot_on_delete: bool,
    pub restart: Restart,
    pub pool: PoolTargets,
    /// The maximum number of sandboxes of this profile; `None` is no limit.
    pub max_sandboxes: Option<usize>,
}

/// The targets of a profile's pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolTargets {
    /// The number of slots that are always kept.
    pub size: usize,
    /// The maximum number of additional slots: one for each claim of the last minute.
    pub spare: usize,
    /// The age from which a slot is not claimed any more.
    pub max_age: Duration,
    /// The maximum number of hints, each of which keeps one more slot.
    pub hints: usize,
}

impl Default for PoolTargets {
    fn default() -> Self {
        Self { size: 0, spare: 0, max_age: Duration::from_secs(25 * 60), hints: 0 }
    }
}

/// The action at the expiry of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnExpire {
    #[default]
    Delete,
    /// Stop its processes and keep its container.
    Stop,
    /// Pause an idle sandbox, and resume it on the next use. Remove it at its absolute deadline.
    Pause,
    /// Save it as a snapshot, then remove it.
    Snapshot,
}

/// The action after a sandbox ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restart {
    /// It stays failed until a caller requests it.
    #[default]
    Never,
    /// It is restarted under the same session, with growing delays.
    OnFailure,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// Loopback only.
    Blocked,
    /// A network of the engine, by name.
    Named(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    pub memory_bytes: u64,
    pub cpus: f64,
    pub pids: u32,
    /// The size of the container's writable layer, if the storage driver can limit it.
    pub disk_bytes: Option<u64>,
}

/// The user of the processes in the sandbox. The ids are numeric because the host makes the chat's directory writable
/// for this user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// The condition under which a started sandbox is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    pub check: ReadinessCheck,
    /// The limit of all tries together.
    pub timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadinessCheck {
    /// A running sandbox is ready.
    None,
    /// `GET path` answers 200.
    Http { port: u16, path: String },
    /// The port accepts a connection.
    Tcp { port: u16 },
    /// The image's own health check reports healthy.
    Health,
}
