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
    pub whose: Whose,
    pub what: Happening,
}

/// As the container's labels have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Chat(ChatId),
    /// Nobody's yet.
    Slot(SlotId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
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

impl Happening {
    /// Whether a sandbox may be another by it than its chat takes it for. Only its chat starts one.
    pub fn is_worth_a_look(self) -> bool {
        self != Happening::Started
    }

    /// For a metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Happening::Started => "started",
            Happening::Died => "died",
            Happening::OutOfMemory => "out_of_memory",
            Happening::Stopped => "stopped",
            Happening::Paused => "paused",
            Happening::Resumed => "resumed",
            Happening::Unhealthy => "unhealthy",
            Happening::Destroyed => "destroyed",
        }
    }
}
