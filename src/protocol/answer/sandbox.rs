//! A sandbox as it is on the wire.

use sandboxd_actors::domain::ids::{ChatId, LeaseId};
use sandboxd_actors::domain::outcome::{Created, Deletion};
use sandboxd_actors::domain::sandbox::{Hold, Holder, Reason, Sandbox, Status};
use sandboxd_actors::ports::clock::Timestamp;
use sandboxd_protocol::sandbox as wire;
use sandboxd_protocol::sandbox::{
    CreatedSandbox, DeleteResult, EndsBecause, HoldKind, Idle, IdleBecause, LeasedSandbox,
};
use sandboxd_protocol::time::Time;

use crate::protocol::words;

/// Returns the sandbox as of `now`.
pub fn sandbox(sandbox: &Sandbox, now: Timestamp) -> wire::Sandbox {
    let (ends_at, ends_because) = sandbox.end();
    wire::Sandbox {
        session_id: sandbox.session.to_string(),
        chat_id: sandbox.chat.to_string(),
        agent_id: sandbox.agent.to_string(),
        workspace_id: sandbox.workspace.map(|workspace| workspace.to_string()),
        volume_host_path: sandbox.volume.as_ref().map(|volume| volume.as_str().to_owned()),
        container_id: sandbox.container.as_ref().map(ToString::to_string),
        container_name: sandbox.container_name.to_string(),
        endpoint: sandbox.endpoint.map(|endpoint| wire::Endpoint { ip: endpoint.ip, port: endpoint.port }),
        status: words::status(sandbox.status),
        reason: words::reason(sandbox.reason),
        message: sandbox.message.clone(),
        profile: sandbox.profile.to_string(),
        image: sandbox.image.clone(),
        snapshot_id: sandbox.snapshot.map(|snapshot| snapshot.to_string()),
        created_at: Time(sandbox.created_at),
        started_at: sandbox.started_at.map(Time),
        last_activity_at: Time(sandbox.last_activity_at),
        expires_at: Time(sandbox.expires_at),
        time_remaining: (sandbox.expires_at - now).to_std().unwrap_or_default().as_secs(),
        idle_expires_at: Time(sandbox.idle_expires_at()),
        held_until: sandbox.held_until.map(Time),
        held_by: holds(sandbox, now),
        ends_at: Time(ends_at),
        ends_because: if ends_because == Reason::Idle { EndsBecause::Idle } else { EndsBecause::Expired },
        idle: idle(sandbox, now),
    }
}

pub fn created(created: &Created, now: Timestamp) -> CreatedSandbox {
    CreatedSandbox {
        sandbox: sandbox(&created.sandbox, now),
        outcome: words::outcome(created.outcome),
        launch: words::launch(created.launch),
    }
}

pub fn leased(leased: &Sandbox, lease: LeaseId, until: Timestamp, now: Timestamp) -> LeasedSandbox {
    LeasedSandbox { sandbox: sandbox(leased, now), lease_id: lease.to_string(), lease_until: Time(until) }
}

pub fn deletion(chat: ChatId, deletion: &Deletion, purged: bool) -> DeleteResult {
    let mut result = DeleteResult {
        chat_id: chat.to_string(),
        result: wire::Deletion::NotFound,
        session_id: None,
        container_id: None,
        snapshot_id: None,
        purged,
    };
    if let Deletion::Deleted { session, container, snapshot } = deletion {
        result.result = wire::Deletion::Deleted;
        result.session_id = Some(session.to_string());
        result.container_id = container.as_ref().map(ToString::to_string);
        result.snapshot_id = snapshot.map(|snapshot| snapshot.to_string());
    }
    result
}

/// Returns the holds that last. A command that several callers watch holds the sandbox once.
fn holds(sandbox: &Sandbox, now: Timestamp) -> Vec<wire::Hold> {
    let lasting: Vec<&Hold> = sandbox.held_by.iter().filter(|hold| now < hold.until).collect();
    let is_counted_later = |(index, hold): &(usize, &&Hold)| {
        matches!(hold.holder, Holder::Command { .. })
            && lasting[index + 1..].iter().any(|later| later.holder == hold.holder)
    };
    let counted = lasting.iter().enumerate().filter(|hold| !is_counted_later(hold));
    counted.map(|(_, held)| hold(held)).collect()
}

fn hold(hold: &Hold) -> wire::Hold {
    let (kind, durable, command_id) = match hold.holder {
        Holder::Lease { durable } => (HoldKind::Lease, Some(durable), None),
        Holder::Command { id } => (HoldKind::Command, None, Some(id)),
        Holder::Transfer => (HoldKind::Transfer, None, None),
        Holder::Logs => (HoldKind::Logs, None, None),
    };
    // Only a lease can be released by its id.
    let lease_id = hold.id.filter(|_| kind == HoldKind::Lease).map(|id| id.to_string());
    wire::Hold { kind, lease_id, durable, command_id, until: Time(hold.until) }
}

