//! The port to slots: sandboxes that are started before a chat needs them.
//!
//! A slot passes through these states. A service that starts after a crash recognises each of them:
//!
//! ```text
//! prepare ─▶ free ─ take ─▶ taken ─ bind ─▶ bound ─ claim and record, in one commit ─▶ the session's
//! ```
//!
//! Only a free slot is taken, and only once: a taken slot never becomes free again. Only a slot with a claim in the
//! journal counts as a sandbox. A slot between these two states is removed.

use std::collections::HashSet;
use std::net::IpAddr;

use async_trait::async_trait;

use crate::domain::container::Binding;
use crate::domain::ids::{ContainerId, SessionId, SlotId};
use crate::pool::claims::Claim;
use crate::ports::chat_directories::DirectoryError;
use crate::ports::clock::Timestamp;
use crate::ports::guest::GuestSetup;

/// Prepares, takes and binds slots.
#[async_trait]
pub trait Slots: Send + Sync + 'static {
    /// Returns how slots are bound on this host, or why they cannot be bound.
    fn late_binding(&self) -> Result<LateBinding, String>;

    /// Prepares the guest setup of a slot, with a mount point at each of `targets`.
    async fn prepare(&self, slot: SlotId, targets: &[String]) -> Result<GuestSetup, DirectoryError>;

    /// Resolves when the slot waits to be bound and the binding is known to work.
    async fn wait(&self, slot: SlotId, targets: &[String]) -> Result<(), NotBound>;

    /// Whether the slot was prepared and never taken.
    async fn is_free(&self, slot: SlotId) -> Result<bool, DirectoryError>;

    /// Assigns the slot to one session. This cannot be undone.
    async fn take(&self, slot: SlotId, session: SessionId) -> Result<(), DirectoryError>;

    /// Mounts the chat's directories into the slot, sets its environment and starts its program.
    async fn bind(&self, slot: SlotId, session: SessionId, binding: &Binding) -> Result<(), NotBound>;

    /// Stores a copy of the claim beside the sandbox's socket, in case the journal is lost.
    async fn remember(&self, claim: &Claim) -> Result<(), DirectoryError>;

    /// Prepares the restart of a session's container, which may have been a slot.
    async fn open_again(&self, session: SessionId) -> Result<(), NotBound>;

    /// Binds a session's container again after a restart. No effect for a container that was not a slot.
    async fn bind_again(&self, session: SessionId) -> Result<(), NotBound>;

    /// Removes the files of all other slots of earlier runs of the service.
    async fn retain(&self, slots: &HashSet<SlotId>);

    /// Removes the files of a slot. The files of a slot with a session are removed with the session.
    async fn clear(&self, slot: SlotId);
}

/// How a chat's directories are mounted into a running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LateBinding {
    /// Mounted inside the container, without a trace on the host.
    Injected,
    /// Mounted on the host and propagated into the container, because injection is not possible.
    Propagated { because: String },
}

/// A free slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub id: SlotId,
    pub container: ContainerId,
    /// The address on the profile's network.
    pub address: Option<IpAddr>,
    pub image_id: String,
    pub created_at: Timestamp,
}

/// Why a slot was not bound to a chat. It cannot be used for another chat.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotBound(pub String);

/// A host without slots.
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
