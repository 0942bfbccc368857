//! How many sandboxes there are, and whether there may be one more. Decided without side effects.
//!
//! A chat counts from the moment it asks for a sandbox until it has nothing left to own, first as what it asks for and then
//! as what it has. What is there already is counted whatever the limits say: nobody loses a sandbox to a limit that was
//! lowered.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use crate::domain::create_request::CreateRequest;
use crate::domain::ids::{AgentId, ChatId, ProfileName, WorkspaceId};
use crate::domain::outcome::LimitKind;
use crate::domain::sandbox::Sandbox;

/// How many sandboxes there may be; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    pub sandboxes: Option<usize>,
    pub per_workspace: Option<usize>,
    pub per_agent: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct LimitCounts {
    chats: BTreeMap<ChatId, LimitKeys>,
    workspaces: HashMap<WorkspaceId, usize>,
    agents: HashMap<AgentId, usize>,
    profiles: HashMap<ProfileName, usize>,
}

/// As what a chat's sandbox counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitKeys {
    workspace: Option<WorkspaceId>,
    agent: AgentId,
    profile: ProfileName,
}

impl From<&CreateRequest> for LimitKeys {
    fn from(request: &CreateRequest) -> Self {
        let CreateRequest { workspace, agent, profile, .. } = request;
        Self { workspace: *workspace, agent: agent.clone(), profile: profile.name.clone() }
    }
}

impl From<&Sandbox> for LimitKeys {
    fn from(sandbox: &Sandbox) -> Self {
        let Sandbox { workspace, agent, profile, .. } = sandbox;
        Self { workspace: *workspace, agent: agent.clone(), profile: profile.clone() }
    }
}

/// There are as many as there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LimitReached {
    pub(super) what: LimitKind,
    pub(super) limit: usize,
}

impl LimitCounts {
    /// Lets the chat have a sandbox, if there is room for it. One that counts already is not asked again.
    pub(super) fn admit(
        &mut self,
        chat: ChatId,
        request: &CreateRequest,
        capacity: Capacity,
    ) -> Result<(), LimitReached> {
        if self.chats.contains_key(&chat) {
            return Ok(());
        }
        let share = LimitKeys::from(request);
        // Chats that are in no workspace have none in common that could be full.
        let of_workspace = share.workspace.map_or(0, |workspace| present(&self.workspaces, &workspace));
        for (what, present, limit) in [
            (LimitKind::Sandboxes, self.chats.len(), capacity.sandboxes),
            (LimitKind::Profile, present(&self.profiles, &share.profile), request.profile.max_sandboxes),
            (LimitKind::Workspace, of_workspace, capacity.per_workspace),
            (LimitKind::Agent, present(&self.agents, &share.agent), capacity.per_agent),
        ] {
            if let Some(limit) = limit.filter(|limit| present >= *limit) {
                return Err(LimitReached { what, limit });
            }
        }
        self.enter(chat, share);
        Ok(())
    }

    /// Counts a chat that has a sandbox.
    pub(super) fn enter(&mut self, chat: ChatId, share: LimitKeys) {
        self.leave(chat);
        if let Some(workspace) = share.workspace {
            *self.workspaces.entry(workspace).or_default() += 1;
        }
        *self.agents.entry(share.agent.clone()).or_default() += 1;
        *self.profiles.entry(share.profile.clone()).or_default() += 1;
        self.chats.insert(chat, share);
    }

    pub(super) fn leave(&mut self, chat: ChatId) {
        let Some(share) = self.chats.remove(&chat) else { return };
        if let Some(workspace) = share.workspace {
            count_down(&mut self.workspaces, &workspace);
        }
        count_down(&mut self.agents, &share.agent);
        count_down(&mut self.profiles, &share.profile);
    }
}

fn present<K: Hash + Eq>(counts: &HashMap<K, usize>, key: &K) -> usize {
    counts.get(key).copied().unwrap_or_default()
}

