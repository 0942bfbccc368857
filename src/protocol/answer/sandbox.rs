//! A sandbox as the caller reads it.

use std::fmt::Display;
use std::net::IpAddr;

use sandboxd_actors::domain::ids::LeaseId;
use sandboxd_actors::domain::outcome::Created;
use sandboxd_actors::domain::sandbox::{Endpoint, Hold, Holder, Sandbox, Status};
use sandboxd_actors::ports::clock::Timestamp;
use serde::Serialize;

use crate::protocol::text::{Shown, Time};

#[derive(Serialize)]
pub(super) struct SandboxFields<'a> {
    session_id: Shown<&'a dyn Display>,
    chat_id: Shown<&'a dyn Display>,
    agent_id: &'a str,
    workspace_id: Option<Shown<&'a dyn Display>>,
    volume_host_path: Option<&'a str>,
    container_id: Option<&'a str>,
    container_name: &'a str,
    endpoint: Option<EndpointFields>,
    status: &'static str,
    reason: &'static str,
    message: Option<&'a str>,
    profile: &'a str,
    image: &'a str,
    snapshot_id: Option<Shown<&'a dyn Display>>,
    created_at: Time,
    started_at: Option<Time>,
    last_activity_at: Time,
    expires_at: Time,
    idle_expires_at: Time,
    held_until: Option<Time>,
    held_by: Vec<HoldFields<'a>>,
    ends_at: Time,
    ends_because: &'static str,
    idle: Idle,
    /// These two in the answer to a create alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    launch: Option<&'static str>,
    /// And these two in the answer to a lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_id: Option<Shown<&'a dyn Display>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<Time>,
}

impl<'a> SandboxFields<'a> {
    pub(super) fn of(sandbox: &'a Sandbox, now: Timestamp) -> Self {
        let (ends_at, ends_because) = sandbox.end();
        SandboxFields {
            session_id: Shown(&sandbox.session),
            chat_id: Shown(&sandbox.chat),
            agent_id: sandbox.agent.as_str(),
            workspace_id: sandbox.workspace.as_ref().map(|workspace| Shown(workspace as &dyn Display)),
            volume_host_path: sandbox.volume.as_ref().map(|volume| volume.as_str()),
            container_id: sandbox.container.as_ref().map(|id| id.as_str()),
            container_name: sandbox.container_name.as_str(),
            endpoint: sandbox.endpoint.map(|Endpoint { ip, port }| EndpointFields { ip: Shown(ip), port }),
            status: sandbox.status.as_str(),
            reason: sandbox.reason.as_str(),
            message: sandbox.message.as_deref(),
            profile: sandbox.profile.as_str(),
            image: &sandbox.image,
            snapshot_id: sandbox.snapshot.as_ref().map(|snapshot| Shown(snapshot as &dyn Display)),
            created_at: Time(sandbox.created_at),
            started_at: sandbox.started_at.map(Time),
            last_activity_at: Time(sandbox.last_activity_at),
            expires_at: Time(sandbox.expires_at),
            idle_expires_at: Time(sandbox.idle_expires_at()),
            held_until: sandbox.held_until.map(Time),
            held_by: holds(sandbox, now),
            ends_at: Time(ends_at),
            ends_because: ends_because.as_str(),
            idle: Idle::of(sandbox, now),
            outcome: None,
            launch: None,
            lease_id: None,
            lease_until: None,
        }
    }

    pub(super) fn of_created(created: &'a Created, now: Timestamp) -> Self {
        let (outcome, launch) = (Some(created.outcome.as_str()), Some(created.launch.as_str()));
        SandboxFields { outcome, launch, ..Self::of(&created.sandbox, now) }
    }

    pub(super) fn of_leased(sandbox: &'a Sandbox, lease: &'a LeaseId, until: Timestamp, now: Timestamp) -> Self {
        let (lease_id, lease_until) = (Some(Shown(lease as &dyn Display)), Some(Time(until)));
        SandboxFields { lease_id, lease_until, ..Self::of(sandbox, now) }
    }
}

#[derive(Serialize)]
struct EndpointFields {
    ip: Shown<IpAddr>,
    port: u16,
}

