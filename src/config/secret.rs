//! Secret values, which are never shown.

use std::fmt;

use serde::{Serialize, Serializer};

use super::section::Parsed;
use super::source::Raw;

/// A text that `Debug` and serialisation redact.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

const REDACTED: &str = "<redacted>";

impl Secret {
    /// Returns the text itself, for passing it to the sandbox.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret(text)
    }
}

pub(super) fn secret(raw: &Raw) -> Parsed<Secret> {
    match raw.text() {
        Some(text) if !text.contains('\0') => Ok(Secret(text.into())),
        Some(_) => Err(raw.refuse_redacted("a string without NUL")),
        None => Err(raw.refuse_redacted("a string")),
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}
