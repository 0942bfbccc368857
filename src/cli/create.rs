//! `create`: what a sandbox is asked for with.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::arguments::{duration, variable};

#[derive(Debug, Args)]
pub(super) struct Create {
    /// The chat; a new one unless given
    #[arg(long, value_name = "UUID")]
    chat_id: Option<String>,

    /// The agent that works in the sandbox; the name of your user unless given
    #[arg(long, value_name = "ID")]
    agent_id: Option<String>,

    /// The workspace that the chat is of, a UUID
    #[arg(long, value_name = "UUID")]
    workspace: Option<String>,

    /// A directory on the host, writable in the sandbox; none unless given
    #[arg(long, value_name = "PATH")]
    volume: Option<String>,

    /// What the sandbox is made of; the default profile unless given
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,

    /// Begin with a snapshot instead of the profile's image
    #[arg(long, value_name = "ID")]
    snapshot: Option<String>,

    /// A variable of the sandbox's environment; without a value, the one it has here
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = variable)]
    env: Vec<(String, String)>,

    /// How long the sandbox lives at most, such as 5m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<Duration>,

    /// How long the sandbox lives unused, such as 2h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    idle_timeout: Option<Duration>,

    /// Print the id of the chat and nothing else
    #[arg(long, short)]
    pub(super) quiet: bool,
}

impl Create {
    /// Chat and agent are made up where they were not given. The other defaults are the service's.
    pub(super) fn params(&self) -> Value {
        let chat = self.chat_id.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
        let agent = self.agent_id.clone().unwrap_or_else(|| user().unwrap_or_else(|| "cli".to_owned()));
        let mut params = Map::new();
        params.insert("chat_id".into(), json!(chat));
        params.insert("agent_id".into(), json!(agent));
        if let Some(volume) = &self.volume {
            params.insert("volume_host_path".into(), json!(volume));
        }
        if let Some(workspace) = &self.workspace {
            params.insert("workspace_id".into(), json!(workspace));
        }
        if let Some(profile) = &self.profile {
            params.insert("profile".into(), json!(profile));
        }
        if let Some(snapshot) = &self.snapshot {
            params.insert("snapshot_id".into(), json!(snapshot));
        }
        if !self.env.is_empty() {
            let env: BTreeMap<_, _> = self.env.iter().cloned().collect();
            params.insert("env".into(), json!(env));
        }
        for (name, duration) in [("ttl", self.ttl), ("idle_timeout", self.idle_timeout)] {
            if let Some(duration) = duration {
                params.insert(name.into(), json!(duration.as_secs_f64()));
            }
        }
        params.into()
    }
}

/// The name of the user who calls.
fn user() -> Option<String> {
    ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok().filter(|user| !user.trim().is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::{Arguments, Command};
    use clap::Parser;

    fn parsed(arguments: &[&str]) -> Result<Value, clap::Error> {
        let parsed = Arguments::try_parse_from(["sandboxctl", "create"].iter().chain(arguments))?;
        let Command::Create(create) = parsed.command else { panic!("{parsed:?}") };
        Ok(create.params())
    }

    fn create(arguments: &[&str]) -> Result<Value, clap::Error> {
        parsed(&[&["--chat-id", "c", "--agent-id", "a"], arguments].concat())
    }

    #[test]
    fn a_chat_and_an_agent_are_made_up_for_who_names_none() {
        let (one, other) = (parsed(&[]).expect("valid"), parsed(&[]).expect("valid"));
        let chat = |params: &Value| params["chat_id"].as_str().and_then(|id| id.parse::<Uuid>().ok()).expect("a UUID");
        assert_ne!(chat(&one), chat(&other));
        assert_eq!(one["agent_id"], other["agent_id"], "the same user");
        assert!(one["agent_id"].as_str().is_some_and(|agent| !agent.is_empty()));
    }

    #[test]
    fn what_is_not_given_is_left_to_the_service() {
        let params = create(&[]).expect("valid");
        assert_eq!(params, json!({ "chat_id": "c", "agent_id": "a" }));
    }

    #[test]
    fn a_whole_create_is_understood() {
        let given = [
            "--workspace",
            "w",
            "--volume",
            "/v",
            "--profile",
            "py",
            "--env",
            "A=1=2",
            "--env",
            "B=",
            "--env",
            "B=2",
            "--ttl",
            "1m 30s",
            "--idle-timeout",
            "0.5",
        ];
        assert_eq!(
            create(&given).expect("valid"),
            json!({
                "chat_id": "c", "agent_id": "a", "workspace_id": "w", "volume_host_path": "/v",
                "profile": "py", "env": { "A": "1=2", "B": "2" }, "ttl": 90.0, "idle_timeout": 0.5,
            })
        );
    }

    #[test]
    fn a_variable_without_value_is_taken_from_here_or_refused() {
        let path = std::env::var("PATH").expect("set");
        assert_eq!(create(&["--env", "PATH"]).expect("valid")["env"]["PATH"], json!(path));
        assert!(create(&["--env", "NO_SUCH_VARIABLE_HERE"]).is_err());
        assert!(create(&["--ttl", "soon"]).is_err());
        assert!(create(&["--ttl", "-5"]).is_err());
    }
}
