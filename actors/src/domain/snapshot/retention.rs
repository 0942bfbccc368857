//! The retention of snapshots.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::TimeDelta;

use super::Snapshot;
use crate::domain::ids::{ChatId, InstanceName, SnapshotId};
use crate::engine::bounded::Bounded;
use crate::ports::clock::Timestamp;
use crate::ports::engine::{EngineError, SnapshotRemoval};

/// The limits within which snapshots are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The number of newest snapshots of each chat that are kept.
    pub keep: usize,
    /// The maximum age of a snapshot.
    pub max_age: Duration,
}

impl Retention {
    /// Returns the snapshots to remove, oldest first.
    pub fn overdue(&self, snapshots: &[Snapshot], now: Timestamp) -> Vec<SnapshotId> {
        let oldest = TimeDelta::from_std(self.max_age).ok().and_then(|age| now.checked_sub_signed(age));
        let mut chats: BTreeMap<ChatId, Vec<&Snapshot>> = BTreeMap::new();
        for snapshot in snapshots {
            chats.entry(snapshot.origin.chat).or_default().push(snapshot);
        }
        let mut overdue = Vec::new();
        for of_chat in chats.values_mut() {
            of_chat.sort_by_key(|snapshot| std::cmp::Reverse((snapshot.origin.created_at, snapshot.origin.id)));
            let aged = |snapshot: &Snapshot| oldest.is_some_and(|oldest| snapshot.origin.created_at < oldest);
            let over = of_chat.iter().enumerate().filter(|(newer, snapshot)| *newer >= self.keep || aged(snapshot));
            overdue.extend(over.map(|(_, snapshot)| snapshot.origin.id));
        }
        overdue.sort_unstable();
        overdue
    }

    /// Removes overdue snapshots, of one chat or of all. Snapshots in use by a sandbox stay until a later pass.
    pub async fn enforce(
        &self,
        engine: &Bounded,
        instance: &InstanceName,
        chat: Option<ChatId>,
        now: Timestamp,
    ) -> Result<(), EngineError> {
        let snapshots = engine.snapshots(instance, chat).await?;
        for id in self.overdue(&snapshots, now) {
            let removal = engine.remove_snapshot(instance, id).await?;
            if removal == SnapshotRemoval::Removed {
                metrics::counter!("sandboxd_snapshots_removed_total", "because" => "retention").increment(1);
                tracing::info!(snapshot.id = %id, "removed overdue snapshot");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::SnapshotOrigin;
    use super::super::tests::origin;
    use super::*;

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_timestamp(hour * 3600, 0).unwrap()
    }

    fn snapshot(chat: u128, hour: i64) -> Snapshot {
        let chat = ChatId::new(uuid::Uuid::from_u128(chat));
        Snapshot { origin: SnapshotOrigin { chat, ..origin(at(hour)) }, size_bytes: 1 }
    }

    #[test]
    fn each_chat_keeps_its_newest_ones() {
        let snapshots = [snapshot(1, 3), snapshot(1, 1), snapshot(2, 1), snapshot(1, 2)];
        let retention = Retention { keep: 2, max_age: Duration::MAX };
        assert_eq!(retention.overdue(&snapshots, at(4)), [snapshots[1].origin.id]);
    }

    #[test]
    fn none_is_kept_beyond_its_age() {
        let snapshots = [snapshot(1, 1), snapshot(1, 5), snapshot(2, 2)];
        let retention = Retention { keep: 2, max_age: Duration::from_secs(2 * 3600) };
        let overdue = retention.overdue(&snapshots, at(6));
        assert_eq!(overdue, [snapshots[0].origin.id, snapshots[2].origin.id]);
        assert_eq!(retention.overdue(&snapshots, at(3)), []);
    }
}
