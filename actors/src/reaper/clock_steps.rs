//! Notices when the wall clock and the passing of time disagree: somebody set the clock, or the host slept.

use chrono::TimeDelta;
use tokio::time::Instant;

use crate::ports::clock::Timestamp;

/// Less than this is a busy host or a clock being slewed, and harmless.
const TOLERANCE: TimeDelta = TimeDelta::seconds(5);

#[derive(Debug, Default)]
pub struct ClockSteps {
    last: Option<(Timestamp, Instant)>,
}

impl ClockSteps {
    /// How far the wall clock has jumped since the last look, if it has.
    pub fn observe(&mut self, wall: Timestamp, monotonic: Instant) -> Option<TimeDelta> {
        let (last_wall, last_monotonic) = self.last.replace((wall, monotonic))?;
        let passed = TimeDelta::from_std(monotonic.saturating_duration_since(last_monotonic)).ok()?;
        let jump = (wall - last_wall) - passed;
        (jump.abs() > TOLERANCE).then_some(jump)
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
    fn a_clock_that_was_set_and_a_host_that_slept_are_told_apart_from_nothing() {
        let (mut steps, start) = (ClockSteps::default(), Instant::now());
        steps.observe(wall(0), start);
        let hour = steps.observe(wall(3601), start + Duration::from_secs(1));
        assert_eq!(hour, Some(TimeDelta::seconds(3600)));
        let back = steps.observe(wall(2), start + Duration::from_secs(2));
        assert_eq!(back, Some(TimeDelta::seconds(-3600)));
        assert_eq!(steps.observe(wall(3), start + Duration::from_secs(3)), None, "reported once");
    }
}
