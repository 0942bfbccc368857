//! Guest requests: work in a sandbox, and its limits.

mod params;

use std::collections::BTreeMap;
use std::time::Duration;

use sandboxd_actors::ports::engine::logs::LogRange;

/// The default limit of each of a command's outputs in an answer, in bytes.
pub const DEFAULT_OUTPUT: usize = 1 << 20;
pub const MAX_OUTPUT: usize = 16 << 20;

/// The maximum bytes of a file in one answer.
pub const MAX_READ: u64 = 16 << 20;

/// The maximum files in one answer.
pub const MAX_FILES: usize = 10_000;

/// The maximum bytes of arguments and environment: a limit of the system for one argument, and of init for a request.
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
    /// Sent once if there is no interval.
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
    /// Absent content follows with `sandbox.input`.
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
    /// The archive follows with `sandbox.input`.
    WriteTree {
        path: String,
        parents: bool,
    },
}

impl GuestRequest {
    /// Returns whether the request may write, and so has to wait for an active sync.
    pub fn may_write(&self) -> bool {
        match self {
            GuestRequest::Exec(exec) => !exec.sync,
            GuestRequest::RunCode(_)
            | GuestRequest::WriteFile { .. }
            | GuestRequest::MakeDirectory { .. }
            | GuestRequest::RemoveFile { .. }
            | GuestRequest::MoveFile { .. }
            | GuestRequest::WriteTree { .. } => true,
            // Commands that already run do not wait for a sync.
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

/// The id of a command in its sandbox. Small enough to be exact as a floating-point number.
pub type CommandId = u64;

#[derive(Debug, PartialEq)]
pub struct Exec {
    pub arguments: Vec<String>,
    /// The sandbox's user if absent.
    pub user: Option<String>,
    pub directory: Option<String>,
    pub environment: BTreeMap<String, String>,
    pub input: Input,
    pub timeout: Option<Duration>,
    pub output: Output,
    /// Rows and columns.
    pub terminal: Option<(u16, u16)>,
    /// The answer does not wait for the end of the command.
    pub detached: bool,
    /// The command is a sync: other writes wait for its end.
    pub sync: bool,
}

/// Code, and the options of its interpreter's command.
#[derive(Debug, PartialEq)]
pub struct Code {
    pub language: String,
    pub source: String,
    /// Without arguments, which depend on the sandbox's profile.
    pub exec: Exec,
    /// The request has its own limit of output.
    pub limited: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    None,
    Whole(Vec<u8>),
    /// The input follows with `sandbox.input`.
    Follows,
}

/// The delivery of a command's output, and the effect of a disconnect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// Send output as it is printed, instead of with the answer.
    pub stream: bool,
    /// The maximum bytes of each output.
    pub limit: usize,
    pub detach_on_disconnect: bool,
}

/// Returns the number of bytes that are complete characters; all, if the bytes are not UTF-8.
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
    fn a_character_is_not_split() {
        let text = "aé".as_bytes();
        assert_eq!(whole_characters(text), 3);
        assert_eq!(whole_characters(&text[..2]), 1);
        assert_eq!(whole_characters(&[b'a', 0xff, b'b']), 3, "this is no text");
    }
}
