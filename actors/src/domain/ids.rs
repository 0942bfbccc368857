//! Identifiers. Each is parsed once, at the edge, and is always valid.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use uuid::Uuid;

/// Why a text is not a valid identifier. The message completes "`<field>`: …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    #[error("expected a UUID, got {0:?}")]
    NotAUuid(String),
    #[error("must not be blank")]
    Blank,
    #[error("must be at most {limit} bytes long, got {length}")]
    TooLong { limit: usize, length: usize },
    #[error("must not contain control characters")]
    ControlCharacter,
    #[error("must consist of a-z, 0-9 and '-', starting with a letter or digit, got {0:?}")]
    NotAName(String),
}

/// The id of a chat. Any spelling of a UUID is accepted; it is always shown in canonical form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChatId(Uuid);

impl ChatId {
    pub fn new(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl FromStr for ChatId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        parse_uuid(text).map(Self)
    }
}

/// The id of a workspace: chats that share limits. Spelled like a chat's id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkspaceId(Uuid);

impl WorkspaceId {
    pub fn new(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl FromStr for WorkspaceId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        parse_uuid(text).map(Self)
    }
}

/// The id of a session, which is one life of a sandbox. A new container has a new session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Uuid);

impl SessionId {
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl FromStr for SessionId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        parse_uuid(text).map(Self)
    }
}

/// The id of a snapshot. The order of ids is the order of creation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(Uuid);

impl SnapshotId {
    /// Returns an id that is greater than all earlier ones of this process.
    pub fn next() -> Self {
        Self(Uuid::now_v7())
    }
}

impl FromStr for SnapshotId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        parse_uuid(text).map(Self)
    }
}

/// The id of a lease of a sandbox.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(Uuid);

impl LeaseId {
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl FromStr for LeaseId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        parse_uuid(text).map(Self)
    }
}

/// The id of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(Uuid);

impl SlotId {
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl FromStr for SlotId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        parse_uuid(text).map(Self)
    }
}

/// The id of the agent that works in a sandbox. Opaque to the service, but never blank.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentId(Arc<str>);

impl AgentId {
    pub const MAX_BYTES: usize = 256;
}

impl FromStr for AgentId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        // It becomes an environment variable and a label, which cannot hold a NUL or a line break.
        parse_line(text, Self::MAX_BYTES).map(Self)
    }
}

/// The name of one installation of the service on an engine. Instances never touch each other's containers.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceName(Arc<str>);

impl FromStr for InstanceName {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        parse_name(text, 31).map(Self)
    }
}

/// The name of a profile.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProfileName(Arc<str>);

impl FromStr for ProfileName {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        parse_name(text, 63).map(Self)
    }
}

/// The engine's own id of a container.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId(Arc<str>);

impl ContainerId {
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }
}

/// The name of a chat's container. It follows from the chat alone, so the engine itself refuses a second
/// container for a chat, even from a second daemon.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerName(Arc<str>);

impl ContainerName {
    pub fn of(instance: &InstanceName, chat: ChatId) -> Self {
        Self(format!("sandboxd-{instance}-{chat}").into())
    }

    /// Returns the name of a slot's container until it is claimed.
    pub fn of_slot(instance: &InstanceName, slot: SlotId) -> Self {
        Self(format!("sandboxd-{instance}-slot-{slot}").into())
    }
}

/// A counter of the sessions of one chat actor. Results of engine calls carry it, so that a late one is recognised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Generation(u64);

impl Generation {
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

macro_rules! shown_as_text {
    ($($id:ident),*) => {$(
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($id), self.0)
            }
        }
    )*};
}
shown_as_text!(ChatId, WorkspaceId, SessionId, SnapshotId, LeaseId, SlotId, AgentId, InstanceName, ProfileName);
shown_as_text!(ContainerId, ContainerName, Generation);

macro_rules! borrowed_as_str {
    ($($id:ident),*) => {$(
        impl $id {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    )*};
}
borrowed_as_str!(AgentId, InstanceName, ProfileName, ContainerId, ContainerName);

fn parse_uuid(text: &str) -> Result<Uuid, InvalidId> {
    Uuid::parse_str(text).map_err(|_| InvalidId::NotAUuid(text.chars().take(64).collect()))
}

/// Parses a non-blank line of text.
pub(crate) fn parse_line(text: &str, limit: usize) -> Result<Arc<str>, InvalidId> {
    if text.trim().is_empty() {
        return Err(InvalidId::Blank);
    }
    if text.len() > limit {
        return Err(InvalidId::TooLong { limit, length: text.len() });
    }
    if text.chars().any(char::is_control) {
        return Err(InvalidId::ControlCharacter);
    }
    Ok(text.into())
}

fn parse_name(text: &str, limit: usize) -> Result<Arc<str>, InvalidId> {
    if text.len() > limit {
        return Err(InvalidId::TooLong { limit, length: text.len() });
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.is_empty() || text.starts_with('-') || !text.chars().all(allowed) {
        return Err(InvalidId::NotAName(text.to_owned()));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_chat_or_a_workspace_is_the_same_one() {
        let canonical = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        for spelling in [
            canonical,
            "67E55044-10B1-426F-9247-BB680E5FE0C8",
            "67e5504410b1426f9247bb680e5fe0c8",
            "{67e55044-10b1-426f-9247-bb680e5fe0c8}",
            "urn:uuid:67e55044-10b1-426f-9247-bb680e5fe0c8",
        ] {
            assert_eq!(spelling.parse::<ChatId>().unwrap().to_string(), canonical);
            assert_eq!(spelling.parse::<WorkspaceId>().unwrap().to_string(), canonical);
        }
        assert!("user 7".parse::<WorkspaceId>().is_err());
        assert!("67e55044".parse::<ChatId>().is_err());
        assert!("".parse::<ChatId>().is_err());
    }

    #[test]
    fn an_agent_is_never_blank_overlong_or_unprintable() {
        assert_eq!("".parse::<AgentId>(), Err(InvalidId::Blank));
        assert_eq!(" \t".parse::<AgentId>(), Err(InvalidId::Blank));
        assert_eq!("a\nb".parse::<AgentId>(), Err(InvalidId::ControlCharacter));
        assert!("x".repeat(257).parse::<AgentId>().is_err());
        assert_eq!("agent 7 é".parse::<AgentId>().unwrap().as_str(), "agent 7 é");
    }

    #[test]
    fn a_container_name_follows_from_instance_and_chat() {
        let chat = "67E5504410B1426F9247BB680E5FE0C8".parse().unwrap();
        let name = ContainerName::of(&"default".parse().unwrap(), chat);
        assert_eq!(name.as_str(), "sandboxd-default-67e55044-10b1-426f-9247-bb680e5fe0c8");
    }

    #[test]
    fn names_are_plain() {
        for bad in ["", "-a", "A", "a_b", "a b", "é"] {
            assert!(bad.parse::<InstanceName>().is_err(), "{bad:?}");
            assert!(bad.parse::<ProfileName>().is_err(), "{bad:?}");
        }
        assert!("a".repeat(32).parse::<InstanceName>().is_err());
        assert!("py-3".parse::<ProfileName>().is_ok());
    }
}
