//! A sandbox as callers see it: its owner, address, status and deadlines.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use chrono::TimeDelta;

use crate::domain::host_path::HostPath;
use crate::domain::ids::{
    AgentId, ChatId, ContainerId, ContainerName, LeaseId, ProfileName, SessionId, SnapshotId, WorkspaceId,
};
use crate::ports::clock::Timestamp;

/// The sandbox of a chat.
#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    pub session: SessionId,
    pub chat: ChatId,
    pub agent: AgentId,
    /// The workspace of the chat, if its creator named one.
    pub workspace: Option<WorkspaceId>,
    /// The directory of the host that is mounted at the request of the creator.
    pub volume: Option<HostPath>,
    pub profile: ProfileName,
    pub image: String,
    /// The snapshot that it was restored from.
    pub snapshot: Option<SnapshotId>,
    pub container_name: ContainerName,
    /// Known once the engine has created the container.
    pub container: Option<ContainerId>,
    /// Absent until the container runs, and with a blocked network.
    pub endpoint: Option<Endpoint>,
    pub status: Status,
    pub reason: Reason,
    /// Explains `reason` to people.
    pub message: Option<String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub last_activity_at: Timestamp,
    pub expires_at: Timestamp,
    pub idle_timeout: Duration,
    /// The end of the longest lease, within the maximum past `expires_at`. Until then the sandbox neither expires nor
    /// counts as idle.
    pub held_until: Option<Timestamp>,
    /// The leases of callers and the running work. A hold may be listed past its end.
    pub held_by: Vec<Hold>,
    /// Leases that survive a restart of the service, each with its end. Set only in the journal's record: the chat owns
    /// the leases of a live sandbox.
    pub durable_leases: Vec<(LeaseId, Timestamp)>,
}

impl Sandbox {
    /// Returns the idle deadline, counted from the last activity or from the end of the last hold.
    pub fn idle_expires_at(&self) -> Timestamp {
        let holds = self.held_by.iter().map(|hold| hold.until);
        let since = holds.chain(self.held_until).fold(self.last_activity_at, Timestamp::max);
        TimeDelta::from_std(self.idle_timeout)
            .ok()
            .and_then(|idle| since.checked_add_signed(idle))
            .unwrap_or(Timestamp::MAX_UTC)
    }

    /// Returns the absolute deadline, regardless of activity. Only a lease extends it.
    pub fn absolute_end(&self) -> Timestamp {
        self.held_until.map_or(self.expires_at, |held| held.max(self.expires_at))
    }

    /// Returns the next deadline and its reason. A paused sandbox has no idle deadline.
    pub fn end(&self) -> (Timestamp, Reason) {
        let (absolute, idle) = (self.absolute_end(), self.idle_expires_at());
        if absolute <= idle || self.status == Status::Paused {
            (absolute, Reason::Expired)
        } else {
            (idle, Reason::Idle)
        }
    }

    /// Returns the reason of the expiry, if the deadline has passed.
    pub fn expiry(&self, now: Timestamp) -> Option<Reason> {
        let (at, reason) = self.end();
        (now >= at).then_some(reason)
    }
}

/// A hold, which keeps a sandbox from counting as idle until a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// `None`: a lease from a journal without ids. It ends by itself.
    pub id: Option<LeaseId>,
    pub holder: Holder,
    pub until: Timestamp,
}

/// The holder of a sandbox. Only a lease also extends the absolute deadline; work only counts as activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// A caller's lease. A durable lease outlives the caller's connection and a restart of the service.
    Lease { durable: bool },
    /// A running command in the sandbox, attached or detached, with its number.
    Command { id: u64 },
    /// A transfer of files into or out of the sandbox.
    Transfer,
    /// A caller follows the log.
    Logs,
}

/// The address of the sandbox's own service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    pub ip: IpAddr,
    pub port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Creating,
    Running,
    /// Its processes are paused until the next use.
    Paused,
    /// Stopped at its expiry, with its container kept.
    Stopped,
    Deleting,
    Failed,
}

/// Why a sandbox has its status, for programs. `Sandbox::message` is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A caller requested it.
    Requested,
    /// It passed its readiness check, or needs none.
    Ready,
    /// It was adopted from an earlier run of the service.
    Adopted,
    /// Its absolute deadline passed.
    Expired,
    /// It was idle for longer than its idle time-out.
    Idle,
    /// Its first process ended.
    Exited,
    /// A signal ended its first process.
    Killed,
    /// It exceeded its memory limit.
    OomKilled,
    /// It runs, but its health check fails.
    Unhealthy,
    /// Its container was removed externally, as by `docker rm`.
    Vanished,
    /// It could not be started and is being removed.
    RolledBack,
    /// Its creation was not complete.
    Incomplete,
    /// It ended by itself and is being restarted.
    Restarting,
    /// It was paused and is in use again.
    Resumed,
    /// It was changed externally.
    ByOthers,
    /// A snapshot was taken. The sandbox is unchanged.
    Snapshotted,
    /// A snapshot could not be taken. The sandbox is unchanged.
    SnapshotFailed,
}

