//! The port to warm slots: sandboxes that were started before there is a chat for them, and how one becomes a chat's.
//!
//! A slot's life leads through four steps, each of which is seen by whoever starts anew after a crash:
//!
//! ```text
//! furnish ─▶ free ─ take ─▶ taken ─ bind ─▶ bound ─ remember ─▶ the session's
//! ```
//!
//! Only a free one is ever handed out, and only once: what was taken never becomes free again. Only one that is the
//! session's is taken for a sandbox. Whatever stands between these two is removed.

use std::collections::HashSet;
use std::net::IpAddr;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::container::Binding;
use crate::directories::DirectoryError;
use crate::ids::{ContainerId, SessionId, SlotId};
use crate::interior::Furnishing;

#[async_trait]
pub trait Slots: Send + Sync + 'static {
    /// How slots are bound on this host, or why they cannot be.
    fn late_binding(&self) -> Result<LateBinding, String>;

    /// Makes ready what the slot is to have, with a place for what is mounted later at each of `places`.
    async fn furnish(&self, slot: SlotId, places: &[String]) -> Result<Furnishing, DirectoryError>;

    /// Resolves once the slot waits to be bound, and it is certain that it can be.
    async fn wait(&self, slot: SlotId, places: &[String]) -> Result<(), NotBound>;

    /// Whether the slot was furnished, and never taken.
    fn is_free(&self, slot: SlotId) -> bool;

    /// Makes the slot the session's, and nobody else's. This is not undone.
    fn take(&self, slot: SlotId, session: SessionId) -> Result<(), DirectoryError>;

    /// Brings the chat's directories and environment into the slot, and starts its program.
    async fn bind(&self, slot: SlotId, session: SessionId, binding: &Binding) -> Result<(), NotBound>;

    /// From now on the container is known as the session's, with the labels of the binding and under its chat's name.
    fn remember(&self, slot: &Slot, session: SessionId, binding: &Binding) -> Result<(), DirectoryError>;

    /// A session's container, which may have been a slot once, is about to be started again.
    fn open_again(&self, session: SessionId) -> Result<(), NotBound>;

    /// Binds a session's container, which was a slot once, again after it was started again. Does nothing about a
    /// container that was made for its chat.
    async fn bind_again(&self, session: SessionId) -> Result<(), NotBound>;

    /// Clears away what an earlier run of the service left of other slots than these.
    fn retain(&self, slots: &HashSet<SlotId>);

    /// Nothing is left of the slot. One that is a session's is cleared with it.
    fn clear(&self, slot: SlotId);
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

    async fn furnish(&self, slot: SlotId, _: &[String]) -> Result<Furnishing, DirectoryError> {
        Err(DirectoryError { path: slot.to_string(), message: NONE.to_owned() })
    }

    async fn wait(&self, _: SlotId, _: &[String]) -> Result<(), NotBound> {
        Err(NotBound(NONE.to_owned()))
    }

    fn is_free(&self, _: SlotId) -> bool {
        false
    }

    fn take(&self, slot: SlotId, _: SessionId) -> Result<(), DirectoryError> {
        Err(DirectoryError { path: slot.to_string(), message: NONE.to_owned() })
    }

    async fn bind(&self, _: SlotId, _: SessionId, _: &Binding) -> Result<(), NotBound> {
        Err(NotBound(NONE.to_owned()))
    }

    fn remember(&self, slot: &Slot, _: SessionId, _: &Binding) -> Result<(), DirectoryError> {
        Err(DirectoryError { path: slot.id.to_string(), message: NONE.to_owned() })
    }

    fn open_again(&self, _: SessionId) -> Result<(), NotBound> {
        Ok(())
    }

    async fn bind_again(&self, _: SessionId) -> Result<(), NotBound> {
        Ok(())
    }

    fn retain(&self, _: &HashSet<SlotId>) {}

    fn clear(&self, _: SlotId) {}
}
