//! Tasks of the chat's actor. Each task returns as exactly one event, even when it panics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use ractor::ActorRef;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Answer, Message, State};
use crate::chat::Place;
use crate::chat::effects::launch::{launch, relaunch};
use crate::chat::effects::pause::{pause, unpause};
use crate::chat::effects::snapshot;
use crate::chat::effects::teardown::stop;
use crate::chat::events::{Event, LaunchFailure, Remains};
use crate::domain::create_request::CreateRequest;
use crate::domain::ids::{ContainerId, Generation, SessionId};
use crate::domain::outcome::{NotPurged, SandboxError, StartFailure};
use crate::domain::sandbox::Sandbox;
use crate::domain::snapshot::SnapshotLabel;
use crate::engine::fair_queue::{Lane, Tenant};
use crate::ports::clock::Timestamp;
use crate::ports::engine::{EngineError, Operation};
use crate::reconciler;

impl State {
    pub(super) fn discover(&mut self, myself: &ActorRef<Message>) {
        let (world, chat) = (Arc::clone(&self.world), self.chat);
        let discover = async move { reconciler::find_sandbox(&world, chat).await };
        self.run(myself, "discover", discover, |outcome| {
            Event::Discovered(outcome.unwrap_or_else(|defect| Err(defect.during(Operation::Inspect))))
        });
    }

    pub(super) fn stop(&mut self, myself: &ActorRef<Message>, generation: Generation, container: ContainerId) {
        let (world, place) = (Arc::clone(&self.world), self.place());
        let stop = async move { stop(&world, &container, place).await };
        self.run(myself, "stop", stop, move |outcome| Event::Stopped {
            generation,
            result: outcome.unwrap_or_else(|defect| Err(defect.during(Operation::Stop))),
        });
    }

    pub(super) fn switch(
        &mut self,
        myself: &ActorRef<Message>,
        generation: Generation,
        container: ContainerId,
        operation: Operation,
    ) {
        let (world, place) = (Arc::clone(&self.world), self.place());
        let switch = async move {
            match operation {
                Operation::Pause => pause(&world, &container, place).await,
                _ => unpause(&world, &container).await,
            }
        };
        self.run(myself, operation.as_str(), switch, move |outcome| Event::Switched {
            generation,
            result: outcome.unwrap_or_else(|defect| Err(defect.during(operation))),
        });
    }

    pub(super) fn commit(
        &mut self,
        myself: &ActorRef<Message>,
        generation: Generation,
        sandbox: Sandbox,
        label: Option<SnapshotLabel>,
    ) {
        let (world, place, span) = (Arc::clone(&self.world), self.place(), self.span("apply_retention"));
        let commit = async move {
            let result = snapshot::take(&world, &sandbox, label, place).await;
            if result.is_ok() {
                // Detached from the actor, so that the removal continues when the actor stops.
                tokio::spawn(async move { snapshot::apply_retention(&world, &sandbox).await }.instrument(span));
            }
            result
        };
        self.run(myself, "commit", commit, move |outcome| Event::Committed {
            generation,
            result: outcome.unwrap_or_else(|defect| Err(defect.during(Operation::Commit))),
        });
    }

    /// Returns the place in the engine queue for ending, pausing or saving the sandbox.
    pub(super) fn place(&self) -> Place {
        let lane = if self.lifecycle.is_expiring() { Lane::Expiry } else { Lane::Request };
        let sandbox = self.lifecycle.sandbox().expect("only a chat with a sandbox ends, pauses or saves one");
        Place { lane, tenant: Tenant::owning(sandbox) }
    }

    pub(super) fn relaunch(&mut self, myself: &ActorRef<Message>, generation: Generation, sandbox: Sandbox) {
        let cancelled = CancellationToken::new();
        self.launching = Some((generation, cancelled.clone()));
        let world = Arc::clone(&self.world);
        let work = async move { relaunch(&world, &sandbox, &cancelled).await };
        self.run(myself, "relaunch", work, move |outcome| Event::Launched {
            generation,
            result: outcome.unwrap_or_else(|defect| {
                Err(LaunchFailure { failure: StartFailure::Defect(defect.0), remains: Remains::Perhaps })
            }),
        });
    }

