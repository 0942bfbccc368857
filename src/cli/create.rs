//! `create`: its arguments and request parameters.

use std::time::Duration;

use clap::Args;
use sandboxd_protocol::sandbox::CreateParams;
use uuid::Uuid;

use super::arguments::{duration, variable, variables};

#[derive(Debug, Args)]
pub(super) struct Create {
    /// Chat id; a new one if not given
    #[arg(long, value_name = "UUID")]
    chat_id: Option<String>,

    /// Agent of the sandbox; your user name if not given
    #[arg(long, value_name = "ID")]
    agent_id: Option<String>,

    /// Workspace of the chat
    #[arg(long, value_name = "UUID")]
    workspace: Option<String>,

    /// Host directory to mount in the sandbox, writable; none if not given
    #[arg(long, value_name = "PATH")]
    volume: Option<String>,

    /// Profile of the sandbox; the default profile if not given
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,

    /// Start from a snapshot instead of the profile's image
    #[arg(long, value_name = "ID")]
    snapshot: Option<String>,

    /// Environment variable of the sandbox; without a value, it is taken from your environment
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = variable)]
    env: Vec<(String, String)>,

    /// Maximum lifetime of the sandbox, such as 5m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<Duration>,

    /// Lifetime of the sandbox without activity, such as 2h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    idle_timeout: Option<Duration>,

    /// Print only the chat id
    #[arg(long, short)]
    pub(super) quiet: bool,
}

impl Create {
    /// Returns the request parameters, with defaults for chat and agent. The service sets the other defaults.
    pub(super) fn params(&self) -> CreateParams {
        CreateParams {
            chat_id: self.chat_id.clone().unwrap_or_else(|| Uuid::new_v4().to_string()),
            agent_id: self.agent_id.clone().or_else(user).unwrap_or_else(|| "cli".to_owned()),
            workspace_id: self.workspace.clone(),
            volume_host_path: self.volume.clone(),
            profile: self.profile.clone(),
            snapshot_id: self.snapshot.clone(),
            env: variables(&self.env),
            ttl: self.ttl.map(|ttl| ttl.as_secs_f64()),
            idle_timeout: self.idle_timeout.map(|timeout| timeout.as_secs_f64()),
            ..CreateParams::default()
        }
    }
}

/// Returns the name of the current user.
fn user() -> Option<String> {
    ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok().filter(|user| !user.trim().is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::{Arguments, Command};
    use clap::Parser;
    use serde_json::{Value, json};

    fn parsed(arguments: &[&str]) -> Result<Value, clap::Error> {
        let parsed = Arguments::try_parse_from(["sandboxctl", "create"].iter().chain(arguments))?;
        let Command::Create(create) = parsed.command else { panic!("{parsed:?}") };
        Ok(json!(create.params()))
    }

    fn create(arguments: &[&str]) -> Result<Value, clap::Error> {
        parsed(&[&["--chat-id", "c", "--agent-id", "a"], arguments].concat())
    }

    #[test]
    fn chat_and_agent_have_defaults() {
        let (one, other) = (parsed(&[]).expect("valid"), parsed(&[]).expect("valid"));
        let chat = |params: &Value| params["chat_id"].as_str().and_then(|id| id.parse::<Uuid>().ok()).expect("a UUID");
        assert_ne!(chat(&one), chat(&other));
        assert_eq!(one["agent_id"], other["agent_id"], "the same user");
        assert!(one["agent_id"].as_str().is_some_and(|agent| !agent.is_empty()));
    }

    #[test]
    fn options_that_are_not_given_are_not_sent() {
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
    fn a_variable_without_value_is_taken_from_the_environment_or_refused() {
        let path = std::env::var("PATH").expect("set");
        assert_eq!(create(&["--env", "PATH"]).expect("valid")["env"]["PATH"], json!(path));
        assert!(create(&["--env", "NO_SUCH_VARIABLE_HERE"]).is_err());
        assert!(create(&["--ttl", "soon"]).is_err());
        assert!(create(&["--ttl", "-5"]).is_err());
    }
}
