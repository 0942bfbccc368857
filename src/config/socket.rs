//! `[socket]`: the service's socket, its permitted callers, and the limits of a connection.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde::Serialize;

use super::identity::{Mode, Principal, mode, principal};
use super::section::{Parsed, Section};
use super::size::{self, Size};
use super::source::Raw;
use super::values::{absolute_path, list, optional, whole};
use crate::protocol::guest::MAX_OUTPUT;

/// The settings of the socket.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Socket {
    pub path: PathBuf,
    pub mode: Mode,
    /// The group of the socket file; its members may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Principal>,
    /// Users that may call, besides root and the service's user.
    pub allow_users: Vec<Principal>,
    pub allow_groups: Vec<Principal>,
    /// Groups whose members may only read.
    pub read_only_groups: Vec<Principal>,
    pub max_connections: usize,
    /// The longest request.
    pub max_line: Size,
    /// The number of concurrent requests, per connection.
    pub max_in_flight: usize,
    /// The output buffered for a slow reader, per connection.
    pub max_output: Size,
    /// The memory for large requests and responses of all connections.
    pub max_memory: Size,
    /// The part of `max_memory` that one connection may use.
    pub max_memory_per_connection: Size,
}

impl Socket {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let buffer = || size::at_least(Size::from_bytes(1 << 10));
        Socket {
            path: section.get("path", "/run/sandboxd/sandboxd.sock", socket_path),
            mode: section.get("mode", "0660", mode),
            group: section.get("group", "", optional(principal)),
            allow_users: section.get("allow_users", "", list(principal)),
            allow_groups: section.get("allow_groups", "", list(principal)),
            read_only_groups: section.get("read_only_groups", "", list(principal)),
            max_connections: section.get("max_connections", "1024", whole(1, 1 << 20)),
            max_line: section.get("max_line", "1MiB", buffer()),
            max_in_flight: section.get("max_in_flight", "128", whole(1, 1 << 16)),
            max_output: section.get("max_output", "1MiB", buffer()),
            max_memory: section.get("max_memory", "96MiB", buffer()),
            max_memory_per_connection: section.get(
                "max_memory_per_connection",
                "32MiB",
                // Both outputs of a command must fit.
                size::at_least(Size::from_bytes(2 * MAX_OUTPUT as u64)),
            ),
        }
    }
}

/// Parses the socket's path. The kernel's address of a Unix socket holds 107 bytes and a NUL.
fn socket_path(raw: &Raw) -> Parsed<PathBuf> {
    match absolute_path(raw)? {
        path if path.as_os_str().as_bytes().len() > 107 => Err(raw.refuse("a path of at most 107 bytes")),
        path => Ok(path),
    }
}
