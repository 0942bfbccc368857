//! Counts the sandboxes and decides whether one more may exist. Pure.
//!
//! A chat counts from its create request until it owns no resources: first with the limit keys of the request, then
//! with those of its sandbox. Existing sandboxes count even above a limit: a lowered limit removes no sandbox.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use crate::domain::create_request::CreateRequest;
use crate::domain::ids::{AgentId, ChatId, ProfileName, WorkspaceId};
use crate::domain::outcome::LimitKind;
use crate::domain::sandbox::Sandbox;

/// The number of sandboxes that may exist; `None` is no limit.
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

/// The limit keys of a chat's sandbox.
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

/// A limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LimitReached {
    pub(super) kind: LimitKind,
    pub(super) limit: usize,
}

impl LimitCounts {
    /// Counts the chat if no limit is reached. A chat that already counts is always admitted.
    pub(super) fn admit(
        &mut self,
        chat: ChatId,
        request: &CreateRequest,
        capacity: Capacity,
    ) -> Result<(), LimitReached> {
        if self.chats.contains_key(&chat) {
            return Ok(());
        }
        let keys = LimitKeys::from(request);
        // Chats without a workspace share no workspace limit.
        let in_workspace = keys.workspace.map_or(0, |workspace| present(&self.workspaces, &workspace));
        for (kind, present, limit) in [
            (LimitKind::Sandboxes, self.chats.len(), capacity.sandboxes),
            (LimitKind::Profile, present(&self.profiles, &keys.profile), request.profile.max_sandboxes),
            (LimitKind::Workspace, in_workspace, capacity.per_workspace),
            (LimitKind::Agent, present(&self.agents, &keys.agent), capacity.per_agent),
        ] {
            if let Some(limit) = limit.filter(|limit| present >= *limit) {
                return Err(LimitReached { kind, limit });
            }
        }
        self.add(chat, keys);
        Ok(())
    }

    /// Counts a chat's sandbox under these keys, instead of its earlier keys.
    pub(super) fn add(&mut self, chat: ChatId, keys: LimitKeys) {
        self.remove(chat);
        if let Some(workspace) = keys.workspace {
            *self.workspaces.entry(workspace).or_default() += 1;
        }
        *self.agents.entry(keys.agent.clone()).or_default() += 1;
        *self.profiles.entry(keys.profile.clone()).or_default() += 1;
        self.chats.insert(chat, keys);
    }

    pub(super) fn remove(&mut self, chat: ChatId) {
        let Some(keys) = self.chats.remove(&chat) else { return };
        if let Some(workspace) = keys.workspace {
            decrement(&mut self.workspaces, &workspace);
        }
        decrement(&mut self.agents, &keys.agent);
        decrement(&mut self.profiles, &keys.profile);
    }
}

fn present<K: Hash + Eq>(counts: &HashMap<K, usize>, key: &K) -> usize {
    counts.get(key).copied().unwrap_or_default()
}