/// A holder of the sandbox and its deadline.
#[derive(Serialize)]
struct HoldFields<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_id: Option<Shown<&'a dyn Display>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    durable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_id: Option<u64>,
    until: Time,
}

/// The holds that last. A command that is watched by several callers holds the sandbox once.
fn holds(sandbox: &Sandbox, now: Timestamp) -> Vec<HoldFields<'_>> {
    let lasting: Vec<&Hold> = sandbox.held_by.iter().filter(|hold| now < hold.until).collect();
    let is_counted_later = |(index, hold): &(usize, &&Hold)| {
        matches!(hold.holder, Holder::Command { .. })
            && lasting[index + 1..].iter().any(|later| later.holder == hold.holder)
    };
    let counted = lasting.iter().enumerate().filter(|hold| !is_counted_later(hold));
    counted.map(|(_, hold)| HoldFields::of(hold)).collect()
}

impl<'a> HoldFields<'a> {
    fn of(hold: &'a Hold) -> Self {
        let (durable, command_id) = match hold.holder {
            Holder::Lease { durable } => (Some(durable), None),
            Holder::Command { id } => (None, Some(id)),
            Holder::Transfer | Holder::Logs => (None, None),
        };
        // Only a lease can be released by its id.
        let lease_id = hold.id.as_ref().filter(|_| durable.is_some()).map(|id| Shown(id as &dyn Display));
        let (kind, until) = (hold.holder.as_str(), Time(hold.until));
        Self { kind, lease_id, durable, command_id, until }
    }
}

/// Whether nobody uses it, and how that is known.
#[derive(Serialize)]
struct Idle {
    is: bool,
    because: &'static str,
}

impl Idle {
    fn of(sandbox: &Sandbox, now: Timestamp) -> Self {
        if sandbox.held_until.is_some_and(|held| now < held) {
            Idle { is: false, because: "leased" }
        } else if sandbox.status != Status::Paused && sandbox.held_by.iter().any(|hold| now < hold.until) {
            Idle { is: false, because: "in_use" }
        } else if sandbox.status == Status::Paused {
            Idle { is: true, because: "paused" }
        } else if now < sandbox.idle_expires_at() {
            Idle { is: false, because: "recent_activity" }
        } else {
            Idle { is: true, because: "no_activity" }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use chrono::TimeDelta;
    use sandboxd_actors::domain::host_path::HostPath;
    use sandboxd_actors::domain::ids::{ChatId, ContainerName, SessionId};
    use sandboxd_actors::domain::sandbox::Reason;
    use serde_json::{Value, json};
    use std::path::Path;
    use std::time::Duration;

    /// On a leap day of 2024.
    pub(in crate::protocol::answer) const NOON: Timestamp =
        Timestamp::from_timestamp(1_709_208_000, 0).expect("within range");

    pub(in crate::protocol::answer) fn sandbox(chat: u128, agent: &str) -> Sandbox {
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
        serde_json::to_value(SandboxFields::of(sandbox, now)).expect("can be written")
    }

    #[test]
    fn what_is_not_known_yet_is_null() {
        let fields = written(&sandbox(1, "a"), NOON);
        for unknown in ["workspace_id", "container_id", "endpoint", "started_at", "message"] {
            assert_eq!(fields.get(unknown), Some(&Value::Null), "{unknown}");
        }
        let workspace = "8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1";
        let owned = Sandbox { workspace: Some(workspace.parse().expect("an id")), ..sandbox(1, "a") };
        assert_eq!(written(&owned, NOON)["workspace_id"], workspace);
    }

    #[test]
    fn times_are_in_milliseconds_and_within_rfc_3339() {
        let fields = written(&sandbox(1, "a"), NOON);
        assert_eq!(fields["created_at"], "2024-02-29T12:00:00.000Z");
        assert_eq!(fields["idle_expires_at"], "2024-02-29T12:01:00.000Z");
        assert_eq!(fields["expires_at"], "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn what_will_end_it_and_whether_it_is_idle_is_told() {
        let mut sandbox = sandbox(1, "a");
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
        let mut sandbox = sandbox(1, "a");
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
