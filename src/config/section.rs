//! Reads one table of the configuration, key by key.
//!
//! A section returns each key once, with its default. Keys that no reader asked for are refused, so only the reading
//! functions define which keys exist. A wrong value is reported and replaced by the default, so that one pass finds all
//! problems.

use std::collections::{BTreeMap, BTreeSet};

use super::environment;
use super::error::{Origin, Problem};
use super::source::{Node, Raw, Refusal, Table};
use super::suggest;

pub(super) type Parsed<T> = Result<T, Refusal>;

/// The problems and keys found while reading.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) problems: Vec<Problem>,
    /// Every key that a reader asked for, whether or not it is set.
    pub(super) keys: BTreeSet<String>,
    origins: BTreeMap<String, Origin>,
}

impl Report {
    /// Adds a problem with the value of `key`.
    pub(super) fn refuse(&mut self, key: &str, message: impl Into<String>) {
        self.problems.push(Problem {
            origin: self.origins.get(key).cloned(),
            key: Some(key.into()),
            message: message.into(),
        });
    }
}

/// A table of the configuration while it is read.
pub(super) struct Section<'r> {
    path: String,
    given: Table,
    known: Vec<&'static str>,
    report: &'r mut Report,
}

impl<'r> Section<'r> {
    /// Reads the whole configuration.
    pub(super) fn root<T>(given: Table, report: &'r mut Report, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        Section::new(String::new(), given, report).finish(read)
    }

    fn new(path: String, given: Table, report: &'r mut Report) -> Self {
        Section { path, given, known: Vec::new(), report }
    }

    fn finish<T>(mut self, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let value = read(&mut self);
        self.refuse_unknown_keys();
        value
    }

    /// Returns the value of `key`; `default` is in the form of the file.
    pub(super) fn get<T>(&mut self, key: &'static str, default: &'static str, parse: impl Fn(&Raw) -> Parsed<T>) -> T {
        let (path, node) = self.take(key);
        self.report.keys.insert(path.clone());
        let given = node.and_then(|node| self.keep(&path, parse(&node.into_raw())));
        given.unwrap_or_else(|| parse(&Raw::Text(default.into())).expect("a built-in default is right"))
    }

    /// Returns the entries of the table `key`, whose names the operator chooses.
    pub(super) fn map<K: Ord, V>(
        &mut self,
        key: &'static str,
        name: impl Fn(&str) -> Parsed<K>,
        value: impl Fn(&Raw) -> Parsed<V>,
    ) -> BTreeMap<K, V> {
        let (path, node) = self.take(key);
        self.report.keys.insert(path.clone());
        let mut map = BTreeMap::new();
        for (entry, node) in self.entries(&path, node) {
            let path = self.locate(&path, &entry, &node);
            let parsed = name(&entry).and_then(|name| Ok((name, value(&node.into_raw())?)));
            map.extend(self.keep(&path, parsed));
        }
        map
    }

    /// Reads the table `key`.
    pub(super) fn section<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let (path, node) = self.take(key);
        let entries = self.entries(&path, node);
        Section::new(path, entries, self.report).finish(read)
    }

    /// Reads the tables in the table `key`, whose names the operator chooses. The tables of `always` are read even if
    /// missing.
    pub(super) fn sections<T>(
        &mut self,
        key: &'static str,
        always: &[&str],
        name: impl Fn(&str) -> Parsed<()>,
        read: impl Fn(&str, &mut Section<'_>) -> T,
    ) -> BTreeMap<String, T> {
        let (path, node) = self.take(key);
        let mut tables = self.entries(&path, node);
        for name in always {
            tables.entry((*name).into()).or_insert(Node::Table { entries: Table::new(), origin: None });
        }
        let mut map = BTreeMap::new();
        for (entry, node) in tables {
            let path = self.locate(&path, &entry, &node);
            if self.keep(&path, name(&entry)).is_none() {
                continue;
            }
            let entries = self.entries(&path, Some(node));
            let value = Section::new(path, entries, self.report).finish(|section| read(&entry, section));
            map.insert(entry, value);
        }
        map
    }

    fn take(&mut self, key: &'static str) -> (String, Option<Node>) {
        self.known.push(key);
        let node = self.given.remove(key);
        let path = match &node {
            Some(node) => self.locate(&self.path.clone(), key, node),
            None => joined(&self.path, key),
        };
        (path, node)
    }

    /// Returns the full name of an entry, and stores its origin for later problems.
    fn locate(&mut self, table: &str, key: &str, node: &Node) -> String {
        let path = joined(table, key);
        if let Some(origin) = node.origins().into_iter().next() {
            self.report.origins.insert(path.clone(), origin);
        }
        path
    }

    fn entries(&mut self, path: &str, node: Option<Node>) -> Table {
        let table = node.map_or_else(|| Ok(Table::new()), Node::into_table);
        self.keep(path, table).unwrap_or_default()
    }

    fn keep<T>(&mut self, path: &str, parsed: Parsed<T>) -> Option<T> {
        parsed.map_err(|refusal| self.report.refuse(path, refusal.0)).ok()
    }

    fn refuse_unknown_keys(&mut self) {
        let kind = if self.path.is_empty() { "section" } else { "key" };
        for (key, node) in std::mem::take(&mut self.given) {
            let near = suggest::nearest(&key, self.known.iter().copied());
            for origin in node.origins() {
                let hint = match (near, &origin) {
                    (None, _) => format!("known here: {}", self.known.join(", ")),
                    (Some(near), Origin::File { .. }) => format!("did you mean {near:?}?"),
                    (Some(near), Origin::Variable(_)) if matches!(node, Node::Leaf { .. }) => {
                        format!("did you mean {}?", environment::variable(&joined(&self.path, near)))
                    }
                    (Some(near), Origin::Variable(_)) => {
                        format!("did you mean {}__…?", environment::variable(&joined(&self.path, near)))
                    }
                };
                self.report.problems.push(Problem {
                    origin: Some(origin),
                    key: Some(joined(&self.path, &key)),
                    message: format!("unknown {kind}, {hint}"),
                });
            }
        }
    }
}

/// Returns a dotted name, with quotes where TOML requires them.
fn joined(table: &str, key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let key = match !key.is_empty() && key.chars().all(bare) {
        true => key.to_owned(),
        false => format!("{key:?}"),
    };
    match table.is_empty() {
        true => key,
        false => format!("{table}.{key}"),
    }
}
