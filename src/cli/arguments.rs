//! What can be typed.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use super::DEFAULT_SOCKET;
use super::create::Create;
use super::filter::Filter;
use super::images::ImageCommand;
use crate::cli::guest::Inside;

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
printed to standard error as a JSON object with code, message and data.

CHAT is the chat's id, or the beginning of it if only one sandbox's chat begins
like that.";

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

    /// Print tables with all columns, however narrow the terminal is
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(super) wide: bool,

    /// Wait for the service to be there, at most this long, such as 10s
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration, help_heading = GLOBAL)]
    pub(super) wait: Option<Duration>,

    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Pools {
    /// Remove what is free, and keep nothing started until the service restarts or the pools are filled again
    Drain {
        /// Of this profile alone
        #[arg(value_name = "PROFILE")]
        profile: Option<String>,
    },
    /// Keep as much started as ever
    Fill {
        /// Of this profile alone
        #[arg(value_name = "PROFILE")]
        profile: Option<String>,
    },
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
        #[command(flatten)]
        filter: Filter,
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
    /// Remove the sandbox of a chat, or many
    Delete {
        #[arg(value_name = "CHAT", required_unless_present = "all", conflicts_with_all = ["all", "Filter"])]
        chat: Option<String>,
        /// Those of all chats, or of those that the options below choose
        #[arg(long)]
        all: bool,
        /// Do not ask before all are removed
        #[arg(long, short, requires = "all")]
        yes: bool,
        #[command(flatten)]
        filter: Filter,
        /// Keep it as a snapshot first; it stays if that fails
        #[arg(long, conflicts_with = "no_snapshot")]
        snapshot: bool,
        /// Do not keep it, whatever its profile says
        #[arg(long)]
        no_snapshot: bool,
        /// Remove the chat's directory as well, and with it all that its sandboxes have kept there
        #[arg(long)]
        purge: bool,
    },
    /// Show what is kept started for chats to come, or drain it
    Pools {
        #[command(subcommand)]
        command: Option<Pools>,
    },
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

impl Command {
    /// The chats that were named, each by its id or the beginning of it.
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
            Command::Inside(inside) => inside.chats(),
            // A create and a hint name a chat that need not have a sandbox yet.
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
