//! Snapshots: the files that a sandbox has written outside its mounts, saved as an image of the engine.
//!
//! The engine is the source of truth for snapshots. An image's name follows from its snapshot, so a lookup needs no
//! search. Its labels hold all other properties, so snapshots survive the loss of a journal. They differ from the
//! labels of sandboxes: a foreign container of such an image does not count as a sandbox.

pub mod retention;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use chrono::SecondsFormat;

use crate::domain::ids::{ChatId, InstanceName, InvalidId, ProfileName, SessionId, SnapshotId, parse_line};
use crate::domain::labels::InvalidLabels;
use crate::ports::clock::Timestamp;

/// The prefix of every label of a snapshot.
pub const LABEL_PREFIX: &str = "sandboxd.snapshot.";

/// Marks an unfinished snapshot, which a crash of the service may leave behind.
pub const DRAFT: &str = "sandboxd.snapshot.draft";
pub const INSTANCE: &str = "sandboxd.snapshot.instance";
pub const CHAT_ID: &str = "sandboxd.snapshot.chat-id";
const ID: &str = "sandboxd.snapshot.id";
const SESSION_ID: &str = "sandboxd.snapshot.session-id";
const PROFILE: &str = "sandboxd.snapshot.profile";
const LABEL: &str = "sandboxd.snapshot.label";
const PARENT: &str = "sandboxd.snapshot.parent";
const CREATED_AT: &str = "sandboxd.snapshot.created-at";

/// A saved sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub origin: SnapshotOrigin,
    /// The size of the whole image, with shared layers.
    pub size_bytes: u64,
}

/// The properties of a snapshot that are known before it is taken.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotOrigin {
    pub id: SnapshotId,
    pub instance: InstanceName,
    pub chat: ChatId,
    pub session: SessionId,
    pub profile: ProfileName,
    pub label: Option<SnapshotLabel>,
    pub parent: Parent,
    pub created_at: Timestamp,
}

/// The image or snapshot from which the sandbox was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parent {
    Image(String),
    Snapshot(SnapshotId),
}

impl fmt::Display for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parent::Image(image) => f.write_str(image),
            Parent::Snapshot(snapshot) => snapshot.fmt(f),
        }
    }
}

/// A caller's name for a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotLabel(Arc<str>);

impl SnapshotLabel {
    pub const MAX_BYTES: usize = 256;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SnapshotLabel {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        parse_line(text, Self::MAX_BYTES).map(Self)
    }
}

/// Returns the image name of a snapshot, which follows from the instance and the snapshot.
pub fn image_name(instance: &InstanceName, id: SnapshotId) -> String {
    format!("sandboxd-snapshot-{instance}:{id}")
}

impl SnapshotOrigin {
    pub fn image_name(&self) -> String {
        image_name(&self.instance, self.id)
    }

    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::from([
            (ID.to_owned(), self.id.to_string()),
            (INSTANCE.to_owned(), self.instance.to_string()),
            (CHAT_ID.to_owned(), self.chat.to_string()),
            (SESSION_ID.to_owned(), self.session.to_string()),
            (PROFILE.to_owned(), self.profile.to_string()),
            (PARENT.to_owned(), self.parent.to_string()),
            (CREATED_AT.to_owned(), self.created_at.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
        ]);
        labels.extend(self.label.as_ref().map(|label| (LABEL.to_owned(), label.as_str().to_owned())));
        labels
    }

    pub fn from_labels(labels: &BTreeMap<String, String>) -> Result<Self, InvalidLabels> {
        let parent: String = required(labels, PARENT)?;
        Ok(Self {
            id: required(labels, ID)?,
            instance: required(labels, INSTANCE)?,
            chat: required(labels, CHAT_ID)?,
            session: required(labels, SESSION_ID)?,
            profile: required(labels, PROFILE)?,
            label: optional(labels, LABEL)?,
            // No image has the name of a snapshot: an image name is never a canonical UUID.
            parent: parent.parse().map_or(Parent::Image(parent), Parent::Snapshot),
            created_at: required(labels, CREATED_AT)?,
        })
    }
}

fn required<T: FromStr>(labels: &BTreeMap<String, String>, label: &'static str) -> Result<T, InvalidLabels>
where
    T::Err: fmt::Display,
{
    optional(labels, label)?.ok_or(InvalidLabels::Missing(label))
}

fn optional<T: FromStr>(labels: &BTreeMap<String, String>, label: &'static str) -> Result<Option<T>, InvalidLabels>
where
    T::Err: fmt::Display,
{
    let malformed = |error: T::Err| InvalidLabels::Malformed { label, message: error.to_string() };
    labels.get(label).map(|text| text.parse().map_err(malformed)).transpose()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn origin(created_at: Timestamp) -> SnapshotOrigin {
        SnapshotOrigin {
            id: SnapshotId::next(),
            instance: "default".parse().unwrap(),
            chat: "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().unwrap(),
            session: SessionId::random(),
            profile: "default".parse().unwrap(),
            label: None,
            parent: Parent::Image("python:3.13-slim".into()),
            created_at,
        }
    }

    #[test]
    fn labels_tell_all_of_a_snapshot() {
        let first = SnapshotOrigin { label: "before the upgrade".parse().ok(), ..origin(chrono::Utc::now()) };
        let second = SnapshotOrigin { parent: Parent::Snapshot(first.id), ..origin(chrono::Utc::now()) };
        for origin in [first, second] {
            assert_eq!(SnapshotOrigin::from_labels(&origin.labels()), Ok(origin.clone()));
            let labels = origin.labels();
            assert!(labels.keys().all(|label| label.starts_with(LABEL_PREFIX)), "{labels:?}");
            for label in labels.keys().filter(|label| *label != LABEL) {
                let mut missing = labels.clone();
                missing.remove(label);
                assert!(SnapshotOrigin::from_labels(&missing).is_err(), "{label}");
            }
        }
    }

    #[test]
    fn the_labels_of_a_snapshot_are_not_those_of_a_sandbox() {
        let labels = origin(chrono::Utc::now()).labels();
        assert!(crate::domain::labels::SessionLabels::decode(&labels).is_err());
        assert!(!labels.contains_key(crate::domain::labels::MANAGED));
        assert!(!labels.contains_key(crate::domain::labels::INSTANCE));
    }

    #[test]
    fn ids_are_in_the_order_of_their_making() {
        let ids: Vec<_> = (0..1000).map(|_| SnapshotId::next()).collect();
        assert!(ids.is_sorted());
    }
}
