//! The event streams of the fake engine.

use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::mpsc;

use crate::domain::ids::InstanceName;
use crate::domain::labels;
use crate::ports::engine::events::{EngineEvent, EngineEvents, EventKind, EventSubject};
use crate::ports::engine::{EngineError, Observed};

#[derive(Debug, Default)]
pub(super) struct Watchers(Vec<Watcher>);

#[derive(Debug)]
struct Watcher {
    instance: InstanceName,
    events: mpsc::UnboundedSender<Result<EngineEvent, EngineError>>,
}

impl Watchers {
    pub(super) fn open(&mut self, instance: &InstanceName) -> EngineEvents {
        let (events, received) = mpsc::unbounded_channel();
        self.0.push(Watcher { instance: instance.clone(), events });
        stream::unfold(received, |mut received| async { received.recv().await.map(|event| (event, received)) }).boxed()
    }

    pub(super) fn count(&self) -> usize {
        self.0.iter().filter(|watcher| !watcher.events.is_closed()).count()
    }

    /// Publishes an event to the watchers of the container's instance, if the container belongs to a chat or is a slot.
    pub(super) fn publish(&self, container: &Observed, kind: EventKind) {
        let label = |name| container.labels.get(name).map(String::as_str);
        let chat = label(labels::CHAT_ID).and_then(|chat| chat.parse().ok()).map(EventSubject::Chat);
        let slot = label(labels::SLOT_ID).and_then(|slot| slot.parse().ok()).map(EventSubject::Slot);
        let Some(subject) = chat.or(slot) else { return };
        for watcher in self.0.iter().filter(|watcher| label(labels::INSTANCE) == Some(watcher.instance.as_str())) {
            let _ = watcher.events.send(Ok(EngineEvent { container: container.id.clone(), subject, kind }));
        }
    }

    pub(super) fn disconnect(&mut self) {
        for watcher in self.0.drain(..) {
            let _ = watcher.events.send(Err(EngineError::Interrupted { message: "connection reset".into() }));
        }
    }
}
