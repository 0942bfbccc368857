//! The arguments of sandboxctl.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use super::DEFAULT_SOCKET;
use super::create::Create;
use super::filter::Filter;
use super::images::ImageCommand;
use crate::cli::guest::GuestCommand;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the service refused or failed the request, (health) is degraded,
     or (doctor) has a problem
  2  wrong usage
  3  cannot connect to the service
  4  the chat has no sandbox
exec, run, shell and attach exit with the command's exit code; see their help.

With --json, the result is printed as the service sent it, and an error is
printed to standard error as a JSON object with code, message and data.

CHAT is the chat's id, or a prefix of it that only one chat with a sandbox has.";

const GLOBAL: &str = "Global options";

/// Client of sandboxd, which runs one sandbox for each chat
#[derive(Debug, Parser)]
#[command(name = "sandboxctl", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Arguments {
    /// Socket of the service
    #[arg(long, global = true, env = "SANDBOXD_SOCKET", value_name = "PATH", default_value = DEFAULT_SOCKET, help_heading = GLOBAL)]
    pub(super) socket: PathBuf,

    /// Print results and errors as JSON
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(super) json: bool,

    /// Print all columns of tables, even if the terminal is narrower
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(super) wide: bool,

    /// Wait at most this long for the service to start, such as 10s
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration, help_heading = GLOBAL)]
    pub(super) wait: Option<Duration>,

    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Pools {
    /// Remove the free slots, and start no new ones until the service restarts or `pools fill`
    Drain {
        /// Only the pool of this profile
        #[arg(value_name = "PROFILE")]
        profile: Option<String>,
    },
    /// Start slots again after `pools drain`
    Fill {
        /// Only the pool of this profile
        #[arg(value_name = "PROFILE")]
        profile: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show whether the service and its engine are healthy
    Health,
    /// Show the service's version, engine, profiles and limits
    Info,
    /// Check the host, the engine and the configuration, with advice for each problem
    Doctor,
    /// Create a chat's sandbox, or return the existing one
    Create(Create),
    /// Show a chat's sandbox
    Get {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// List sandboxes: the first 100, or all with --all or a filter
    List {
        /// List all sandboxes
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        filter: Filter,
    },
    /// Extend the lifetime of a chat's sandbox
    Renew {
        #[arg(value_name = "CHAT")]
        chat: String,
        /// New lifetime from now on, such as 10m; never shortens the current one
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        ttl: Duration,
    },
    /// Mark a chat's sandbox as active
    Touch {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// Pause a chat's sandbox and all its processes; the next use resumes it
    Pause {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// Resume a chat's paused sandbox
    Resume {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// Lease a chat's sandbox, until Ctrl-C or for at most the given time
    Lease {
        #[arg(value_name = "CHAT")]
        chat: String,
        /// Length of the lease, such as 5m
        #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
        length: Duration,
        /// Return at once and keep the lease; it ends with `release` or after its length
        #[arg(long)]
        durable: bool,
    },
    /// Release a lease
    Release {
        #[arg(value_name = "CHAT")]
        chat: String,
        #[arg(value_name = "LEASE")]
        lease: String,
    },
    #[command(flatten)]
    Guest(GuestCommand),
    /// Save a chat's sandbox as a snapshot, without its mounts
    Snapshot {
        #[arg(value_name = "CHAT")]
        chat: String,
        /// Label of the snapshot
        #[arg(long, value_name = "TEXT")]
        label: Option<String>,
    },
    /// List snapshots, the newest 100 unless --all is given, or delete one
    #[command(args_conflicts_with_subcommands = true)]
    Snapshots {
        #[command(subcommand)]
        command: Option<Snapshots>,
        /// Only snapshots of this chat
        #[arg(long, value_name = "CHAT")]
        chat: Option<String>,
        /// List all snapshots
        #[arg(long)]
        all: bool,
    },
    /// Remove a chat's sandbox, or the sandboxes of many chats
    Delete {
        #[arg(value_name = "CHAT", required_unless_present = "all", conflicts_with_all = ["all", "Filter"])]
        chat: Option<String>,
        /// Remove the sandboxes of all chats, or of those that the filter options select
        #[arg(long)]
        all: bool,
        /// Do not ask for confirmation
        #[arg(long, short, requires = "all")]
        yes: bool,
        #[command(flatten)]
        filter: Filter,
        /// Save a snapshot first; if that fails, the sandbox stays
        #[arg(long, conflicts_with = "no_snapshot")]
        snapshot: bool,
        /// Save no snapshot, even if the profile asks for one
        #[arg(long)]
        no_snapshot: bool,
        /// Also remove the chat's directory with all its files
        #[arg(long)]
        purge: bool,
    },
    /// Show the pools of warm sandboxes, or drain or fill them
    Pools {
        #[command(subcommand)]
        command: Option<Pools>,
    },
    /// Announce that a sandbox is needed soon, so that a slot is started ahead
    Hint {
        /// Profile of the sandbox; the default profile if not given
        #[arg(long, value_name = "NAME")]
        profile: Option<String>,
        /// Chat that needs the sandbox; any chat if not given
        #[arg(long, value_name = "CHAT")]
        chat: Option<String>,
        /// How long the slot is kept, such as 30s
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        ttl: Option<Duration>,
    },
    /// Follow the events of sandboxes, one line per event
    Events {
        /// Start after the event with this number; 0 for all stored events
        #[arg(long, value_name = "NUMBER")]
        after: Option<u64>,
        /// Only events of this chat
        #[arg(long, value_name = "CHAT")]
        chat: Option<String>,
    },
    /// List the engine's images and the state of the repository images
    Images,
    /// Pull, build, refresh or prune images
    Image {
        #[command(subcommand)]
        command: ImageCommand,
    },
    /// Reconcile the engine, the journal and the chats
    Reconcile {
        /// Only report the actions
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

pub(super) fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => std::env::var(text)
            .map(|value| (text.to_owned(), value))
            .map_err(|_| format!("{text} is not set in your environment; give a value as {text}=VALUE")),
    }
}

/// Returns the variables as a parameter, absent if there are none.
pub(super) fn variables(given: &[(String, String)]) -> Option<BTreeMap<String, String>> {
    (!given.is_empty()).then(|| given.iter().cloned().collect())
}

/// Parses a duration with units, such as 5m, or a number of seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::try_from_secs_f64);
    match seconds {
        Some(duration) => duration.map_err(|error| error.to_string()),
        None => humantime::parse_duration(text).map_err(|error| error.to_string()),
    }
}

impl Command {
    /// Returns the chats in the arguments, each an id or a prefix of one.
    pub(super) fn chats(&mut self) -> Vec<&mut String> {
        match self {
            Command::Get { chat }
            | Command::Renew { chat, .. }
            | Command::Touch { chat }
            | Command::Pause { chat }
            | Command::Resume { chat }
            | Command::Lease { chat, .. }
            | Command::Release { chat, .. }
            | Command::Snapshot { chat, .. } => vec![chat],
            Command::Delete { chat, .. } | Command::Snapshots { chat, .. } | Command::Events { chat, .. } => {
                chat.iter_mut().collect()
            }
            Command::Guest(command) => command.chats(),
            // The chat of a create or a hint may have no sandbox yet, so a prefix cannot be resolved.
            Command::Create(_) | Command::Hint { .. } => Vec::new(),
            Command::Health | Command::Info | Command::Doctor | Command::List { .. } | Command::Pools { .. } => {
                Vec::new()
            }
            Command::Images | Command::Image { .. } | Command::Reconcile { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn deleting_all_is_never_meant_by_leaving_out_the_chat() {
        let delete = |arguments: &[&str]| {
            Arguments::try_parse_from(["sandboxctl", "delete"].iter().chain(arguments))
                .map(|_| ())
                .map_err(|e| e.kind())
        };
        use clap::error::ErrorKind::{ArgumentConflict, MissingRequiredArgument};
        assert_eq!(delete(&[]), Err(MissingRequiredArgument));
        assert_eq!(delete(&["c", "--all"]), Err(ArgumentConflict));
        assert_eq!(delete(&["c", "--agent", "a"]), Err(ArgumentConflict));
        assert_eq!(delete(&["--agent", "a"]), Err(MissingRequiredArgument));
        assert_eq!(delete(&["--all", "--agent", "a", "--yes"]), Ok(()));
    }
}
