//! The filter of sandboxes for `list` and `delete`.

use clap::Args;
use serde_json::{Value, json};

#[derive(Debug, Default, Args)]
pub(super) struct Filter {
    /// Only sandboxes of this profile
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Only sandboxes of this agent
    #[arg(long, value_name = "ID")]
    agent: Option<String>,
    /// Only sandboxes of this workspace
    #[arg(long, value_name = "UUID")]
    workspace: Option<String>,
    /// Only sandboxes with this status, such as running
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
}

impl Filter {
    pub(super) fn is_empty(&self) -> bool {
        let Filter { profile, agent, workspace, status } = self;
        [profile, agent, workspace, status].iter().all(|wanted| wanted.is_none())
    }

    /// Returns the parameters of `sandbox.list` for the page after `after`.
    pub(super) fn params(&self, after: Option<&Value>) -> Value {
        let Filter { profile, agent, workspace, status } = self;
        json!({
            "after": after, "profile": profile, "agent_id": agent, "workspace_id": workspace, "status": status,
        })
    }
}
