//! Finds the container under a chat's name, and decides whether it is the chat's sandbox.

use std::net::SocketAddr;
use std::time::Duration;

use crate::chat::World;
use crate::domain::ids::{ChatId, ContainerId, ContainerName, InstanceName};
use crate::domain::labels::{InvalidLabels, SessionLabels, SlotLabels};
use crate::domain::outcome::Death;
use crate::domain::profile::{Profile, ReadinessCheck};
use crate::domain::sandbox::{Endpoint, Reason, Sandbox, Status};
use crate::engine::bounded::Bounded;
use crate::pool::claims::Claims;
use crate::ports::clock::Timestamp;
use crate::ports::engine::{ContainerState, EngineError, Health, Observed};
use crate::ports::probe::NotReady;

/// The number of output lines that are kept of a dead sandbox.
const LOG_TAIL_LINES: usize = 20;

/// The delay before a killed container is inspected again.
const SECOND_INSPECTION_DELAY: Duration = Duration::from_millis(100);
const SIGKILL: i64 = 9;

/// The longest time that a service which was ready may take to answer. A caller waits for this answer, so a long
/// start-up limit of the profile does not apply here. A shorter limit would replace a service that is only busy.
const LONGEST_PROBE: Duration = Duration::from_secs(30);

/// A container of this chat, created by this instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    pub labels: SessionLabels,
    pub container: Observed,
    /// The cause of its end, if it has ended.
    pub death: Option<Death>,
}

/// The reason why a container is not the chat's sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotOurs {
    #[error("{0}")]
    Labels(#[from] InvalidLabels),
    #[error("it belongs to instance {0}")]
    OtherInstance(InstanceName),
    #[error("it belongs to chat {0}")]
    OtherChat(ChatId),
    #[error("its name does not match its chat")]
    OtherName,
    /// A warm slot of this instance, not yet assigned to a chat.
    #[error("it is an unclaimed slot")]
    Slot(SlotLabels),
}

/// The condition of a found container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    Alive,
    Paused,
    /// The container runs, but its health check fails. It is not handed out.
    Unhealthy,
    /// The container ended by itself. It is kept, so that callers can ask for the cause.
    Ended,
    /// The container never started, or is being removed.
    Incomplete,
}

/// A live container as shown in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveContainer {
    pub container: ContainerId,
    pub paused: bool,
}

impl Found {
    pub fn recognise(container: Observed, instance: &InstanceName, claims: &Claims) -> Result<Self, NotOurs> {
        let labels = session_labels(&container, instance, claims)?;
        Ok(Self { labels, container, death: None })
    }

    pub fn condition(&self) -> Condition {
        match self.container.state {
            ContainerState::Paused => Condition::Paused,
            ContainerState::Running | ContainerState::Restarting => {
                if self.container.health == Some(Health::Unhealthy) { Condition::Unhealthy } else { Condition::Alive }
            }
            ContainerState::Created | ContainerState::Removing => Condition::Incomplete,
            ContainerState::Exited(_) | ContainerState::Dead => Condition::Ended,
        }
    }

    pub fn endpoint(&self) -> Option<Endpoint> {
        self.container.address.map(|ip| Endpoint { ip, port: self.labels.port })
    }

    /// Returns `None` if the container is not alive or is unhealthy.
    pub fn live_container(&self) -> Option<LiveContainer> {
        let paused = match self.condition() {
            Condition::Alive => false,
            Condition::Paused => true,
            Condition::Unhealthy | Condition::Ended | Condition::Incomplete => return None,
        };
        Some(LiveContainer { container: self.container.id.clone(), paused })
    }

    /// Builds the sandbox from its container. A container stores no activity, so its discovery counts as activity: a
    /// late expiry is better than an early one.
    pub fn sandbox(&self, now: Timestamp) -> Sandbox {
        let condition = self.condition();
        let (status, reason, message) = match condition {
            Condition::Alive => (Status::Running, Reason::Adopted, None),
            Condition::Paused => (Status::Paused, Reason::Adopted, None),
            Condition::Incomplete => (Status::Deleting, Reason::Incomplete, None),
            Condition::Unhealthy => (Status::Failed, Reason::Unhealthy, Some("its health check fails".to_owned())),
            Condition::Ended => {
                let reason = self.death.as_ref().map_or(Reason::Exited, Death::reason);
                (Status::Failed, reason, self.death.as_ref().map(Death::to_string))
            }
        };
        let labels = &self.labels;
        let started_at = self.container.started_at.unwrap_or(labels.created_at);
        Sandbox {
            session: labels.session,
            chat: labels.chat,
            agent: labels.agent.clone(),
            workspace: labels.workspace,
            volume: labels.volume.clone(),
            profile: labels.profile.clone(),
            image: self.container.image.clone(),
            snapshot: labels.snapshot,
            container_name: ContainerName::of(&labels.instance, labels.chat),
            container: Some(self.container.id.clone()),
            endpoint: self.endpoint(),
            status,
            reason,
            message,
            created_at: labels.created_at,
            started_at: (condition != Condition::Incomplete).then_some(started_at),
            last_activity_at: now,
            expires_at: labels.expires_at,
            idle_timeout: labels.idle_timeout,
            held_until: None,
            held_by: Vec::new(),
            durable_leases: Vec::new(),
        }
    }
}

