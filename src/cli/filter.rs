//! The filter of sandboxes for `list` and `delete`.

use clap::Args;
use sandboxd_protocol::error::Error;
use sandboxd_protocol::sandbox::{ListParams, Status};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error as WordError;

#[derive(Debug, Clone, Default, Args)]
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
    pub(super) fn params(&self, after: Option<String>) -> Result<ListParams, Error> {
        let Filter { profile, agent, workspace, status } = self.clone();
        // The service refuses an unknown status with the same error.
        let known = |word: String| Status::deserialize(word.into_deserializer());
        let status =
            status.map(known).transpose().map_err(|error: WordError| Error::invalid_params("status", error))?;
        Ok(ListParams { limit: None, after, profile, agent_id: agent, workspace_id: workspace, status })
    }
}
