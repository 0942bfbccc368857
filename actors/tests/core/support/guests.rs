//! A guest setup without content, whose removal takes as long as a disk would, so that other tasks run meanwhile.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use sandboxd_actors::domain::ids::SessionId;
use sandboxd_actors::ports::chat_directories::DirectoryError;
use sandboxd_actors::ports::guest::{GuestSetup, Guests, NotBegun, Started};

const DISK: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy)]
pub(crate) struct TestGuests;

#[async_trait]
impl Guests for TestGuests {
    async fn prepare(&self, _: SessionId, _: bool) -> Result<Option<GuestSetup>, DirectoryError> {
        Ok(None)
    }

    async fn begin(&self, _: Started<'_>) -> Result<(), NotBegun> {
        Ok(())
    }

    async fn clear(&self, _: SessionId) {
        tokio::time::sleep(DISK).await;
    }

    fn has_inherited(&self) -> bool {
        false
    }

    async fn retain(&self, _: &HashSet<SessionId>) {}
}
