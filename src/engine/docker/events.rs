//! Translates the engine's event stream into engine events.
//!
//! The client sends its request when the stream is first polled, and does not report when the engine accepted it. So
//! the request asks for events since a moment before it, which the engine still has, and a ping shows whether the
//! engine answers.

use std::collections::HashMap;

use bollard::Docker;
use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptionsBuilder;
use futures_util::future::ready;
use futures_util::{Stream, StreamExt, stream};
use sandboxd_actors::domain::ids::{ContainerId, InstanceName};
use sandboxd_actors::domain::labels;
use sandboxd_actors::ports::clock::{Clock, SystemClock};
use sandboxd_actors::ports::engine::events::{EngineEvent, EngineEvents, EventKind, EventSubject};
use sandboxd_actors::ports::engine::{EngineError, Operation};

use super::errors::Failure;
use super::labels_of;

pub(super) async fn watch(docker: &Docker, instance: &InstanceName) -> Result<EngineEvents, EngineError> {
    let now = SystemClock.now();
    let filters = HashMap::from([("type", vec!["container".to_owned()]), ("label", labels_of(instance))]);
    let options = EventsOptionsBuilder::default()
        .since(&format!("{}.{:09}", now.timestamp(), now.timestamp_subsec_nanos()))
        .filters(&filters)
        .build();
    let messages = docker.events(Some(options)).map(|message| message.during(Operation::Watch));
    let mut messages = Box::pin(until_error(messages));
    let first = tokio::select! {
        biased;
        first = messages.next() => first,
        pong = docker.ping() => pong.during(Operation::Watch).map(|_| None)?,
    };
    let first = first.transpose()?.map(Ok);
    let instance = instance.clone();
    let own_event =
        move |message: Result<EventMessage, _>| ready(message.map(|message| own_event(message, &instance)).transpose());
    Ok(stream::iter(first).chain(messages).filter_map(own_event).boxed())
}

/// Ends the stream with its first error. A regular end is an error, too: the engine shuts down.
fn until_error<T>(stream: impl Stream<Item = Result<T, EngineError>>) -> impl Stream<Item = Result<T, EngineError>> {
    let ended = EngineError::Interrupted { message: "the event stream ended".to_owned() };
    stream.chain(stream::iter([Err(ended)])).scan(false, |broken, item| {
        let over = std::mem::replace(broken, item.is_err());
        ready((!over).then_some(item))
    })
}

/// Returns the event if it is of this instance. The request filters by the same labels, but engines differ in how they
/// combine several filters of one kind.
fn own_event(message: EventMessage, instance: &InstanceName) -> Option<EngineEvent> {
    let actor = message.actor?;
    let attributes = actor.attributes?;
    let attribute = |name| attributes.get(name).map(String::as_str);
    if attribute(labels::MANAGED)? != "true" || attribute(labels::INSTANCE)? != instance.as_str() {
        return None;
    }
    let chat = attribute(labels::CHAT_ID).and_then(|chat| chat.parse().ok()).map(EventSubject::Chat);
    let slot = || attribute(labels::SLOT_ID).and_then(|slot| slot.parse().ok()).map(EventSubject::Slot);
    Some(EngineEvent {
        container: ContainerId::new(actor.id?),
        subject: chat.or_else(slot)?,
        kind: event_kind(&message.action?)?,
    })
}

fn event_kind(action: &str) -> Option<EventKind> {
    Some(match action {
        "start" => EventKind::Started,
        // The second name is Podman's.
        "die" | "died" => EventKind::Died,
        "destroy" | "remove" => EventKind::Destroyed,
        "oom" => EventKind::OutOfMemory,
        "stop" => EventKind::Stopped,
        "pause" => EventKind::Paused,
        "unpause" => EventKind::Resumed,
        "health_status: unhealthy" => EventKind::Unhealthy,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bollard::models::EventActor;

    fn message(action: &str, change: impl FnOnce(&mut HashMap<String, String>)) -> EventMessage {
        let mut attributes = HashMap::from(
            [
                (labels::MANAGED, "true"),
                (labels::INSTANCE, "default"),
                (labels::CHAT_ID, "67e55044-10b1-426f-9247-bb680e5fe0c8"),
                ("exitCode", "3"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        change(&mut attributes);
        let actor = EventActor { id: Some("c1".into()), attributes: Some(attributes) };
        EventMessage { action: Some(action.into()), actor: Some(actor), ..Default::default() }
    }

    fn kind_of(message: EventMessage) -> Option<EventKind> {
        own_event(message, &"default".parse().unwrap()).map(|event| event.kind)
    }

    #[test]
    fn both_engines_names_mean_the_same() {
        for (docker, podman) in [("die", "died"), ("destroy", "remove")] {
            assert_eq!(kind_of(message(docker, |_| ())), kind_of(message(podman, |_| ())));
            assert!(kind_of(message(docker, |_| ())).is_some());
        }
    }

    #[test]
    fn events_of_other_containers_and_actions_are_skipped() {
        for action in ["exec_die", "attach", "top", "health_status: healthy", "", "a name of the future"] {
            assert_eq!(kind_of(message(action, |_| ())), None, "{action}");
        }
        for label in [labels::MANAGED, labels::INSTANCE, labels::CHAT_ID] {
            assert_eq!(kind_of(message("die", |labels| drop(labels.remove(label)))), None, "{label}");
            assert_eq!(
                kind_of(message("die", |labels| drop(labels.insert(label.into(), "else".into())))),
                None,
                "{label}"
            );
        }
        assert_eq!(kind_of(EventMessage::default()), None);
    }

    #[tokio::test]
    async fn a_stream_has_one_error_at_its_end_however_it_ends() {
        let error = || Err(EngineError::Unreachable { message: "gone".into() });
        let broken: Vec<_> = until_error(stream::iter([Ok(1), error(), Ok(2), error()])).collect().await;
        assert_eq!(broken, [Ok(1), error()]);
        let ended: Vec<_> = until_error(stream::iter([Ok(1)])).collect().await;
        assert!(matches!(ended[..], [Ok(1), Err(EngineError::Interrupted { .. })]), "{ended:?}");
    }
}
