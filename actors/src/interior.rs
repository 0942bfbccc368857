//! The port to the inside of sandboxes: what one is given from the start, so that the service can work in it later.

use async_trait::async_trait;

use crate::container::Mount;
use crate::directories::DirectoryError;
use crate::ids::SessionId;

#[async_trait]
pub trait Interiors: Send + Sync + 'static {
    /// Makes ready what the sandbox is to have. `None`: nothing is put into it, and only the engine reaches its inside.
    async fn furnish(&self, session: SessionId) -> Result<Option<Furnishing>, DirectoryError>;

    /// Nothing is left of the sandbox.
    fn clear(&self, session: SessionId);
}

/// What the service puts into a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Furnishing {
    /// The program, as a path inside, that is started first and starts the image's own.
    pub entry_point: String,
    pub mounts: Vec<Mount>,
    pub environment: Vec<(String, String)>,
}

/// Puts nothing into sandboxes.
#[derive(Debug, Clone, Copy)]
pub struct Unfurnished;

#[async_trait]
impl Interiors for Unfurnished {
    async fn furnish(&self, _: SessionId) -> Result<Option<Furnishing>, DirectoryError> {
        Ok(None)
    }

    fn clear(&self, _: SessionId) {}
}
