//! Durations: `"90s"`, `"5m"`, `"1h 30m"`, or a number of seconds.

use std::time::Duration;

use serde::Serializer;

use super::section::Parsed;
use super::source::Raw;

/// Longer than any use, and still safe to add to a point in time.
const LONGEST: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

const EXPECTED: &str = r#"a duration such as "90s" or "5m""#;

/// Parses a duration, which may be zero.
pub(super) fn duration(raw: &Raw) -> Parsed<Duration> {
    match parse(raw) {
        Some(duration) if duration <= LONGEST => Ok(duration),
        Some(_) => Err(raw.refuse(r#"a duration of at most "3650d""#)),
        None => Err(raw.refuse(EXPECTED)),
    }
}

/// Parses a duration of at least `least`.
pub(super) fn at_least(least: Duration) -> impl Fn(&Raw) -> Parsed<Duration> {
    move |raw| match duration(raw)? {
        short if short < least => {
            Err(raw.refuse(format_args!("a duration of at least \"{}\"", humantime::format_duration(least))))
        }
        duration => Ok(duration),
    }
}

/// Parses a time limit, which is never zero.
pub(super) fn limit(raw: &Raw) -> Parsed<Duration> {
    at_least(Duration::from_millis(1))(raw)
}

pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

pub(super) fn serialize_optional<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => serialize(duration, serializer),
        None => serializer.serialize_none(),
    }
}

fn parse(raw: &Raw) -> Option<Duration> {
    let seconds = raw.integer().or_else(|| raw.text()?.trim().parse().ok());
    match seconds {
        Some(seconds) => u64::try_from(seconds).ok().map(Duration::from_secs),
        None => humantime::parse_duration(raw.text()?.trim()).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Parsed<Duration> {
        duration(&Raw::String(text.into()))
    }

    #[test]
    fn units_and_bare_seconds_are_read() {
        assert_eq!(text("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(text("300s"), Ok(Duration::from_secs(300)));
        assert_eq!(text("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(text("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(text("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(text("300"), Ok(Duration::from_secs(300)));
        assert_eq!(duration(&Raw::Integer(300)), Ok(Duration::from_secs(300)));
    }

    #[test]
    fn an_invalid_duration_is_refused_with_an_example() {
        for wrong in ["", "soon", "-5", "5 parsecs", "m5", "1.5.2s"] {
            let refusal = text(wrong).expect_err(wrong).0;
            assert_eq!(refusal, format!(r#"expected a duration such as "90s" or "5m", got {wrong:?}"#));
        }
        assert!(duration(&Raw::Integer(-1)).is_err());
        assert!(duration(&Raw::Float(1.5)).is_err());
    }

    #[test]
    fn an_endless_duration_is_refused() {
        assert_eq!(text("3650d"), Ok(LONGEST));
        assert!(text("3651d").is_err());
        assert!(duration(&Raw::Integer(i64::MAX)).is_err());
    }

    #[test]
    fn a_limit_is_never_zero() {
        assert_eq!(duration(&Raw::Integer(0)), Ok(Duration::ZERO));
        assert_eq!(limit(&Raw::Integer(0)).expect_err("zero").0, r#"expected a duration of at least "1ms", got 0"#);
    }
}
