//! What is told of work inside a sandbox.

use chrono::DateTime;
use rustix::process::Signal;
use sandbox_init::codec::Bytes;
use sandbox_init::wire::{CommandFacts, Ending, Entry, Facts, FileKind, How, Usage};
use sandboxd_actors::ports::clock::Timestamp;
use serde::Serialize;

use super::CommandId;
use crate::protocol::content::StoredContent;
use crate::protocol::text::Time;

/// How a command ended, with what was kept of its output.
#[derive(Debug, Serialize)]
pub struct Ended {
    pub command_id: CommandId,
    #[serde(flatten)]
    pub end: End,
    #[serde(skip)]
    pub stdout: Printed,
    #[serde(skip)]
    pub stderr: Printed,
    /// Bytes that were printed while nobody listened, and were too many to be kept.
    pub missed: u64,
}

impl Ended {
    /// Why it is no success, if it is none.
    pub fn failure(&self) -> Option<String> {
        match (self.end.exit_code, self.end.signal) {
            (Some(0), _) => None,
            _ if self.end.timed_out => Some("it took too long".to_owned()),
            _ if self.end.oom_killed => Some("the sandbox ran out of memory".to_owned()),
            (Some(code), _) => match self.stderr.last_line() {
                Some(line) => Some(format!("it ended with code {code}: {line}")),
                None => Some(format!("it ended with code {code}")),
            },
            (None, signal) => Some(format!("it was ended by signal {}", signal.unwrap_or_default())),
        }
    }
}

/// Exactly one of code and signal is there.
#[derive(Debug, Serialize)]
pub struct End {
    exit_code: Option<i32>,
    signal: Option<i32>,
    timed_out: bool,
    killed: bool,
    /// By the kernel, because the sandbox's memory limit was reached.
    oom_killed: bool,
    /// In seconds.
    duration: f64,
}

impl From<&Ending> for End {
    fn from(ending: &Ending) -> Self {
        let (exit_code, signal, oom_killed) = match ending.how {
            How::Code { code } => (Some(code), None, false),
            How::Signal { signal } => (None, Some(signal), false),
            How::OutOfMemory {} => (None, Some(Signal::KILL.as_raw()), true),
            How::CodeOutOfMemory { code } => (Some(code), None, true),
        };
        let Ending { timed_out, killed, duration, .. } = *ending;
        Self { exit_code, signal, timed_out, killed, oom_killed, duration: duration as f64 / 1e6 }
    }
}

/// One of a command's outputs.
#[derive(Debug, Default)]
pub struct Printed {
    /// Absent where it was streamed.
    kept: Option<StoredContent>,
    /// All that was printed, told or not.
    bytes: u64,
    truncated: bool,
}

impl Printed {
    /// `kept` is absent where the output was streamed.
    pub fn of(kept: Option<StoredContent>, bytes: u64, truncated: bool) -> Self {
        Self { kept, bytes, truncated }
    }

    /// Where most programs say why they failed. Of a long one, the beginning.
    fn last_line(&self) -> Option<String> {
        self.kept.as_ref()?.last_line()
    }

    fn trailing(&mut self, name: &str) -> Trailing {
        let Self { kept, bytes, truncated } = std::mem::take(self);
        let opening = format!(r#""{name}":{{"bytes":{bytes},"truncated":{truncated},"#);
        Trailing { opening, content: kept, closing: "}" }
    }
}

/// A part of an answer that is written bit by bit, behind all other fields: `text` and `base64`, one of them null.
#[derive(Debug)]
pub struct Trailing {
    pub opening: String,
    /// Absent where it was streamed; then both are null.
    pub content: Option<StoredContent>,
    pub closing: &'static str,
}

#[derive(Debug, Serialize)]
pub struct Started {
    pub command_id: CommandId,
}

#[derive(Debug, Serialize)]
pub struct Commands {
    commands: Vec<CommandFields>,
    /// The last one in this sandbox that the service has seen begin.
    sync: Option<SyncFields>,
}

/// How far the sandbox is up to date.
#[derive(Debug, Serialize)]
pub struct SyncFields {
    pub state: &'static str,
    pub command_id: Option<CommandId>,
    /// Why it failed.
    pub message: Option<String>,
}

#[derive(Debug, Serialize)]
struct CommandFields {
    command_id: CommandId,
    command: Vec<String>,
    /// Since it was started, in seconds.
    age: f64,
    attached: bool,
    running: bool,
    end: Option<End>,
}

impl Commands {
    pub fn of(commands: Vec<CommandFacts>, sync: Option<SyncFields>) -> Self {
        let fields = |command: CommandFacts| CommandFields {
            command_id: command.id,
            command: command.arguments.iter().map(lossy).collect(),
            age: command.age as f64 / 1e6,
            attached: command.attached,
            running: command.ending.is_none(),
            end: command.ending.as_ref().map(End::from),
        };
        Self { commands: commands.into_iter().map(fields).collect(), sync }
    }
}

/// A file's name may be any bytes; what is not UTF-8 is replaced, as it cannot be asked for anyway.
fn lossy(bytes: &Bytes) -> String {
    String::from_utf8_lossy(&bytes.0).into_owned()
}

#[derive(Debug, Serialize)]
pub struct FileFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    kind: &'static str,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    modified_at: Time,
    /// Where a symbolic link leads.
    target: Option<String>,
}

