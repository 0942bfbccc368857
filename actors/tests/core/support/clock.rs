//! A clock that stands still until it is moved, and that can be made to break.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandboxd_actors::ports::clock::{Clock, Timestamp};

#[derive(Clone)]
pub(crate) struct TestClock(Arc<Mutex<State>>);

struct State {
    now: Timestamp,
    /// After so many more questions.
    breaks_after: Option<usize>,
}

impl Default for TestClock {
    fn default() -> Self {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        Self(Arc::new(Mutex::new(State { now, breaks_after: None })))
    }
}

impl TestClock {
    pub(crate) fn advance(&self, time: Duration) {
        self.0.lock().unwrap().now += time;
    }

    /// Whoever asks for the time next panics.
    pub(crate) fn break_once(&self) {
        self.break_after(0);
    }

    /// Whoever asks for the time after so many others panics.
    pub(crate) fn break_after(&self, others: usize) {
        self.0.lock().unwrap().breaks_after = Some(others);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let (now, broken) = {
            let mut state = self.0.lock().unwrap();
            let broken = state.breaks_after == Some(0);
            state.breaks_after = state.breaks_after.and_then(|others| others.checked_sub(1));
            (state.now, broken)
        };
        assert!(!broken, "the clock was told to break");
        now
    }
}
