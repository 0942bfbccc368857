//! Slots in memory: what became of each, and whether the next one can be bound.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use sandboxd_actors::domain::container::Binding;
use sandboxd_actors::domain::ids::{SessionId, SlotId};
use sandboxd_actors::pool::claims::Claim;
use sandboxd_actors::ports::chat_directories::DirectoryError;
use sandboxd_actors::ports::guest::GuestSetup;
use sandboxd_actors::ports::slot::{LateBinding, NotBound, Slots};
use tokio::sync::Semaphore;

#[derive(Clone)]
pub(crate) struct TestSlots {
    inner: Arc<Mutex<Inner>>,
    /// A bind takes one of these; there are plenty unless a test holds them back.
    turns: Arc<Semaphore>,
}

#[derive(Default)]
struct Inner {
    free: BTreeSet<SlotId>,
    taken: BTreeMap<SessionId, SlotId>,
    bound: BTreeMap<SessionId, Binding>,
    remembered: BTreeSet<SlotId>,
    unbindable: usize,
    forgotten: usize,
}

impl Default for TestSlots {
    fn default() -> Self {
        Self { inner: Arc::default(), turns: Arc::new(Semaphore::new(1000)) }
    }
}

impl TestSlots {
    /// So many of the next ones cannot be bound.
    pub(crate) fn spoil(&self, slots: usize) {
        self.inner().unbindable = slots;
    }

    /// So many of the next claims cannot be copied.
    pub(crate) fn forget(&self, claims: usize) {
        self.inner().forgotten = claims;
    }

    /// From now on nothing is bound, until [`TestSlots::go_on`].
    pub(crate) fn hold(&self) {
        self.turns.forget_permits(1000);
    }

    pub(crate) fn go_on(&self) {
        self.turns.add_permits(1000);
    }

    pub(crate) fn binding(&self, session: SessionId) -> Option<Binding> {
        self.inner().bound.get(&session).cloned()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic")
    }
}

#[async_trait]
impl Slots for TestSlots {
    fn late_binding(&self) -> Result<LateBinding, String> {
        Ok(LateBinding::Injected)
    }

    async fn prepare(&self, slot: SlotId, _: &[String]) -> Result<GuestSetup, DirectoryError> {
        self.inner().free.insert(slot);
        Ok(GuestSetup { entry_point: "/init".into(), mounts: Vec::new(), environment: Vec::new() })
    }

    async fn wait(&self, _: SlotId, _: &[String]) -> Result<(), NotBound> {
        Ok(())
    }

    async fn is_free(&self, slot: SlotId) -> Result<bool, DirectoryError> {
        Ok(self.inner().free.contains(&slot))
    }

    async fn take(&self, slot: SlotId, session: SessionId) -> Result<(), DirectoryError> {
        let mut inner = self.inner();
        assert!(inner.free.remove(&slot), "{slot} is taken twice");
        assert_eq!(inner.taken.insert(session, slot), None, "{session} takes two");
        Ok(())
    }

    async fn bind(&self, _: SlotId, session: SessionId, binding: &Binding) -> Result<(), NotBound> {
        drop(self.turns.acquire().await);
        let mut inner = self.inner();
        if inner.unbindable > 0 {
            inner.unbindable -= 1;
            return Err(NotBound("it was told not to be".into()));
        }
        inner.bound.insert(session, binding.clone());
        Ok(())
    }

    async fn remember(&self, claim: &Claim) -> Result<(), DirectoryError> {
        let mut inner = self.inner();
        assert_eq!(inner.taken.get(&claim.session), Some(&claim.slot));
        if inner.forgotten > 0 {
            inner.forgotten -= 1;
            return Err(DirectoryError::new(claim.slot, "no space left on device"));
        }
        inner.remembered.insert(claim.slot);
        Ok(())
    }

    async fn open_again(&self, _: SessionId) -> Result<(), NotBound> {
        Ok(())
    }

    async fn bind_again(&self, _: SessionId) -> Result<(), NotBound> {
        Ok(())
    }

    async fn retain(&self, _: &HashSet<SlotId>) {}

    async fn clear(&self, slot: SlotId) {
        let mut inner = self.inner();
        assert!(!inner.remembered.contains(&slot), "{slot} is a chat's");
        inner.free.remove(&slot);
    }
}
