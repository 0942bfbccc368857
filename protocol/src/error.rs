//! Errors: the table of kinds, and the error object of an answer.

mod details;
mod kinds;

use std::fmt;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::details::{LimitKey, StartFailureCause};
pub use self::kinds::ErrorKind;

impl ErrorKind {
    /// Returns an error of this kind, without details, and retryable if the kind is.
    pub fn error(self, message: impl Into<String>) -> Error {
        let data = ErrorData { kind: self, retryable: self.is_retryable(), details: Map::new() };
        Error { code: self.code(), message: message.into(), data }
    }
}

/// The error object of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Error {
    /// JSON-RPC code of the kind.
    pub code: i32,
    /// Failure, cause and remedy, for people.
    pub message: String,
    /// The error for programs.
    pub data: ErrorData,
}

/// An error for programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorData {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Details that depend on the kind; may be empty.
    pub details: Map<String, Value>,
}

impl Error {
    /// Returns the error for a parameter that is not acceptable.
    pub fn invalid_params(field: &str, message: impl fmt::Display) -> Error {
        ErrorKind::InvalidParams.error(format!("{field}: {message}")).with("field", field)
    }

    /// Adds a detail.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Error {
        self.data.details.insert(name.to_owned(), value.into());
        self
    }

    /// Returns a detail, or `None` if it is absent or has another type.
    pub fn detail<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        T::deserialize(self.data.details.get(name)?).ok()
    }

    /// Sets whether the same request may succeed later.
    pub fn retryable(mut self, retryable: bool) -> Error {
        self.data.retryable = retryable;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn kinds_and_codes_correspond_one_to_one() {
        let kinds: HashSet<_> = ErrorKind::ALL.map(ErrorKind::as_str).into();
        let codes: HashSet<_> = ErrorKind::ALL.map(ErrorKind::code).into();
        assert_eq!((kinds.len(), codes.len()), (ErrorKind::ALL.len(), ErrorKind::ALL.len()));
    }

    #[test]
    fn an_error_is_written_and_read() {
        let error = ErrorKind::Internal.error("no answer").retryable(true).with("chat_id", "c");
        let json = concat!(
            r#"{"code":-32603,"message":"no answer","#,
            r#""data":{"kind":"internal","retryable":true,"details":{"chat_id":"c"}}}"#
        );
        assert_eq!(serde_json::to_string(&error).unwrap(), json);
        assert_eq!(serde_json::from_str::<Error>(json).unwrap(), error);
        assert_eq!((error.detail("chat_id"), error.detail("owed")), (Some("c".to_owned()), None::<bool>));
    }
}
