//! Follows the engine's event stream and forwards its events to chats and pools within milliseconds.
//!
//! Events are lost while no stream is open. So the watcher requests a reconciliation after it has opened a stream, in
//! this order: a change before the stream is in the listing.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::chat::World;
use crate::ports::engine::EngineError;
use crate::ports::engine::events::{EngineEvents, EventSubject};
use crate::reconciler::{self, Trigger};
use crate::{pool, root};

/// The delay between two tries to open the stream.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The back-off starts anew after a stream that lasted this long.
const STEADY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub enum Message {
    /// The watch task has ended, which happens only by a panic.
    Ended,
}

#[derive(Debug)]
pub struct Watcher;

#[derive(Debug)]
pub struct Arguments {
    pub world: Arc<World>,
    pub root: ActorRef<root::Message>,
}

impl Actor for Watcher {
    type Msg = Message;
    /// The watch task, which ends with the actor.
    type State = AbortOnDropHandle<()>;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        Arguments { world, root }: Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let task = async move {
            let _ = AssertUnwindSafe(watch(&world, &root)).catch_unwind().await;
            let _ = myself.cast(Message::Ended);
        };
        Ok(AbortOnDropHandle::new(tokio::spawn(task)))
    }

    async fn handle(
        &self,
        _myself: ActorRef<Message>,
        Message::Ended: Message,
        _task: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        Err("the watch task panicked".into())
    }
}

async fn watch(world: &World, root: &ActorRef<root::Message>) {
    let mut pause = FIRST_PAUSE;
    let (mut opened_before, mut warned) = (false, false);
    loop {
        match world.engine.watch(&world.instance).await {
            Ok(events) => {
                if std::mem::replace(&mut opened_before, true) {
                    metrics::counter!("sandboxd_engine_stream_reconnects_total").increment(1);
                }
                tracing::info!("engine event stream connected");
                let opened = Instant::now();
                let error = follow(events, world, root).await;
                tracing::warn!(%error, "engine event stream disconnected; reconnecting");
                warned = true;
                if opened.elapsed() >= STEADY {
                    pause = FIRST_PAUSE;
                }
            }
            Err(error) if warned => tracing::debug!(%error, "engine event stream still unavailable"),
            Err(error) => {
                tracing::warn!(%error, "engine event stream unavailable; retrying");
                warned = true;
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Forwards events until the stream breaks. Returns the error that broke it.
async fn follow(mut events: EngineEvents, world: &World, root: &ActorRef<root::Message>) -> EngineError {
    let _connected = Connected::new();
    // Root outlives this actor. If root is gone, this task ends in a moment.
    let pass = reconciler::Message::Pass { because: Trigger::Gap, dry_run: false, report: None };
    world.addresses.reconciler.cast(pass);
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => return error,
        };
        metrics::counter!("sandboxd_engine_events_total", "what" => event.kind.as_str()).increment(1);
        tracing::debug!(
            whose = ?event.subject, container.id = %event.container, what = event.kind.as_str(), "engine event"
        );
        if event.kind.needs_inspection() {
            // A claimed slot keeps its labels, and belongs to the chat of its claim.
            let owner = match event.subject {
                EventSubject::Chat(chat) => Ok(chat),
                EventSubject::Slot(slot) => world.claims.of_slot(slot).map(|claim| claim.chat).ok_or(slot),
            };
            match owner {
                Ok(chat) => {
                    let _ = root.cast(root::Message::EngineEvent { chat, container: event.container });
                }
                // The event does not name the slot's profile, so every pool gets it.
                Err(slot) => {
                    for pool in world.addresses.pools().values() {
                        pool.cast(pool::actor::Message::EngineEvent { slot });
                    }
                }
            }
        }
    }
    EngineError::Interrupted { message: "the event stream ended".to_owned() }
}

/// The gauge of open streams, reset when the stream ends in any way.
struct Connected(metrics::Gauge);

impl Connected {
    fn new() -> Self {
        let gauge = metrics::gauge!("sandboxd_engine_stream_connected");
        gauge.set(1);
        Self(gauge)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.set(0);
    }
}
