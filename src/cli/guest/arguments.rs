//! The arguments of the commands that work in a guest.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use sandboxd_protocol::command::{Command, ExecParams};

use super::transfer::Place;
use crate::cli::arguments::{duration, variable, variables};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum GuestCommand {
    /// Run a command in a chat's sandbox and exit with its exit code
    #[command(after_help = EXEC_EXIT_CODES)]
    Exec(Exec),
    /// Run code in a chat's sandbox and exit with its exit code
    #[command(after_help = EXEC_EXIT_CODES)]
    Run {
        #[arg(value_name = "CHAT")]
        chat: String,
        /// Language, one of the sandbox's profile; python if not given
        #[arg(long, value_name = "NAME")]
        language: Option<String>,
        /// Kill the code after this time, such as 30s
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        timeout: Option<Duration>,
        /// Local file with the code, or - for standard input
        #[arg(value_name = "FILE", default_value = "-")]
        file: PathBuf,
    },
    /// Open a shell in a chat's sandbox
    Shell {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// List the commands in a chat's sandbox
    Ps {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// Show the output of the main program of a chat's sandbox
    Logs {
        #[arg(value_name = "CHAT")]
        chat: String,
        /// Only this many of the last lines
        #[arg(long, value_name = "LINES")]
        tail: Option<u32>,
        /// Follow the output until the sandbox ends or Ctrl-C
        #[arg(long, short)]
        follow: bool,
    },
    /// Show the resource usage of a chat's sandbox
    Stats {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// Attach to a detached command and exit with its exit code; Ctrl-C only detaches
    Attach {
        #[arg(value_name = "CHAT")]
        chat: String,
        #[arg(value_name = "COMMAND")]
        command: u64,
    },
    /// Kill a command and all its child processes
    Kill {
        #[arg(value_name = "CHAT")]
        chat: String,
        #[arg(value_name = "COMMAND")]
        command: u64,
        /// Only send this signal to the command
        #[arg(long, value_name = "NUMBER")]
        signal: Option<i32>,
    },
    /// Copy a file or a directory into or out of a sandbox
    Cp {
        /// Local path, CHAT:PATH, or - for standard input
        #[arg(value_name = "FROM", value_parser = Place::parse)]
        from: Place,
        /// Local path, CHAT:PATH, or - for standard output
        #[arg(value_name = "TO", value_parser = Place::parse)]
        to: Place,
        /// Create missing parent directories in the sandbox
        #[arg(long, short)]
        parents: bool,
        /// Copy a directory with its contents
        #[arg(long, short)]
        recursive: bool,
    },
    /// Print a file of a sandbox
    Cat {
        #[arg(value_name = "CHAT")]
        chat: String,
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// List a directory of a sandbox
    Ls {
        #[arg(value_name = "CHAT")]
        chat: String,
        #[arg(value_name = "PATH", default_value = ".")]
        path: String,
    },
    /// Remove a file of a sandbox
    Rm {
        #[arg(value_name = "CHAT")]
        chat: String,
        #[arg(value_name = "PATH")]
        path: String,
        /// Remove a directory with its contents
        #[arg(long, short)]
        recursive: bool,
    },
    /// Create a directory in a sandbox
    Mkdir {
        #[arg(value_name = "CHAT")]
        chat: String,
        #[arg(value_name = "PATH")]
        path: String,
        /// Create missing parent directories
        #[arg(long, short)]
        parents: bool,
    },
    /// Move or rename a file of a sandbox
    Mv {
        #[arg(value_name = "CHAT")]
        chat: String,
        #[arg(value_name = "FROM")]
        from: String,
        #[arg(value_name = "TO")]
        to: String,
    },
}

const EXEC_EXIT_CODES: &str = "\
Exit codes:
  the command's own, or 128 plus the number of the signal that ended it
  124  the command timed out
  125  the service refused or failed the request, or cannot be reached
  126  the command cannot be started
  127  the command was not found";

#[derive(Debug, Args)]
pub(in crate::cli) struct Exec {
    #[arg(value_name = "CHAT")]
    pub(super) chat: String,

    /// User of the command; the sandbox's user if not given
    #[arg(long, short, value_name = "NAME|UID[:GID]")]
    user: Option<String>,

    /// Working directory of the command
    #[arg(long, value_name = "PATH")]
    cwd: Option<String>,

    /// Environment variable of the command; without a value, it is taken from your environment
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = variable)]
    env: Vec<(String, String)>,

    /// Kill the command after this time, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,

    /// Return at once and leave the command running
    #[arg(long, conflicts_with_all = ["interactive", "terminal"])]
    pub(super) detach: bool,

    /// Forward standard input to the command
    #[arg(long, short)]
    pub(super) interactive: bool,

    /// Give the command a terminal
    #[arg(long, short)]
    pub(super) terminal: bool,

    /// Program and its arguments; -- may precede it
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

impl GuestCommand {
    /// Returns the chats in the arguments, each an id or a prefix of one.
    pub(in crate::cli) fn chats(&mut self) -> Vec<&mut String> {
        match self {
            GuestCommand::Exec(Exec { chat, .. })
            | GuestCommand::Run { chat, .. }
            | GuestCommand::Shell { chat }
            | GuestCommand::Ps { chat }
            | GuestCommand::Logs { chat, .. }
            | GuestCommand::Stats { chat }
            | GuestCommand::Attach { chat, .. }
            | GuestCommand::Kill { chat, .. }
            | GuestCommand::Cat { chat, .. }
            | GuestCommand::Ls { chat, .. }
            | GuestCommand::Rm { chat, .. }
            | GuestCommand::Mkdir { chat, .. }
            | GuestCommand::Mv { chat, .. } => vec![chat],
            GuestCommand::Cp { from, to, .. } => [from, to].into_iter().filter_map(Place::chat).collect(),
        }
    }
}

impl Exec {
    pub(super) fn shell(chat: &str) -> Self {
        let line = r#"exec "$(command -v bash || echo /bin/sh)""#;
        Self {
            chat: chat.to_owned(),
            user: None,
            cwd: None,
            env: std::env::var("TERM").map(|term| ("TERM".to_owned(), term)).into_iter().collect(),
            timeout: None,
            detach: false,
            interactive: true,
            terminal: true,
            command: ["/bin/sh", "-c", line].map(str::to_owned).into(),
        }
    }

    /// Returns the request parameters without options that were not given. The service sets the defaults.
    pub(super) fn params(&self) -> ExecParams {
        ExecParams {
            chat_id: self.chat.clone(),
            command: Command::Arguments(self.command.clone()),
            user: self.user.clone(),
            cwd: self.cwd.clone(),
            env: variables(&self.env),
            stdin: None,
            stdin_base64: None,
            stdin_follows: self.interactive.then_some(true),
            timeout: self.timeout.map(|timeout| timeout.as_secs_f64()),
            max_output: None,
            stream: None,
            on_disconnect: None,
            detach: self.detach.then_some(true),
            sync: None,
            terminal: None,
        }
    }
}