impl From<Facts> for FileFields {
    fn from(facts: Facts) -> Self {
        Self {
            name: None,
            kind: match facts.kind {
                FileKind::File {} => "file",
                FileKind::Directory {} => "directory",
                FileKind::Link {} => "symlink",
                FileKind::Other {} => "other",
            },
            size: facts.size,
            mode: facts.mode,
            uid: facts.user,
            gid: facts.group,
            modified_at: Time(DateTime::from_timestamp_nanos(facts.modified)),
            target: facts.target.as_ref().map(lossy),
        }
    }
}

impl From<Entry> for FileFields {
    fn from(entry: Entry) -> Self {
        Self { name: Some(lossy(&entry.name)), ..entry.facts.into() }
    }
}

#[derive(Debug, Serialize)]
pub struct Files {
    pub files: Vec<FileFields>,
    /// There are more than one answer tells.
    pub truncated: bool,
}

#[derive(Debug, Serialize)]
pub struct ReadFile {
    #[serde(skip)]
    content: Option<StoredContent>,
    /// Told, from the offset on.
    bytes: u64,
    #[serde(flatten)]
    file: FileFields,
}

impl ReadFile {
    /// `content` is absent where it was streamed.
    pub fn of(content: Option<StoredContent>, bytes: u64, file: FileFields) -> Self {
        Self { content, bytes, file }
    }
}

/// What was read or written of a directory with all that is in it.
#[derive(Debug, Serialize)]
pub struct Tree {
    pub entries: u64,
    pub bytes: u64,
    pub skipped: u64,
}

/// What was told of the output of a sandbox's own program.
#[derive(Debug, Serialize)]
pub struct Logged {
    pub bytes: u64,
}

/// What a sandbox uses. Null is what cannot be found out, and a limit that there is not.
#[derive(Debug, Serialize)]
pub struct Stats {
    at: Time,
    /// Since the sandbox was started, of all CPUs together.
    cpu_seconds: Option<f64>,
    /// Since the last look; 100 is all of one CPU.
    cpu_percent: Option<f64>,
    memory_bytes: Option<u64>,
    memory_limit_bytes: Option<u64>,
    pids: Option<u64>,
    pids_limit: Option<u64>,
    received_bytes: Option<u64>,
    sent_bytes: Option<u64>,
    written_bytes: Option<u64>,
}

impl Stats {
    pub fn between(before: &Usage, now: &Usage, at: Timestamp) -> Self {
        let used = now.cpu.zip(before.cpu).map(|(now, before)| now.saturating_sub(before) as f64);
        let passed = now.at.saturating_sub(before.at) as f64;
        Self {
            at: Time(at),
            cpu_seconds: now.cpu.map(|cpu| cpu as f64 / 1e6),
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
}

/// Nothing more to tell than that it is done.
#[derive(Debug, Serialize)]
pub struct Done {}

/// An answer of any of these.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum GuestResult {
    Ended(Box<Ended>),
    Started(Started),
    Commands(Commands),
    File(FileFields),
    Files(Files),
    Read(Box<ReadFile>),
    Tree(Tree),
    Logged(Logged),
    Stats(Box<Stats>),
    Done(Done),
}

impl GuestResult {
    /// Takes out the parts that may be long.
    pub fn trailing(&mut self) -> Vec<Trailing> {
        match self {
            GuestResult::Ended(ended) => vec![ended.stdout.trailing("stdout"), ended.stderr.trailing("stderr")],
            GuestResult::Read(read) => {
                vec![Trailing { opening: String::new(), content: read.content.take(), closing: "" }]
            }
            _ => Vec::new(),
        }
    }
}
