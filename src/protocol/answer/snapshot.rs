//! Snapshots as the caller reads them.

use sandboxd_actors::domain::ids::{ChatId, SessionId, SnapshotId};
use sandboxd_actors::domain::snapshot::{Parent, Snapshot, SnapshotLabel, SnapshotOrigin};
use serde::Serialize;

use crate::protocol::text::{Shown, Time};

#[derive(Debug, Serialize)]
pub(super) struct SnapshotFields<'a> {
    snapshot_id: Shown<SnapshotId>,
    chat_id: Shown<ChatId>,
    session_id: Shown<SessionId>,
    profile: &'a str,
    label: Option<&'a str>,
    size_bytes: u64,
    parent: Shown<&'a Parent>,
    created_at: Time,
}

impl<'a> SnapshotFields<'a> {
    pub(super) fn of(Snapshot { origin, size_bytes }: &'a Snapshot) -> Self {
        let SnapshotOrigin { id, chat, session, profile, label, parent, created_at, .. } = origin;
        SnapshotFields {
            snapshot_id: Shown(*id),
            chat_id: Shown(*chat),
            session_id: Shown(*session),
            profile: profile.as_str(),
            label: label.as_ref().map(SnapshotLabel::as_str),
            size_bytes: *size_bytes,
            parent: Shown(parent),
            created_at: Time(*created_at),
        }
    }
}

/// Some snapshots, newest first.
#[derive(Debug)]
pub struct SnapshotPage {
    snapshots: Vec<Snapshot>,
    next: Option<SnapshotId>,
}

impl SnapshotPage {
    /// The newest ones of those that were made before `after`.
    pub fn of(mut snapshots: Vec<Snapshot>, after: Option<SnapshotId>, limit: usize) -> Self {
        snapshots.retain(|snapshot| after.is_none_or(|after| snapshot.origin.id < after));
        snapshots.sort_unstable_by_key(|snapshot| std::cmp::Reverse(snapshot.origin.id));
        let more = snapshots.len() > limit;
        snapshots.truncate(limit);
        let next = snapshots.last().filter(|_| more).map(|snapshot| snapshot.origin.id);
        SnapshotPage { snapshots, next }
    }
}

#[derive(Serialize)]
pub(super) struct PageFields<'a> {
    snapshots: Vec<SnapshotFields<'a>>,
    next: Option<Shown<SnapshotId>>,
}

impl<'a> PageFields<'a> {
    pub(super) fn of(SnapshotPage { snapshots, next }: &'a SnapshotPage) -> Self {
        PageFields { snapshots: snapshots.iter().map(SnapshotFields::of).collect(), next: next.map(Shown) }
    }
}

#[derive(Serialize)]
pub(super) struct RemovalFields {
    snapshot_id: Shown<SnapshotId>,
    result: &'static str,
}

impl RemovalFields {
    pub(super) fn of(snapshot: SnapshotId, deleted: bool) -> Self {
        RemovalFields { snapshot_id: Shown(snapshot), result: if deleted { "deleted" } else { "not_found" } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandboxd_actors::ports::clock::Timestamp;

    fn snapshot() -> Snapshot {
        let origin = SnapshotOrigin {
            id: SnapshotId::next(),
            instance: "default".parse().expect("a name"),
            chat: ChatId::new(uuid::Uuid::nil()),
            session: SessionId::random(),
            profile: "default".parse().expect("a name"),
            label: None,
            parent: Parent::Image("base".into()),
            created_at: Timestamp::UNIX_EPOCH,
        };
        Snapshot { origin, size_bytes: 1 }
    }

    #[test]
    fn pages_follow_each_other_from_the_newest_to_the_oldest() {
        let snapshots: Vec<_> = (0..5).map(|_| snapshot()).collect();
        let ids = |page: &SnapshotPage| page.snapshots.iter().map(|snapshot| snapshot.origin.id).collect::<Vec<_>>();
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let page = SnapshotPage::of(snapshots.clone(), after, 2);
            seen.extend(ids(&page));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let newest_first: Vec<_> = snapshots.iter().rev().map(|snapshot| snapshot.origin.id).collect();
        assert_eq!(seen, newest_first);
    }
}
