//! The end of the last session of a chat without a sandbox, for callers that ask for a former sandbox.

use std::fmt;
use std::time::Duration;

use crate::domain::ids::SessionId;
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::journal::LifecycleEvent;
use crate::ports::clock::Timestamp;

/// The end of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    pub session: SessionId,
    /// The time of the expiry, or of the completed removal.
    pub at: Timestamp,
    pub reason: Reason,
    pub message: Option<String>,
    /// The time since the end.
    pub ago: Duration,
}

impl Ended {
    /// Returns the end of the last session of a chat from the chat's last events, newest first. `None` if they do not
    /// contain it.
    pub fn of(events: &[LifecycleEvent], now: Timestamp) -> Option<Self> {
        let last = &events.first()?.change;
        // The event of the removal is committed shortly after the answer to the caller of a delete.
        if !matches!(last.to, None | Some(Status::Deleting)) {
            return None;
        }
        let is_ending = |event: &&LifecycleEvent| {
            event.change.session == last.session
                && matches!(event.change.to, None | Some(Status::Deleting | Status::Stopped))
        };
        let end = match last.reason {
            // Retries of a removal, and the day for which a stopped sandbox is kept, do not delay its end.
            Reason::Expired | Reason::Idle => {
                events.iter().take_while(is_ending).last().map_or(last, |event| &event.change)
            }
            _ => last,
        };
        Some(Self {
            session: end.session,
            at: end.at,
            reason: end.reason,
            message: end.message.clone(),
            ago: (now - end.at).to_std().unwrap_or_default(),
        })
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ago = Ago(self.ago);
        match (self.reason, &self.message) {
            (Reason::Expired | Reason::Idle, Some(limit)) => write!(f, "it expired {ago} ago ({limit})"),
            (Reason::Expired | Reason::Idle, None) => write!(f, "it expired {ago} ago"),
            (Reason::Requested, _) => write!(f, "it was deleted {ago} ago"),
            (reason, Some(message)) => write!(f, "it ended {ago} ago ({reason}: {message})"),
            (reason, None) => write!(f, "it ended {ago} ago ({reason})"),
        }
    }
}

/// Returns the limit of the sandbox that caused an expiry, for people.
pub(crate) fn limit(sandbox: &Sandbox, reason: Reason) -> Option<String> {
    match reason {
        Reason::Expired => {
            let ttl = (sandbox.expires_at - sandbox.created_at).to_std().unwrap_or_default();
            Some(format!("ttl {}", format_duration(ttl)))
        }
        Reason::Idle => Some(format!("idle for {}", format_duration(sandbox.idle_timeout))),
        _ => None,
    }
}

/// Formats a duration without fractions of a second, unless it is shorter than a second.
fn format_duration(duration: Duration) -> humantime::FormattedDuration {
    let whole = Duration::from_secs(duration.as_secs());
    humantime::format_duration(if whole.is_zero() { duration } else { whole })
}

/// A duration shown in its largest unit.
struct Ago(Duration);

impl fmt::Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] = [(24 * 60 * 60, "d"), (60 * 60, "h"), (60, "min"), (1, "s")];
        let seconds = self.0.as_secs();
        let (unit, name) = UNITS.into_iter().find(|(unit, _)| seconds >= *unit).unwrap_or((1, "s"));
        write!(f, "{} {name}", seconds / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::create_request::tests::request;
    use crate::journal::Change;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_timestamp(seconds, 0).unwrap()
    }

    /// Returns one session's events, newest first, from time, status, reason and message.
    fn events(changes: &[(i64, Option<Status>, Reason, Option<&str>)]) -> Vec<LifecycleEvent> {
        let (request, session) = (request(), SessionId::random());
        let change = |(seconds, to, reason, message): &(i64, Option<Status>, Reason, Option<&str>)| Change {
            at: at(*seconds),
            chat: request.chat,
            session,
            agent: request.agent.clone(),
            container: None,
            from: Some(Status::Running),
            to: *to,
            reason: *reason,
            message: message.map(str::to_owned),
        };
        changes.iter().map(|it| LifecycleEvent { sequence: 1, change: change(it) }).collect()
    }

    #[test]
    fn an_expiry_is_reported_with_its_limit_and_its_time() {
        let events = events(&[
            (90, None, Reason::Expired, Some("removed after one failed try")),
            (60, Some(Status::Deleting), Reason::Expired, Some("ttl 4h")),
            (0, Some(Status::Running), Reason::Ready, None),
        ]);
        let ended = Ended::of(&events, at(62)).unwrap();
        assert_eq!(ended.to_string(), "it expired 2 s ago (ttl 4h)");
        assert_eq!((ended.at, ended.reason, ended.session), (at(60), Reason::Expired, events[0].change.session));
    }

    #[test]
    fn a_stopped_sandbox_expired_when_it_was_stopped() {
        let day = 24 * 60 * 60;
        let events = events(&[
            (day + 10, None, Reason::Expired, None),
            (day + 9, Some(Status::Deleting), Reason::Expired, None),
            (10, Some(Status::Stopped), Reason::Idle, Some("idle for 2h")),
        ]);
        assert_eq!(Ended::of(&events, at(2 * day + 10)).unwrap().to_string(), "it expired 2 d ago (idle for 2h)");
    }

    #[test]
    fn a_deletion_and_a_failure_are_reported_as_such() {
        let deleted = [
            (70, None, Reason::Requested, None),
            (60, Some(Status::Deleting), Reason::Requested, None),
            (50, Some(Status::Stopped), Reason::Expired, Some("ttl 4h")),
        ];
        assert_eq!(Ended::of(&events(&deleted), at(75)).unwrap().to_string(), "it was deleted 5 s ago");
        let failed = [(0, None, Reason::RolledBack, Some("no such image"))];
        let shown = Ended::of(&events(&failed), at(3 * 60)).unwrap().to_string();
        assert_eq!(shown, "it ended 3 min ago (rolled_back: no such image)");
    }

    #[test]
    fn a_live_session_has_no_end() {
        assert_eq!(Ended::of(&[], at(0)), None);
        let events = events(&[(10, Some(Status::Creating), Reason::Requested, None), (5, None, Reason::Idle, None)]);
        assert_eq!(Ended::of(&events, at(20)), None);
    }
}
