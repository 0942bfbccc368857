//! The port to the clock. Deadlines survive a restart, so they are wall-clock times.

use chrono::{DateTime, Utc};

pub type Timestamp = DateTime<Utc>;

pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

/// The host's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Utc::now()
    }
}
