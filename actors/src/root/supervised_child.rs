//! A supervised child: an actor of which root keeps exactly one, restarted with a growing delay.

use std::time::{Duration, Instant};

use ractor::{Actor, ActorCell, ActorId, ActorRef};

use crate::addresses::Address;

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// A failure after this time of service starts a new series of restarts.
const FAILURE_WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Child {
    Reaper,
    Reconciler,
    Watcher,
    Builder,
}

impl Child {
    pub const ALL: [Child; 4] = [Child::Reaper, Child::Reconciler, Child::Watcher, Child::Builder];

    pub fn as_str(self) -> &'static str {
        match self {
            Child::Reaper => "reaper",
            Child::Reconciler => "reconciler",
            Child::Watcher => "watcher",
            Child::Builder => "builder",
        }
    }
}

#[derive(Debug)]
pub(super) struct SupervisedChild<M> {
    address: Address<M>,
    back_off: BackOff,
}

impl<M: ractor::Message> SupervisedChild<M> {
    /// Returns a child that is not started yet, and publishes its actor at this address.
    pub(super) fn at(address: &Address<M>) -> Self {
        Self { address: address.clone(), back_off: BackOff::default() }
    }

    /// Starts the child. Returns the cause of a failure, and the delay before the next try.
    pub(super) async fn start<A: Actor<Msg = M>>(
        &mut self,
        actor: A,
        arguments: A::Arguments,
        root: ActorCell,
    ) -> Result<(), (String, Duration)> {
        self.back_off.started(Instant::now());
        match Actor::spawn_linked(None, actor, arguments, root).await {
            Ok((actor, _)) => {
                self.address.publish(Some(actor));
                Ok(())
            }
            Err(error) => Err((error.to_string(), self.back_off.failed(Instant::now()))),
        }
    }

    /// Returns the child, or `None` while it is down.
    pub(super) fn actor(&self) -> Option<ActorRef<M>> {
        self.address.actor()
    }

    pub(super) fn stop(&self) {
        if let Some(actor) = self.actor() {
            actor.stop(None);
        }
    }

    /// Returns the delay before the restart, if the ended actor is this child.
    pub(super) fn ended(&mut self, ended: ActorId) -> Option<Duration> {
        self.actor().filter(|actor| actor.get_id() == ended)?;
        self.address.publish(None);
        Some(self.back_off.failed(Instant::now()))
    }
}

#[derive(Debug, Default)]
struct BackOff {
    started: Option<Instant>,
    failures: u32,
}

impl BackOff {
    fn started(&mut self, now: Instant) {
        self.started = Some(now);
    }

    fn failed(&mut self, now: Instant) -> Duration {
        let in_window = self.started.is_some_and(|started| now.saturating_duration_since(started) < FAILURE_WINDOW);
        self.failures = if in_window { self.failures.saturating_add(1) } else { 1 };
        FIRST_DELAY.saturating_mul(2u32.saturating_pow(self.failures - 1)).min(LONGEST_DELAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_back_off_until_one_lasts() {
        let (mut back_off, mut now) = (BackOff::default(), Instant::now());
        let mut delays = Vec::new();
        for _ in 0..9 {
            back_off.started(now);
            now += Duration::from_secs(1);
            delays.push(back_off.failed(now).as_millis());
        }
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        back_off.started(now);
        assert_eq!(back_off.failed(now + FAILURE_WINDOW), FIRST_DELAY);
    }
}
