//! Facts about the host, the engine and the configuration, without a judgement.

use std::path::PathBuf;

use sandboxd_actors::ports::engine::EngineIdentity;
use sandboxd_actors::ports::images::Disk;
use sandboxd_actors::ports::slot::LateBinding;

use crate::engine::condition::{Condition, NetworkCondition};
use crate::server::entry::{ExcludedCaller, SocketAccess};

/// A fact, or the reason why it is unknown.
pub type Found<T> = Result<T, String>;

/// All facts that the checks need.
#[derive(Debug, Clone)]
pub struct Findings {
    pub engine: Found<EngineIdentity>,
    pub condition: Found<Condition>,
    pub instance: Instance,
    pub networks: Found<Vec<Network>>,
    pub images: Found<Vec<ProfileImage>>,
    pub image_disk: Found<Disk>,
    /// The usage above which the engine's disk is too full, in percent.
    pub watermark: f64,
    pub slots: Slots,
    pub journal: Found<()>,
    pub state: Directory,
    pub chats: Directory,
    pub volumes: Vec<VolumeRoot>,
    pub descriptors: Descriptors,
    /// The ports of this host that accept connections on addresses other than loopback, in order.
    pub open_ports: Vec<u16>,
    /// Whether a profile gives its sandboxes a network.
    pub is_networked: bool,
    pub callers: Callers,
    pub user: User,
}

#[derive(Debug, Clone)]
pub struct Instance {
    pub name: String,
    /// Whether the instance is locked and the start-up is complete.
    pub is_reconciled: bool,
}

#[derive(Debug, Clone)]
pub struct Network {
    pub name: String,
    /// Whether the configuration isolates its sandboxes from each other.
    pub isolated: bool,
    /// The networks of this name on the engine.
    pub there: Vec<NetworkCondition>,
}

#[derive(Debug, Clone)]
pub struct ProfileImage {
    pub profile: String,
    pub image: String,
    pub is_there: bool,
}

#[derive(Debug, Clone)]
pub struct Slots {
    /// The way in which a slot is bound to a chat.
    pub late_binding: Found<LateBinding>,
    pub pools: Vec<Pool>,
}

#[derive(Debug, Clone)]
pub struct Pool {
    pub profile: String,
    /// Whether the profile asks for slots without a hint.
    pub is_wanted: bool,
    pub problem: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Directory {
    /// The configuration key of the directory.
    pub key: &'static str,
    pub path: PathBuf,
    pub place: Found<Place>,
}

/// The file system of a directory.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub writable: bool,
    /// Whether programs on it can be started.
    pub executable: bool,
    pub total_bytes: u64,
    pub free_bytes: u64,
}

/// A directory below which callers may name volumes.
#[derive(Debug, Clone)]
pub struct VolumeRoot {
    pub path: PathBuf,
    pub is_there: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Descriptors {
    /// Absent if there is no limit.
    pub limit: Option<u64>,
    pub connections: u64,
    /// The configured maximum or, without one, the current number.
    pub sandboxes: u64,
}

/// The callers that the configuration allows.
#[derive(Debug, Clone)]
pub struct Callers {
    pub socket: PathBuf,
    /// The number of users and groups in the configuration.
    pub named: usize,
    /// Absent if the socket's metadata cannot be read.
    pub access: Option<SocketAccess>,
    pub excluded: Vec<ExcludedCaller>,
    /// The first directory in the socket's path that not every user may enter.
    pub closed_directory: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}
