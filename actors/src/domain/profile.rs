//! A profile: what a sandbox is made of, named in the configuration and chosen by the caller.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::container::Mount;
use crate::domain::environment::Environment;
use crate::domain::ids::ProfileName;

#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub name: ProfileName,
    pub image: String,
    /// Empty: the image's own.
    pub command: Vec<String>,
    /// Where the sandbox's own service listens.
    pub port: u16,
    pub network: Network,
    pub environment: Environment,
    pub limits: Limits,
    /// Besides the directories that every sandbox has.
    pub mounts: Vec<Mount>,
    /// Writable memory: the path inside, and its size in bytes.
    pub tmpfs: BTreeMap<String, u64>,
    pub user: Option<User>,
    pub read_only_root: bool,
    /// Whether the service puts an init of its own into the sandbox, through which it works inside.
    pub init: bool,
    /// An OCI runtime the engine knows, such as `runsc`; the engine's default where absent.
    pub runtime: Option<String>,
    /// Given back after all capabilities were dropped.
    pub capabilities: Vec<String>,
    pub readiness: Readiness,
    pub ttl: Duration,
    pub idle_timeout: Duration,
    pub on_expire: OnExpire,
    /// A sandbox that is deleted is kept as a snapshot, unless its deleter says otherwise.
    pub snapshot_on_delete: bool,
    pub restart: Restart,
    pub pool: PoolTargets,
    /// How many sandboxes of it there may be; `None` is no limit.
    pub max_sandboxes: Option<usize>,
}

/// What is kept ready for chats to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolTargets {
    /// Slots that are always kept.
    pub size: usize,
    /// So many more while slots are being claimed: one for each claim of the last minute.
    pub spare: usize,
    /// One older than this is not handed out.
    pub max_age: Duration,
    /// How many hints may keep a slot each, beyond those.
    pub hints: usize,
}

impl Default for PoolTargets {
    fn default() -> Self {
        Self { size: 0, spare: 0, max_age: Duration::from_secs(25 * 60), hints: 0 }
    }
}

/// What becomes of a sandbox at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnExpire {
    #[default]
    Delete,
    /// Its processes end, its container stays.
    Stop,
    /// One that nobody uses is paused, and goes on when it is used. At its absolute end it is removed.
    Pause,
    /// It is removed once what it has written is kept.
    Snapshot,
}

/// What becomes of a sandbox that ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restart {
    /// It stays failed until somebody asks for it.
    #[default]
    Never,
    /// It is started again under the same session, less and less eagerly.
    OnFailure,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// No network but loopback.
    Blocked,
    /// A network of the engine, by name.
    Named(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    pub memory_bytes: u64,
    pub cpus: f64,
    pub pids: u32,
    /// Size of the container's writable layer, where the storage driver can limit it.
    pub disk_bytes: Option<u64>,
}

/// Whom processes in the sandbox run as. Numeric, because the host must know it too: the chat's directory is made
/// writable for this user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// When a started sandbox counts as ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    pub check: ReadinessCheck,
    /// For all tries together.
    pub timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadinessCheck {
    /// Running is ready.
    None,
    /// `GET path` answers 200.
    Http { port: u16, path: String },
    /// The port accepts a connection.
    Tcp { port: u16 },
    /// The image's own health check reports healthy.
    Health,
}
