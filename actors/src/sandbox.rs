//! A sandbox as the outside sees it: whose it is, where it is, how it is, and when it ends.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
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

/// Gives each variant its word. The same words are used in protocol, journal, logs and metrics.
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
});

/// Neither a status nor a reason that this version knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown word {0:?}")]
pub struct UnknownWord(pub String);

#[cfg(test)]
mod tests {
    use super::*;

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
}
