//! Raw values with their origins.
//!
//! The file and the environment become one tree; a [`Section`](super::section::Section) then reads it key by key.
//! A value from the environment stays text until its key determines the type.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::error::{Origin, Problem};

pub(super) type Table = BTreeMap<String, Node>;

/// A value or a table of the configuration.
#[derive(Clone)]
pub(super) enum Node {
    Leaf {
        raw: Raw,
        origin: Origin,
    },
    /// `origin` is `None` for a table that exists only because variables name keys below it.
    Table {
        entries: Table,
        origin: Option<Origin>,
    },
}

/// A value before its key parses it. It may be secret, hence no `Debug`.
#[derive(Clone)]
pub(super) enum Raw {
    /// From the environment or a built-in default: its key determines the type.
    Text(String),
    String(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Array(Vec<Raw>),
    /// A type that no key accepts, by its name.
    Other(&'static str),
}

/// Why a value is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) String);

/// Parses the text of the configuration file at `path`.
pub(super) fn parse_file(path: &Path, text: &str) -> Result<Table, Problem> {
    let file: Arc<Path> = path.into();
    let origin = |offset: usize| Origin::File {
        path: file.clone(),
        line: 1 + text.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count(),
    };
    // The parser's own rendering quotes the line, which may contain a secret.
    let document = DeTable::parse(text).map_err(|error| Problem {
        origin: Some(origin(error.span().map_or(0, |span| span.start))),
        key: None,
        message: error.message().lines().collect::<Vec<_>>().join(", "),
    })?;
    Ok(table(document.get_ref(), &origin))
}

fn table(entries: &DeTable<'_>, origin: &dyn Fn(usize) -> Origin) -> Table {
    let node = |start: usize, value: &DeValue<'_>| match value {
        DeValue::Table(inner) => Node::Table { entries: table(inner, origin), origin: Some(origin(start)) },
        other => Node::Leaf { raw: Raw::from_toml(other), origin: origin(start) },
    };
    entries.iter().map(|(key, value)| (key.get_ref().to_string(), node(key.span().start, value.get_ref()))).collect()
}

impl Node {
    /// Returns every origin of this node; never empty.
    pub(super) fn origins(&self) -> Vec<Origin> {
        match self {
            Node::Leaf { origin, .. } | Node::Table { origin: Some(origin), .. } => vec![origin.clone()],
            Node::Table { entries, origin: None } => entries.values().flat_map(Node::origins).collect(),
        }
    }

    /// Returns the node as a table. A variable may contain an inline table, such as `{ size = 2 }`.
    pub(super) fn into_table(self) -> Result<Table, Refusal> {
        match self {
            Node::Table { entries, .. } => Ok(entries),
            Node::Leaf { raw: Raw::Text(text), origin } => {
                match DeValue::parse(text.trim()).as_ref().map(|value| value.get_ref()) {
                    Ok(DeValue::Table(inner)) => Ok(table(inner, &|_| origin.clone())),
                    _ => Err(Refusal(r#"expected a table such as { key = "value" }"#.into())),
                }
            }
            // The error names only the kind of the value, which may be a secret.
            Node::Leaf { raw, .. } => Err(raw.refuse_redacted("a table")),
        }
    }

    /// Returns the node as a value. No key accepts a table as its value.
    pub(super) fn into_raw(self) -> Raw {
        match self {
            Node::Leaf { raw, .. } => raw,
            Node::Table { .. } => Raw::Other("a table"),
        }
    }
}

impl Raw {
    fn from_toml(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Raw::String(text.to_string()),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map_or(Raw::Other("an integer out of range"), Raw::Integer),
            DeValue::Float(number) => number.as_str().parse().map_or(Raw::Other("a number out of range"), Raw::Float),
            DeValue::Boolean(flag) => Raw::Boolean(*flag),
            DeValue::Array(items) => Raw::Array(items.iter().map(|item| Raw::from_toml(item.get_ref())).collect()),
            DeValue::Datetime(_) => Raw::Other("a date"),
            DeValue::Table(_) => Raw::Other("a table"),
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Raw::Text(text) | Raw::String(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn integer(&self) -> Option<i64> {
        match self {
            Raw::Text(text) => text.trim().parse().ok(),
            Raw::Integer(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Raw::Text(text) => text.trim().parse().ok(),
            // Exact for every plausible number.
            Raw::Integer(number) => Some(*number as f64),
            Raw::Float(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        match self {
            Raw::Text(text) => text.trim().parse().ok(),
            Raw::Boolean(flag) => Some(*flag),
            _ => None,
        }
    }

    /// Returns the items of an array. As text, it is a TOML array or a comma-separated list.
    pub(super) fn items(&self) -> Option<Vec<Raw>> {
        match self {
            Raw::Array(items) => Some(items.clone()),
            Raw::Text(text) if text.trim_start().starts_with('[') => {
                match Raw::from_toml(DeValue::parse(text.trim()).ok()?.get_ref()) {
                    Raw::Array(items) => Some(items),
                    _ => None,
                }
            }
            Raw::Text(text) if text.trim().is_empty() => Some(Vec::new()),
            Raw::Text(text) => Some(text.split(',').map(|item| Raw::Text(item.trim().into())).collect()),
            _ => None,
        }
    }

    pub(super) fn refuse(&self, expected: impl Display) -> Refusal {
        Refusal(format!("expected {expected}, got {}", self.shown()))
    }

    /// Like [`Raw::refuse`], for values that may be secret.
    pub(super) fn refuse_redacted(&self, expected: impl Display) -> Refusal {
        Refusal(format!("expected {expected}, got {}", self.kind()))
    }

    fn shown(&self) -> String {
        const LONGEST: usize = 60;
        match self {
            Raw::Text(text) | Raw::String(text) if text.chars().count() > LONGEST => {
                format!("{:?}…", text.chars().take(LONGEST).collect::<String>())
            }
            Raw::Text(text) | Raw::String(text) => format!("{text:?}"),
            Raw::Integer(number) => number.to_string(),
            Raw::Float(number) => format!("{number:?}"),
            Raw::Boolean(flag) => flag.to_string(),
            Raw::Array(_) | Raw::Other(_) => self.kind().into(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Raw::Text(_) | Raw::String(_) => "a string",
            Raw::Integer(_) => "an integer",
            Raw::Float(_) => "a number",
            Raw::Boolean(_) => "a boolean",
            Raw::Array(_) => "an array",
            Raw::Other(kind) => kind,
        }
    }
}
