//! Environment variables of a sandbox. Their values may be secrets, so they are never printed.

use std::collections::BTreeMap;
use std::fmt;

/// Environment variables. `Debug` shows only the names.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Environment(BTreeMap<String, String>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVariable {
    #[error("the name of a variable must not be empty")]
    EmptyName,
    #[error("the name {0:?} must not contain '=', white space or control characters")]
    BadName(String),
    #[error("the value of {0:?} must not contain a NUL character")]
    NulInValue(String),
    #[error("{0:?} is reserved: the service sets it")]
    Reserved(String),
}

/// The variable that the service sets in every sandbox.
pub const AGENT_ID: &str = "AGENT_ID";

impl Environment {
    /// Validates the variables of a caller or of the configuration.
    pub fn checked(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, InvalidVariable> {
        let mut checked = BTreeMap::new();
        for (name, value) in variables {
            if name.is_empty() {
                return Err(InvalidVariable::EmptyName);
            }
            if name.chars().any(|c| c == '=' || c.is_whitespace() || c.is_control()) {
                return Err(InvalidVariable::BadName(name));
            }
            if name == AGENT_ID {
                return Err(InvalidVariable::Reserved(name));
            }
            if value.contains('\0') {
                return Err(InvalidVariable::NulInValue(name));
            }
            checked.insert(name, value);
        }
        Ok(Self(checked))
    }

    /// Creates an environment from recorded variables, which are valid.
    pub fn recorded(variables: BTreeMap<String, String>) -> Self {
        Self(variables)
    }

    /// Returns these variables, overridden by those of `over`.
    pub fn overlaid(&self, over: &Environment) -> Environment {
        let mut merged = self.0.clone();
        merged.extend(over.0.iter().map(|(name, value)| (name.clone(), value.clone())));
        Environment(merged)
    }

    pub fn with(mut self, name: &str, value: &str) -> Environment {
        self.0.insert(name.to_owned(), value.to_owned());
        self
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(variables: &[(&str, &str)]) -> Result<Environment, InvalidVariable> {
        Environment::checked(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())))
    }

    #[test]
    fn values_are_never_printed() {
        let environment = checked(&[("TOKEN", "hunter2")]).unwrap();
        let shown = format!("{environment:?}");
        assert!(shown.contains("TOKEN") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn names_that_an_environment_cannot_hold_are_refused() {
        for name in ["", "A=B", "A B", "A\0"] {
            assert!(checked(&[(name, "x")]).is_err(), "{name:?}");
        }
        assert!(checked(&[("A", "x\0y")]).is_err());
        assert_eq!(checked(&[("AGENT_ID", "x")]), Err(InvalidVariable::Reserved("AGENT_ID".into())));
    }

    #[test]
    fn the_more_specific_value_wins() {
        let profile = checked(&[("A", "1"), ("B", "1")]).unwrap();
        let request = checked(&[("B", "2")]).unwrap();
        let merged = profile.overlaid(&request);
        assert_eq!(merged.iter().collect::<Vec<_>>(), [("A", "1"), ("B", "2")]);
    }
}
