//! Work inside a sandbox: what is asked for, and what is told of it.

pub mod file_reason;
mod params;

use std::collections::BTreeMap;
use std::time::Duration;

use sandboxd_actors::ports::engine::logs::LogRange;

/// What is kept of each of a command's outputs for its answer, unless the request says otherwise.
pub const DEFAULT_OUTPUT: usize = 1 << 20;
pub const MAX_OUTPUT: usize = 16 << 20;

/// What one answer holds of a file.
pub const MAX_READ: u64 = 16 << 20;

/// Files that one answer tells of.
pub const MAX_FILES: usize = 10_000;

/// The system takes no longer argument, and init no longer request.
pub const MAX_ARGUMENTS: usize = 128 << 10;

#[derive(Debug, PartialEq)]
pub enum GuestRequest {
    Exec(Box<Exec>),
    RunCode(Box<Code>),
    Attach {
        command: CommandId,
        output: Output,
    },
    Logs(LogRange),
    /// Once, or every so often.
    Stats {
        interval: Option<Duration>,
    },
    Commands,
    Kill {
        command: CommandId,
        signal: Option<i32>,
    },
    Input {
        command: CommandId,
        bytes: Vec<u8>,
        end: bool,
    },
    Resize {
        command: CommandId,
        rows: u16,
        columns: u16,
    },
    ReadFile {
        path: String,
        offset: u64,
        length: u64,
        stream: bool,
    },
    /// Without content, that comes with `sandbox.input`.
    WriteFile {
        path: String,
        content: Option<Vec<u8>>,
        mode: Option<u32>,
        parents: bool,
    },
    ListFiles {
        path: String,
    },
    StatFile {
        path: String,
    },
    MakeDirectory {
        path: String,
        mode: Option<u32>,
        parents: bool,
    },
    RemoveFile {
        path: String,
        recursive: bool,
    },
    MoveFile {
        from: String,
        to: String,
    },
    ReadTree {
        path: String,
    },
    /// Its archive comes with `sandbox.input`.
    WriteTree {
        path: String,
        parents: bool,
    },
}

impl GuestRequest {
    /// Whether it may change something, and so has to wait while the sandbox is brought up to date.
    pub fn may_write(&self) -> bool {
        match self {
            GuestRequest::Exec(exec) => !exec.sync,
            GuestRequest::RunCode(_)
            | GuestRequest::WriteFile { .. }
            | GuestRequest::MakeDirectory { .. }
            | GuestRequest::RemoveFile { .. }
            | GuestRequest::MoveFile { .. }
            | GuestRequest::WriteTree { .. } => true,
            // What runs already, runs.
            GuestRequest::Attach { .. }
            | GuestRequest::Commands
            | GuestRequest::Logs(_)
            | GuestRequest::Stats { .. }
            | GuestRequest::Kill { .. }
            | GuestRequest::Input { .. }
            | GuestRequest::Resize { .. }
            | GuestRequest::ReadFile { .. }
            | GuestRequest::ListFiles { .. }
            | GuestRequest::StatFile { .. }
            | GuestRequest::ReadTree { .. } => false,
        }
    }
}

/// Names a command in its sandbox. Small enough for languages whose numbers are all floating.
pub type CommandId = u64;

#[derive(Debug, PartialEq)]
pub struct Exec {
    pub arguments: Vec<String>,
    /// The sandbox's own if absent.
    pub user: Option<String>,
    pub directory: Option<String>,
    pub environment: BTreeMap<String, String>,
    pub input: Input,
    pub timeout: Option<Duration>,
    pub output: Output,
    /// Rows and columns.
    pub terminal: Option<(u16, u16)>,
    /// Nobody waits for it.
    pub detached: bool,
    /// It brings the sandbox up to date: whatever else may write waits for its end.
    pub sync: bool,
}

/// Code, and how the interpreter of its language is run.
#[derive(Debug, PartialEq)]
pub struct Code {
    pub language: String,
    pub source: String,
    /// Without arguments; those depend on the sandbox's profile.
    pub exec: Exec,
    /// The request itself says how much output is told.
    pub limited: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    None,
    Whole(Vec<u8>),
    /// It comes with `sandbox.input`.
    Follows,
}

/// How a command's output is told, and what becomes of the command when nobody can be told any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// As it is printed, instead of with the answer.
    pub stream: bool,
    /// Bytes of each output that are told.
    pub limit: usize,
    pub detach_on_disconnect: bool,
}

/// How many of these bytes can be told as text without cutting a character in two; all, if they are no text anyway.
pub fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_not_cut_in_two() {
        let text = "aé".as_bytes();
        assert_eq!(whole_characters(text), 3);
        assert_eq!(whole_characters(&text[..2]), 1);
        assert_eq!(whole_characters(&[b'a', 0xff, b'b']), 3, "this is no text");
    }
}
