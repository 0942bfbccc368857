//! What an engine can do inside a container by itself. The core has no use for it: it is for sandboxes without an init,
//! and for what an init without rights cannot do.

use std::pin::Pin;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use hyper::body::Bytes;
use sandbox_init::wire::Usage;
use sandboxd_actors::domain::ids::ContainerId;
use tokio::io::AsyncWrite;

#[async_trait]
pub trait EngineGuest: Send + Sync + 'static {
    /// Starts a command. That it could not be started may only show when it is looked at.
    async fn exec(&self, container: &ContainerId, command: Command) -> Result<Execution, GuestError>;

    async fn look(&self, execution: &str) -> Result<Look, GuestError>;

    async fn resize(&self, execution: &str, rows: u16, columns: u16) -> Result<(), GuestError>;

    /// A file, or a directory with all that is in it, as a tar archive.
    async fn read_archive(&self, container: &ContainerId, path: &str) -> Result<Archive, GuestError>;

    /// Puts what is in a tar archive into a directory.
    async fn write_archive(&self, container: &ContainerId, path: &str, archive: Upload) -> Result<(), GuestError>;

    async fn usage(&self, container: &ContainerId) -> Result<Usage, GuestError>;

    async fn surroundings(&self, container: &ContainerId) -> Result<Surroundings, GuestError>;
}

pub type Archive = BoxStream<'static, Result<Bytes, GuestError>>;
pub type Upload = BoxStream<'static, std::io::Result<Bytes>>;

#[derive(Debug, Clone, Default)]
pub struct Command {
    pub arguments: Vec<String>,
    /// `NAME=value`, on top of the container's own.
    pub environment: Vec<String>,
    pub directory: Option<String>,
    /// The container's own if absent.
    pub user: Option<String>,
    pub terminal: bool,
    pub input: bool,
    /// Nobody listens to it.
    pub detached: bool,
}

#[derive(Debug)]
pub struct Execution {
    pub id: String,
    /// Absent if it is detached.
    pub streams: Option<Streams>,
}

pub struct Streams {
    pub output: BoxStream<'static, Result<Output, GuestError>>,
    pub input: Pin<Box<dyn AsyncWrite + Send>>,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
}

/// How a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// As the engine's host numbers it; absent if it was never started.
    pub process: Option<i32>,
    /// Once it has ended. Above 128, most likely a signal.
    pub exit_code: Option<i32>,
}

/// What a container's commands find without being told.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    pub directory: String,
    /// A name or a number, and perhaps a group's behind a colon; empty for root.
    pub user: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuestError {
    #[error("there is no such file or directory")]
    NotFound,
    #[error("the file system is read-only")]
    ReadOnly,
    #[error("it is not a directory")]
    NotADirectory,
    #[error("the engine refused it: {0}")]
    Refused(String),
    /// It cannot be reached, or the container is gone.
    #[error("the engine did not do it: {0}")]
    Engine(String),
}

/// An engine without a way in.
#[derive(Debug, Clone, Copy)]
pub struct Closed;

#[async_trait]
impl EngineGuest for Closed {
    async fn exec(&self, _: &ContainerId, _: Command) -> Result<Execution, GuestError> {
        closed()
    }

    async fn look(&self, _: &str) -> Result<Look, GuestError> {
        closed()
    }

    async fn resize(&self, _: &str, _: u16, _: u16) -> Result<(), GuestError> {
        closed()
    }

    async fn read_archive(&self, _: &ContainerId, _: &str) -> Result<Archive, GuestError> {
        closed()
    }

    async fn write_archive(&self, _: &ContainerId, _: &str, _: Upload) -> Result<(), GuestError> {
        closed()
    }

    async fn usage(&self, _: &ContainerId) -> Result<Usage, GuestError> {
        closed()
    }

    async fn surroundings(&self, _: &ContainerId) -> Result<Surroundings, GuestError> {
        closed()
    }
}

fn closed<T>() -> Result<T, GuestError> {
    Err(GuestError::Engine("it has no way into its containers".to_owned()))
}
