//! The labels of containers. They suffice to rebuild a session after the loss of the journal.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use chrono::{SecondsFormat, TimeDelta};

use crate::domain::host_path::HostPath;
use crate::domain::ids::{AgentId, ChatId, InstanceName, ProfileName, SessionId, SlotId, SnapshotId, WorkspaceId};
use crate::ports::clock::Timestamp;

pub const MANAGED: &str = "sandboxd.managed";
pub const SCHEMA: &str = "sandboxd.schema";
pub const INSTANCE: &str = "sandboxd.instance";
pub const CHAT_ID: &str = "sandboxd.chat-id";
const SESSION_ID: &str = "sandboxd.session-id";
const AGENT_ID: &str = "sandboxd.agent-id";
const WORKSPACE_ID: &str = "sandboxd.workspace-id";
const VOLUME: &str = "sandboxd.volume";
const PORT: &str = "sandboxd.port";
const PROFILE: &str = "sandboxd.profile";
const SPEC_HASH: &str = "sandboxd.spec-hash";
const CREATED_AT: &str = "sandboxd.created-at";
const EXPIRES_AT: &str = "sandboxd.expires-at";
const IDLE_TIMEOUT: &str = "sandboxd.idle-timeout";
const RESTORED_FROM: &str = "sandboxd.restored-from";
pub const SLOT_ID: &str = "sandboxd.slot-id";
const IMAGE_ID: &str = "sandboxd.image-id";

/// The age and the idle time-out of a session whose labels have no deadlines, so that a container of an older version
/// or of another program also expires.
const DEFAULT_AGE: TimeDelta = TimeDelta::hours(24);
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// The schema of labels that this version writes and reads.
const CURRENT_SCHEMA: &str = "1";

/// The properties of a session in the labels of its container.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionLabels {
    pub instance: InstanceName,
    pub chat: ChatId,
    pub session: SessionId,
    pub agent: AgentId,
    pub workspace: Option<WorkspaceId>,
    pub volume: Option<HostPath>,
    pub port: u16,
    pub profile: ProfileName,
    /// The hash of the container's specification; it differs after a change of the profile.
    pub spec_hash: String,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    pub idle_timeout: Duration,
    pub snapshot: Option<SnapshotId>,
}

