//! Slots in memory, whose binds and copies the test can make fail.

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
    /// Each bind takes a permit. There are enough permits unless a test holds them back.
    permits: Arc<Semaphore>,
}

#[derive(Default)]
struct Inner {
    free: BTreeSet<SlotId>,
    taken: BTreeMap<SessionId, SlotId>,
    bound: BTreeMap<SessionId, Binding>,
    copied: BTreeSet<SlotId>,
    failing_binds: usize,
    failing_copies: usize,
}

impl Default for TestSlots {
    fn default() -> Self {
        Self { inner: Arc::default(), permits: Arc::new(Semaphore::new(1000)) }
    }
}

impl TestSlots {
    /// Makes this number of binds fail.
    pub(crate) fn fail_binds(&self, slots: usize) {
        self.inner().failing_binds = slots;
    }

    /// Makes this number of claim copies fail.
    pub(crate) fn fail_copies(&self, claims: usize) {
        self.inner().failing_copies = claims;
    }

    /// Holds all binds until [`TestSlots::release_binds`].
    pub(crate) fn hold_binds(&self) {
        self.permits.forget_permits(1000);
    }

    pub(crate) fn release_binds(&self) {
        self.permits.add_permits(1000);
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
        drop(self.permits.acquire().await);
        let mut inner = self.inner();
        if inner.failing_binds > 0 {
            inner.failing_binds -= 1;
            return Err(NotBound("the bind fails as set by the test".into()));
        }
        inner.bound.insert(session, binding.clone());
        Ok(())
    }

    async fn remember(&self, claim: &Claim) -> Result<(), DirectoryError> {
        let mut inner = self.inner();
        assert_eq!(inner.taken.get(&claim.session), Some(&claim.slot));
        if inner.failing_copies > 0 {
            inner.failing_copies -= 1;
            return Err(DirectoryError::new(claim.slot, "no space left on device"));
        }
        inner.copied.insert(claim.slot);
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
        assert!(!inner.copied.contains(&slot), "{slot} is a chat's");
        inner.free.remove(&slot);
    }
}