fn decrement<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
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

    /// A request of an agent for a profile, which may have a limit.
    fn request_of(agent: u8, profile: u8, max_sandboxes: Option<usize>) -> CreateRequest {
        let mut request = CreateRequest { agent: format!("agent {agent}").parse().unwrap(), ..request() };
        let profile_of = Arc::make_mut(&mut request.profile);
        (profile_of.name, profile_of.max_sandboxes) = (format!("profile-{profile}").parse().unwrap(), max_sandboxes);
        request
    }

    fn in_this_workspace(workspace: u8, request: CreateRequest) -> CreateRequest {
        CreateRequest { workspace: Some(WorkspaceId::new(uuid::Uuid::from_u128(workspace.into()))), ..request }
    }

    fn full(kind: LimitKind, limit: usize) -> Result<(), LimitReached> {
        Err(LimitReached { kind, limit })
    }

    #[test]
    fn each_limit_is_named_and_admitted_chats_stay_admitted() {
        let capacity = Capacity { sandboxes: Some(3), per_agent: Some(2), per_workspace: None };
        let mut limit_counts = LimitCounts::default();
        for number in 0..2 {
            assert_eq!(limit_counts.admit(chat(number), &request_of(0, 0, None), capacity), Ok(()));
        }
        assert_eq!(limit_counts.admit(chat(2), &request_of(0, 0, None), capacity), full(LimitKind::Agent, 2));
        assert_eq!(limit_counts.admit(chat(2), &request_of(1, 0, Some(2)), capacity), full(LimitKind::Profile, 2));
        assert_eq!(limit_counts.admit(chat(2), &request_of(1, 0, None), capacity), Ok(()));
        assert_eq!(limit_counts.admit(chat(3), &request_of(2, 1, None), capacity), full(LimitKind::Sandboxes, 3));
        assert_eq!(
            limit_counts.admit(chat(0), &request_of(0, 0, Some(0)), capacity),
            Ok(()),
            "the chat already counts"
        );
        limit_counts.remove(chat(0));
        assert_eq!(limit_counts.admit(chat(3), &request_of(0, 1, None), capacity), Ok(()));
    }

    #[test]
    fn a_full_workspace_refuses_all_of_its_agents_and_no_other() {
        let capacity = Capacity { per_workspace: Some(2), ..Capacity::default() };
        let mut limit_counts = LimitCounts::default();
        for number in 0..2 {
            assert_eq!(
                limit_counts.admit(chat(number), &in_this_workspace(0, request_of(number, number, None)), capacity),
                Ok(())
            );
        }
        let third = in_this_workspace(0, request_of(2, 2, None));
        assert_eq!(limit_counts.admit(chat(2), &third, capacity), full(LimitKind::Workspace, 2));
        assert_eq!(limit_counts.admit(chat(0), &third, capacity), Ok(()), "the chat already counts");
        assert_eq!(limit_counts.admit(chat(3), &in_this_workspace(1, request_of(0, 0, None)), capacity), Ok(()));
        for number in 4..8 {
            assert_eq!(
                limit_counts.admit(chat(number), &request_of(0, 0, None), capacity),
                Ok(()),
                "the chat has no workspace"
            );
        }
        limit_counts.remove(chat(1));
        assert_eq!(limit_counts.admit(chat(2), &third, capacity), Ok(()));
    }

    proptest! {
        #[test]
        fn counts_match_the_admitted_chats(
            steps in prop::collection::vec((0u8..3, 0u8..8, 0u8..3, 0u8..2, prop::option::of(0u8..2)), 0..100)
        ) {
            let capacity = Capacity { sandboxes: Some(5), per_workspace: Some(3), per_agent: Some(3) };
            let mut limit_counts = LimitCounts::default();
            for (step, who, agent, profile, workspace) in steps {
                let mut request = request_of(agent, profile, Some(4));
                if let Some(workspace) = workspace {
                    request = in_this_workspace(workspace, request);
                }
                match step {
                    0 => drop(limit_counts.admit(chat(who), &request, capacity)),
                    1 => limit_counts.remove(chat(who)),
                    _ if limit_counts.chats.len() < 5 => limit_counts.add(chat(who), LimitKeys::from(&request)),
                    _ => {}
                }
                prop_assert!(limit_counts.chats.len() <= 5);
                prop_assert_eq!(limit_counts.agents.values().sum::<usize>(), limit_counts.chats.len());
                prop_assert_eq!(limit_counts.profiles.values().sum::<usize>(), limit_counts.chats.len());
                let with_workspace = limit_counts.chats.values().filter(|keys| keys.workspace.is_some()).count();
                prop_assert_eq!(limit_counts.workspaces.values().sum::<usize>(), with_workspace);
                for (agent, count) in &limit_counts.agents {
                    prop_assert_eq!(limit_counts.chats.values().filter(|keys| keys.agent == *agent).count(), *count);
                }
                for (workspace, count) in &limit_counts.workspaces {
                    let in_this = limit_counts.chats.values().filter(|keys| keys.workspace == Some(*workspace));
                    prop_assert_eq!(in_this.count(), *count);
                }
            }
        }
    }
}