/// The properties of a slot in the labels of its container. A claimed slot keeps these labels; the labels of its
/// session are in the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotLabels {
    pub instance: InstanceName,
    pub slot: SlotId,
    pub profile: ProfileName,
    /// The hash of the container's specification; it differs after a change of the profile.
    pub spec_hash: String,
    /// The id of the profile's image at the creation of the slot.
    pub image_id: String,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLabels {
    #[error("it has no label {0}")]
    Missing(&'static str),
    #[error("its label {label} is not valid: {message}")]
    Malformed { label: &'static str, message: String },
    #[error("its labels are of schema {0}, which this version does not know")]
    UnknownSchema(String),
}

/// Returns the labels that mark an object of the engine as belonging to this instance.
pub fn ownership(instance: &InstanceName) -> BTreeMap<String, String> {
    BTreeMap::from([
        (MANAGED.to_owned(), "true".to_owned()),
        (SCHEMA.to_owned(), CURRENT_SCHEMA.to_owned()),
        (INSTANCE.to_owned(), instance.to_string()),
    ])
}

/// Returns the session that the labels name, even if the other labels are invalid.
pub fn session(labels: &BTreeMap<String, String>) -> Option<SessionId> {
    parsed(labels, SESSION_ID).ok()
}

/// Returns the slot that the labels name, even if the other labels are invalid.
pub fn slot(labels: &BTreeMap<String, String>) -> Option<SlotId> {
    parsed(labels, SLOT_ID).ok()
}

impl SessionLabels {
    /// Returns the deadline of a session that is adopted now from its labels alone: its caller's full time to live.
    pub fn expires_if_adopted(&self, now: Timestamp) -> Timestamp {
        let ttl = self.expires_at - self.created_at;
        now.checked_add_signed(ttl).unwrap_or(Timestamp::MAX_UTC).max(self.expires_at)
    }

    pub fn encode(&self) -> BTreeMap<String, String> {
        // With nanoseconds, so that a decoded time equals the original.
        let time = |at: &Timestamp| at.to_rfc3339_opts(SecondsFormat::AutoSi, true);
        let mut labels = ownership(&self.instance);
        labels.extend([
            (CHAT_ID.to_owned(), self.chat.to_string()),
            (SESSION_ID.to_owned(), self.session.to_string()),
            (AGENT_ID.to_owned(), self.agent.to_string()),
            (PORT.to_owned(), self.port.to_string()),
            (PROFILE.to_owned(), self.profile.to_string()),
            (SPEC_HASH.to_owned(), self.spec_hash.clone()),
            (CREATED_AT.to_owned(), time(&self.created_at)),
            (EXPIRES_AT.to_owned(), time(&self.expires_at)),
            (IDLE_TIMEOUT.to_owned(), self.idle_timeout.as_secs_f64().to_string()),
        ]);
        labels.extend(self.volume.as_ref().map(|volume| (VOLUME.to_owned(), volume.to_string())));
        labels.extend(self.workspace.map(|workspace| (WORKSPACE_ID.to_owned(), workspace.to_string())));
        labels.extend(self.snapshot.map(|snapshot| (RESTORED_FROM.to_owned(), snapshot.to_string())));
        labels
    }

    pub fn decode(labels: &BTreeMap<String, String>) -> Result<Self, InvalidLabels> {
        expect_ours(labels)?;
        let created_at: Timestamp = parsed(labels, CREATED_AT)?;
        let aged = || created_at.checked_add_signed(DEFAULT_AGE).unwrap_or(created_at);
        Ok(Self {
            instance: parsed(labels, INSTANCE)?,
            chat: parsed(labels, CHAT_ID)?,
            session: parsed(labels, SESSION_ID)?,
            agent: parsed(labels, AGENT_ID)?,
            workspace: present(labels, WORKSPACE_ID, parsed)?,
            volume: present(labels, VOLUME, host_path)?,
            port: parsed(labels, PORT)?,
            profile: parsed(labels, PROFILE)?,
            spec_hash: text(labels, SPEC_HASH)?.to_owned(),
            created_at,
            expires_at: present(labels, EXPIRES_AT, parsed)?.unwrap_or_else(aged),
            idle_timeout: present(labels, IDLE_TIMEOUT, seconds)?.unwrap_or(DEFAULT_IDLE_TIMEOUT),
            snapshot: present(labels, RESTORED_FROM, parsed)?,
        })
    }
}

impl SlotLabels {
    pub fn encode(&self) -> BTreeMap<String, String> {
        let mut labels = ownership(&self.instance);
        labels.extend([
            (SLOT_ID.to_owned(), self.slot.to_string()),
            (PROFILE.to_owned(), self.profile.to_string()),
            (SPEC_HASH.to_owned(), self.spec_hash.clone()),
            (IMAGE_ID.to_owned(), self.image_id.clone()),
            (CREATED_AT.to_owned(), self.created_at.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
        ]);
        labels
    }

    pub fn decode(labels: &BTreeMap<String, String>) -> Result<Self, InvalidLabels> {
        expect_ours(labels)?;
        Ok(Self {
            instance: parsed(labels, INSTANCE)?,
            slot: parsed(labels, SLOT_ID)?,
            profile: parsed(labels, PROFILE)?,
            spec_hash: text(labels, SPEC_HASH)?.to_owned(),
            image_id: text(labels, IMAGE_ID)?.to_owned(),
            created_at: parsed(labels, CREATED_AT)?,
        })
    }
}

/// Checks that the labels are of this service and of a known schema.
fn expect_ours(labels: &BTreeMap<String, String>) -> Result<(), InvalidLabels> {
    text(labels, MANAGED)?;
    match text(labels, SCHEMA)? {
        CURRENT_SCHEMA => Ok(()),
        other => Err(InvalidLabels::UnknownSchema(other.to_owned())),
    }
}

fn text<'a>(labels: &'a BTreeMap<String, String>, label: &'static str) -> Result<&'a str, InvalidLabels> {
    labels.get(label).map(String::as_str).ok_or(InvalidLabels::Missing(label))
}

fn read<T, E: std::fmt::Display>(
    labels: &BTreeMap<String, String>,
    label: &'static str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, InvalidLabels> {
    parse(text(labels, label)?).map_err(|error| InvalidLabels::Malformed { label, message: error.to_string() })
}

/// Reads a label that may be missing.
fn present<T>(
    labels: &BTreeMap<String, String>,
    label: &'static str,
    read: impl FnOnce(&BTreeMap<String, String>, &'static str) -> Result<T, InvalidLabels>,
) -> Result<Option<T>, InvalidLabels> {
    labels.contains_key(label).then(|| read(labels, label)).transpose()
}

fn host_path(labels: &BTreeMap<String, String>, label: &'static str) -> Result<HostPath, InvalidLabels> {
    read(labels, label, |text| HostPath::from_canonical(Path::new(text)))
}

fn seconds(labels: &BTreeMap<String, String>, label: &'static str) -> Result<Duration, InvalidLabels> {
    read(labels, label, |text| {
        let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
        Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
    })
}

fn parsed<T>(labels: &BTreeMap<String, String>, label: &'static str) -> Result<T, InvalidLabels>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    read(labels, label, str::parse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> SessionLabels {
        let now = chrono::Utc::now();
        SessionLabels {
            instance: "default".parse().unwrap(),
            chat: "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().unwrap(),
            session: SessionId::random(),
            agent: "agent".parse().unwrap(),
            workspace: Some("8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1".parse().unwrap()),
            volume: Some(HostPath::from_canonical(Path::new("/data/v")).unwrap()),
            port: 8080,
            profile: "default".parse().unwrap(),
            spec_hash: "0123456789abcdef".into(),
            created_at: now,
            expires_at: now + chrono::TimeDelta::seconds(300),
            idle_timeout: Duration::from_secs(7200),
            snapshot: Some(SnapshotId::next()),
        }
    }

    proptest! {
        #[test]
        fn encoded_labels_are_decoded_unchanged(
            agent in "[^\\p{C}]{0,20}[a-z]", port in 1u16.., nanos in 0i64..4_000_000_000_000_000_000, idle_ms in 0u64..10_000_000
        ) {
            let labels = SessionLabels {
                agent: agent.parse().unwrap(),
                port,
                expires_at: chrono::DateTime::from_timestamp_nanos(nanos),
                idle_timeout: Duration::from_millis(idle_ms),
                ..example()
            };
            prop_assert_eq!(SessionLabels::decode(&labels.encode()), Ok(labels));
        }
    }

    #[test]
    fn each_missing_or_broken_label_is_named() {
        let whole = example().encode();
        for label in whole.keys().filter(|label| *label != SPEC_HASH) {
            if ![WORKSPACE_ID, VOLUME, EXPIRES_AT, IDLE_TIMEOUT, RESTORED_FROM].contains(&label.as_str()) {
                let mut missing = whole.clone();
                missing.remove(label);
                let error = SessionLabels::decode(&missing).unwrap_err();
                assert!(error.to_string().contains(label.as_str()), "{error}");
            }
            if label != MANAGED {
                let mut broken = whole.clone();
                broken.insert(label.clone(), "\u{1}".into());
                assert!(SessionLabels::decode(&broken).is_err(), "{label}");
            }
        }
    }

    #[test]
    fn a_session_without_a_deadline_ends_at_a_default_age() {
        let whole = example();
        let mut labels = whole.encode();
        labels.remove(EXPIRES_AT);
        labels.remove(IDLE_TIMEOUT);
        let expires_at = whole.created_at + DEFAULT_AGE;
        let aged = SessionLabels { expires_at, idle_timeout: DEFAULT_IDLE_TIMEOUT, ..whole };
        assert_eq!(SessionLabels::decode(&labels), Ok(aged));
    }

    #[test]
    fn a_session_without_a_workspace_has_no_label_for_one() {
        let alone = SessionLabels { workspace: None, ..example() };
        let labels = alone.encode();
        assert!(!labels.contains_key(WORKSPACE_ID));
        assert_eq!(SessionLabels::decode(&labels), Ok(alone));
    }

    #[test]
    fn a_session_without_a_volume_has_no_label_for_one() {
        let bare = SessionLabels { volume: None, ..example() };
        let labels = bare.encode();
        assert!(!labels.contains_key(VOLUME));
        assert_eq!(SessionLabels::decode(&labels), Ok(bare));
    }

    #[test]
    fn a_newer_schema_is_not_guessed_at() {
        let mut labels = example().encode();
        labels.insert(SCHEMA.into(), "2".into());
        assert_eq!(SessionLabels::decode(&labels), Err(InvalidLabels::UnknownSchema("2".into())));
    }
}
