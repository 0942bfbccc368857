//! `SANDBOXD_<SECTION>__<KEY>`: environment variables that override keys.
//!
//! Names are upper case and `__` stands for the dot: `SANDBOXD_ENGINE__TIMEOUTS__CREATE` is `engine.timeouts.create`.
//! - A `-` in the name of a profile, a language, a repository or a registry is written `_`:
//!   `SANDBOXD_PROFILES__DATA_SCIENCE__MEMORY` is `profiles.data-science.memory`.
//! - The text after `__ENV__` is the name of a variable of the sandbox, unchanged.
//! - Names without `__` (`SANDBOXD_SOCKET`, `SANDBOXD_LOG`) and `SANDBOXD_TEST_…` are not configuration.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::error::{Origin, Problem};
use super::source::{Node, Raw, Table};

const PREFIX: &str = "SANDBOXD_";
const SEPARATOR: &str = "__";

/// Returns the variable that overrides `key`.
pub(super) fn variable(key: &str) -> String {
    let name = key.replace('-', "_").replace('.', SEPARATOR).to_ascii_uppercase();
    format!("{PREFIX}{name}")
}

/// Overrides the keys of the file by the variables of `environment`.
pub(super) fn overlay(
    tree: &mut Table,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    problems: &mut Vec<Problem>,
) {
    // Sorted, so that a whole table comes before its single keys.
    let variables: BTreeMap<Vec<String>, (String, OsString)> = environment
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter_map(|(name, value)| Some((path(&name)?, (name, value))))
        .collect();
    for (path, (name, value)) in variables {
        let origin = Origin::Variable(name);
        let outcome = match value.into_string() {
            Ok(text) => insert(tree, &path, text, &origin),
            Err(_) => Err("expected text in UTF-8".into()),
        };
        if let Err(message) = outcome {
            problems.push(Problem { origin: Some(origin), key: Some(path.join(".")), message });
        }
    }
}

/// Returns the path of the key that `name` sets, or `None` if it is not configuration.
fn path(name: &str) -> Option<Vec<String>> {
    let rest = name.strip_prefix(PREFIX)?;
    if rest.starts_with("TEST_") || !rest.contains(SEPARATOR) {
        return None;
    }
    let mut parts: Vec<&str> = rest.split(SEPARATOR).collect();
    let inside_profile = parts[0] == "PROFILES";
    let mut verbatim = None;
    if inside_profile && parts.len() > 3 && parts[2] == "ENV" {
        verbatim = rest.splitn(4, SEPARATOR).nth(3);
        parts.truncate(3);
    }
    let mut path: Vec<String> = parts.into_iter().map(flip_case).collect();
    if inside_profile {
        path[1] = path[1].replace('_', "-");
        if path.len() > 3 && path[2] == "languages" {
            path[3] = path[3].replace('_', "-");
        }
    }
    if matches!(path[0].as_str(), "repositories" | "registries") {
        path[1] = path[1].replace('_', "-");
    }
    path.extend(verbatim.map(String::from));
    Some(path)
}

/// Swaps the case: keys are lower case and variables upper case, so a lower-case variable becomes an unknown key.
fn flip_case(part: &str) -> String {
    let flip = |c: char| match c.is_ascii_lowercase() {
        true => c.to_ascii_uppercase(),
        false => c.to_ascii_lowercase(),
    };
    part.chars().map(flip).collect()
}

fn insert(table: &mut Table, path: &[String], text: String, origin: &Origin) -> Result<(), String> {
    let Some((key, rest)) = path.split_first() else {
        return Ok(());
    };
    if rest.is_empty() {
        let leaf = Node::Leaf { raw: Raw::Text(text), origin: origin.clone() };
        table.insert(key.clone(), leaf);
        return Ok(());
    }
    let (mut entries, place) = match table.remove(key) {
        None => (Table::new(), None),
        Some(Node::Table { entries, origin }) => (entries, origin),
        Some(leaf) => {
            let place = leaf.origins().into_iter().next();
            let described = place.as_ref().map(Origin::to_string).unwrap_or_default();
            let refused = |_| format!("{described} already gives {key:?} a value that is not a table");
            (leaf.into_table().map_err(refused)?, place)
        }
    };
    let outcome = insert(&mut entries, rest, text, origin);
    table.insert(key.clone(), Node::Table { entries, origin: place });
    outcome
}
