//! Which sandboxes a list shows.

use sandboxd_actors::domain::ids::{AgentId, ProfileName, WorkspaceId};
use sandboxd_actors::domain::sandbox::{Sandbox, Status};
use serde::Deserialize;

use super::error::Error;
use super::fields::optional;
use super::params::{Call, page};
use super::request::Text;

/// What the sandboxes of a list have in common; all of it that is given.
#[derive(Debug, Default, PartialEq)]
pub struct Filter {
    pub profile: Option<ProfileName>,
    pub agent: Option<AgentId>,
    pub workspace: Option<WorkspaceId>,
    pub status: Option<Status>,
}

impl Filter {
    pub fn matches(&self, sandbox: &Sandbox) -> bool {
        let Filter { profile, agent, workspace, status } = self;
        profile.as_ref().is_none_or(|profile| *profile == sandbox.profile)
            && agent.as_ref().is_none_or(|agent| *agent == sandbox.agent)
            && workspace.is_none_or(|workspace| Some(workspace) == sandbox.workspace)
            && status.is_none_or(|status| status == sandbox.status)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListFields<'a> {
    limit: Option<u64>,
    #[serde(borrow)]
    after: Option<Text<'a>>,
    #[serde(borrow)]
    profile: Option<Text<'a>>,
    #[serde(borrow)]
    agent_id: Option<Text<'a>>,
    #[serde(borrow)]
    workspace_id: Option<Text<'a>>,
    #[serde(borrow)]
    status: Option<Text<'a>>,
}

impl ListFields<'_> {
    pub(super) fn checked(self) -> Result<Call, Error> {
        let filter = Filter {
            profile: optional("profile", self.profile)?,
            agent: optional("agent_id", self.agent_id)?,
            workspace: optional("workspace_id", self.workspace_id)?,
            status: self.status.map(|Text(text)| status(&text)).transpose()?,
        };
        Ok(Call::List { after: optional("after", self.after)?, limit: page(self.limit)?, filter })
    }
}

fn status(text: &str) -> Result<Status, Error> {
    text.parse().map_err(|_| {
        let known = Status::ALL.map(Status::as_str).join(", ");
        Error::invalid_params("status", format!("must be one of {known}, got {text:?}"))
    })
}
