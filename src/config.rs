//! The configuration: one TOML file. Every key is optional, and an environment variable can override it.
//!
//! ```text
//! file (--config, or /etc/sandboxd/sandboxd.toml if it exists) ───┐
//!                                                                 ├─ source: one tree, each value with its origin
//! SANDBOXD_<SECTION>__<KEY> ─ environment ────────────────────────┘
//!                              │ section: each key read once, with its default and its kind
//!                              │ validate: rules between keys
//!                              └─ Config, or every problem with file, line and key
//! ```
//!
//! `config/sandboxd.toml` documents each key. Apart from reading the file, this module does not touch the system.
//! Neither `Debug`, `Display` nor an error prints the value of a sandbox's environment variable.

mod capability;
mod duration;
mod engine;
mod environment;
mod error;
mod identity;
mod images;
mod language;
mod profile;
mod registry;
mod secret;
mod section;
mod service;
mod size;
mod socket;
mod source;
mod suggest;
#[cfg(test)]
mod tests;
mod validate;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;

use serde::Serialize;

pub use engine::{Engine, EngineHost, EngineKind, Timeouts};
pub use error::{ConfigError, Origin, Problem};
pub use identity::{Mode, Principal, User};
pub use images::{Gc, Images, Repository};
pub use language::Language;
pub use profile::{HostMount, Network, OnExpire, Pool, Profile, Readiness, ReadinessKind, Restart};
pub use registry::Registry;
pub use secret::Secret;
pub use service::{
    Chats, Events, Http, Instance, Leases, Log, LogFormat, Metrics, Mounts, Reaper, Reconciler, SandboxLimits,
    Shutdown, Snapshots, State, Teardown, Volumes,
};
pub use size::Size;
pub use socket::Socket;

use section::{Report, Section};
use source::Table;

/// The configuration file if none is named. It need not exist.
pub const DEFAULT_FILE: &str = "/etc/sandboxd/sandboxd.toml";

/// The profile of a sandbox whose create request names none.
pub const DEFAULT_PROFILE: &str = "default";

/// The effective configuration. `Display` writes it as TOML, without secrets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    pub instance: Instance,
    pub socket: Socket,
    pub state: State,
    pub engine: Engine,
    pub http: Http,
    pub metrics: Metrics,
    pub chats: Chats,
    pub volumes: Volumes,
    pub mounts: Mounts,
    pub reaper: Reaper,
    pub reconciler: Reconciler,
    pub events: Events,
    pub leases: Leases,
    pub limits: SandboxLimits,
    pub snapshots: Snapshots,
    pub teardown: Teardown,
    pub log: Log,
    pub shutdown: Shutdown,
    pub images: Images,
    pub registries: BTreeMap<String, Registry>,
    pub repositories: BTreeMap<String, Repository>,
    /// Always has [`DEFAULT_PROFILE`].
    pub profiles: BTreeMap<String, Profile>,
}

impl Config {
    /// Reads `file`, or [`DEFAULT_FILE`] if none is named, and overrides its keys by `environment`.
    pub fn load<N, V>(file: Option<&Path>, environment: impl IntoIterator<Item = (N, V)>) -> Result<Self, ConfigError>
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let tree = find_file(file, Path::new(DEFAULT_FILE))?;
        Config::from_sources(tree, environment)
    }

    /// Returns every key; the default profile stands for all profiles.
    pub fn keys() -> BTreeSet<String> {
        let mut report = Report::default();
        Section::root(Table::new(), &mut report, Config::read);
        report.keys
    }

    fn from_sources<N, V>(mut tree: Table, environment: impl IntoIterator<Item = (N, V)>) -> Result<Self, ConfigError>
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let mut report = Report::default();
        let environment = environment.into_iter().map(|(name, value)| (name.into(), value.into()));
        environment::overlay(&mut tree, environment, &mut report.problems);
        let config = Section::root(tree, &mut report, Config::read);
        if report.problems.is_empty() {
            validate::validate(&config, &mut report);
        }
        let mut problems = report.problems;
        problems.sort_by(|a, b| a.origin.cmp(&b.origin));
        match problems.is_empty() {
            true => Ok(config),
            false => Err(ConfigError::Invalid(problems)),
        }
    }

    fn read(section: &mut Section<'_>) -> Self {
        Config {
            instance: section.section("instance", Instance::read),
            socket: section.section("socket", Socket::read),
            state: section.section("state", State::read),
            engine: section.section("engine", Engine::read),
            http: section.section("http", Http::read),
            metrics: section.section("metrics", Metrics::read),
            chats: section.section("chats", Chats::read),
            volumes: section.section("volumes", Volumes::read),
            mounts: section.section("mounts", Mounts::read),
            reaper: section.section("reaper", Reaper::read),
            reconciler: section.section("reconciler", Reconciler::read),
            events: section.section("events", Events::read),
            leases: section.section("leases", Leases::read),
            limits: section.section("limits", SandboxLimits::read),
            snapshots: section.section("snapshots", Snapshots::read),
            teardown: section.section("teardown", Teardown::read),
            log: section.section("log", Log::read),
            shutdown: section.section("shutdown", Shutdown::read),
            images: section.section("images", Images::read),
            registries: section
                .sections("registries", &[], values::table_name("registry"), |_, registry| Registry::read(registry)),
            repositories: section.sections("repositories", &[], values::table_name("repository"), |_, repository| {
                Repository::read(repository)
            }),
            profiles: section.sections("profiles", &[DEFAULT_PROFILE], values::table_name("profile"), |_, profile| {
                Profile::read(profile)
            }),
        }
    }
}

/// The built-in defaults.
impl Default for Config {
    fn default() -> Self {
        Section::root(Table::new(), &mut Report::default(), Config::read)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&toml::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// Reads the configuration file. A named file must exist, the `usual` one need not.
fn find_file(named: Option<&Path>, usual: &Path) -> Result<Table, ConfigError> {
    match named {
        Some(file) => read_file(file),
        None => match read_file(usual) {
            Err(ConfigError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(Table::new()),
            outcome => outcome,
        },
    }
}

fn read_file(path: &Path) -> Result<Table, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.into(), source })?;
    source::parse_file(path, &text).map_err(|problem| ConfigError::Invalid(vec![problem]))
}
