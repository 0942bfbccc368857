//! What the engine holds under a chat's name, and whether it may be taken for the chat's sandbox.

use std::net::SocketAddr;
use std::time::Duration;

use crate::chat::World;
use crate::domain::ids::{ChatId, ContainerId, ContainerName, InstanceName};
use crate::domain::labels::{InvalidLabels, SessionLabels, SlotLabels};
use crate::domain::outcome::Death;
use crate::domain::profile::{Profile, ReadinessCheck};
use crate::domain::sandbox::{Endpoint, Reason, Sandbox, Status};
use crate::engine::bounded::Bounded;
use crate::ports::clock::Timestamp;
use crate::ports::engine::{ContainerState, EngineError, Health, Observed};
use crate::ports::probe::NotReady;

/// How many lines of a dead sandbox's output are kept.
const LOG_TAIL_LINES: usize = 20;

/// How much later a killed container is looked at again.
const SECOND_LOOK: Duration = Duration::from_millis(100);
const SIGKILL: i64 = 9;

/// How long a service that was ready may take to answer. A caller waits for the answer, so a profile that gives its service
/// ten minutes to start does not give it ten minutes here. A shorter limit would replace a service that is merely busy.
const LONGEST_PROBE: Duration = Duration::from_secs(30);

/// A container of this chat, made by this instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    pub labels: SessionLabels,
    pub container: Observed,
    /// How it ended, if it has.
    pub death: Option<Death>,
}

/// Why a container is not the chat's sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotOurs {
    #[error("{0}")]
    Labels(#[from] InvalidLabels),
    #[error("it belongs to instance {0}")]
    OtherInstance(InstanceName),
    #[error("it belongs to chat {0}")]
    OtherChat(ChatId),
    #[error("its name is not that of its chat")]
    OtherName,
    /// Started before there was a chat for it, by this instance.
    #[error("it is a slot that is nobody's")]
    Slot,
}

/// What became of a container that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    Alive,
    /// Alive, and standing still.
    Paused,
    /// Runs, but its health check fails. Not handed out.
    Unhealthy,
    /// Ended by itself; kept until somebody has asked why.
    Ended,
    /// Never started, or on its way out.
    Incomplete,
}

/// A live container, as a listing showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveContainer {
    pub container: ContainerId,
    pub paused: bool,
}

