//! A clock that the test advances, and that can be made to panic.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandboxd_actors::ports::clock::{Clock, Timestamp};

#[derive(Clone)]
pub(crate) struct TestClock(Arc<Mutex<State>>);

struct State {
    now: Timestamp,
    /// The number of further reads before a panic.
    panics_after: Option<usize>,
}

impl Default for TestClock {
    fn default() -> Self {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        Self(Arc::new(Mutex::new(State { now, panics_after: None })))
    }
}

impl TestClock {
    pub(crate) fn advance(&self, time: Duration) {
        self.0.lock().unwrap().now += time;
    }

    /// Makes the next read panic.
    pub(crate) fn panic_once(&self) {
        self.panic_after(0);
    }

    /// Makes a read panic after this number of other reads.
    pub(crate) fn panic_after(&self, others: usize) {
        self.0.lock().unwrap().panics_after = Some(others);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let (now, panics) = {
            let mut state = self.0.lock().unwrap();
            let panics = state.panics_after == Some(0);
            state.panics_after = state.panics_after.and_then(|others| others.checked_sub(1));
            (state.now, panics)
        };
        assert!(!panics, "the clock panics as set by the test");
        now
    }
}
