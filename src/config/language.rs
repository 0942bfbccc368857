//! `[profiles.<name>.languages.<language>]`: the interpreters of code.

use std::time::Duration;

use serde::Serialize;

use super::duration::{self, limit};
use super::profile::argument;
use super::section::{Parsed, Section};
use super::size::{self, Size};
use super::source::Raw;
use super::values::{flag, list, optional};
use crate::protocol::guest::MAX_OUTPUT;

/// The interpreter of a language.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Language {
    /// The interpreter with its arguments. The code is one more argument, unless `stdin` is set.
    pub command: Vec<String>,
    /// Prepended to the code.
    pub preamble: String,
    /// Whether the code is the interpreter's standard input.
    pub stdin: bool,
    /// The limit for a request without one.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "duration::serialize_optional")]
    pub timeout: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output: Option<Size>,
}

/// The languages of every profile.
pub(super) const BUILT_IN: [&str; 2] = ["python", "sh"];

impl Language {
    pub(super) fn read(name: &str, section: &mut Section<'_>) -> Self {
        let command = match name {
            "python" => "python3,-c",
            "sh" => "/bin/sh,-c",
            // Other languages have no default command; `validate` requires one.
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
