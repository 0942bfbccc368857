//! The port to the chats' directories on the host.

use std::fmt::Display;
use std::io::{self, ErrorKind};

use async_trait::async_trait;

use crate::domain::host_path::HostPath;
use crate::domain::ids::ChatId;
use crate::domain::profile::User;
use crate::ports::clock::Timestamp;

/// The chats' directories on the host.
#[async_trait]
pub trait ChatDirectories: Send + Sync + 'static {
    /// Creates the chat's directory if needed and makes it writable for `user`. The directory outlives the sandbox.
    async fn prepare(&self, chat: ChatId, user: Option<User>) -> Result<HostPath, DirectoryError>;

    /// Removes the chat's directory and its contents without following links. Returns whether there was a directory.
    async fn remove(&self, chat: ChatId) -> Result<bool, DirectoryError>;

    /// Finishes interrupted removals.
    async fn finish_removals(&self) -> Result<(), DirectoryError>;

    /// Returns the chats that have a directory, in no particular order.
    async fn list(&self) -> Result<Vec<ChatId>, DirectoryError>;

    /// Returns when the chat's directory was last changed or marked. `None`: the chat has no directory.
    async fn changed_at(&self, chat: ChatId) -> Result<Option<Timestamp>, DirectoryError>;

    /// Marks the chat's directory, if it exists, as in use now.
    async fn mark_used(&self, chat: ChatId) -> Result<(), DirectoryError>;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the directory {path} cannot be used: {message}")]
pub struct DirectoryError {
    pub path: String,
    pub message: String,
    /// The disk or a quota is full. The directory works again when there is space.
    pub is_full: bool,
}

impl DirectoryError {
    pub fn new(path: impl Display, message: impl Display) -> Self {
        Self { path: path.to_string(), message: message.to_string(), is_full: false }
    }

    pub fn of_io(path: impl Display, error: &io::Error) -> Self {
        let is_full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        Self { is_full, ..Self::new(path, error) }
    }
}
