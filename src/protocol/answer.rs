//! From what the core answers to what the caller reads. Every field is always there; null is what is not known.

use std::fmt::Display;

use chrono::{DateTime, SecondsFormat};
use sandboxd_actors::clock::Timestamp;
use sandboxd_actors::engine::{EngineError, EngineIdentity};
use sandboxd_actors::ids::ChatId;
use sandboxd_actors::outcome::{Created, Deletion, Page};
use sandboxd_actors::sandbox::{Endpoint, Sandbox};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

#[derive(Debug)]
pub enum Answer {
    Created(Created),
    Sandbox(Sandbox),
    List(List),
    Deletion(ChatId, Deletion),
    Health(Health),
    Info(Info),
}

impl Serialize for Answer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Answer::Created(created) => SandboxFields {
                outcome: Some(created.outcome.as_str()),
                launch: Some(created.launch.as_str()),
                ..SandboxFields::of(&created.sandbox)
            }
            .serialize(serializer),
            Answer::Sandbox(sandbox) => SandboxFields::of(sandbox).serialize(serializer),
            Answer::List(list) => list.serialize(serializer),
            Answer::Deletion(chat, deletion) => DeletionFields::of(chat, deletion).serialize(serializer),
            Answer::Health(health) => health.serialize(serializer),
            Answer::Info(info) => info.serialize(serializer),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct List {
    sandboxes: Vec<Box<RawValue>>,
    next: Option<Shown<ChatId>>,
}

impl List {
    /// What a page may weigh, but for its last sandbox: a page is held in memory until its reader has taken it.
    const MAX_BYTES: usize = 256 << 10;

    /// Ends the page early where its sandboxes are unusually long; the next page goes on from there.
    pub fn of(page: Page) -> Result<List, serde_json::Error> {
        let mut sandboxes = Vec::with_capacity(page.sandboxes.len());
        let mut bytes = 0;
        for sandbox in &page.sandboxes {
            if bytes > Self::MAX_BYTES {
                break;
            }
            let fields = serde_json::value::to_raw_value(&SandboxFields::of(sandbox))?;
            bytes += fields.get().len();
            sandboxes.push(fields);
        }
        let next = match sandboxes.len() {
            whole if whole == page.sandboxes.len() => page.next,
            part => page.sandboxes.get(part - 1).map(|last| last.chat),
        };
        Ok(List { sandboxes, next: next.map(Shown) })
    }
}

#[derive(Debug, Serialize)]
pub struct Health {
    status: &'static str,
    engine: EngineHealth,
    sandboxes: usize,
}

#[derive(Debug, Serialize)]
struct EngineHealth {
    reachable: bool,
    #[serde(flatten)]
    identity: Identity,
    error: Option<String>,
}

impl Health {
    pub fn of(engine: Result<EngineIdentity, EngineError>, sandboxes: usize) -> Health {
        let (status, identity, error) = match engine {
            Ok(identity) => ("ok", Identity::from(identity), None),
            Err(error) => ("degraded", Identity::default(), Some(error.to_string())),
        };
        Health { status, engine: EngineHealth { reachable: error.is_none(), identity, error }, sandboxes }
    }
}

#[derive(Debug, Serialize)]
pub struct Info {
    pub version: &'static str,
    pub protocol: u32,
    pub instance: String,
    /// In seconds.
    pub uptime: f64,
    /// Null while the engine does not answer.
    pub engine: Option<Identity>,
    pub profiles: Vec<String>,
    pub limits: LimitFields,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct LimitFields {
    pub max_connections: usize,
    pub max_line: usize,
    pub max_in_flight: usize,
    pub max_output: usize,
}

#[derive(Debug, Default, Serialize)]
pub struct Identity {
    kind: Option<String>,
    version: Option<String>,
    api_version: Option<String>,
    host: Option<String>,
}

impl From<EngineIdentity> for Identity {
    fn from(EngineIdentity { kind, version, api_version, host }: EngineIdentity) -> Identity {
        Identity { kind: Some(kind), version: Some(version), api_version: Some(api_version), host: Some(host) }
    }
}

#[derive(Serialize)]
struct SandboxFields<'a> {
    session_id: Shown<&'a dyn Display>,
    chat_id: Shown<&'a dyn Display>,
    agent_id: &'a str,
    volume_host_path: &'a str,
    container_id: Option<&'a str>,
    container_name: &'a str,
    endpoint: Option<EndpointFields>,
    status: &'static str,
    reason: &'static str,
    message: Option<&'a str>,
    profile: &'a str,
    image: &'a str,
    created_at: Time,
    started_at: Option<Time>,
    last_activity_at: Time,
    expires_at: Time,
    idle_expires_at: Time,
    /// These two in the answer to a create alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    launch: Option<&'static str>,
}

