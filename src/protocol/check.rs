//! How parameters are read: each field once, and a wrong one is named.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::error::{Error, Kind};
use super::request::Text;

/// A year: beyond it, a number of seconds is more likely a mistake than a wish.
pub const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoFields {}

pub(super) fn fields<'a, T: Deserialize<'a>>(params: &'a str) -> Result<T, Error> {
    // Serde would take an array for the fields in the order of their declaration, which is nothing to rely on.
    if !params.starts_with('{') {
        return Err(Kind::InvalidParams.error("params must be an object"));
    }
    // Tracking the path costs an allocation for each field, so it is done only once there is an error to explain.
    serde_json::from_str(params).map_err(|error| match explained::<T>(params) {
        Some((field, message)) => Error::invalid_params(&field, message),
        None => Kind::InvalidParams.error(error.to_string()),
    })
}

fn explained<'a, T: Deserialize<'a>>(params: &'a str) -> Option<(String, String)> {
    let error = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_str(params)).err()?;
    let message = error.inner().to_string();
    // The position counts from the beginning of the parameters, not of the line, and helps nobody.
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message).to_owned();
    let field: String = error.path().to_string().chars().take(128).collect();
    (field != ".").then_some((field, message))
}

pub(super) fn required<T>(field: &str, text: Option<Text<'_>>) -> Result<T, Error>
where
    T: FromStr,
    T::Err: Display,
{
    optional(field, text)?.ok_or_else(|| Error::invalid_params(field, "is required"))
}

pub(super) fn optional<T>(field: &str, text: Option<Text<'_>>) -> Result<Option<T>, Error>
where
    T: FromStr,
    T::Err: Display,
{
    text.map(|Text(text)| text.parse()).transpose().map_err(|error| Error::invalid_params(field, error))
}

pub(super) fn required_duration(field: &str, seconds: Option<f64>) -> Result<Duration, Error> {
    duration(field, seconds)?.ok_or_else(|| Error::invalid_params(field, "is required"))
}

pub(super) fn duration(field: &str, seconds: Option<f64>) -> Result<Option<Duration>, Error> {
    let Some(seconds) = seconds else { return Ok(None) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() && duration <= MAX_DURATION => Ok(Some(duration)),
        _ => {
            let most = MAX_DURATION.as_secs();
            Err(Error::invalid_params(field, format!("must be seconds above 0 and up to {most}, got {seconds}")))
        }
    }
}
