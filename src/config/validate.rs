//! Rules between keys. They run only if every single value is valid, so that no problem concerns a substituted default.

use std::collections::BTreeMap;
use std::path::Path;

use super::Config;
use super::section::Report;

pub(super) fn validate(config: &Config, report: &mut Report) {
    memory(config, report);
    listeners(config, report);
    mounts(config, report);
    teardown(config, report);
    languages(config, report);
    images(config, report);
    registries(config, report);
    repositories(config, report);
}

/// One connection must not use all of the memory, and its part must hold its longest line twice: while it is read, and
/// while its request is in progress.
fn memory(config: &Config, report: &mut Report) {
    let socket = &config.socket;
    let (all, part, line) =
        (socket.max_memory.bytes(), socket.max_memory_per_connection.bytes(), socket.max_line.bytes());
    if all / 2 < part {
        let message = format!("expected at least twice socket.max_memory_per_connection, which is {part} bytes");
        report.refuse("socket.max_memory", message);
    }
    if part / 2 < line {
        let message = format!("expected at least twice socket.max_line, which is {line} bytes");
        report.refuse("socket.max_memory_per_connection", message);
    }
}

/// An accepted and ignored address would mislead the operator.
fn listeners(config: &Config, report: &mut Report) {
    if config.http.listen.is_some() {
        report.refuse("http.listen", r#"the service has no HTTP gateway yet; expected "off""#);
    }
}

/// Mount points in a sandbox must not overlap: one would hide the other, or lie inside a read-only one.
fn mounts(config: &Config, report: &mut Report) {
    let mounts = &config.mounts;
    let mut taken: Vec<(String, &Path)> = Vec::new();
    for (key, path) in [
        ("mounts.chat", &mounts.chat),
        ("mounts.volume", &mounts.volume),
        ("mounts.dependencies", &mounts.dependencies),
        ("mounts.lambda_tools", &mounts.lambda_tools),
    ] {
        add_mount_point(key.into(), path, &mut taken, report);
    }
    for (name, profile) in &config.profiles {
        let mut taken = taken.clone();
        for path in profile.mounts.keys() {
            add_mount_point(format!("profiles.{name}.mounts"), path, &mut taken, report);
        }
        for path in profile.tmpfs.keys() {
            add_mount_point(format!("profiles.{name}.tmpfs"), path, &mut taken, report);
        }
    }
}

fn add_mount_point<'p>(key: String, path: &'p Path, taken: &mut Vec<(String, &'p Path)>, report: &mut Report) {
    let overlaps = |(_, other): &&(String, &Path)| path.starts_with(other) || other.starts_with(path);
    if let Some((owner, other)) = taken.iter().find(overlaps) {
        let message = format!("{} overlaps {} of {owner}", path.display(), other.display());
        report.refuse(&key, message);
    }
    taken.push((key, path));
}

fn teardown(config: &Config, report: &mut Report) {
    let teardown = &config.teardown;
    let steps = teardown.graceful + teardown.remove;
    if teardown.total < steps {
        report.refuse(
            "teardown.total",
            format!(
                "expected at least {}, which teardown.graceful and teardown.remove may take together",
                humantime::format_duration(steps)
            ),
        );
    }
}

/// Only the built-in languages have a default command.
fn languages(config: &Config, report: &mut Report) {
    for (profile, languages) in config.profiles.iter().map(|(name, profile)| (name, &profile.languages)) {
        for (language, _) in languages.iter().filter(|(_, it)| it.command.first().is_none_or(String::is_empty)) {
            let key = format!("profiles.{profile}.languages.{language}.command");
            report.refuse(&key, "expected an interpreter with its arguments, such as [\"node\", \"-e\"]");
        }
    }
}

fn images(config: &Config, report: &mut Report) {
    let gc = &config.images.gc;
    if gc.low_watermark > gc.high_watermark {
        let message = format!("expected at most {}, which is images.gc.high_watermark", gc.high_watermark);
        report.refuse("images.gc.low_watermark", message);
    }
}

fn registries(config: &Config, report: &mut Report) {
    let mut hosts = BTreeMap::new();
    for (name, registry) in &config.registries {
        let mut refuse = |key: &str, message: &str| report.refuse(&format!("registries.{name}.{key}"), message);
        if registry.host.is_empty() {
            refuse("host", "expected the registry's host");
        } else if let Some(other) = hosts.insert(&registry.host, name) {
            refuse("host", &format!("{} is the host of registries.{other}, too", registry.host));
        }
        match (&registry.credentials_file, registry.credentials_command.is_empty()) {
            (None, true) => refuse("credentials_file", "expected this or credentials_command"),
            (Some(_), false) => refuse("credentials_command", "expected either this or credentials_file"),
            _ => {}
        }
    }
}

fn repositories(config: &Config, report: &mut Report) {
    for (name, repository) in &config.repositories {
        let mut refuse = |key: &str, message: &str| report.refuse(&format!("repositories.{name}.{key}"), message);
        if repository.url.is_empty() {
            refuse("url", "expected the address of the repository");
        }
        if repository.base.is_empty() {
            refuse("base", "expected the image to start from");
        }
        if repository.credentials_file.is_some() && !repository.credentials_command.is_empty() {
            refuse("credentials_command", "expected either this or credentials_file");
        }
    }
}
