//! Hears from the engine what happens to containers, and tells the chats within milliseconds.
//!
//! What happens while no stream is open is never told. So whenever one has been opened, a reconciliation is asked for,
//! in this order: what is too early for the stream is in the listing.

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
use crate::reconciler::Trigger;
use crate::root;

/// Between two tries to open the stream.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A stream that lasted this long did not break for the reason for which the one before it did.
const STEADY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub enum Message {
    /// The task that watches has ended, which it never does by itself.
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
    /// Watches for as long as the actor lives.
    type State = AbortOnDropHandle<()>;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        Arguments { world, root }: Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let watching = async move {
            let _ = AssertUnwindSafe(watch(&world, &root)).catch_unwind().await;
            let _ = myself.cast(Message::Ended);
        };
        Ok(AbortOnDropHandle::new(tokio::spawn(watching)))
    }

    async fn handle(
        &self,
        _myself: ActorRef<Message>,
        Message::Ended: Message,
        _watching: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        Err("its task panicked".into())
    }
}

async fn watch(world: &World, root: &ActorRef<root::Message>) {
    let mut pause = FIRST_PAUSE;
    let (mut opened_before, mut told) = (false, false);
    loop {
        match world.engine.watch(&world.instance).await {
            Ok(events) => {
                if std::mem::replace(&mut opened_before, true) {
                    metrics::counter!("sandboxd_engine_stream_reconnects_total").increment(1);
                }
                tracing::info!("the engine tells what happens to its containers");
                let opened = Instant::now();
                let error = follow(events, root).await;
                tracing::warn!(%error, "the engine's events broke off; they are asked for again");
                told = true;
                if opened.elapsed() >= STEADY {
                    pause = FIRST_PAUSE;
                }
            }
            Err(error) if told => tracing::debug!(%error, "the engine still does not tell of its events"),
            Err(error) => {
                tracing::warn!(%error, "the engine does not tell of its events yet; it is asked again");
                told = true;
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Forwards until the stream breaks; answers why it did.
async fn follow(mut events: EngineEvents, root: &ActorRef<root::Message>) -> EngineError {
    let _connected = Connected::new();
    // Root outlives this actor; if it is gone, so is this task in a moment.
    let _ = root.cast(root::Message::Reconcile { because: Trigger::Gap, dry_run: false, report: None });
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => return error,
        };
        metrics::counter!("sandboxd_engine_events_total", "what" => event.what.as_str()).increment(1);
        tracing::debug!(whose = ?event.whose, container.id = %event.container, what = event.what.as_str(), "event");
        if event.what.is_worth_a_look() {
            let _ = root.cast(match event.whose {
                EventSubject::Chat(chat) => root::Message::EngineEvent { chat, container: event.container },
                EventSubject::Slot(slot) => root::Message::SlotEvent { slot },
            });
        }
    }
    EngineError::Interrupted { message: "its stream of events ended".to_owned() }
}

/// The gauge that says whether a stream is open, however its being open ends.
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
