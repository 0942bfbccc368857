//! Turns at the engine. It gets slower, not faster, when more is asked of it at once, so a launch or a tear-down takes
//! one of these. What nobody waits for takes one only while most are free.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How often it is looked whether the engine has little to do.
const PATIENCE: Duration = Duration::from_millis(50);

/// Held for as long as the engine is at work.
pub type Turn = OwnedSemaphorePermit;

#[derive(Debug, Clone)]
pub struct Turns {
    free: Arc<Semaphore>,
    all: usize,
}

impl Turns {
    pub fn new(all: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(all)), all }
    }

    pub async fn take(&self) -> Turn {
        Arc::clone(&self.free).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Once at least half of them are free.
    pub async fn take_in_a_quiet_moment(&self) -> Turn {
        loop {
            if self.free.available_permits() * 2 >= self.all
                && let Ok(turn) = Arc::clone(&self.free).try_acquire_owned()
            {
                return turn;
            }
            tokio::time::sleep(PATIENCE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_leaves_half_of_the_turns_to_others() {
        let turns = Turns::new(4);
        let first = turns.take().await;
        let _second = turns.take_in_a_quiet_moment().await;
        let _third = turns.take_in_a_quiet_moment().await;
        assert!(turns.take_in_a_quiet_moment().now_or_never().is_none());
        let _fourth = turns.take().await;
        drop(first);
        assert!(turns.take_in_a_quiet_moment().now_or_never().is_none(), "one of four is not enough");
    }

    #[tokio::test(start_paused = true)]
    async fn with_one_turn_there_are_quiet_moments_too() {
        let turns = Turns::new(1);
        drop(turns.take_in_a_quiet_moment().await);
        let _busy = turns.take().await;
        assert!(turns.take_in_a_quiet_moment().now_or_never().is_none());
    }
}
