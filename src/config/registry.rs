//! `[registries.<name>]`: credentials for registries.

use std::path::PathBuf;

use serde::Serialize;

use super::profile::argument;
use super::section::{Parsed, Section};
use super::source::Raw;
use super::values::{absolute_path, list, optional};

/// A registry that requires credentials.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Registry {
    /// The host in the names of its images; `docker.io` for names without a host.
    pub host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    pub credentials_command: Vec<String>,
}

impl Registry {
    /// A missing required key is empty here, and refused by `validate`.
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Registry {
            host: section.get("host", "", optional(host)).unwrap_or_default(),
            credentials_file: section.get("credentials_file", "", optional(absolute_path)),
            credentials_command: section.get("credentials_command", "", list(argument)),
        }
    }
}

/// Parses a host. A name without a dot or a port would be read as a part of the image's name.
fn host(raw: &Raw) -> Parsed<String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    match raw.text() {
        Some(host) => {
            let (name, port) = host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
            let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
            let is_host = name == "localhost" || port.is_some() || name.contains('.');
            match name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain) && is_port && is_host
            {
                true => Ok(host.to_owned()),
                false => Err(raw.refuse(EXPECTED)),
            }
        }
        None => Err(raw.refuse(EXPECTED)),
    }
}

const EXPECTED: &str = r#"the host of a registry, such as "registry.example.com" or "localhost:5000""#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_as_the_names_of_images_begin() {
        for right in ["docker.io", "registry.example.com", "localhost", "localhost:5000", "10.0.0.1:443"] {
            assert_eq!(host(&Raw::String(right.into())), Ok(right.to_owned()));
        }
        for wrong in ["registry", "https://docker.io", "a.b/c", "a.b:", "a.b:x", "a.b:0", "me@a.b", ".b", "A.b", ":1"] {
            assert!(host(&Raw::String(wrong.into())).is_err(), "{wrong}");
        }
    }
}
