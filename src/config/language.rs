//! `[profiles.<name>.languages.<language>]`: what runs code.

use std::time::Duration;

use serde::Serialize;

use super::duration::{self, limit};
use super::profile::argument;
use super::section::{Parsed, Section};
use super::size::{self, Size};
use super::source::Raw;
use super::values::{flag, list, optional};
use crate::protocol::guest::MAX_OUTPUT;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Language {
    /// The interpreter with its arguments; the code is one more, unless it is standard input.
    pub command: Vec<String>,
    /// Put in front of the code.
    pub preamble: String,
    /// The code is the interpreter's standard input.
    pub stdin: bool,
    /// For code that comes without one.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "duration::serialize_optional")]
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

fn output(raw: &Raw) -> Parsed<Size> {
    match size::at_least(Size::from_bytes(1))(raw)? {
        size if size.bytes() > MAX_OUTPUT as u64 => Err(raw.refuse(format_args!("at most {MAX_OUTPUT} bytes"))),
        size => Ok(size),
    }
}
