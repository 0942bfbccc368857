//! Engine events. An event is a reason to inspect a container, never a fact: only an inspection tells its state.

use futures_util::stream::BoxStream;

use super::EngineError;
use crate::domain::ids::{ChatId, ContainerId, SlotId};

/// A stream of engine events. It ends after its first error.
pub type EngineEvents = BoxStream<'static, Result<EngineEvent, EngineError>>;

/// A report of the engine about a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineEvent {
    pub container: ContainerId,
    pub subject: EventSubject,
    pub kind: EventKind,
}

/// The owner of the container, according to its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventSubject {
    Chat(ChatId),
    /// A slot that may have no chat yet.
    Slot(SlotId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Started,
    Died,
    /// One of its processes was killed; not necessarily the first.
    OutOfMemory,
    Stopped,
    Paused,
    Resumed,
    /// Its health check fails.
    Unhealthy,
    Destroyed,
}

impl EventKind {
    /// Whether the chat must inspect its sandbox after this event. Only the chat itself starts a sandbox.
    pub fn needs_inspection(self) -> bool {
        self != EventKind::Started
    }

    /// Returns the word for metric labels.
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