    pub(super) fn launch(
        &mut self,
        myself: &ActorRef<Message>,
        generation: Generation,
        session: SessionId,
        request: Box<CreateRequest>,
        created_at: Timestamp,
    ) {
        let cancelled = CancellationToken::new();
        self.launching = Some((generation, cancelled.clone()));
        let (world, myself) = (Arc::clone(&self.world), myself.clone());
        let purging = self.purging.clone();
        let work = async move {
            if let Some(purging) = purging {
                purging.cancelled().await;
            }
            let launch = launch(&world, &request, session, created_at, &cancelled);
            let (result, straggler) = AssertUnwindSafe(launch).catch_unwind().await.unwrap_or_else(|panic| {
                let failure = StartFailure::Defect(Defect::from_panic(panic).0);
                (Err(LaunchFailure { failure, remains: Remains::Perhaps }), None)
            });
            send_event(&myself, Event::Launched { generation, result });
            // The order matters: the end of a straggler must not arrive before the launch that created it.
            if let Some(straggler) = straggler {
                straggler.ended().await;
                send_event(&myself, Event::StragglerEnded);
            }
        };
        self.tasks.spawn(work.instrument(self.span("launch")));
    }

    /// Removes the chat's directory. A later create in the mailbox waits for the removal; an earlier create keeps the
    /// directory.
    pub(super) fn purge(&mut self, myself: &ActorRef<Message>, answer: Answer<bool>) {
        let chat = self.chat;
        if !self.lifecycle.is_idle() {
            return drop(answer.send(Err(SandboxError::NotPurged { chat, why: NotPurged::InUse })));
        }
        let over = CancellationToken::new();
        let before = self.purging.replace(over.clone());
        let (world, myself) = (Arc::clone(&self.world), myself.clone());
        let work = async move {
            let over = over.drop_guard();
            if let Some(before) = before {
                before.cancelled().await;
            }
            let removed = world.directories.remove(chat).await;
            match &removed {
                Ok(true) => tracing::info!(chat.id = %chat, "chat directory removed"),
                Ok(false) => {}
                Err(error) => tracing::warn!(chat.id = %chat, %error, "chat directory not removed"),
            }
            let _ = answer.send(removed.map_err(|error| SandboxError::NotPurged { chat, why: error.into() }));
            drop(over);
            let _ = myself.cast(Message::Purged);
        };
        self.tasks.spawn(work.instrument(self.span("purge")));
    }

    pub(super) fn cancel_launch(&mut self, generation: Generation) {
        match &self.launching {
            Some((launching, token)) if *launching == generation => token.cancel(),
            _ => {}
        }
    }

    /// Runs a task of this actor. Its outcome or its panic returns as an event.
    pub(super) fn run<T: Send + 'static>(
        &mut self,
        myself: &ActorRef<Message>,
        name: &'static str,
        work: impl Future<Output = T> + Send + 'static,
        event: impl FnOnce(Result<T, Defect>) -> Event + Send + 'static,
    ) {
        let myself = myself.clone();
        let work = async move {
            let outcome = AssertUnwindSafe(work).catch_unwind().await.map_err(Defect::from_panic);
            send_event(&myself, event(outcome));
        };
        self.tasks.spawn(work.instrument(self.span(name)));
    }

    pub(super) fn span(&self, name: &'static str) -> tracing::Span {
        let session = self.lifecycle.sandbox().map(|sandbox| tracing::field::display(sandbox.session));
        tracing::info_span!("chat", effect = name, chat.id = %self.chat, session.id = session)
    }
}

/// Sends the outcome of an effect to a chat's actor. A stopped actor is ignored.
fn send_event(chat: &ActorRef<Message>, event: Event) {
    let _ = chat.cast(Message::Event(Box::new(event)));
}

/// A panic in a task of the actor.
#[derive(Debug)]
pub(super) struct Defect(String);

impl Defect {
    fn from_panic(panic: Box<dyn std::any::Any + Send>) -> Self {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let message =
            text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown panic".into());
        tracing::error!(%message, "chat task panicked");
        Self(message)
    }

    pub(super) fn during(self, operation: Operation) -> EngineError {
        EngineError::InvalidResponse { operation, message: self.0 }
    }
}
