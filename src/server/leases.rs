//! The leases that end with a connection.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sandboxd_actors::domain::ids::{ChatId, LeaseId};
use sandboxd_actors::sandboxes::Sandboxes;

/// The leases of one connection. A request outlives its connection, so a lease may be granted after the end.
#[derive(Debug, Default)]
pub(super) struct Leases {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<HeldLease>,
    ended: bool,
}

#[derive(Debug)]
struct HeldLease {
    chat: ChatId,
    lease: LeaseId,
    until: Instant,
}

impl Leases {
    /// Adds a lease that is released when the connection ends. Releases it at once if the connection has ended.
    pub(super) async fn add(&self, sandboxes: &Sandboxes, chat: ChatId, lease: LeaseId, duration: Duration) {
        let now = Instant::now();
        let ended = {
            let mut state = self.state();
            if !state.ended {
                // Expired leases need no release, and would accumulate on a long connection.
                state.held.retain(|held| held.until > now);
                state.held.push(HeldLease { chat, lease, until: now + duration });
            }
            state.ended
        };
        if ended {
            release(sandboxes, chat, lease).await;
        }
    }

    /// Removes a lease that the caller has released.
    pub(super) fn remove(&self, lease: LeaseId) {
        self.state().held.retain(|held| held.lease != lease);
    }

    /// Releases all leases. To be called when the connection has ended.
    pub(super) async fn end(&self, sandboxes: &Sandboxes) {
        let held = {
            let mut state = self.state();
            state.ended = true;
            std::mem::take(&mut state.held)
        };
        join_all(held.into_iter().map(|held| release(sandboxes, held.chat, held.lease))).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn release(sandboxes: &Sandboxes, chat: ChatId, lease: LeaseId) {
    // The release fails if the sandbox or the lease has ended.
    if let Err(error) = sandboxes.release(chat, lease).await {
        tracing::debug!(chat.id = %chat, lease.id = %lease, %error, "lease ended before its connection");
    }
}