fn count_down<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
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
    use crate::domain::create_request::tests::request;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn chat(number: u8) -> ChatId {
        ChatId::new(uuid::Uuid::from_u128(number.into()))
    }

    /// Of an agent, with a profile, which may have a limit.
    fn asked(agent: u8, profile: u8, max_sandboxes: Option<usize>) -> CreateRequest {
        let mut request = CreateRequest { agent: format!("agent {agent}").parse().unwrap(), ..request() };
        let made_of = Arc::make_mut(&mut request.profile);
        (made_of.name, made_of.max_sandboxes) = (format!("profile-{profile}").parse().unwrap(), max_sandboxes);
        request
    }

    fn within(workspace: u8, request: CreateRequest) -> CreateRequest {
        CreateRequest { workspace: Some(WorkspaceId::new(uuid::Uuid::from_u128(workspace.into()))), ..request }
    }

    fn full(what: LimitKind, limit: usize) -> Result<(), LimitReached> {
        Err(LimitReached { what, limit })
    }

    #[test]
    fn each_limit_is_named_and_who_is_in_stays_in() {
        let capacity = Capacity { sandboxes: Some(3), per_agent: Some(2), per_workspace: None };
        let mut limit_counts = LimitCounts::default();
        for number in 0..2 {
            assert_eq!(limit_counts.admit(chat(number), &asked(0, 0, None), capacity), Ok(()));
        }
        assert_eq!(limit_counts.admit(chat(2), &asked(0, 0, None), capacity), full(LimitKind::Agent, 2));
        assert_eq!(limit_counts.admit(chat(2), &asked(1, 0, Some(2)), capacity), full(LimitKind::Profile, 2));
        assert_eq!(limit_counts.admit(chat(2), &asked(1, 0, None), capacity), Ok(()));
        assert_eq!(limit_counts.admit(chat(3), &asked(2, 1, None), capacity), full(LimitKind::Sandboxes, 3));
        assert_eq!(limit_counts.admit(chat(0), &asked(0, 0, Some(0)), capacity), Ok(()), "it is in already");
        limit_counts.leave(chat(0));
        assert_eq!(limit_counts.admit(chat(3), &asked(0, 1, None), capacity), Ok(()));
    }

    #[test]
    fn a_full_workspace_is_full_to_all_of_its_agents_and_to_nobody_else() {
        let capacity = Capacity { per_workspace: Some(2), ..Capacity::default() };
        let mut limit_counts = LimitCounts::default();
        for number in 0..2 {
            assert_eq!(limit_counts.admit(chat(number), &within(0, asked(number, number, None)), capacity), Ok(()));
        }
        let third = within(0, asked(2, 2, None));
        assert_eq!(limit_counts.admit(chat(2), &third, capacity), full(LimitKind::Workspace, 2));
        assert_eq!(limit_counts.admit(chat(0), &third, capacity), Ok(()), "it is in already");
        assert_eq!(limit_counts.admit(chat(3), &within(1, asked(0, 0, None)), capacity), Ok(()));
        for number in 4..8 {
            assert_eq!(limit_counts.admit(chat(number), &asked(0, 0, None), capacity), Ok(()), "it is in no workspace");
        }
        limit_counts.leave(chat(1));
        assert_eq!(limit_counts.admit(chat(2), &third, capacity), Ok(()));
    }

    proptest! {
        #[test]
        fn counts_are_those_of_who_is_in(
            steps in prop::collection::vec((0u8..3, 0u8..8, 0u8..3, 0u8..2, prop::option::of(0u8..2)), 0..100)
        ) {
            let capacity = Capacity { sandboxes: Some(5), per_workspace: Some(3), per_agent: Some(3) };
            let mut limit_counts = LimitCounts::default();
            for (what, who, of, made_of, workspace) in steps {
                let mut request = asked(of, made_of, Some(4));
                if let Some(workspace) = workspace {
                    request = within(workspace, request);
                }
                match what {
                    0 => drop(limit_counts.admit(chat(who), &request, capacity)),
                    1 => limit_counts.leave(chat(who)),
                    _ if limit_counts.chats.len() < 5 => limit_counts.enter(chat(who), LimitKeys::from(&request)),
                    _ => {}
                }
                prop_assert!(limit_counts.chats.len() <= 5);
                prop_assert_eq!(limit_counts.agents.values().sum::<usize>(), limit_counts.chats.len());
                prop_assert_eq!(limit_counts.profiles.values().sum::<usize>(), limit_counts.chats.len());
                let of_some = limit_counts.chats.values().filter(|share| share.workspace.is_some()).count();
                prop_assert_eq!(limit_counts.workspaces.values().sum::<usize>(), of_some);
                for (agent, count) in &limit_counts.agents {
                    prop_assert_eq!(limit_counts.chats.values().filter(|share| share.agent == *agent).count(), *count);
                }
                for (workspace, count) in &limit_counts.workspaces {
                    let of_it = limit_counts.chats.values().filter(|share| share.workspace == Some(*workspace));
                    prop_assert_eq!(of_it.count(), *count);
                }
            }
        }
    }
}
