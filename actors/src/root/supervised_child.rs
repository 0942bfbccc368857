//! A child that root keeps exactly one of: started again when it fails, less and less eagerly.

use std::time::{Duration, Instant};

use ractor::{Actor, ActorCell, ActorId, ActorRef};

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// A failure after so long a time of service has nothing to do with the one before.
const MEMORY: Duration = Duration::from_secs(60);

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
    /// None while it is down.
    actor: Option<ActorRef<M>>,
    back_off: BackOff,
}

impl<M> Default for SupervisedChild<M> {
    fn default() -> Self {
        Self { actor: None, back_off: BackOff::default() }
    }
}

impl<M: ractor::Message> SupervisedChild<M> {
    /// Starts it, or answers why that failed and how long to wait before the next try.
    pub(super) async fn start<A: Actor<Msg = M>>(
        &mut self,
        actor: A,
        arguments: A::Arguments,
        root: ActorCell,
    ) -> Result<(), (String, Duration)> {
        self.back_off.started(Instant::now());
        match Actor::spawn_linked(None, actor, arguments, root).await {
            Ok((actor, _)) => {
                self.actor = Some(actor);
                Ok(())
            }
            Err(error) => Err((error.to_string(), self.back_off.failed(Instant::now()))),
        }
    }

    /// What is sent while it is down is lost.
    pub(super) fn cast(&self, message: M) {
        if let Some(actor) = &self.actor {
            let _ = actor.cast(message);
        }
    }

    /// None while it is down.
    pub(super) fn actor(&self) -> Option<ActorRef<M>> {
        self.actor.clone()
    }

    pub(super) fn stop(&self) {
        if let Some(actor) = &self.actor {
            actor.stop(None);
        }
    }

    /// If it is this actor that ended: how long to wait before the next start.
    pub(super) fn ended(&mut self, ended: ActorId) -> Option<Duration> {
        self.actor.take_if(|actor| actor.get_id() == ended)?;
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
        let related = self.started.is_some_and(|started| now.saturating_duration_since(started) < MEMORY);
        self.failures = if related { self.failures.saturating_add(1) } else { 1 };
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
        assert_eq!(back_off.failed(now + MEMORY), FIRST_DELAY);
    }
}
