//! Of `sandbox.logs` and `sandbox.stats`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::ports::engine::logs::LogRange;
use serde::Deserialize;

use crate::protocol::error::Error;
use crate::protocol::fields::{duration, required};
use crate::protocol::guest::GuestRequest;
use crate::protocol::request::Text;

/// More often than this, looking costs more than it shows.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogsFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    tail: Option<u32>,
    since: Option<DateTime<Utc>>,
    follow: Option<bool>,
}

impl LogsFields<'_> {
    pub(super) fn checked(self) -> Result<(ChatId, GuestRequest), Error> {
        let tail = self.tail.map(|lines| lines as usize);
        let range = LogRange { tail, since: self.since, follow: self.follow.unwrap_or_default() };
        Ok((required("chat_id", self.chat_id)?, GuestRequest::Logs(range)))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StatsFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    interval: Option<f64>,
}

impl StatsFields<'_> {
    pub(super) fn checked(self) -> Result<(ChatId, GuestRequest), Error> {
        let interval = duration("interval", self.interval)?;
        if interval.is_some_and(|interval| interval < LEAST_INTERVAL) {
            let message = format!("must be at least {} seconds", LEAST_INTERVAL.as_secs_f64());
            return Err(Error::invalid_params("interval", message));
        }
        Ok((required("chat_id", self.chat_id)?, GuestRequest::Stats { interval }))
    }
}