/// Gives each variant its word, for protocol, journal, logs and metrics.
macro_rules! words {
    ($type:ident { $($variant:ident => $word:literal),* $(,)? }) => {
        impl $type {
            pub const ALL: [$type; [$($word),*].len()] = [$($type::$variant),*];

            pub fn as_str(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)*
                }
            }
        }

        impl FromStr for $type {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                match text {
                    $($word => Ok($type::$variant),)*
                    _ => Err(UnknownWord(text.to_owned())),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words!(Status {
    Creating => "creating",
    Running => "running",
    Paused => "paused",
    Stopped => "stopped",
    Deleting => "deleting",
    Failed => "failed",
});

words!(Reason {
    Requested => "requested",
    Ready => "ready",
    Adopted => "adopted",
    Expired => "expired",
    Idle => "idle",
    Exited => "exited",
    Killed => "killed",
    OomKilled => "oom_killed",
    Unhealthy => "unhealthy",
    Vanished => "vanished",
    RolledBack => "rolled_back",
    Incomplete => "incomplete",
    Restarting => "restarting",
    Resumed => "resumed",
    ByOthers => "by_others",
    Snapshotted => "snapshotted",
    SnapshotFailed => "snapshot_failed",
});

/// A word that is no known status or reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown status or reason {0:?}")]
pub struct UnknownWord(pub String);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::create_request::tests::request;

    #[test]
    fn every_status_and_reason_is_read_back_from_its_word() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        for reason in Reason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(reason));
        }
        assert_eq!("Running".parse::<Status>(), Err(UnknownWord("Running".into())));
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_timestamp(seconds, 0).unwrap()
    }

    fn sandbox(expires: i64, active: i64, idle: u64, held: Option<i64>) -> Sandbox {
        let request = request();
        Sandbox {
            session: SessionId::random(),
            chat: request.chat,
            agent: request.agent,
            workspace: request.workspace,
            volume: request.volume,
            profile: request.profile.name.clone(),
            image: String::new(),
            snapshot: None,
            container_name: ContainerName::of(&"default".parse().unwrap(), request.chat),
            container: None,
            endpoint: None,
            status: Status::Running,
            reason: Reason::Ready,
            message: None,
            created_at: at(0),
            started_at: None,
            last_activity_at: at(active),
            expires_at: at(expires),
            idle_timeout: Duration::from_secs(idle),
            held_until: held.map(at),
            held_by: Vec::new(),
            durable_leases: Vec::new(),
        }
    }

    #[test]
    fn the_earlier_deadline_ends_it() {
        assert_eq!(sandbox(300, 0, 7200, None).end(), (at(300), Reason::Expired));
        assert_eq!(sandbox(300, 10, 60, None).end(), (at(70), Reason::Idle));
        assert_eq!(sandbox(300, 0, 7200, None).expiry(at(299)), None);
        assert_eq!(sandbox(300, 0, 7200, None).expiry(at(300)), Some(Reason::Expired));
    }

    #[test]
    fn a_paused_sandbox_ends_only_at_its_absolute_deadline() {
        let paused = Sandbox { status: Status::Paused, ..sandbox(300, 10, 60, None) };
        assert_eq!(paused.end(), (at(300), Reason::Expired));
        assert_eq!(paused.expiry(at(299)), None);
    }

    #[test]
    fn a_lease_holds_off_both() {
        assert_eq!(sandbox(300, 0, 60, Some(1000)).end(), (at(1000), Reason::Expired));
        assert_eq!(sandbox(5000, 0, 60, Some(1000)).end(), (at(1060), Reason::Idle));
        assert_eq!(sandbox(5000, 2000, 60, Some(1000)).end(), (at(2060), Reason::Idle), "a lease of the past");
    }

    #[test]
    fn work_holds_off_idleness_alone() {
        let work = Hold { id: None, holder: Holder::Command { id: 1 }, until: at(1000) };
        let busy = |expires| Sandbox { held_by: vec![work], ..sandbox(expires, 0, 60, None) };
        assert_eq!(busy(300).end(), (at(300), Reason::Expired));
        assert_eq!(busy(5000).end(), (at(1060), Reason::Idle));
    }
}