/// Returns the labels of the session that the container belongs to. A claimed slot keeps the labels of a slot and gets
/// its chat's name late, so the labels of its session are in its claim.
pub fn session_labels(
    container: &Observed,
    instance: &InstanceName,
    claims: &Claims,
) -> Result<SessionLabels, NotOurs> {
    if let Some(claim) = claims.of_container(container) {
        return Ok(SessionLabels::decode(&claim.labels)?);
    }
    if let Ok(slot) = SlotLabels::decode(&container.labels)
        && slot.instance == *instance
    {
        return Err(NotOurs::Slot(slot));
    }
    let labels = SessionLabels::decode(&container.labels)?;
    if labels.instance != *instance {
        return Err(NotOurs::OtherInstance(labels.instance));
    }
    if container.name != ContainerName::of(instance, labels.chat).as_str() {
        return Err(NotOurs::OtherName);
    }
    Ok(labels)
}

/// Inspects the container under the chat's name, or the claimed slot of the chat that does not have this name yet.
pub(super) async fn inspect(world: &World, chat: ChatId) -> Result<Option<Observed>, EngineError> {
    let named = world.engine.inspect(ContainerName::of(&world.instance, chat).as_str()).await?;
    match world.claims.of_chat(chat) {
        Some(claim) if named.is_none() => world.engine.inspect(claim.container.as_str()).await,
        _ => Ok(named),
    }
}

/// Finds a chat's container. A foreign container under the chat's name returns as an inner error.
pub async fn discover(
    world: &World,
    chat: ChatId,
) -> Result<Option<Result<Found, (ContainerId, NotOurs)>>, EngineError> {
    let Some(container) = inspect(world, chat).await? else {
        return Ok(None);
    };
    let id = container.id.clone();
    let mut found = match Found::recognise(container, &world.instance, &world.claims) {
        Ok(found) if found.labels.chat == chat => found,
        Ok(found) => return Ok(Some(Err((id, NotOurs::OtherChat(found.labels.chat))))),
        Err(why) => return Ok(Some(Err((id, why)))),
    };
    if found.condition() == Condition::Ended {
        found.death = Some(death_of(&world.engine, &found.container, None).await);
    }
    Ok(Some(Ok(found)))
}

/// Returns the cause of death of a container that ran a moment ago. Engines may report an out-of-memory kill late, so a
/// killed container is inspected twice.
pub async fn recent_death_of(engine: &Bounded, container: &Observed, memory_limit_bytes: Option<u64>) -> Death {
    let mut container = container.clone();
    if let ContainerState::Exited(Some(exit)) = container.state
        && exit.signal() == Some(SIGKILL)
        && !exit.oom_killed
    {
        tokio::time::sleep(SECOND_INSPECTION_DELAY).await;
        if let Ok(Some(seen)) = engine.inspect(container.id.as_str()).await {
            container = seen;
        }
    }
    death_of(engine, &container, memory_limit_bytes).await
}

/// Returns the cause of death of a container. Unavailable details are left out.
async fn death_of(engine: &Bounded, container: &Observed, memory_limit_bytes: Option<u64>) -> Death {
    let exit = match container.state {
        ContainerState::Exited(exit) => exit,
        _ => None,
    };
    let log_tail = engine.log_tail(&container.id, LOG_TAIL_LINES).await.unwrap_or_default();
    Death { exit, memory_limit_bytes, log_tail }
}

/// The result of one liveness check.
#[derive(Debug, Clone, PartialEq)]
pub enum Liveness {
    Alive,
    Paused,
    /// The container runs, but its service fails the readiness check. It is not handed out.
    Unhealthy(String),
    Ended(Death),
    /// The container does not exist, or is being removed.
    Vanished,
    /// The engine or the service could not be asked. Never a reason to give up a sandbox.
    Unknown(EngineError),
}

/// Inspects a container once, and probes its service once if the profile has a readiness check.
pub async fn is_alive(world: &World, container: &ContainerId, profile: Option<&Profile>) -> Liveness {
    match world.engine.inspect(container.as_str()).await {
        Err(error) => Liveness::Unknown(error),
        Ok(None) => Liveness::Vanished,
        Ok(Some(seen)) => match seen.state {
            // The container ended because it is being removed.
            ContainerState::Removing => Liveness::Vanished,
            ContainerState::Running | ContainerState::Restarting => match profile {
                Some(profile) => probe_service(world, &seen, profile).await,
                None => Liveness::Alive,
            },
            ContainerState::Paused => Liveness::Paused,
            _ => {
                let limit = profile.map(|profile| profile.limits.memory_bytes);
                Liveness::Ended(recent_death_of(&world.engine, &seen, limit).await)
            }
        },
    }
}

/// Probes the service once, with time to answer: a busy service is not a dead one.
async fn probe_service(world: &World, seen: &Observed, profile: &Profile) -> Liveness {
    let limit = profile.readiness.timeout.min(LONGEST_PROBE);
    let unknown = |message: String| Liveness::Unknown(EngineError::Interrupted { message });
    let probed = match &profile.readiness.check {
        ReadinessCheck::None => return Liveness::Alive,
        ReadinessCheck::Health if seen.health == Some(Health::Unhealthy) => {
            return Liveness::Unhealthy("its health check fails".to_owned());
        }
        ReadinessCheck::Health => return Liveness::Alive,
        ReadinessCheck::Http { port, .. } | ReadinessCheck::Tcp { port } => {
            let Some(ip) = seen.address else { return unknown("the engine reports no address".to_owned()) };
            let address = SocketAddr::new(ip, *port);
            let probe = async {
                match &profile.readiness.check {
                    ReadinessCheck::Http { path, .. } => world.probe.http(address, path).await,
                    _ => world.probe.tcp(address).await,
                }
            };
            tokio::time::timeout(limit, probe).await
        }
    };
    match probed {
        Ok(Ok(())) => Liveness::Alive,
        Ok(Err(NotReady::Refused(why))) => Liveness::Unhealthy(format!("its service does not answer: {why}")),
        Ok(Err(NotReady::NotProbed(why))) => unknown(why),
        Err(_) => Liveness::Unhealthy(format!("its service does not answer within {limit:?}")),
    }
}
