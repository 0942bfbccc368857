//! A clock that stands still until it is moved, and that can be made to break.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandboxd_actors::clock::{Clock, Timestamp};

#[derive(Clone)]
pub(crate) struct TestClock(Arc<Mutex<State>>);

struct State {
    now: Timestamp,
    broken: bool,
}

impl Default for TestClock {
    fn default() -> Self {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        Self(Arc::new(Mutex::new(State { now, broken: false })))
    }
}

impl TestClock {
    pub(crate) fn advance(&self, time: Duration) {
        self.0.lock().unwrap().now += time;
    }

    /// Whoever asks for the time next panics.
    pub(crate) fn break_once(&self) {
        self.0.lock().unwrap().broken = true;
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let (now, broken) = {
            let mut state = self.0.lock().unwrap();
            (state.now, std::mem::take(&mut state.broken))
        };
        assert!(!broken, "the clock was told to break");
        now
    }
}
