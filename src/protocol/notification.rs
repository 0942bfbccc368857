//! What is sent ahead of an answer: notifications, each with the id of the request that they belong to.

use std::fmt::Display;

use sandboxd_actors::domain::sandbox::Status;
use sandboxd_actors::journal::LifecycleEvent;
use sandboxd_actors::ports::images::Progress;
use serde::Serialize;
use serde_json::value::RawValue;

use super::content::Content;
use super::images::ProgressFields;
use super::request::Id;
use super::text::{Shown, Time};
use crate::protocol::guest::CommandId;
use crate::protocol::guest::answer::Stats;

#[derive(Debug, Clone, Copy)]
pub enum Notification<'a> {
    /// The watch has begun: everything after this event follows.
    Watching {
        after: u64,
    },
    Event(&'a LifecycleEvent),
    /// A command was started, or attached to.
    Started {
        command: CommandId,
    },
    /// A command has printed this, or, without one, the sandbox's own program.
    Output {
        command: Option<CommandId>,
        stream: &'static str,
        bytes: &'a [u8],
    },
    /// So many bytes of output were not kept while nobody listened.
    Missed {
        command: CommandId,
        bytes: u64,
    },
    /// A part of a file.
    Data {
        offset: u64,
        bytes: &'a [u8],
    },
    /// A part of an archive.
    Archive {
        offset: u64,
        bytes: &'a [u8],
    },
    /// What the sandbox uses.
    Stats(&'a Stats),
    /// How far a pull or a build has come.
    Progress(&'a Progress),
    /// Events are lost; the next one is this or a later one.
    Gap {
        after: u64,
        resumes_at: u64,
    },
}

impl Notification<'_> {
    pub fn method(&self) -> &'static str {
        match self {
            Notification::Watching { .. } => "events.watching",
            Notification::Event(_) => "events.event",
            Notification::Gap { .. } => "events.gap",
            Notification::Started { .. } => "sandbox.started",
            Notification::Output { .. } => "sandbox.output",
            Notification::Missed { .. } => "sandbox.missed",
            Notification::Data { .. } | Notification::Archive { .. } => "sandbox.data",
            Notification::Stats(_) => "sandbox.stats",
            Notification::Progress(_) => "image.progress",
        }
    }

    /// About as long as the line will be.
    fn size_hint(&self) -> usize {
        match self {
            Notification::Output { bytes, .. } | Notification::Data { bytes, .. } => 256 + bytes.len() * 9 / 8,
            Notification::Archive { bytes, .. } => 256 + bytes.len() * 4 / 3,
            _ => 512,
        }
    }

    /// The whole line, with its end.
    pub fn encode(&self, id: &Id) -> Vec<u8> {
        let id = id.as_json();
        let nothing = Params { id, ..Params::default() };
        let mut content = None;
        let params = match *self {
            Notification::Watching { after } => Params { after: Some(after), ..nothing },
            Notification::Event(event) => Params { event: Some(EventFields::of(event)), ..nothing },
            Notification::Gap { after, resumes_at } => {
                Params { after: Some(after), resumes_at: Some(resumes_at), ..nothing }
            }
            Notification::Started { command } => Params { command_id: Some(command), ..nothing },
            Notification::Output { command, stream, bytes } => {
                content = Some(Content::of(bytes));
                Params { command_id: command, stream: Some(stream), ..nothing }
            }
            Notification::Stats(stats) => Params { stats: Some(stats), ..nothing },
            Notification::Progress(progress) => Params { progress: Some(progress.into()), ..nothing },
            Notification::Missed { command, bytes } => {
                Params { command_id: Some(command), bytes: Some(bytes), ..nothing }
            }
            Notification::Data { offset, bytes } => {
                content = Some(Content::of(bytes));
                Params { offset: Some(offset), ..nothing }
            }
            Notification::Archive { offset, bytes } => {
                content = Some(Content::bytes(bytes));
                Params { offset: Some(offset), ..nothing }
            }
        };
        let mut line = Vec::with_capacity(self.size_hint());
        serde_json::to_writer(&mut line, &Envelope { jsonrpc: "2.0", method: self.method(), params })
            .expect("strings and numbers can be written to memory");
        if let Some(content) = content {
            // Behind the other fields, before the ends of the parameters and of the envelope.
            line.truncate(line.len() - 2);
            line.push(b',');
            content.put_field(&mut line);
            line.extend_from_slice(b"}}");
        }
        line.push(b'\n');
        line
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    jsonrpc: &'static str,
    method: &'static str,
    params: Params<'a>,
}

#[derive(Serialize)]
struct Params<'a> {
    id: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_id: Option<CommandId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resumes_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<EventFields<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<&'a Stats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ProgressFields<'a>>,
}

impl Default for Params<'_> {
    fn default() -> Self {
        let (command_id, stream, offset, bytes) = (None, None, None, None);
        let (after, resumes_at, event, stats, progress) = (None, None, None, None, None);
        Self { id: RawValue::NULL, command_id, stream, offset, bytes, after, resumes_at, event, stats, progress }
    }
}

#[derive(Serialize)]
struct EventFields<'a> {
    sequence: u64,
    at: Time,
    chat_id: Shown<&'a dyn Display>,
    session_id: Shown<&'a dyn Display>,
    agent_id: &'a str,
    container_id: Option<&'a str>,
    from: Option<&'static str>,
    to: Option<&'static str>,
    reason: &'static str,
    message: Option<&'a str>,
}

impl<'a> EventFields<'a> {
    fn of(event: &'a LifecycleEvent) -> Self {
        let change = &event.change;
        EventFields {
            sequence: event.sequence,
            at: Time(change.at),
            chat_id: Shown(&change.chat),
            session_id: Shown(&change.session),
            agent_id: change.agent.as_str(),
            container_id: change.container.as_ref().map(|id| id.as_str()),
            from: change.from.map(Status::as_str),
            to: change.to.map(Status::as_str),
            reason: change.reason.as_str(),
            message: change.message.as_deref(),
        }
    }
}