impl Found {
    pub fn recognise(container: Observed, instance: &InstanceName) -> Result<Self, NotOurs> {
        if SlotLabels::decode(&container.labels).is_ok_and(|slot| slot.instance == *instance) {
            return Err(NotOurs::Slot);
        }
        let labels = SessionLabels::decode(&container.labels)?;
        if labels.instance != *instance {
            return Err(NotOurs::OtherInstance(labels.instance));
        }
        if container.name != ContainerName::of(instance, labels.chat).as_str() {
            return Err(NotOurs::OtherName);
        }
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

    /// `None`: it is not alive, or not well.
    pub fn live_container(&self) -> Option<LiveContainer> {
        let paused = match self.condition() {
            Condition::Alive => false,
            Condition::Paused => true,
            Condition::Unhealthy | Condition::Ended | Condition::Incomplete => return None,
        };
        Some(LiveContainer { container: self.container.id.clone(), paused })
    }

    /// The sandbox as far as its container tells. Activity is not written on a container, so being found counts as
    /// activity: rather too late an end than too early a one.
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

/// Looks a chat's container up by its name. A container that is not ours is none.
pub async fn discover(
    engine: &Bounded,
    instance: &InstanceName,
    chat: ChatId,
) -> Result<Option<Result<Found, (ContainerId, NotOurs)>>, EngineError> {
    let name = ContainerName::of(instance, chat);
    let Some(container) = engine.inspect(name.as_str()).await? else {
        return Ok(None);
    };
    let id = container.id.clone();
    let mut found = match Found::recognise(container, instance) {
        Ok(found) if found.labels.chat == chat => found,
        Ok(found) => return Ok(Some(Err((id, NotOurs::OtherChat(found.labels.chat))))),
        Err(why) => return Ok(Some(Err((id, why)))),
    };
    if found.condition() == Condition::Ended {
        found.death = Some(autopsy(engine, &found.container, None).await);
    }
    Ok(Some(Ok(found)))
}

/// Why a container ended that ran a moment ago. Engines may learn after its end that it ran out of memory, so one that
/// was killed is looked at twice.
pub async fn sudden_death(engine: &Bounded, container: &Observed, memory_limit_bytes: Option<u64>) -> Death {
    let mut container = container.clone();
    if let ContainerState::Exited(Some(exit)) = container.state
        && exit.signal() == Some(SIGKILL)
        && !exit.oom_killed
    {
        tokio::time::sleep(SECOND_LOOK).await;
        if let Ok(Some(seen)) = engine.inspect(container.id.as_str()).await {
            container = seen;
        }
    }
    autopsy(engine, &container, memory_limit_bytes).await
}

/// Why a container ended. What cannot be learned is left out rather than guessed.
async fn autopsy(engine: &Bounded, container: &Observed, memory_limit_bytes: Option<u64>) -> Death {
    let exit = match container.state {
        ContainerState::Exited(exit) => exit,
        _ => None,
    };
    let log_tail = engine.log_tail(&container.id, LOG_TAIL_LINES).await.unwrap_or_default();
    Death { exit, memory_limit_bytes, log_tail }
}

/// One cheap look at a container that was running.
#[derive(Debug, Clone, PartialEq)]
pub enum Liveness {
    Alive,
    Paused,
    /// It runs, and its own service does not answer as its profile says it should. Not handed out.
    Unhealthy(String),
    Ended(Death),
    /// The engine says that it does not exist, or not for long any more.
    Vanished,
    /// The engine or the service inside could not be asked. Never a reason to give a sandbox up.
    Unknown(EngineError),
}

/// Looks at a container once, and probes the service inside once where its profile has a readiness check.
pub async fn is_alive(world: &World, container: &ContainerId, profile: Option<&Profile>) -> Liveness {
    match world.engine.inspect(container.as_str()).await {
        Err(error) => Liveness::Unknown(error),
        Ok(None) => Liveness::Vanished,
        Ok(Some(seen)) => match seen.state {
            // It ended because it is being removed.
            ContainerState::Removing => Liveness::Vanished,
            ContainerState::Running | ContainerState::Restarting => match profile {
                Some(profile) => is_well(world, &seen, profile).await,
                None => Liveness::Alive,
            },
            ContainerState::Paused => Liveness::Paused,
            _ => {
                let limit = profile.map(|profile| profile.limits.memory_bytes);
                Liveness::Ended(sudden_death(&world.engine, &seen, limit).await)
            }
        },
    }
}

/// Probes the service inside once, and gives it some time to answer: a busy service is not taken for a dead one.
async fn is_well(world: &World, seen: &Observed, profile: &Profile) -> Liveness {
    let limit = profile.readiness.timeout.min(LONGEST_PROBE);
    let unknown = |message: String| Liveness::Unknown(EngineError::Interrupted { message });
    let probed = match &profile.readiness.check {
        ReadinessCheck::None => return Liveness::Alive,
        ReadinessCheck::Health if seen.health == Some(Health::Unhealthy) => {
            return Liveness::Unhealthy("its health check fails".to_owned());
        }
        ReadinessCheck::Health => return Liveness::Alive,
        ReadinessCheck::Http { port, .. } | ReadinessCheck::Tcp { port } => {
            let Some(ip) = seen.address else { return unknown("the engine tells no address".to_owned()) };
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
        Ok(Err(NotReady::NotTried(why))) => unknown(why),
        Err(_) => Liveness::Unhealthy(format!("its service does not answer within {limit:?}")),
    }
}
