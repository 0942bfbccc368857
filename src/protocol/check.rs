//! Checks of single parameters. Each error names the parameter.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandboxd_protocol::error::Error;
use sandboxd_protocol::time::Seconds;

/// The longest duration: a year. A longer one is most likely a mistake.
pub const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Longest path that the kernel accepts.
const MAX_PATH: usize = 4095;

/// Parses an id, a name or another word.
pub(super) fn parse<T>(field: &str, text: &str) -> Result<T, Error>
where
    T: FromStr,
    T::Err: Display,
{
    text.parse().map_err(|error| Error::invalid_params(field, error))
}

/// Parses an id, a name or another word that may be absent.
pub(super) fn optional<T>(field: &str, text: Option<&str>) -> Result<Option<T>, Error>
where
    T: FromStr,
    T::Err: Display,
{
    text.map(|text| parse(field, text)).transpose()
}

/// Returns a number of seconds as a duration above zero.
pub(super) fn duration(field: &str, seconds: Seconds) -> Result<Duration, Error> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() && duration <= MAX_DURATION => Ok(duration),
        _ => {
            let most = MAX_DURATION.as_secs();
            Err(Error::invalid_params(field, format!("must be seconds above 0 and up to {most}, got {seconds}")))
        }
    }
}

/// Returns an optional number of seconds as a duration above zero.
pub(super) fn optional_duration(field: &str, seconds: Option<Seconds>) -> Result<Option<Duration>, Error> {
    seconds.map(|seconds| duration(field, seconds)).transpose()
}

/// Returns a path in the guest.
pub(super) fn path(field: &str, path: String) -> Result<String, Error> {
    match &*path {
        "" => Err(Error::invalid_params(field, "must not be empty")),
        path if path.contains('\0') => Err(Error::invalid_params(field, "must not contain a null character")),
        path if path.len() > MAX_PATH => {
            Err(Error::invalid_params(field, format!("must be at most {MAX_PATH} bytes long")))
        }
        _ => Ok(path),
    }
}

/// Decodes a parameter in base64.
pub(super) fn base64(field: &str, encoded: &str) -> Result<Vec<u8>, Error> {
    STANDARD.decode(encoded).map_err(|error| Error::invalid_params(field, error))
}

/// Returns the bytes of `text` or of `base64`, of which at most one is given.
pub(super) fn bytes(text: Option<String>, encoded: Option<String>) -> Result<Option<Vec<u8>>, Error> {
    match (text, encoded) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(text.into_bytes())),
        (None, Some(encoded)) => base64("base64", &encoded).map(Some),
        (Some(_), Some(_)) => Err(Error::invalid_params("text", "base64 is given, too")),
    }
}

/// Returns the permissions of a file.
pub(super) fn mode(mode: Option<u32>) -> Result<Option<u32>, Error> {
    match mode {
        Some(mode) if mode > 0o7777 => {
            Err(Error::invalid_params("mode", format!("must be from 0 to {} (octal 7777), got {mode}", 0o7777)))
        }
        mode => Ok(mode),
    }
}
