//! What was looked at, what to think of it, and what to do about it.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub status: Status,
    pub message: String,
    /// Absent where there is nothing to do.
    pub advice: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    /// It works, but not as well, or not for as long, as it could.
    Warning,
    /// Something that was asked for does not work.
    Problem,
}

impl Check {
    pub fn ok(name: &str, message: impl Into<String>) -> Self {
        Check { name: name.to_owned(), status: Status::Ok, message: message.into(), advice: None }
    }

    pub fn warning(name: &str, message: impl Into<String>, advice: impl Into<String>) -> Self {
        let (message, advice) = (message.into(), Some(advice.into()));
        Check { name: name.to_owned(), status: Status::Warning, message, advice }
    }

    pub fn problem(name: &str, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Check { status: Status::Problem, ..Self::warning(name, message, advice) }
    }
}

/// All of them, as they are told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    pub checks: Vec<Check>,
}

impl Checks {
    /// The worst there is.
    pub fn status(&self) -> Status {
        self.checks.iter().map(|check| check.status).max().unwrap_or(Status::Ok)
    }
}
