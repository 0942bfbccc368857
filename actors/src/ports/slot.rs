//! The port to warm slots: sandboxes that were started before there is a chat for them, and how one becomes a chat's.
//!
//! A slot's life leads through these steps, each of which a service that starts after a crash recognises:
//!
//! ```text
//! furnish ─▶ free ─ take ─▶ taken ─ bind ─▶ bound ─ claim and record, in one commit ─▶ the session's
//! ```
//!
//! Only a free slot is ever handed out, and only once: a slot that was taken never becomes free again. Only a slot with a
//! claim in the journal is taken for a sandbox. A slot between these two is removed.

use std::collections::HashSet;
use std::net::IpAddr;

use async_trait::async_trait;

use crate::domain::container::Binding;
use crate::domain::ids::{ContainerId, SessionId, SlotId};
use crate::pool::claims::Claim;
use crate::ports::chat_directories::DirectoryError;
use crate::ports::clock::Timestamp;
use crate::ports::guest::GuestSetup;

#[async_trait]
pub trait Slots: Send + Sync + 'static {
    /// How slots are bound on this host, or why they cannot be.
    fn late_binding(&self) -> Result<LateBinding, String>;

    /// Makes ready what the slot is to have, with a place for what is mounted later at each of `places`.
    async fn prepare(&self, slot: SlotId, places: &[String]) -> Result<GuestSetup, DirectoryError>;

    /// Resolves once the slot waits to be bound, and it is certain that it can be.
    async fn wait(&self, slot: SlotId, places: &[String]) -> Result<(), NotBound>;

    /// Whether the slot was furnished, and never taken.
    async fn is_free(&self, slot: SlotId) -> Result<bool, DirectoryError>;

    /// Makes the slot the session's, and nobody else's. This is not undone.
    async fn take(&self, slot: SlotId, session: SessionId) -> Result<(), DirectoryError>;

    /// Brings the chat's directories and environment into the slot, and starts its program.
    async fn bind(&self, slot: SlotId, session: SessionId, binding: &Binding) -> Result<(), NotBound>;

    /// Stores a copy of the claim beside the sandbox's socket, for the case that the journal is lost.
    async fn remember(&self, claim: &Claim) -> Result<(), DirectoryError>;

    /// A session's container, which may have been a slot once, is about to be started again.
    async fn open_again(&self, session: SessionId) -> Result<(), NotBound>;

    /// Binds a session's container, which was a slot once, again after it was started again. Does nothing about a
    /// container that was made for its chat.
    async fn bind_again(&self, session: SessionId) -> Result<(), NotBound>;

    /// Clears away what an earlier run of the service left of other slots than these.
    async fn retain(&self, slots: &HashSet<SlotId>);

    /// Nothing is left of the slot. One that is a session's is cleared with it.
    async fn clear(&self, slot: SlotId);
}

/// How a chat's directories get into a container that runs already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LateBinding {
    /// Mounted inside the container, which leaves nothing outside.
    Injected,
    /// Mounted on the host, where the container sees it: because they cannot be injected.
    Propagated { because: String },
}

impl LateBinding {
    pub fn as_str(&self) -> &'static str {
        match self {
            LateBinding::Injected => "injected",
            LateBinding::Propagated { .. } => "propagated",
        }
    }
}

/// A slot that can be handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub id: SlotId,
    pub container: ContainerId,
    /// On the profile's network.
    pub address: Option<IpAddr>,
    pub image_id: String,
    pub created_at: Timestamp,
}

/// Why a slot did not become a chat's. It is of no use to anybody else then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotBound(pub String);

/// A host on which every sandbox is made when it is asked for.
#[derive(Debug, Clone, Copy)]
pub struct NoSlots;

const NONE: &str = "no sandbox is started ahead";

#[async_trait]
impl Slots for NoSlots {
    fn late_binding(&self) -> Result<LateBinding, String> {
        Err(NONE.to_owned())
    }

    async fn prepare(&self, slot: SlotId, _: &[String]) -> Result<GuestSetup, DirectoryError> {
        Err(DirectoryError::new(slot, NONE))
    }

    async fn wait(&self, _: SlotId, _: &[String]) -> Result<(), NotBound> {
        Err(NotBound(NONE.to_owned()))
    }

    async fn is_free(&self, _: SlotId) -> Result<bool, DirectoryError> {
        Ok(false)
    }

    async fn take(&self, slot: SlotId, _: SessionId) -> Result<(), DirectoryError> {
        Err(DirectoryError::new(slot, NONE))
    }

    async fn bind(&self, _: SlotId, _: SessionId, _: &Binding) -> Result<(), NotBound> {
        Err(NotBound(NONE.to_owned()))
    }

    async fn remember(&self, claim: &Claim) -> Result<(), DirectoryError> {
        Err(DirectoryError::new(claim.slot, NONE))
    }

    async fn open_again(&self, _: SessionId) -> Result<(), NotBound> {
        Ok(())
    }

    async fn bind_again(&self, _: SessionId) -> Result<(), NotBound> {
        Ok(())
    }

    async fn retain(&self, _: &HashSet<SlotId>) {}

    async fn clear(&self, _: SlotId) {}
}
