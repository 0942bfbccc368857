//! The claims: containers that were slots, the chats that they belong to, and their bindings.
//!
//! An engine cannot change a container's labels, so a claimed slot keeps the labels of a slot. Its claim holds the
//! labels of its session. A claim is a journal entry, written in the commit that acknowledges the sandbox. [`Claims`]
//! is an index of the claims in memory. A claim enters the index when its slot is bound, and leaves it with its
//! session.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::container::Binding;
use crate::domain::environment::Environment;
use crate::domain::host_path::HostPath;
use crate::domain::ids::{ChatId, ContainerId, SessionId, SlotId};
use crate::domain::labels;
use crate::ports::engine::Observed;
use crate::ports::slot::Slot;

/// The binding of a slot to a session. The values of the environment may be secrets; `Debug` does not show them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub slot: SlotId,
    pub session: SessionId,
    pub chat: ChatId,
    pub container: ContainerId,
    /// The labels of a container created for the session.
    pub labels: BTreeMap<String, String>,
    pub environment: Environment,
    /// The host path of each mount target.
    pub mounts: BTreeMap<String, HostPath>,
}

impl Claim {
    pub fn new(slot: &Slot, session: SessionId, chat: ChatId, binding: &Binding) -> Self {
        let mount = |mount: &crate::domain::container::Mount| (mount.target.clone(), mount.source.clone());
        Self {
            slot: slot.id,
            session,
            chat,
            container: slot.container.clone(),
            labels: binding.labels.clone(),
            environment: binding.environment.clone(),
            mounts: binding.mounts.iter().map(mount).collect(),
        }
    }
}

/// The claims, by slot, session and chat. The journal is the authority; this is a cache of it.
#[derive(Debug, Default)]
pub struct Claims(Mutex<Index>);

#[derive(Debug, Default)]
struct Index {
    sessions: HashMap<SessionId, Arc<Claim>>,
    slots: HashMap<SlotId, SessionId>,
    /// The newest session is last. A chat has more than one only while an old session is being removed.
    chats: HashMap<ChatId, Vec<SessionId>>,
}

impl Claims {
    pub fn insert(&self, claim: Arc<Claim>) {
        let mut index = self.index();
        index.remove(claim.session);
        index.slots.insert(claim.slot, claim.session);
        index.chats.entry(claim.chat).or_default().push(claim.session);
        index.sessions.insert(claim.session, claim);
    }

    pub fn remove(&self, session: SessionId) -> Option<Arc<Claim>> {
        self.index().remove(session)
    }

    pub fn of_session(&self, session: SessionId) -> Option<Arc<Claim>> {
        self.index().sessions.get(&session).cloned()
    }

    pub fn of_slot(&self, slot: SlotId) -> Option<Arc<Claim>> {
        let index = self.index();
        index.sessions.get(index.slots.get(&slot)?).cloned()
    }

    /// Returns the claim of a container that was created as a slot. A foreign container with a copy of its labels has
    /// none.
    pub fn of_container(&self, container: &Observed) -> Option<Arc<Claim>> {
        self.of_slot(labels::slot(&container.labels)?).filter(|claim| claim.container == container.id)
    }

    pub fn of_chat(&self, chat: ChatId) -> Option<Arc<Claim>> {
        let index = self.index();
        index.sessions.get(index.chats.get(&chat)?.last()?).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Claim>> {
        self.index().sessions.values().cloned().collect()
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // No panic can leave the maps half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    fn remove(&mut self, session: SessionId) -> Option<Arc<Claim>> {
        let claim = self.sessions.remove(&session)?;
        self.slots.remove(&claim.slot);
        if let Some(sessions) = self.chats.get_mut(&claim.chat) {
            sessions.retain(|other| *other != session);
            if sessions.is_empty() {
                self.chats.remove(&claim.chat);
            }
        }
        Some(claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(chat: u128, session: SessionId) -> Arc<Claim> {
        Arc::new(Claim {
            slot: SlotId::random(),
            session,
            chat: ChatId::new(uuid::Uuid::from_u128(chat)),
            container: ContainerId::new(session.to_string()),
            labels: BTreeMap::new(),
            environment: Environment::default().with("TOKEN", "s3cr3t"),
            mounts: BTreeMap::new(),
        })
    }

    #[test]
    fn a_claim_is_found_by_its_session_slot_and_chat_until_it_is_removed() {
        let (claims, first) = (Claims::default(), claim(1, SessionId::random()));
        claims.insert(Arc::clone(&first));
        claims.insert(claim(2, SessionId::random()));
        let found = [claims.of_session(first.session), claims.of_slot(first.slot), claims.of_chat(first.chat)];
        assert_eq!(found, [(); 3].map(|()| Some(Arc::clone(&first))));
        assert_eq!(claims.remove(first.session), Some(Arc::clone(&first)));
        let found = [claims.of_session(first.session), claims.of_slot(first.slot), claims.of_chat(first.chat)];
        assert_eq!(found, [None, None, None]);
        assert_eq!(claims.all().len(), 1);
    }

    #[test]
    fn a_chat_has_its_newest_claim_and_an_older_one_once_that_is_removed() {
        let (claims, old, new) = (Claims::default(), claim(1, SessionId::random()), claim(1, SessionId::random()));
        claims.insert(Arc::clone(&old));
        claims.insert(Arc::clone(&new));
        assert_eq!(claims.of_chat(new.chat), Some(Arc::clone(&new)));
        claims.remove(new.session);
        assert_eq!(claims.of_chat(new.chat), Some(old));
    }

    #[test]
    fn a_claim_does_not_show_the_values_of_its_environment() {
        let shown = format!("{:?}", claim(1, SessionId::random()));
        assert!(shown.contains("TOKEN") && !shown.contains("s3cr3t"), "{shown}");
    }
}
