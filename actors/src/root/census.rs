//! How many sandboxes there are, and whether there may be one more. Decided without side effects.
//!
//! A chat counts from the moment it asks for a sandbox until it has nothing left to own. What is there already is counted
//! whatever the limits say: nobody loses a sandbox to a limit that was lowered.

use std::collections::{BTreeMap, HashMap};

use crate::ids::{AgentId, ChatId, ProfileName};
use crate::outcome::Scarce;
use crate::profile::Profile;

/// How many sandboxes there may be; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    pub sandboxes: Option<usize>,
    pub per_agent: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Census {
    chats: BTreeMap<ChatId, (AgentId, ProfileName)>,
    agents: HashMap<AgentId, usize>,
    profiles: HashMap<ProfileName, usize>,
}

/// There are as many as there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) what: Scarce,
    pub(super) limit: usize,
}

impl Census {
    /// Lets the chat have a sandbox, if there is room for it. One that counts already is not asked again.
    pub(super) fn admit(
        &mut self,
        chat: ChatId,
        agent: &AgentId,
        profile: &Profile,
        capacity: Capacity,
    ) -> Result<(), Full> {
        if self.chats.contains_key(&chat) {
            return Ok(());
        }
        let of_agent = self.agents.get(agent).copied().unwrap_or_default();
        let of_profile = self.profiles.get(&profile.name).copied().unwrap_or_default();
        for (what, present, limit) in [
            (Scarce::Sandboxes, self.chats.len(), capacity.sandboxes),
            (Scarce::Profile, of_profile, profile.max_sandboxes),
            (Scarce::Agent, of_agent, capacity.per_agent),
        ] {
            if let Some(limit) = limit.filter(|limit| present >= *limit) {
                return Err(Full { what, limit });
            }
        }
        self.enter(chat, agent, &profile.name);
        Ok(())
    }

    /// Counts a chat that has a sandbox.
    pub(super) fn enter(&mut self, chat: ChatId, agent: &AgentId, profile: &ProfileName) {
        self.leave(chat);
        *self.agents.entry(agent.clone()).or_default() += 1;
        *self.profiles.entry(profile.clone()).or_default() += 1;
        self.chats.insert(chat, (agent.clone(), profile.clone()));
    }

    pub(super) fn leave(&mut self, chat: ChatId) {
        let Some((agent, profile)) = self.chats.remove(&chat) else { return };
        count_down(&mut self.agents, &agent);
        count_down(&mut self.profiles, &profile);
    }
}

fn count_down<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::request;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn chat(number: u8) -> ChatId {
        ChatId::new(uuid::Uuid::from_u128(number.into()))
    }

    fn agent(number: u8) -> AgentId {
        format!("agent {number}").parse().unwrap()
    }

    fn profile(number: u8, max_sandboxes: Option<usize>) -> Profile {
        let profile = Arc::unwrap_or_clone(request().profile);
        Profile { name: format!("profile-{number}").parse().unwrap(), max_sandboxes, ..profile }
    }

    #[test]
    fn each_limit_is_named_and_who_is_in_stays_in() {
        let capacity = Capacity { sandboxes: Some(3), per_agent: Some(2) };
        let mut census = Census::default();
        for number in 0..2 {
            assert_eq!(census.admit(chat(number), &agent(0), &profile(0, None), capacity), Ok(()));
        }
        let full = |what, limit| Err(Full { what, limit });
        assert_eq!(census.admit(chat(2), &agent(0), &profile(0, None), capacity), full(Scarce::Agent, 2));
        assert_eq!(census.admit(chat(2), &agent(1), &profile(0, Some(2)), capacity), full(Scarce::Profile, 2));
        assert_eq!(census.admit(chat(2), &agent(1), &profile(0, None), capacity), Ok(()));
        assert_eq!(census.admit(chat(3), &agent(2), &profile(1, None), capacity), full(Scarce::Sandboxes, 3));
        assert_eq!(census.admit(chat(0), &agent(0), &profile(0, Some(0)), capacity), Ok(()), "it is in already");
        census.leave(chat(0));
        assert_eq!(census.admit(chat(3), &agent(0), &profile(1, None), capacity), Ok(()));
    }

    proptest! {
        #[test]
        fn counts_are_those_of_who_is_in(steps in prop::collection::vec((0u8..3, 0u8..8, 0u8..3, 0u8..2), 0..100)) {
            let capacity = Capacity { sandboxes: Some(5), per_agent: Some(3) };
            let mut census = Census::default();
            for (what, who, of, made_of) in steps {
                match what {
                    0 => drop(census.admit(chat(who), &agent(of), &profile(made_of, Some(4)), capacity)),
                    1 => census.leave(chat(who)),
                    _ if census.chats.len() < 5 => census.enter(chat(who), &agent(of), &profile(made_of, None).name),
                    _ => {}
                }
                prop_assert!(census.chats.len() <= 5);
                prop_assert_eq!(census.agents.values().sum::<usize>(), census.chats.len());
                prop_assert_eq!(census.profiles.values().sum::<usize>(), census.chats.len());
                for (agent, count) in &census.agents {
                    prop_assert_eq!(census.chats.values().filter(|(of, _)| of == agent).count(), *count);
                }
            }
        }
    }
}
