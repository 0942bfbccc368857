//! Snapshots as they are on the wire.

use sandboxd_actors::domain::ids::SnapshotId;
use sandboxd_actors::domain::snapshot::{Snapshot, SnapshotOrigin};
use sandboxd_protocol::sandbox::Deletion;
use sandboxd_protocol::snapshot::{Snapshot as WireSnapshot, SnapshotDeleteResult, SnapshotListResult};
use sandboxd_protocol::time::Time;

pub fn snapshot(Snapshot { origin, size_bytes }: &Snapshot) -> WireSnapshot {
    let SnapshotOrigin { id, chat, session, profile, label, parent, created_at, .. } = origin;
    WireSnapshot {
        snapshot_id: id.to_string(),
        chat_id: chat.to_string(),
        session_id: session.to_string(),
        profile: profile.to_string(),
        label: label.as_ref().map(|label| label.as_str().to_owned()),
        size_bytes: *size_bytes,
        parent: parent.to_string(),
        created_at: Time(*created_at),
    }
}

/// Returns the page of the newest snapshots that are older than `after`.
pub fn snapshots(mut snapshots: Vec<Snapshot>, after: Option<SnapshotId>, limit: usize) -> SnapshotListResult {
    snapshots.retain(|snapshot| after.is_none_or(|after| snapshot.origin.id < after));
    snapshots.sort_unstable_by_key(|snapshot| std::cmp::Reverse(snapshot.origin.id));
    let more = snapshots.len() > limit;
    snapshots.truncate(limit);
    let next = snapshots.last().filter(|_| more).map(|snapshot| snapshot.origin.id.to_string());
    SnapshotListResult { snapshots: snapshots.iter().map(snapshot).collect(), next }
}

pub fn snapshot_deletion(snapshot: SnapshotId, existed: bool) -> SnapshotDeleteResult {
    let result = if existed { Deletion::Deleted } else { Deletion::NotFound };
    SnapshotDeleteResult { snapshot_id: snapshot.to_string(), result }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandboxd_actors::domain::ids::{ChatId, SessionId};
    use sandboxd_actors::domain::snapshot::Parent;
    use sandboxd_actors::ports::clock::Timestamp;

    fn taken() -> Snapshot {
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
        let all: Vec<_> = (0..5).map(|_| taken()).collect();
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let page = snapshots(all.clone(), after, 2);
            seen.extend(page.snapshots.into_iter().map(|snapshot| snapshot.snapshot_id));
            after = page.next.map(|next| next.parse().expect("an id"));
            if after.is_none() {
                break;
            }
        }
        let newest_first: Vec<_> = all.iter().rev().map(|snapshot| snapshot.origin.id.to_string()).collect();
        assert_eq!(seen, newest_first);
    }
}
