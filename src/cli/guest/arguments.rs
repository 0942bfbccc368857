//! What can be typed about the inside of a sandbox.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::transfer::Place;
use crate::cli::arguments::{duration, variable};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Inside {
    /// Run a command in the sandbox of a chat, and exit as it does
    #[command(after_help = EXEC_EXIT_CODES)]
    Exec(Exec),
    /// Run code in the sandbox of a chat, and exit as it does
    #[command(after_help = EXEC_EXIT_CODES)]
    Run {
        #[arg(value_name = "CHAT")]
        chat: String,
        /// One that the sandbox's profile has; python unless given
        #[arg(long, value_name = "NAME")]
        language: Option<String>,
        /// Kill it after this time, such as 30s
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        timeout: Option<Duration>,
        /// A file here, or - for standard input
        #[arg(value_name = "FILE", default_value = "-")]
        file: PathBuf,
    },
    /// Open a shell in the sandbox of a chat
    Shell {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// List the commands in the sandbox of a chat
    Ps {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// Show what the sandbox's own program has printed
    Logs {
        #[arg(value_name = "CHAT")]
        chat: String,
        /// Only so many of the last lines
        #[arg(long, value_name = "LINES")]
        tail: Option<u64>,
        /// Go on until the sandbox ends or Ctrl-C
        #[arg(long, short)]
        follow: bool,
    },
    /// Show what the sandbox of a chat uses
    Stats {
        #[arg(value_name = "CHAT")]
        chat: String,
    },
    /// Follow a command that was detached, and exit as it does; Ctrl-C lets it go on
    Attach {
        #[arg(value_name = "CHAT")]
        chat: String,
        #[arg(value_name = "COMMAND")]
        command: u64,
    },
    /// End a command and all that it has started
    Kill {
        #[arg(value_name = "CHAT")]
        chat: String,
        #[arg(value_name = "COMMAND")]
        command: u64,
        /// Only send this signal to it
        #[arg(long, value_name = "NUMBER")]
        signal: Option<i32>,
    },
    /// Copy a file or a directory into or out of a sandbox, whatever its size
    Cp {
        /// A file here, CHAT:PATH, or - for standard input
        #[arg(value_name = "FROM", value_parser = Place::parse)]
        from: Place,
        /// A file or directory here, CHAT:PATH, or - for standard output
        #[arg(value_name = "TO", value_parser = Place::parse)]
        to: Place,
        /// Make the directories that are missing in the sandbox
        #[arg(long, short)]
        parents: bool,
        /// A directory, with all that is in it
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
        /// Or a directory, with all that is in it
        #[arg(long, short)]
        recursive: bool,
    },
    /// Make a directory in a sandbox
    Mkdir {
        #[arg(value_name = "CHAT")]
        chat: String,
        #[arg(value_name = "PATH")]
        path: String,
        /// With those that are missing above it
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
  the command's own, or 128 and the number of the signal that ended it
  124  its time was over
  125  the service refused or failed the request, or cannot be reached
  126  the command cannot be started
  127  the command was not found";

#[derive(Debug, Args)]
pub(in crate::cli) struct Exec {
    #[arg(value_name = "CHAT")]
    pub(super) chat: String,

    /// As whom it runs, if not as the sandbox's own user
    #[arg(long, short, value_name = "NAME|UID[:GID]")]
    user: Option<String>,

    /// Where it runs
    #[arg(long, value_name = "PATH")]
    cwd: Option<String>,

    /// A variable of its environment; without a value, the one it has here
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = variable)]
    env: Vec<(String, String)>,

    /// Kill it after this time, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,

    /// Return at once and let it go on
    #[arg(long, conflicts_with_all = ["interactive", "terminal"])]
    pub(super) detach: bool,

    /// Pass on standard input
    #[arg(long, short)]
    pub(super) interactive: bool,

    /// Give it a terminal
    #[arg(long, short)]
    pub(super) terminal: bool,

    /// The program and its arguments, all that follows it; -- before it is allowed
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

impl Inside {
    /// The chats that were named, each by its id or the beginning of it.
    pub(in crate::cli) fn chats(&mut self) -> Vec<&mut String> {
        match self {
            Inside::Exec(Exec { chat, .. })
            | Inside::Run { chat, .. }
            | Inside::Shell { chat }
            | Inside::Ps { chat }
            | Inside::Logs { chat, .. }
            | Inside::Stats { chat }
            | Inside::Attach { chat, .. }
            | Inside::Kill { chat, .. }
            | Inside::Cat { chat, .. }
            | Inside::Ls { chat, .. }
            | Inside::Rm { chat, .. }
            | Inside::Mkdir { chat, .. }
            | Inside::Mv { chat, .. } => vec![chat],
            Inside::Cp { from, to, .. } => [from, to].into_iter().filter_map(Place::chat).collect(),
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

    /// Without what was not given: the defaults are the service's.
    pub(super) fn params(&self) -> Value {
        let mut params = Map::new();
        params.insert("chat_id".into(), json!(self.chat));
        params.insert("command".into(), json!(self.command));
        if let Some(user) = &self.user {
            params.insert("user".into(), json!(user));
        }
        if let Some(cwd) = &self.cwd {
            params.insert("cwd".into(), json!(cwd));
        }
        if !self.env.is_empty() {
            let env: BTreeMap<_, _> = self.env.iter().cloned().collect();
            params.insert("env".into(), json!(env));
        }
        if let Some(timeout) = self.timeout {
            params.insert("timeout".into(), json!(timeout.as_secs_f64()));
        }
        if self.interactive {
            params.insert("stdin_follows".into(), json!(true));
        }
        if self.detach {
            params.insert("detach".into(), json!(true));
        }
        params.into()
    }
}
