//! The parameters of a create request.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub(crate) struct CreateParams(Value);

impl CreateParams {
    pub(crate) fn new(chat: &str, agent: &str, volume: &Path) -> Self {
        Self(json!({ "chat_id": chat, "agent_id": agent, "volume_host_path": volume }))
    }

    pub(crate) fn with(&self, field: &str, value: impl Into<Value>) -> Self {
        let mut changed = self.clone();
        changed.0[field] = value.into();
        changed
    }

    pub(crate) fn chat_id(&self) -> &str {
        self.0["chat_id"].as_str().expect("a text")
    }

    pub(crate) fn volume(&self) -> PathBuf {
        self.0["volume_host_path"].as_str().expect("a text").into()
    }
}
