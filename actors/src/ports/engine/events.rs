//! What an engine tells by itself. It is a reason to look, never a fact: what became of a container is for a look at it
//! to say.

use futures_util::stream::BoxStream;

use super::EngineError;
use crate::domain::ids::{ChatId, ContainerId, SlotId};

/// Ends after its first error.
pub type EngineEvents = BoxStream<'static, Result<EngineEvent, EngineError>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineEvent {
    pub container: ContainerId,
    pub whose: EventSubject,
    pub what: EventKind,
}

/// As the container's labels have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventSubject {
    Chat(ChatId),
    /// Nobody's yet.
    Slot(SlotId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Started,
    Died,
    /// One of its processes was killed for it; not necessarily the first.
    OutOfMemory,
    Stopped,
    Paused,
    Resumed,
    /// Its health check fails.
    Unhealthy,
    Destroyed,
}

impl EventKind {
    /// Whether a sandbox may be another by it than its chat takes it for. Only its chat starts one.
    pub fn is_worth_a_look(self) -> bool {
        self != EventKind::Started
    }

    /// For a metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            EventKind::Started => "started",
            EventKind::Died => "died",
            EventKind::OutOfMemory => "out_of_memory",
            EventKind::Stopped => "stopped",
            EventKind::Paused => "paused",
            EventKind::Resumed => "resumed",
            EventKind::Unhealthy => "unhealthy",
            EventKind::Destroyed => "destroyed",
        }
    }
}
