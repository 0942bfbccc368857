//! The start-up: the work at the engine before sandboxes can be created, retried until it succeeds.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sandboxd_actors::domain::ids::{InstanceName, SessionId};
use sandboxd_actors::engine::bounded::Bounded;
use sandboxd_actors::ports::engine::{EngineError, NetworkSpec};
use sandboxd_actors::reconciler::Trigger;
use sandboxd_actors::sandboxes::Sandboxes;
use tokio_util::sync::CancellationToken;

use super::ServiceError;
use crate::guest::GuestsOnDisk;
use crate::instance_lock::{InstanceLock, InstanceLockError};
use crate::server::guest::follow_detached_commands;

/// The pauses between two attempts, if the engine does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The number of sandboxes in a page of the list.
const PAGE: usize = 1000;

/// The start-up and the state that it needs.
pub(super) struct StartUp {
    pub(super) engine: Bounded,
    pub(super) sandboxes: Sandboxes,
    pub(super) networks: Vec<NetworkSpec>,
    pub(super) guests: Arc<GuestsOnDisk>,
    pub(super) instance: InstanceName,
    pub(super) lock: Option<InstanceLock>,
    /// Cancelled once the start-up is complete.
    pub(super) reconciled: CancellationToken,
    pub(super) resumed: Resumed,
}

/// The sessions of an earlier run whose detached commands keep their sandbox active again.
#[derive(Debug, Default)]
pub(super) struct Resumed {
    sessions: HashSet<SessionId>,
    /// Whether every sandbox could be described.
    all: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StartUpError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Instance(#[from] InstanceLockError),
}

impl From<StartUpError> for ServiceError {
    fn from(error: StartUpError) -> Self {
        ServiceError::Setting { key: "engine", source: Box::new(error) }
    }
}

impl StartUp {
    /// Makes one attempt: locks the instance, ensures the networks, reconciles, and resumes the guests.
    pub(super) async fn attempt(&mut self) -> Result<(), StartUpError> {
        let identity = self.engine.identify().await?;
        if self.lock.is_none() {
            self.lock = Some(InstanceLock::acquire(&self.instance, &identity.host)?);
        }
        for network in &self.networks {
            self.engine.ensure_network(network).await?;
        }
        self.sandboxes.reconcile(Trigger::Start, false).await?;
        self.resume_guests().await;
        self.reconciled.cancel();
        Ok(())
    }

    /// Tracks the commands in sandboxes of an earlier run again. A sandbox that cannot be described is resumed later.
    async fn resume_guests(&mut self) {
        let (mut after, mut complete) = (None, true);
        loop {
            let Ok(page) = self.sandboxes.list(after, PAGE).await else { return };
            complete &= page.undescribed.is_empty();
            for sandbox in &page.sandboxes {
                if self.resumed.sessions.insert(sandbox.session)
                    && let Some(guest) = self.guests.of(sandbox.session)
                {
                    follow_detached_commands(self.sandboxes.clone(), guest, sandbox.chat);
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        self.resumed.all = complete;
    }

    /// Retries until the start-up is complete and every guest is resumed, then holds the instance lock while the
    /// service runs. Returns only if another service has the instance.
    pub(super) async fn run(mut self) -> InstanceLockError {
        let mut pause = FIRST_PAUSE;
        while !(self.reconciled.is_cancelled() && self.resumed.all) {
            tokio::time::sleep(pause).await;
            if self.reconciled.is_cancelled() {
                self.resume_guests().await;
            } else {
                match self.attempt().await {
                    Ok(()) => {}
                    Err(StartUpError::Instance(taken)) => return taken,
                    Err(StartUpError::Engine(error)) => tracing::debug!(%error, "engine does not answer yet"),
                }
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        std::future::pending().await
    }
}
