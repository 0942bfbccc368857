//! `[profiles.<name>.languages.<language>]`: what runs code.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::duration::{self, limit};
use super::profile::argument;
use super::section::{Parsed, Section};
use super::size::{self, Size};
use super::source::{Raw, Refusal};
use super::values::{flag, list, optional};
use crate::protocol::inside::MAX_OUTPUT;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Language {
    /// The interpreter with its arguments; the code is one more, unless it is standard input.
    pub command: Vec<String>,
    /// Put in front of the code.
    pub preamble: String,
    /// The code is the interpreter's standard input.
    pub stdin: bool,
    /// For code that comes without one.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialize_timeout")]
    pub timeout: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output: Option<Size>,
}

/// Languages that every profile has.
pub(super) const BUILT_IN: [&str; 2] = ["python", "sh"];

impl Language {
    pub(super) fn read(name: &str, section: &mut Section<'_>) -> Self {
        let command = match name {
            "python" => "python3,-c",
            "sh" => "/bin/sh,-c",
            // Nobody knows but the operator, which is checked where all is read.
            _ => "",
        };
        Language {
            command: section.get("command", command, list(argument)),
            preamble: section.get("preamble", "", argument),
            stdin: section.get("stdin", "false", flag),
            timeout: section.get("timeout", "", optional(limit)),
            max_output: section.get("max_output", "", optional(output)),
        }
    }
}

/// A name that the environment can spell: there, `_` stands for `-`.
pub(super) fn language_name(name: &str) -> Parsed<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    match !name.is_empty() && name.len() <= 63 && name.chars().all(plain) {
        true => Ok(()),
        false => Err(Refusal("expected a language's name of a-z, 0-9 and -".into())),
    }
}

fn output(raw: &Raw) -> Parsed<Size> {
    match size::at_least(Size::from_bytes(1))(raw)? {
        size if size.bytes() > MAX_OUTPUT as u64 => Err(raw.refuse(format_args!("at most {MAX_OUTPUT} bytes"))),
        size => Ok(size),
    }
}

fn serialize_timeout<S: Serializer>(timeout: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match timeout {
        Some(timeout) => duration::serialize(timeout, serializer),
        None => serializer.serialize_none(),
    }
}
