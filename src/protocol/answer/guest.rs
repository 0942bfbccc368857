//! Results of work in the guest as they are on the wire.

use chrono::DateTime;
use rustix::process::Signal;
use sandbox_init::codec::Bytes;
use sandbox_init::wire::{self, CommandFacts, Ending, Entry, Facts, How, Usage};
use sandboxd_actors::ports::clock::Timestamp;
use sandboxd_protocol::command::{CommandEnd, CommandInfo, CommandResult, CommandsResult, SyncInfo};
use sandboxd_protocol::file::{File, FileKind, ReadFileResult};
use sandboxd_protocol::guest::Stats;
use sandboxd_protocol::time::Time;
use serde::Serialize;

use crate::protocol::content::StoredContent;

/// The end of a command, with the stored part of its outputs.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Ended {
    result: CommandResult,
    #[serde(skip)]
    stdout: CommandOutput,
    #[serde(skip)]
    stderr: CommandOutput,
}

impl Ended {
    pub fn of(command_id: u64, ending: &Ending, missed: u64, [stdout, stderr]: [CommandOutput; 2]) -> Self {
        // The outputs are written behind the other fields.
        let result = CommandResult { command_id, end: end(ending), missed, stdout: None, stderr: None };
        Self { result, stdout, stderr }
    }

    /// Returns why the command failed, or `None` if it succeeded.
    pub fn failure(&self) -> Option<String> {
        let CommandEnd { exit_code, signal, timed_out, oom_killed, .. } = self.result.end;
        match (exit_code, signal) {
            (Some(0), _) => None,
            _ if timed_out => Some("it timed out".to_owned()),
            _ if oom_killed => Some("the sandbox ran out of memory".to_owned()),
            (Some(code), _) => match self.stderr.last_line() {
                Some(line) => Some(format!("it ended with code {code}: {line}")),
                None => Some(format!("it ended with code {code}")),
            },
            (None, signal) => Some(format!("it was ended by signal {}", signal.unwrap_or_default())),
        }
    }

    /// Takes the outputs out.
    pub(super) fn trailing(&mut self) -> Vec<Trailing> {
        vec![self.stdout.trailing("stdout"), self.stderr.trailing("stderr")]
    }
}

/// One of a command's outputs.
#[derive(Debug, Default)]
pub struct CommandOutput {
    /// Absent if the output was streamed.
    stored: Option<StoredContent>,
    /// Number of bytes that were printed, stored or not.
    bytes: u64,
    truncated: bool,
}

impl CommandOutput {
    /// `stored` is absent if the output was streamed.
    pub fn of(stored: Option<StoredContent>, bytes: u64, truncated: bool) -> Self {
        Self { stored, bytes, truncated }
    }

    /// Returns the line in which most programs state why they failed; only the beginning of a long one.
    fn last_line(&self) -> Option<String> {
        self.stored.as_ref()?.last_line()
    }

    fn trailing(&mut self, name: &str) -> Trailing {
        let Self { stored, bytes, truncated } = std::mem::take(self);
        let opening = format!(r#""{name}":{{"bytes":{bytes},"truncated":{truncated},"#);
        Trailing { opening, content: stored, closing: "}" }
    }
}

/// A part of a result that is written piece by piece, behind all other fields: `text` and `base64`, one of them null.
#[derive(Debug)]
pub struct Trailing {
    pub opening: String,
    /// Absent if the content was streamed; then both are null.
    pub content: Option<StoredContent>,
    pub closing: &'static str,
}

/// A file, with the part of its content that was read.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct ReadFile {
    result: ReadFileResult,
    #[serde(skip)]
    content: Option<StoredContent>,
}

impl ReadFile {
    /// `content` is absent if it was streamed.
    pub fn of(content: Option<StoredContent>, bytes: u64, facts: Facts) -> Self {
        // The content is written behind the other fields.
        Self { result: ReadFileResult { bytes, file: file(facts), content: None }, content }
    }

    /// Takes the content out.
    pub(super) fn trailing(&mut self) -> Vec<Trailing> {
        vec![Trailing { opening: String::new(), content: self.content.take(), closing: "" }]
    }
}

pub fn commands(commands: Vec<CommandFacts>, sync: Option<SyncInfo>) -> CommandsResult {
    let info = |command: CommandFacts| CommandInfo {
        command_id: command.id,
        command: command.arguments.iter().map(lossy).collect(),
        age: seconds(command.age),
        attached: command.attached,
        running: command.ending.is_none(),
        end: command.ending.as_ref().map(end),
    };
    CommandsResult { commands: commands.into_iter().map(info).collect(), sync }
}

fn end(ending: &Ending) -> CommandEnd {
    let (exit_code, signal, oom_killed) = match ending.how {
        How::Code { code } => (Some(code), None, false),
        How::Signal { signal } => (None, Some(signal), false),
        How::OutOfMemory {} => (None, Some(Signal::KILL.as_raw()), true),
        How::CodeOutOfMemory { code } => (Some(code), None, true),
    };
    let Ending { timed_out, killed, duration, .. } = *ending;
    CommandEnd { exit_code, signal, timed_out, killed, oom_killed, duration: seconds(duration) }
}

/// Replaces bytes that are not UTF-8: a file with such a name cannot be requested anyway.
fn lossy(bytes: &Bytes) -> String {
    String::from_utf8_lossy(&bytes.0).into_owned()
}

fn seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}

pub fn file(facts: Facts) -> File {
    File {
        name: None,
        kind: match facts.kind {
            wire::FileKind::File {} => FileKind::File,
            wire::FileKind::Directory {} => FileKind::Directory,
            wire::FileKind::Link {} => FileKind::Symlink,
            wire::FileKind::Other {} => FileKind::Other,
        },
        size: facts.size,
        mode: facts.mode,
        uid: facts.user,
        gid: facts.group,
        modified_at: Time(DateTime::from_timestamp_nanos(facts.modified)),
        target: facts.target.as_ref().map(lossy),
    }
}

pub fn entry(entry: Entry) -> File {
    File { name: Some(lossy(&entry.name)), ..file(entry.facts) }
}

/// Returns the resource usage `now`, with the CPU usage since `before`.
pub fn stats(before: &Usage, now: &Usage, at: Timestamp) -> Stats {
    let used = now.cpu.zip(before.cpu).map(|(now, before)| now.saturating_sub(before) as f64);
    let passed = now.at.saturating_sub(before.at) as f64;
    Stats {
        at: Time(at),
        cpu_seconds: now.cpu.map(seconds),
        cpu_percent: used.filter(|_| passed > 0.0).map(|used| (used / passed * 1e4).round() / 1e2),
        memory_bytes: now.memory,
        memory_limit_bytes: now.memory_limit,
        pids: now.processes,
        pids_limit: now.process_limit,
        received_bytes: now.received,
        sent_bytes: now.sent,
        written_bytes: now.written,
    }
}
