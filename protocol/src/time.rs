//! Points in time and durations.

use std::borrow::Cow;

use chrono::{DateTime, SecondsFormat, Utc};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

/// Duration in seconds, with fractions. The service accepts durations above 0 and up to 31536000, which is a year.
pub type Seconds = f64;

/// Point in time: RFC 3339 in UTC with milliseconds, such as `2026-01-31T09:30:00.000Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub DateTime<Utc>);

impl Time {
    /// Last millisecond of the year 9999, since RFC 3339 has years of four digits.
    const LAST_MILLISECOND: i64 = 253_402_300_799_999;
}

impl From<DateTime<Utc>> for Time {
    fn from(time: DateTime<Utc>) -> Self {
        Time(time)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let last = DateTime::from_timestamp_millis(Self::LAST_MILLISECOND).unwrap_or(self.0);
        serializer.serialize_str(&self.0.min(last).to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match DateTime::parse_from_rfc3339(&text) {
            Ok(time) => Ok(Time(time.to_utc())),
            Err(error) => Err(D::Error::custom(format!("expected a time as of RFC 3339, got {text:?}: {error}"))),
        }
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_milliseconds_and_stay_within_rfc_3339() {
        let written = |time| serde_json::to_value(Time(time)).unwrap();
        let noon = DateTime::from_timestamp(1_709_208_000, 999_999).unwrap();
        assert_eq!(written(noon), "2024-02-29T12:00:00.000Z");
        assert_eq!(written(DateTime::<Utc>::MAX_UTC), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn times_are_read_from_any_offset() {
        let read = |text: &str| serde_json::from_value::<Time>(text.into());
        let noon = DateTime::from_timestamp(1_709_208_000, 0).unwrap();
        assert_eq!(read("2024-02-29T14:00:00+02:00").unwrap(), Time(noon));
        assert!(read("yesterday").unwrap_err().to_string().contains("got \"yesterday\""));
    }
}
