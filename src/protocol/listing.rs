//! The filter of a list of sandboxes.

use sandboxd_actors::domain::ids::{AgentId, ProfileName, WorkspaceId};
use sandboxd_actors::domain::sandbox::{Sandbox, Status};
use sandboxd_protocol::error::Error;
use sandboxd_protocol::sandbox::ListParams;

use super::check::optional;

/// The properties that every sandbox of a list has.
#[derive(Debug, Default, PartialEq)]
pub struct Filter {
    pub profile: Option<ProfileName>,
    pub agent: Option<AgentId>,
    pub workspace: Option<WorkspaceId>,
    pub status: Option<Status>,
}

impl Filter {
    pub(super) fn checked(given: &ListParams) -> Result<Self, Error> {
        Ok(Filter {
            profile: optional("profile", given.profile.as_deref())?,
            agent: optional("agent_id", given.agent_id.as_deref())?,
            workspace: optional("workspace_id", given.workspace_id.as_deref())?,
            status: optional("status", given.status.map(|status| status.as_str()))?,
        })
    }

    pub fn matches(&self, sandbox: &Sandbox) -> bool {
        let Filter { profile, agent, workspace, status } = self;
        profile.as_ref().is_none_or(|profile| *profile == sandbox.profile)
            && agent.as_ref().is_none_or(|agent| *agent == sandbox.agent)
            && workspace.is_none_or(|workspace| Some(workspace) == sandbox.workspace)
            && status.is_none_or(|status| status == sandbox.status)
    }
}