impl<'a> SandboxFields<'a> {
    fn of(sandbox: &'a Sandbox) -> Self {
        SandboxFields {
            session_id: Shown(&sandbox.session),
            chat_id: Shown(&sandbox.chat),
            agent_id: sandbox.agent.as_str(),
            volume_host_path: sandbox.volume.as_str(),
            container_id: sandbox.container.as_ref().map(|id| id.as_str()),
            container_name: sandbox.container_name.as_str(),
            endpoint: sandbox.endpoint.map(|Endpoint { ip, port }| EndpointFields { ip: Shown(ip), port }),
            status: sandbox.status.as_str(),
            reason: sandbox.reason.as_str(),
            message: sandbox.message.as_deref(),
            profile: sandbox.profile.as_str(),
            image: &sandbox.image,
            created_at: Time(sandbox.created_at),
            started_at: sandbox.started_at.map(Time),
            last_activity_at: Time(sandbox.last_activity_at),
            expires_at: Time(sandbox.expires_at),
            idle_expires_at: Time(sandbox.idle_expires_at()),
            outcome: None,
            launch: None,
        }
    }
}

#[derive(Serialize)]
struct EndpointFields {
    ip: Shown<std::net::IpAddr>,
    port: u16,
}

#[derive(Serialize)]
struct DeletionFields<'a> {
    chat_id: Shown<&'a ChatId>,
    result: &'static str,
    session_id: Option<Shown<&'a dyn Display>>,
    container_id: Option<&'a str>,
}

impl<'a> DeletionFields<'a> {
    fn of(chat: &'a ChatId, deletion: &'a Deletion) -> Self {
        let chat_id = Shown(chat);
        match deletion {
            Deletion::Deleted { session, container } => DeletionFields {
                chat_id,
                result: "deleted",
                session_id: Some(Shown(session)),
                container_id: container.as_ref().map(|id| id.as_str()),
            },
            Deletion::NotFound => DeletionFields { chat_id, result: "not_found", session_id: None, container_id: None },
        }
    }
}

/// Written as it is displayed.
#[derive(Debug)]
struct Shown<T>(T);

impl<T: Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// RFC 3339 in UTC, to the millisecond.
struct Time(Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // RFC 3339 has years of four digits.
        const LAST_MILLISECOND: i64 = 253_402_300_799_999;
        let last = DateTime::from_timestamp_millis(LAST_MILLISECOND).unwrap_or(self.0);
        serializer.serialize_str(&self.0.min(last).to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandboxd_actors::host_path::HostPath;
    use sandboxd_actors::ids::{ContainerName, SessionId};
    use sandboxd_actors::sandbox::{Reason, Status};
    use serde_json::{Value, json};
    use std::path::Path;
    use std::time::Duration;

    fn sandbox(chat: u128, agent: &str) -> Sandbox {
        let chat = ChatId::new(uuid::Uuid::from_u128(chat));
        let created_at = "2024-02-29T12:00:00.000999Z".parse().expect("a time");
        Sandbox {
            session: SessionId::random(),
            chat,
            agent: agent.parse().expect("an agent"),
            volume: HostPath::from_canonical(Path::new("/data")).expect("a path"),
            profile: "default".parse().expect("a name"),
            image: "base".into(),
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
        }
    }

    fn written(value: impl Serialize) -> Value {
        serde_json::to_value(value).expect("can be written")
    }

    #[test]
    fn what_is_not_known_yet_is_null() {
        let fields = written(Answer::Sandbox(sandbox(1, "a")));
        for unknown in ["container_id", "endpoint", "started_at", "message"] {
            assert_eq!(fields.get(unknown), Some(&Value::Null), "{unknown}");
        }
    }

    #[test]
    fn times_are_in_milliseconds_and_within_rfc_3339() {
        let fields = written(Answer::Sandbox(sandbox(1, "a")));
        assert_eq!(fields["created_at"], "2024-02-29T12:00:00.000Z");
        assert_eq!(fields["idle_expires_at"], "2024-02-29T12:01:00.000Z");
        assert_eq!(fields["expires_at"], "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn a_page_of_long_sandboxes_ends_early_and_is_continued() {
        let agent = "x".repeat(256);
        let sandboxes: Vec<_> = (1..=1000).map(|chat| sandbox(chat, &agent)).collect();
        let page = written(List::of(Page { sandboxes: sandboxes.clone(), next: None }).expect("can be written"));
        let listed = page["sandboxes"].as_array().expect("an array").len();
        assert!((200..1000).contains(&listed), "{listed}");
        assert_eq!(page["next"], json!(sandboxes[listed - 1].chat.to_string()));

        let short = written(List::of(Page { sandboxes: sandboxes[..3].to_vec(), next: None }).expect("can be written"));
        assert_eq!((short["sandboxes"].as_array().map(Vec::len), &short["next"]), (Some(3), &Value::Null));
    }

    #[test]
    fn an_engine_that_does_not_answer_degrades_the_service() {
        let error = EngineError::Unreachable { message: "gone".into() };
        assert_eq!(
            written(Health::of(Err(error), 3)),
            json!({
                "status": "degraded",
                "engine": {
                    "reachable": false, "kind": null, "version": null, "api_version": null, "host": null,
                    "error": "the engine cannot be reached: gone",
                },
                "sandboxes": 3,
            })
        );
    }
}
