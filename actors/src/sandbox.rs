//! A sandbox as the outside sees it: whose it is, where it is, how it is, and when it ends.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::host_path::HostPath;
use crate::ids::{AgentId, ChatId, ContainerId, ContainerName, ProfileName, SessionId};

#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    pub session: SessionId,
    pub chat: ChatId,
    pub agent: AgentId,
    pub volume: HostPath,
    pub profile: ProfileName,
    pub image: String,
    pub container_name: ContainerName,
    /// Known once the engine has created the container.
    pub container: Option<ContainerId>,
    /// Absent until the container runs, and always where the network is blocked.
    pub endpoint: Option<Endpoint>,
    pub status: Status,
    pub reason: Reason,
    /// For people: what `reason` means in this case.
    pub message: Option<String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub last_activity_at: Timestamp,
    pub expires_at: Timestamp,
    pub idle_timeout: Duration,
}

impl Sandbox {
    pub fn idle_expires_at(&self) -> Timestamp {
        self.last_activity_at
            .checked_add_signed(chrono::TimeDelta::from_std(self.idle_timeout).unwrap_or(chrono::TimeDelta::MAX))
            .unwrap_or(Timestamp::MAX_UTC)
    }

    /// Past its end, whether or not anybody has noticed yet.
    pub fn expiry(&self, now: Timestamp) -> Option<Reason> {
        if now >= self.expires_at {
            Some(Reason::Expired)
        } else if now >= self.idle_expires_at() {
            Some(Reason::Idle)
        } else {
            None
        }
    }
}

/// Where the sandbox's own service is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    pub ip: IpAddr,
    pub port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Creating,
    Running,
    Deleting,
    Failed,
}

impl Status {
    pub const ALL: [Status; 4] = [Status::Creating, Status::Running, Status::Deleting, Status::Failed];

    pub fn as_str(self) -> &'static str {
        match self {
            Status::Creating => "creating",
            Status::Running => "running",
            Status::Deleting => "deleting",
            Status::Failed => "failed",
        }
    }
}

/// Why a sandbox is in the state it is in. A word for programs; `Sandbox::message` is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A caller asked for it.
    Requested,
    /// It answered its readiness check, or needs none.
    Ready,
    /// Found on the engine, left by an earlier run of the service.
    Adopted,
    /// Its absolute deadline passed.
    Expired,
    /// Nobody used it within its idle time-out.
    Idle,
    /// Its first process ended.
    Exited,
    /// Its first process was ended by a signal.
    Killed,
    /// It ran into its memory limit.
    OomKilled,
    /// It runs, but its health check fails.
    Unhealthy,
    /// Its container is no longer there, and the service did not remove it.
    Vanished,
    /// It could not be started and is being taken back.
    RolledBack,
    /// It was found half made.
    Incomplete,
}

impl Reason {
    pub const ALL: [Reason; 12] = [
        Reason::Requested,
        Reason::Ready,
        Reason::Adopted,
        Reason::Expired,
        Reason::Idle,
        Reason::Exited,
        Reason::Killed,
        Reason::OomKilled,
        Reason::Unhealthy,
        Reason::Vanished,
        Reason::RolledBack,
        Reason::Incomplete,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Requested => "requested",
            Reason::Ready => "ready",
            Reason::Adopted => "adopted",
            Reason::Expired => "expired",
            Reason::Idle => "idle",
            Reason::Exited => "exited",
            Reason::Killed => "killed",
            Reason::OomKilled => "oom_killed",
            Reason::Unhealthy => "unhealthy",
            Reason::Vanished => "vanished",
            Reason::RolledBack => "rolled_back",
            Reason::Incomplete => "incomplete",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
