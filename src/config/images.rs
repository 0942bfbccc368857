//! `[images]` and `[repositories.<name>]`: builds, pulls and garbage collection.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::duration::{self, at_least, limit};
use super::profile::{argument, image};
use super::section::{Parsed, Section};
use super::source::Raw;
use super::values::{absolute_path, flag, list, optional, whole};

/// The settings of builds and pulls.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Images {
    /// The context of a build must lie below one of these.
    pub context_roots: Vec<PathBuf>,
    #[serde(serialize_with = "duration::serialize")]
    pub pull_timeout: Duration,
    #[serde(serialize_with = "duration::serialize")]
    pub build_timeout: Duration,
    pub max_builds: usize,
    pub gc: Gc,
}

/// The settings of garbage collection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gc {
    #[serde(serialize_with = "duration::serialize")]
    pub interval: Duration,
    /// In percent of the file system of the engine's data.
    pub high_watermark: u8,
    pub low_watermark: u8,
    /// Whether to remove also images that the service did not build.
    pub all: bool,
}

/// A branch of a repository from which an image is built.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Repository {
    pub url: String,
    pub branch: String,
    pub submodules: bool,
    pub base: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub directory: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    pub credentials_command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known_hosts: Option<PathBuf>,
    pub install: Vec<String>,
    pub build: Vec<String>,
    pub warm_up: Vec<String>,
    #[serde(serialize_with = "duration::serialize")]
    pub every: Duration,
    #[serde(serialize_with = "duration::serialize")]
    pub stale_after: Duration,
    #[serde(serialize_with = "duration::serialize")]
    pub timeout: Duration,
}

impl Images {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Images {
            context_roots: section.get("context_roots", "", list(absolute_path)),
            pull_timeout: section.get("pull_timeout", "30m", limit),
            build_timeout: section.get("build_timeout", "1h", limit),
            max_builds: section.get("max_builds", "1", whole(1, 64)),
            gc: section.section("gc", Gc::read),
        }
    }
}

impl Gc {
    fn read(section: &mut Section<'_>) -> Self {
        Gc {
            interval: section.get("interval", "10m", at_least(Duration::from_millis(10))),
            high_watermark: section.get("high_watermark", "85", whole(0, 100)),
            low_watermark: section.get("low_watermark", "75", whole(0, 100)),
            all: section.get("all", "false", flag),
        }
    }
}

impl Repository {
    /// A missing required key is empty here, and refused by `validate`.
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Repository {
            url: section.get("url", "", optional(url)).unwrap_or_default(),
            branch: section.get("branch", "main", branch),
            submodules: section.get("submodules", "false", flag),
            base: section.get("base", "", optional(image)).unwrap_or_default(),
            image: section.get("image", "", optional(image)),
            directory: section.get("directory", "/repository", directory),
            credentials_file: section.get("credentials_file", "", optional(absolute_path)),
            credentials_command: section.get("credentials_command", "", list(argument)),
            known_hosts: section.get("known_hosts", "", optional(absolute_path)),
            install: section.get("install", "", list(argument)),
            build: section.get("build", "", list(argument)),
            warm_up: section.get("warm_up", "", list(argument)),
            every: section.get("every", "30m", limit),
            stale_after: section.get("stale_after", "30m", limit),
            timeout: section.get("timeout", "1h", limit),
        }
    }
}

/// Parses the address of a repository. Addresses are shown and logged, so one with a password is refused.
fn url(raw: &Raw) -> Parsed<String> {
    const EXPECTED: &str = "an address such as \"https://host/path.git\", \"ssh://git@host/path.git\" or \"/path\"";
    let schemes = ["https://", "http://", "ssh://", "file:///"];
    match raw.text() {
        Some(url) if url.chars().any(|c| c.is_control() || c.is_whitespace()) => Err(raw.refuse_redacted(EXPECTED)),
        Some(url) if has_password(url) => {
            Err(raw.refuse_redacted("an address without a password; see credentials_file"))
        }
        Some(url) if url.starts_with('/') || schemes.iter().any(|scheme| url.starts_with(scheme)) => Ok(url.into()),
        _ => Err(raw.refuse_redacted(EXPECTED)),
    }
}

fn has_password(url: &str) -> bool {
    let host = url.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
    host.and_then(|host| host.rsplit_once('@')).is_some_and(|(user, _)| user.contains(':'))
}

/// Parses the name of a branch, with a subset of the characters that git allows.
fn branch(raw: &Raw) -> Parsed<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/+#".contains(c);
    match raw.text() {
        Some(name)
            if name.starts_with(|c: char| c.is_ascii_alphanumeric())
                && name.chars().all(plain)
                && !name.contains("..") =>
        {
            Ok(name.into())
        }
        _ => Err(raw.refuse("the name of a branch")),
    }
}

/// Parses a path in an image. It becomes part of a Dockerfile, so only plain characters are allowed.
fn directory(raw: &Raw) -> Parsed<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    match absolute_path(raw)?.to_str() {
        Some(path) if path.len() > 1 && path.chars().all(plain) => Ok(path.to_owned()),
        _ => Err(raw.refuse("an absolute path of letters, digits, '.', '_' and '-'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Raw {
        Raw::String(text.into())
    }

    #[test]
    fn an_address_has_no_password_and_is_no_option() {
        for right in ["https://host/a.git", "https://me@host/a.git", "ssh://git@host:22/a", "/srv/a.git", "file:///a"] {
            assert_eq!(url(&string(right)), Ok(right.to_owned()));
        }
        for wrong in ["https://me:secret@host/a.git", "--upload-pack=x", "elsewhere", "ext::sh -c x", "a b", ""] {
            let refusal = url(&string(wrong)).expect_err(wrong).0;
            assert!(wrong.is_empty() || !refusal.contains(wrong), "not shown: {refusal}");
        }
    }

    #[test]
    fn a_branch_is_a_plain_name() {
        assert!(branch(&string("feature/x-1")).is_ok());
        for wrong in ["-x", "a..b", "a b", "", "a:b"] {
            assert!(branch(&string(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_directory_cannot_be_an_instruction() {
        assert_eq!(directory(&string("/srv/app/")), Ok("/srv/app".to_owned()));
        for wrong in ["/", "app", "/a b", "/$HOME", "/a\nRUN x"] {
            assert!(directory(&string(wrong)).is_err(), "{wrong}");
        }
    }
}
