//! Commands, files and statistics of a container through the engine's API: for sandboxes without init, and for actions
//! that an unprivileged init cannot do. The core does not use it.

use std::pin::Pin;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use hyper::body::Bytes;
use sandbox_init::wire::Usage;
use sandboxd_actors::domain::ids::ContainerId;
use tokio::io::AsyncWrite;

/// Access to the guest through the engine's API.
#[async_trait]
pub trait EngineGuest: Send + Sync + 'static {
    /// Starts a command. A failure to start may show only in [`inspect_exec`](Self::inspect_exec).
    async fn exec(&self, container: &ContainerId, command: Command) -> Result<Execution, GuestError>;

    /// Returns the state of a command.
    async fn inspect_exec(&self, execution: &str) -> Result<ExecStatus, GuestError>;

    async fn resize(&self, execution: &str, rows: u16, columns: u16) -> Result<(), GuestError>;

    /// Returns a file, or a directory with its content, as a tar archive.
    async fn read_archive(&self, container: &ContainerId, path: &str) -> Result<Archive, GuestError>;

    /// Unpacks a tar archive into a directory.
    async fn write_archive(&self, container: &ContainerId, path: &str, archive: Upload) -> Result<(), GuestError>;

    async fn usage(&self, container: &ContainerId) -> Result<Usage, GuestError>;

    async fn command_defaults(&self, container: &ContainerId) -> Result<CommandDefaults, GuestError>;
}

pub type Archive = BoxStream<'static, Result<Bytes, GuestError>>;
pub type Upload = BoxStream<'static, std::io::Result<Bytes>>;

/// A command to run in a container.
#[derive(Debug, Clone, Default)]
pub struct Command {
    pub arguments: Vec<String>,
    /// `NAME=value`, added to the container's environment.
    pub environment: Vec<String>,
    pub directory: Option<String>,
    /// `None`: the container's user.
    pub user: Option<String>,
    pub terminal: bool,
    pub input: bool,
    /// The command has no input and no output streams.
    pub detached: bool,
}

/// A command that the engine was asked to start.
#[derive(Debug)]
pub struct Execution {
    pub id: String,
    /// `None` for a detached command.
    pub streams: Option<Streams>,
}

/// The input and output of a command.
pub struct Streams {
    pub output: BoxStream<'static, Result<Output, GuestError>>,
    pub input: Pin<Box<dyn AsyncWrite + Send>>,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").finish_non_exhaustive()
    }
}

/// A piece of a command's output.
#[derive(Debug)]
pub enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
}

/// The state of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecStatus {
    /// The process id on the engine's host; `None` if the command was never started.
    pub process: Option<i32>,
    /// Set once the command has ended. A code above 128 most likely means a signal.
    pub exit_code: Option<i32>,
}

/// The defaults of a container for its commands.
#[derive(Debug, Clone, Default)]
pub struct CommandDefaults {
    pub directory: String,
    /// A name or a number, optionally with a group after a colon; empty for root.
    pub user: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuestError {
    #[error("no such file or directory")]
    NotFound,
    #[error("the file system is read-only")]
    ReadOnly,
    #[error("not a directory")]
    NotADirectory,
    #[error("the engine refused the call: {0}")]
    Refused(String),
    /// The engine cannot be reached, or the container is gone.
    #[error("the engine call failed: {0}")]
    Engine(String),
}

/// An engine without access to the guest. Every call fails.
#[derive(Debug, Clone, Copy)]
pub struct NoGuestAccess;

#[async_trait]
impl EngineGuest for NoGuestAccess {
    async fn exec(&self, _: &ContainerId, _: Command) -> Result<Execution, GuestError> {
        no_access()
    }

    async fn inspect_exec(&self, _: &str) -> Result<ExecStatus, GuestError> {
        no_access()
    }

    async fn resize(&self, _: &str, _: u16, _: u16) -> Result<(), GuestError> {
        no_access()
    }

    async fn read_archive(&self, _: &ContainerId, _: &str) -> Result<Archive, GuestError> {
        no_access()
    }

    async fn write_archive(&self, _: &ContainerId, _: &str, _: Upload) -> Result<(), GuestError> {
        no_access()
    }

    async fn usage(&self, _: &ContainerId) -> Result<Usage, GuestError> {
        no_access()
    }

    async fn command_defaults(&self, _: &ContainerId) -> Result<CommandDefaults, GuestError> {
        no_access()
    }
}

fn no_access<T>() -> Result<T, GuestError> {
    Err(GuestError::Engine("this engine gives no access to the inside of its containers".to_owned()))
}
