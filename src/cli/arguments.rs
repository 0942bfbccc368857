//! What can be typed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use serde_json::{Map, Value, json};

use super::DEFAULT_SOCKET;
use super::images::ImageCommand;
use super::inside::Inside;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the service refused or failed the request, (health) is degraded,
     or (doctor) has a problem
  2  wrong usage
  3  cannot connect to the service
  4  the chat has no sandbox
exec, shell and attach exit as the command does; see their help.

With --json, the result is printed as the service sent it, and an error is
printed to standard error as a JSON object with code, message and data.";

const GLOBAL: &str = "Global options";

/// Talks to sandboxd, which gives every chat a sandbox of its own
#[derive(Debug, Parser)]
#[command(name = "sandboxctl", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Arguments {
    /// The service's socket
    #[arg(long, global = true, env = "SANDBOXD_SOCKET", value_name = "PATH", default_value = DEFAULT_SOCKET, help_heading = GLOBAL)]
    pub(super) socket: PathBuf,

    /// Print JSON, for programs
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(super) json: bool,

    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show whether the service and its engine are well
    Health,
    /// Show the service's version, engine, profiles and limits
    Info,
    /// Say whether this host is fit, what is missing, and what to do about it
    Doctor,
    /// Give a chat its sandbox: the one it has, or a new one
    Create(Create),
    /// Show the sandbox of a chat
    Get {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// List sandboxes, the first hundred unless told otherwise
    List {
        /// All of them
        #[arg(long)]
        all: bool,
    },
    /// Let the sandbox of a chat live for longer
    Renew {
        #[arg(value_name = "CHAT")]
        chat: String,
        /// From now on, such as 10m; its end never comes sooner by this
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        ttl: Duration,
    },
    /// Say that the sandbox of a chat is in use
    Touch {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// Let the sandbox of a chat stand still, with all that runs in it; whoever uses it lets it go on
    Pause {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// Let a paused sandbox go on
    Resume {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// Hold the sandbox of a chat open, until Ctrl-C or for as long as told
    Lease {
        #[arg(value_name = "CHAT")]
        chat: String,
        /// The longest it is held, such as 5m
        #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
        length: Duration,
        /// Return at once and let the lease go on; it ends with `release`, or with its time
        #[arg(long)]
        durable: bool,
    },
    /// Give back a lease
    Release {
        #[arg(value_name = "CHAT")]
        chat: String,
        #[arg(value_name = "LEASE")]
        lease: String,
    },
    #[command(flatten)]
    Inside(Inside),
    /// Keep what the sandbox of a chat has written, but for its mounts, as a snapshot
    Snapshot {
        #[arg(value_name = "CHAT")]
        chat: String,
        /// What to call it
        #[arg(long, value_name = "TEXT")]
        label: Option<String>,
    },
    /// List snapshots, the newest hundred unless told otherwise, or delete one
    #[command(args_conflicts_with_subcommands = true)]
    Snapshots {
        #[command(subcommand)]
        command: Option<Snapshots>,
        /// Only of this chat
        #[arg(long, value_name = "CHAT")]
        chat: Option<String>,
        /// All of them
        #[arg(long)]
        all: bool,
    },
    /// Remove the sandbox of a chat
    Delete {
        #[arg(value_name = "CHAT")]
        chat: String,
        /// Keep it as a snapshot first; it stays if that fails
        #[arg(long, conflicts_with = "no_snapshot")]
        snapshot: bool,
        /// Do not keep it, whatever its profile says
        #[arg(long)]
        no_snapshot: bool,
    },
    /// Show what is kept started for chats to come
    Pools,
    /// Say that a sandbox will be wanted soon, so that it is started ahead
    Hint {
        /// Of this profile; the default profile unless given
        #[arg(long, value_name = "NAME")]
        profile: Option<String>,
        /// By this chat; by whichever comes first unless given
        #[arg(long, value_name = "CHAT")]
        chat: Option<String>,
        /// How long it is kept ready, such as 30s
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        ttl: Option<Duration>,
    },
    /// Follow what happens to sandboxes, one line for each event
    Events {
        /// Begin after the event with this number; 0 for all that are kept
        #[arg(long, value_name = "NUMBER")]
        after: Option<u64>,
        /// Only of this chat
        #[arg(long, value_name = "CHAT")]
        chat: Option<String>,
    },
    /// List the engine's images, and how the repositories' stand
    Images,
    /// Pull, build, refresh or remove images
    Image {
        #[command(subcommand)]
        command: ImageCommand,
    },
    /// Bring together what the engine holds and what was promised
    Reconcile {
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Snapshots {
    /// Delete a snapshot
    Delete {
        #[arg(value_name = "SNAPSHOT")]
        snapshot: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct Create {
    /// A UUID
    #[arg(long, value_name = "UUID")]
    chat_id: String,

    /// The agent that works in the sandbox
    #[arg(long, value_name = "ID")]
    agent_id: String,

    /// The workspace that the chat is of, a UUID
    #[arg(long, value_name = "UUID")]
    workspace: Option<String>,

    /// A directory on the host, writable in the sandbox
    #[arg(long, value_name = "PATH")]
    volume: String,

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
}

impl Create {
    /// Without what was not given: the defaults are the service's.
    pub(super) fn params(&self) -> Value {
        let mut params = Map::new();
        params.insert("chat_id".into(), json!(self.chat_id));
        params.insert("agent_id".into(), json!(self.agent_id));
        params.insert("volume_host_path".into(), json!(self.volume));
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

pub(super) fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => std::env::var(text)
            .map(|value| (text.to_owned(), value))
            .map_err(|_| format!("{text} has no value here; give one as {text}=VALUE")),
    }
}

/// With a unit, or in seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::try_from_secs_f64);
    match seconds {
        Some(duration) => duration.map_err(|error| error.to_string()),
        None => humantime::parse_duration(text).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn create(arguments: &[&str]) -> Result<Value, clap::Error> {
        let required = ["sandboxctl", "create", "--chat-id", "c", "--agent-id", "a", "--volume", "/v"];
        let parsed = Arguments::try_parse_from(required.iter().chain(arguments))?;
        let Command::Create(create) = parsed.command else { panic!("{parsed:?}") };
        Ok(create.params())
    }

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_is_not_given_is_left_to_the_service() {
        let params = create(&[]).expect("valid");
        assert_eq!(params, json!({ "chat_id": "c", "agent_id": "a", "volume_host_path": "/v" }));
    }

    #[test]
    fn a_whole_create_is_understood() {
        let given = [
            "--workspace",
            "w",
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
