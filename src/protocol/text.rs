//! Values that are written as text.

use std::fmt::Display;

use chrono::{DateTime, SecondsFormat};
use sandboxd_actors::ports::clock::Timestamp;
use serde::{Serialize, Serializer};

/// Written as it is displayed.
#[derive(Debug)]
pub(super) struct Shown<T>(pub(super) T);

impl<T: Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// RFC 3339 in UTC, to the millisecond.
#[derive(Debug)]
pub(super) struct Time(pub(super) Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // RFC 3339 has years of four digits.
        const LAST_MILLISECOND: i64 = 253_402_300_799_999;
        let last = DateTime::from_timestamp_millis(LAST_MILLISECOND).unwrap_or(self.0);
        serializer.serialize_str(&self.0.min(last).to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}
