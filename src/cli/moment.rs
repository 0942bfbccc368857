//! Times and durations for tables.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sandboxd_protocol::time::Time;

/// Formats a time relative to `now`: "in 4m 10s", "3h 2m ago".
pub(super) fn relative(Time(at): Time, now: DateTime<Utc>) -> String {
    let distance = (at - now).num_seconds();
    let length = length(Duration::from_secs(distance.unsigned_abs()));
    match distance {
        0 => "now".to_owned(),
        1.. => format!("in {length}"),
        _ => format!("{length} ago"),
    }
}

/// Formats a duration with its two largest units.
pub(super) fn length(duration: Duration) -> String {
    let whole = humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string();
    whole.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;

    #[test]
    fn two_units_are_enough() {
        let now = Utc::now();
        for (seconds, shown) in [
            (250, "in 4m 10s"),
            (-60, "1m ago"),
            (0, "now"),
            (7 * 3600 + 62, "in 7h 1m"),
            (-(26 * 3600 + 5), "1day 2h ago"),
        ] {
            assert_eq!(relative(Time(now + TimeDelta::seconds(seconds)), now), shown);
        }
    }
}
