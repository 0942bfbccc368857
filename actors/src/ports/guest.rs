//! The port to the inside of sandboxes: what one is given from the start, so that the service can work in it later.

use std::collections::HashSet;

use async_trait::async_trait;

use crate::domain::container::Mount;
use crate::domain::host_path::HostPath;
use crate::domain::ids::{ContainerId, SessionId};
use crate::ports::chat_directories::DirectoryError;

#[async_trait]
pub trait Guests: Send + Sync + 'static {
    /// Makes ready what the sandbox is to have. `None`: nothing is put into it, and only the engine reaches its inside.
    /// With `waits`, its program starts with [`Guests::begin`].
    async fn prepare(&self, session: SessionId, waits: bool) -> Result<Option<GuestSetup>, DirectoryError>;

    /// Lets the program of a sandbox start, once it is certain that the sandbox has its caller's volume. An engine looks
    /// the volume's path up by itself, so another directory may have taken its place since it was checked.
    async fn begin(&self, started: Started<'_>) -> Result<(), NotBegun>;

    /// Nothing is left of the sandbox.
    async fn clear(&self, session: SessionId);

    /// Whether an earlier run of the service has left sessions of which it is not known yet whether they are gone.
    fn has_inherited(&self) -> bool;

    /// Removes what an earlier run of the service left of sessions that neither the engine nor the journal knows: all but
    /// these. Sessions of this run are not touched.
    async fn retain(&self, known: &HashSet<SessionId>);
}

/// A container that the engine has started, with a volume.
#[derive(Debug, Clone, Copy)]
pub struct Started<'a> {
    pub session: SessionId,
    pub container: &'a ContainerId,
    pub volume: &'a HostPath,
    /// Where in the sandbox it is mounted.
    pub target: &'a str,
    pub init: Init,
}

/// Who starts the program of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Init {
    /// The service's init, when it is told to.
    Waits,
    /// The engine: it runs already.
    Absent,
}

/// Why a sandbox is not to run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotBegun {
    /// It has another directory than its volume, or that cannot be ruled out.
    #[error("{0}")]
    Volume(String),
    #[error("{0}")]
    Init(String),
}

/// What the service puts into a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestSetup {
    /// The program, as a path inside, that is started first and starts the image's own.
    pub entry_point: String,
    pub mounts: Vec<Mount>,
    pub environment: Vec<(String, String)>,
}

/// Puts nothing into sandboxes.
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
