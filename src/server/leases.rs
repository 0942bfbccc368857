//! The leases that end with a connection.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sandboxd_actors::domain::ids::{ChatId, LeaseId};
use sandboxd_actors::sandboxes::Sandboxes;

/// What one connection holds. A request outlives its connection, so a lease may also come too late to be held.
#[derive(Debug, Default)]
pub(super) struct Leases {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Held>,
    ended: bool,
}

#[derive(Debug)]
struct Held {
    chat: ChatId,
    lease: LeaseId,
    until: Instant,
}

impl Leases {
    /// Releases the lease when the connection ends; at once, if it has ended already.
    pub(super) async fn hold(&self, sandboxes: &Sandboxes, chat: ChatId, lease: LeaseId, duration: Duration) {
        let now = Instant::now();
        let ended = {
            let mut state = self.state();
            if !state.ended {
                // Those that ran out need no release, and would add up on a connection that stays.
                state.held.retain(|held| held.until > now);
                state.held.push(Held { chat, lease, until: now + duration });
            }
            state.ended
        };
        if ended {
            release(sandboxes, chat, lease).await;
        }
    }

    /// The caller has released it.
    pub(super) fn forget(&self, lease: LeaseId) {
        self.state().held.retain(|held| held.lease != lease);
    }

    /// The connection has ended.
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
    // The sandbox may have ended, or the lease: either way, it holds nothing any more.
    if let Err(error) = sandboxes.release(chat, lease).await {
        tracing::debug!(chat.id = %chat, lease.id = %lease, %error, "a lease was over before its connection");
    }
}
