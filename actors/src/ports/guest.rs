//! The port to guests: the setup of a sandbox through which the service works in it later.

use std::collections::HashSet;

use async_trait::async_trait;

use crate::domain::container::Mount;
use crate::domain::host_path::HostPath;
use crate::domain::ids::{ContainerId, SessionId};
use crate::ports::chat_directories::DirectoryError;

/// Prepares and removes the guest setup of sandboxes.
#[async_trait]
pub trait Guests: Send + Sync + 'static {
    /// Prepares the guest setup of a sandbox. `None`: the sandbox has no setup and is a guest via engine. With `waits`,
    /// its program starts with [`Guests::begin`].
    async fn prepare(&self, session: SessionId, waits: bool) -> Result<Option<GuestSetup>, DirectoryError>;

    /// Starts the program of a sandbox after a check that the sandbox has its caller's volume. The engine resolves the
    /// volume's path itself, so another directory may have replaced the checked one.
    async fn begin(&self, started: Started<'_>) -> Result<(), NotBegun>;

    /// Removes the guest setup of a sandbox that is gone.
    async fn clear(&self, session: SessionId);

    /// Whether there are sessions of an earlier run of the service that may be gone.
    fn has_inherited(&self) -> bool;

    /// Removes the guest setups of an earlier run of the service, except those of `known` sessions, which the engine or
    /// the journal has. The sessions of this run are not affected.
    async fn retain(&self, known: &HashSet<SessionId>);
}

/// A started container with a volume.
#[derive(Debug, Clone, Copy)]
pub struct Started<'a> {
    pub session: SessionId,
    pub container: &'a ContainerId,
    pub volume: &'a HostPath,
    /// The mount point of the volume in the sandbox.
    pub target: &'a str,
    pub init: Init,
}

/// The process that starts the program of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Init {
    /// Init, on request of the service.
    Waits,
    /// The engine: the program runs already.
    Absent,
}

/// Why the program of a sandbox was not started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotBegun {
    /// The sandbox has, or may have, another directory than its volume.
    #[error("{0}")]
    Volume(String),
    #[error("{0}")]
    Init(String),
}

/// The additions of the service to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestSetup {
    /// The path in the guest of the first program, which starts the image's own program.
    pub entry_point: String,
    pub mounts: Vec<Mount>,
    pub environment: Vec<(String, String)>,
}

/// A host whose sandboxes have no guest setup.
#[derive(Debug, Clone, Copy)]
pub struct NoGuestSetup;

#[async_trait]
impl Guests for NoGuestSetup {
    async fn prepare(&self, _: SessionId, _: bool) -> Result<Option<GuestSetup>, DirectoryError> {
        Ok(None)
    }

    async fn begin(&self, _: Started<'_>) -> Result<(), NotBegun> {
        Ok(())
    }

    async fn clear(&self, _: SessionId) {}

    fn has_inherited(&self) -> bool {
        false
    }

    async fn retain(&self, _: &HashSet<SessionId>) {}
}
