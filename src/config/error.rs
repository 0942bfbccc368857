//! What is wrong with a configuration, and where the operator finds it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::environment;

/// Why no configuration could be made. Displays one problem per line.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read configuration {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

/// One thing to correct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where the value was given; `None` if it is a built-in default or missing.
    pub origin: Option<Origin>,
    /// The key as it is written with dots; `None` if the file is not TOML.
    pub key: Option<String>,
    pub message: String,
}

/// Where a value was given.
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
    /// A variable that stands for exactly this key already names it.
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
