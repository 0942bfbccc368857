//! Tests of the shipped units: systemd accepts every line, and they permit all that the service needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use sandboxd::config::Config;

pub(super) const UNITS: [&str; 2] = ["sandboxd.service", "sandboxd.socket"];

/// The program's path in the service's unit.
const INSTALLED: &str = "/usr/local/bin/sandboxd";

pub(super) fn unit(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the shipped configuration.
fn defaults() -> Config {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/sandboxd.toml");
    Config::load(Some(&file), std::iter::empty::<(String, String)>()).expect("a valid file")
}

/// Returns each value of a key that may appear more than once.
fn values(unit: &str, key: &str) -> Vec<String> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(|value| value.split_whitespace().map(ToOwned::to_owned)).collect()
}

#[test]
fn systemd_accepts_the_units_without_a_warning() {
    let directory = tempfile::tempdir().expect("a directory");
    // systemd also checks that the program exists.
    let files = UNITS.map(|name| {
        let file = directory.path().join(name);
        std::fs::write(&file, unit(name).replace(INSTALLED, env!("CARGO_BIN_EXE_sandboxd"))).expect("written");
        file
    });
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(files).output();
    let verified = verified.expect("systemd-analyze, of the package systemd, checks the units and must be installed");
    let warnings = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && warnings.trim().is_empty(), "{}: {warnings}", verified.status);
}

#[test]
fn the_service_may_write_where_its_defaults_make_it_write() {
    let service = unit("sandboxd.service");
    assert_eq!(values(&service, "ProtectSystem"), ["strict"], "only listed paths are writable");
    let below = |root: &'static str, key| values(&service, key).into_iter().map(move |name| Path::new(root).join(name));
    let mut writable: Vec<PathBuf> =
        below("/var/lib", "StateDirectory").chain(below("/run", "RuntimeDirectory")).collect();
    writable.extend(values(&service, "ReadWritePaths").iter().map(|path| path.trim_start_matches('-').into()));

    let config = defaults();
    let needed = [
        &config.state.dir,
        &config.chats.root,
        &config.mounts.dependencies_source,
        &config.mounts.lambda_tools_source,
        &config.socket.path,
        &PathBuf::from(sandboxd::instance_lock::LOCKS),
    ];
    for path in needed {
        assert!(writable.iter().any(|root| path.starts_with(root)), "{} is not below {writable:?}", path.display());
    }
}

#[test]
fn socket_and_timing_are_those_of_the_defaults() {
    let (service, socket) = (unit("sandboxd.service"), unit("sandboxd.socket"));
    let config = defaults();
    assert_eq!(values(&socket, "ListenStream"), [config.socket.path.to_str().expect("UTF-8")]);
    assert_eq!(values(&socket, "SocketMode"), [format!("{:04o}", config.socket.mode.bits())]);
    let seconds: u64 = values(&service, "TimeoutStopSec")[0].parse().expect("seconds");
    assert!(seconds > config.shutdown.grace.as_secs(), "the grace is cut short");
}
