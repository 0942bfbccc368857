//! Gauges that count a chat while its actor lives.

use crate::domain::sandbox::Status;

/// The gauge entry of this chat's status. The entry is removed when the actor ends.
#[derive(Debug, Default)]
pub(super) struct CountedStatus(Option<Status>);

impl CountedStatus {
    pub(super) fn move_to(&mut self, status: Option<Status>) {
        let gauge = |status: Status| metrics::gauge!("sandboxd_sandboxes", "status" => status.as_str());
        if let Some(before) = std::mem::replace(&mut self.0, status) {
            gauge(before).decrement(1);
        }
        if let Some(now) = status {
            gauge(now).increment(1);
        }
    }
}

impl Drop for CountedStatus {
    fn drop(&mut self) {
        self.move_to(None);
    }
}

/// The gauge entry of this chat's owed removal. The entry is removed when the actor ends.
#[derive(Debug, Default)]
pub(super) struct CountedDebt(bool);

impl CountedDebt {
    pub(super) fn set(&mut self, owes: bool) {
        if std::mem::replace(&mut self.0, owes) != owes {
            let gauge = metrics::gauge!("sandboxd_owed_tear_downs");
            if owes { gauge.increment(1) } else { gauge.decrement(1) }
        }
    }
}

impl Drop for CountedDebt {
    fn drop(&mut self) {
        self.set(false);
    }
}
