//! The request to create a sandbox.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;

use crate::domain::environment::Environment;
use crate::domain::host_path::HostPath;
use crate::domain::ids::{AgentId, ChatId, SnapshotId, WorkspaceId};
use crate::domain::profile::Profile;
use crate::domain::sandbox::Sandbox;
use crate::ports::clock::Timestamp;

/// A caller's request for a sandbox. Options that the caller does not name fit any existing sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct CreateRequest {
    pub chat: ChatId,
    pub agent: AgentId,
    /// The workspace of the chat, if the caller names one.
    pub workspace: Option<WorkspaceId>,
    /// A directory of the host to mount, if the caller names one.
    pub volume: Option<HostPath>,
    pub profile: Arc<Profile>,
    /// Whether the caller named the profile.
    pub profile_named: bool,
    /// The snapshot to restore. `profile.image` is the image of the snapshot then.
    pub snapshot: Option<SnapshotId>,
    pub environment: Environment,
    /// Overrides the profile's time to live.
    pub ttl: Option<Duration>,
    /// Overrides the profile's idle time-out.
    pub idle_timeout: Option<Duration>,
}

impl CreateRequest {
    pub fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(self.profile.ttl)
    }

    pub fn idle_timeout(&self) -> Duration {
        self.idle_timeout.unwrap_or(self.profile.idle_timeout)
    }

    pub fn expires_at(&self, created_at: Timestamp) -> Timestamp {
        TimeDelta::from_std(self.ttl())
            .ok()
            .and_then(|ttl| created_at.checked_add_signed(ttl))
            .unwrap_or(Timestamp::MAX_UTC)
    }

    /// Returns the fields in which this request differs from an existing sandbox. A caller must not get another sandbox
    /// than it described. Environment and times are fixed at creation, so they are not compared.
    pub fn differences(&self, sandbox: &Sandbox) -> Vec<&'static str> {
        let mut fields = Vec::new();
        if self.agent != sandbox.agent {
            fields.push("agent_id");
        }
        if self.workspace.is_some() && self.workspace != sandbox.workspace {
            fields.push("workspace_id");
        }
        if self.volume.is_some() && self.volume != sandbox.volume {
            fields.push("volume_host_path");
        }
        if self.profile_named && self.profile.name != sandbox.profile {
            fields.push("profile");
        }
        if self.snapshot.is_some() && self.snapshot != sandbox.snapshot {
            fields.push("snapshot_id");
        }
        fields
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::domain::profile::{Limits, Network, Readiness, ReadinessCheck};
    use std::path::Path;

    /// Returns a request for the default profile.
    pub(crate) fn request() -> CreateRequest {
        CreateRequest {
            chat: "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().unwrap(),
            agent: "agent".parse().unwrap(),
            workspace: None,
            volume: Some(HostPath::from_canonical(Path::new("/data/volume")).unwrap()),
            profile: Arc::new(Profile {
                name: "default".parse().unwrap(),
                image: "image".into(),
                command: vec![],
                port: 8080,
                network: Network::Named("sandboxd".into()),
                environment: Environment::default(),
                limits: Limits { memory_bytes: 1 << 30, cpus: 1.0, pids: 256, disk_bytes: None },
                mounts: vec![],
                tmpfs: Default::default(),
                user: None,
                read_only_root: false,
                init: true,
                runtime: None,
                capabilities: vec![],
                readiness: Readiness { check: ReadinessCheck::None, timeout: Duration::from_secs(30) },
                ttl: Duration::from_secs(300),
                idle_timeout: Duration::from_secs(7200),
                on_expire: Default::default(),
                snapshot_on_delete: false,
                restart: Default::default(),
                pool: Default::default(),
                max_sandboxes: None,
            }),
            profile_named: false,
            snapshot: None,
            environment: Environment::default(),
            ttl: None,
            idle_timeout: None,
        }
    }

    #[test]
    fn an_endless_time_to_live_does_not_overflow() {
        let endless = CreateRequest { ttl: Some(Duration::MAX), ..request() };
        assert_eq!(endless.expires_at(chrono::Utc::now()), Timestamp::MAX_UTC);
    }
}
