//! The problems of a configuration, with their origins.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::environment;

/// Why the configuration cannot be used. Displays one problem per line.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read configuration {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

/// A problem with one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The origin of the value; `None` for a built-in default or a missing value.
    pub origin: Option<Origin>,
    /// The dotted key; `None` if the file is not TOML.
    pub key: Option<String>,
    pub message: String,
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    File { path: Arc<Path>, line: usize },
    Variable(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        match &self.key {
            Some(key) if !self.named_by_variable(key) => write!(f, "{key}: {}", self.message),
            _ => f.write_str(&self.message),
        }
    }
}

impl Problem {
    /// Returns whether the origin is the variable of exactly this key, so that the key need not be repeated.
    fn named_by_variable(&self, key: &str) -> bool {
        matches!(&self.origin, Some(Origin::Variable(name)) if *name == environment::variable(key))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Variable(name) => f.write_str(name),
        }
    }
}

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}
