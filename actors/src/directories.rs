//! The port to the chats' directories on the host.

use async_trait::async_trait;

use crate::host_path::HostPath;
use crate::ids::ChatId;
use crate::profile::User;

#[async_trait]
pub trait ChatDirectories: Send + Sync + 'static {
    /// Makes sure that the chat's directory exists and that `user`, if any, can write to it. It outlives the sandbox.
    async fn prepare(&self, chat: ChatId, user: Option<User>) -> Result<HostPath, DirectoryError>;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the directory {path} cannot be prepared: {message}")]
pub struct DirectoryError {
    pub path: String,
    pub message: String,
}
