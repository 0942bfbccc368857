//! Detects steps of the wall clock against the monotonic clock: the clock was set, or the host slept.

use chrono::TimeDelta;
use tokio::time::Instant;

use crate::ports::clock::Timestamp;

/// A smaller difference is a busy host or a slewed clock, and harmless.
const TOLERANCE: TimeDelta = TimeDelta::seconds(5);

#[derive(Debug, Default)]
pub struct ClockSteps {
    last: Option<(Timestamp, Instant)>,
}

impl ClockSteps {
    /// Returns the step of the wall clock since the last call.
    pub fn observe(&mut self, wall: Timestamp, monotonic: Instant) -> Option<TimeDelta> {
        let (last_wall, last_monotonic) = self.last.replace((wall, monotonic))?;
        let passed = TimeDelta::from_std(monotonic.saturating_duration_since(last_monotonic)).ok()?;
        let step = (wall - last_wall) - passed;
        (step.abs() > TOLERANCE).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn wall(seconds: i64) -> Timestamp {
        Timestamp::from_timestamp(1_000_000 + seconds, 0).unwrap()
    }

    #[test]
    fn ordinary_time_is_no_step() {
        let (mut steps, start) = (ClockSteps::default(), Instant::now());
        assert_eq!(steps.observe(wall(0), start), None);
        assert_eq!(steps.observe(wall(60), start + Duration::from_secs(60)), None);
        assert_eq!(steps.observe(wall(63), start + Duration::from_secs(61)), None, "slewed");
    }

    #[test]
    fn a_step_in_either_direction_is_reported_once() {
        let (mut steps, start) = (ClockSteps::default(), Instant::now());
        steps.observe(wall(0), start);
        let hour = steps.observe(wall(3601), start + Duration::from_secs(1));
        assert_eq!(hour, Some(TimeDelta::seconds(3600)));
        let back = steps.observe(wall(2), start + Duration::from_secs(2));
        assert_eq!(back, Some(TimeDelta::seconds(-3600)));
        assert_eq!(steps.observe(wall(3), start + Duration::from_secs(3)), None, "reported once");
    }
}
