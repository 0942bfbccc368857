//! What is so on this host, without a word on whether that is good.

use std::path::PathBuf;

use sandboxd_actors::ports::engine::EngineIdentity;
use sandboxd_actors::ports::images::Disk;
use sandboxd_actors::ports::slot::LateBinding;

use crate::engine::condition::{Condition, NetworkCondition};
use crate::server::entry::{Entry, KeptOut};

/// Of what could not be found out, there is the reason.
pub type Found<T> = Result<T, String>;

#[derive(Debug, Clone)]
pub struct Findings {
    pub engine: Found<EngineIdentity>,
    pub condition: Found<Condition>,
    pub instance: Instance,
    pub networks: Found<Vec<Network>>,
    pub images: Found<Vec<ProfileImage>>,
    pub image_disk: Found<Disk>,
    /// Above which the engine's disk is too full, in percent.
    pub watermark: f64,
    pub slots: Slots,
    pub journal: Found<()>,
    pub state: Directory,
    pub chats: Directory,
    pub volumes: Vec<VolumeRoot>,
    pub descriptors: Descriptors,
    /// Ports of this host that its other addresses than loopback accept connections on, in order.
    pub open_ports: Vec<u16>,
    /// A profile gives its sandboxes a network.
    pub is_networked: bool,
    pub callers: Callers,
    pub user: User,
}

#[derive(Debug, Clone)]
pub struct Instance {
    pub name: String,
    /// It is locked, and what was promised before is there again.
    pub is_settled: bool,
}

#[derive(Debug, Clone)]
pub struct Network {
    pub name: String,
    /// Whether those on it are to be kept from each other.
    pub isolated: bool,
    /// As the engine has it, as often as it has it.
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
    /// How one becomes a chat's, where it can.
    pub late_binding: Found<LateBinding>,
    pub pools: Vec<Pool>,
}

#[derive(Debug, Clone)]
pub struct Pool {
    pub profile: String,
    /// It is to have slots without anybody's hint.
    pub is_wanted: bool,
    pub trouble: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Directory {
    /// The key of the configuration that names it.
    pub key: &'static str,
    pub path: PathBuf,
    pub place: Found<Place>,
}

/// Where a directory is, as far as it matters.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub writable: bool,
    /// Programs on it can be started.
    pub executable: bool,
    pub total_bytes: u64,
    pub free_bytes: u64,
}

/// Below which a caller's volume may lie.
#[derive(Debug, Clone)]
pub struct VolumeRoot {
    pub path: PathBuf,
    pub is_there: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Descriptors {
    /// Absent: without a limit.
    pub limit: Option<u64>,
    pub connections: u64,
    /// As many as there may be or, where nothing is said about that, as there are.
    pub sandboxes: u64,
}

/// Those whom the configuration allows to call.
#[derive(Debug, Clone)]
pub struct Callers {
    pub socket: PathBuf,
    /// How many users and groups are named.
    pub named: usize,
    /// Absent if the socket cannot be looked at.
    pub entry: Option<Entry>,
    pub kept_out: Vec<KeptOut>,
    /// The first directory on the way to the socket that not every user may enter.
    pub barred: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}