fn idle(sandbox: &Sandbox, now: Timestamp) -> Idle {
    let (is, because) = if sandbox.held_until.is_some_and(|held| now < held) {
        (false, IdleBecause::Leased)
    } else if sandbox.status == Status::Paused {
        (true, IdleBecause::Paused)
    } else if sandbox.held_by.iter().any(|hold| now < hold.until) {
        (false, IdleBecause::InUse)
    } else if now < sandbox.idle_expires_at() {
        (false, IdleBecause::RecentActivity)
    } else {
        (true, IdleBecause::NoActivity)
    };
    Idle { is, because }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use chrono::TimeDelta;
    use sandboxd_actors::domain::host_path::HostPath;
    use sandboxd_actors::domain::ids::{ContainerName, SessionId};
    use serde_json::{Value, json};
    use std::path::Path;
    use std::time::Duration;

    /// On a leap day of 2024.
    pub(in crate::protocol::answer) const NOON: Timestamp =
        Timestamp::from_timestamp(1_709_208_000, 0).expect("within range");

    pub(in crate::protocol::answer) fn sandbox_of(chat: u128, agent: &str) -> Sandbox {
        let chat = ChatId::new(uuid::Uuid::from_u128(chat));
        let created_at = NOON + TimeDelta::microseconds(999);
        Sandbox {
            session: SessionId::random(),
            chat,
            agent: agent.parse().expect("an agent"),
            workspace: None,
            volume: Some(HostPath::from_canonical(Path::new("/data")).expect("a path")),
            profile: "default".parse().expect("a name"),
            image: "base".into(),
            snapshot: None,
            container_name: ContainerName::of(&"default".parse().expect("a name"), chat),
            container: None,
            endpoint: None,
            status: Status::Creating,
            reason: Reason::Requested,
            message: None,
            created_at,
            started_at: None,
            last_activity_at: created_at,
            expires_at: Timestamp::MAX_UTC,
            idle_timeout: Duration::from_secs(60),
            held_until: None,
            held_by: Vec::new(),
            durable_leases: Vec::new(),
        }
    }

    fn written(sandbox: &Sandbox, now: Timestamp) -> Value {
        serde_json::to_value(super::sandbox(sandbox, now)).expect("can be written")
    }

    #[test]
    fn unknown_fields_are_null() {
        let fields = written(&sandbox_of(1, "a"), NOON);
        for unknown in ["workspace_id", "container_id", "endpoint", "started_at", "message"] {
            assert_eq!(fields.get(unknown), Some(&Value::Null), "{unknown}");
        }
        let workspace = "8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1";
        let owned = Sandbox { workspace: Some(workspace.parse().expect("an id")), ..sandbox_of(1, "a") };
        assert_eq!(written(&owned, NOON)["workspace_id"], workspace);
    }

    #[test]
    fn times_are_in_milliseconds_and_within_rfc_3339() {
        let fields = written(&sandbox_of(1, "a"), NOON);
        assert_eq!(fields["created_at"], "2024-02-29T12:00:00.000Z");
        assert_eq!(fields["idle_expires_at"], "2024-02-29T12:01:00.000Z");
        assert_eq!(fields["expires_at"], "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn the_time_remaining_is_in_whole_seconds_and_never_negative() {
        let sandbox = Sandbox { expires_at: NOON + TimeDelta::milliseconds(90_999), ..sandbox_of(1, "a") };
        let remaining = |now| written(&sandbox, now)["time_remaining"].clone();
        assert_eq!([remaining(NOON), remaining(NOON + TimeDelta::seconds(90))], [json!(90), json!(0)]);
        assert_eq!(remaining(NOON + TimeDelta::hours(1)), json!(0));
    }

    #[test]
    fn the_reason_of_the_end_and_the_idle_state_are_reported() {
        let mut sandbox = sandbox_of(1, "a");
        let ending = |sandbox: &Sandbox, seconds| {
            let fields = written(sandbox, NOON + TimeDelta::seconds(seconds));
            (fields["ends_at"].clone(), fields["ends_because"].clone(), fields["idle"].clone())
        };
        let recent = json!({ "is": false, "because": "recent_activity" });
        assert_eq!(ending(&sandbox, 60), (json!("2024-02-29T12:01:00.000Z"), json!("idle"), recent.clone()));
        let idle = json!({ "is": true, "because": "no_activity" });
        assert_eq!(ending(&sandbox, 61).2, idle);
        sandbox.held_until = Some(NOON + TimeDelta::minutes(5));
        let leased = json!({ "is": false, "because": "leased" });
        assert_eq!(ending(&sandbox, 61), (json!("2024-02-29T12:06:00.000Z"), json!("idle"), leased));
        assert_eq!(ending(&sandbox, 301).2, recent, "idle time counts from the end of a lease");
        sandbox.status = Status::Paused;
        let paused = json!({ "is": true, "because": "paused" });
        assert_eq!(ending(&sandbox, 301), (json!("9999-12-31T23:59:59.999Z"), json!("expired"), paused));
        sandbox.expires_at = NOON;
        assert_eq!(ending(&sandbox, 0).1, json!("expired"));
    }

    #[test]
    fn holders_are_named_with_their_deadlines_while_they_last() {
        let mut sandbox = sandbox_of(1, "a");
        assert_eq!(written(&sandbox, NOON)["held_by"], json!([]));
        let hold =
            |holder, seconds| Hold { id: Some(LeaseId::random()), holder, until: NOON + TimeDelta::seconds(seconds) };
        let lease = hold(Holder::Lease { durable: true }, 90);
        let (watched, attached) = (hold(Holder::Command { id: 7 }, 30), hold(Holder::Command { id: 7 }, 60));
        sandbox.held_by = vec![lease, watched, attached, hold(Holder::Transfer, 10)];
        let command = json!({ "kind": "command", "command_id": 7, "until": "2024-02-29T12:01:00.000Z" });
        let lease_id = lease.id.expect("an id").to_string();
        let lease =
            json!({ "kind": "lease", "lease_id": lease_id, "durable": true, "until": "2024-02-29T12:01:30.000Z" });
        let fields = written(&sandbox, NOON + TimeDelta::seconds(20));
        assert_eq!(fields["held_by"], json!([lease, command]));
        assert_eq!(fields["idle"]["because"], "in_use");
    }
}
