//! Serialisation of notifications, each with the id of the request that it belongs to.

use sandboxd_actors::journal::LifecycleEvent;
use sandboxd_actors::ports::images::Progress;
use sandboxd_protocol::command::Stream;
use sandboxd_protocol::event::Event;
use sandboxd_protocol::guest::Stats;
use sandboxd_protocol::notification::{
    DataNotification, EventNotification, GapNotification, MissedNotification, Notification as NotificationKind,
    OutputNotification, ProgressNotification, RequestId, StartedNotification, StatsNotification, WatchingNotification,
};
use sandboxd_protocol::time::Time;
use serde::Serialize;

use super::content::Content;
use super::request::Id;
use super::{answer, words};
use crate::protocol::guest::CommandId;

/// A notification without the id of its request. Bytes are borrowed and written in the shorter of their two forms.
#[derive(Debug, Clone, Copy)]
pub enum Notification<'a> {
    Watching {
        after: u64,
    },
    Event(&'a LifecycleEvent),
    Gap {
        after: u64,
        resumes_at: u64,
    },
    Started {
        command: CommandId,
    },
    /// The command is absent for output of the sandbox's own program.
    Output {
        command: Option<CommandId>,
        stream: Stream,
        bytes: &'a [u8],
    },
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
    Stats(&'a Stats),
    Progress(&'a Progress),
}

impl Notification<'_> {
    /// Returns the whole line, with its end.
    pub fn encode(&self, id: &Id) -> Vec<u8> {
        let id = RequestId::from(id.as_json().to_owned());
        match *self {
            Notification::Watching { after } => line(NotificationKind::Watching, &WatchingNotification { id, after }),
            Notification::Event(event) => {
                line(NotificationKind::Event, &EventNotification { id, event: event_of(event) })
            }
            Notification::Gap { after, resumes_at } => {
                line(NotificationKind::Gap, &GapNotification { id, after, resumes_at })
            }
            Notification::Started { command } => {
                line(NotificationKind::Started, &StartedNotification { id, command_id: command })
            }
            Notification::Missed { command, bytes } => {
                line(NotificationKind::Missed, &MissedNotification { id, command_id: command, bytes })
            }
            Notification::Stats(stats) => line(NotificationKind::Stats, &StatsNotification { id, stats: *stats }),
            Notification::Progress(progress) => {
                line(NotificationKind::Progress, &ProgressNotification { id, progress: answer::progress(progress) })
            }
            Notification::Output { command, stream, bytes } => {
                let params = OutputNotification { id, command_id: command, stream, text: None, base64: None };
                line_with(NotificationKind::Output, &params, &Content::of(bytes))
            }
            Notification::Data { offset, bytes } => {
                let params = DataNotification { id, offset, text: None, base64: None };
                line_with(NotificationKind::Data, &params, &Content::of(bytes))
            }
            Notification::Archive { offset, bytes } => {
                let params = DataNotification { id, offset, text: None, base64: None };
                line_with(NotificationKind::Data, &params, &Content::bytes(bytes))
            }
        }
    }
}

fn line(kind: NotificationKind, params: &impl Serialize) -> Vec<u8> {
    let mut line = Vec::with_capacity(512);
    put_envelope(&mut line, kind, params);
    line.push(b'\n');
    line
}

/// Returns a line with content behind the other parameters.
fn line_with(kind: NotificationKind, params: &impl Serialize, content: &Content<'_>) -> Vec<u8> {
    // Most text is written with few escapes.
    let content_length = match content {
        Content::Text(text) => text.len() * 9 / 8,
        Content::Bytes(bytes) => bytes.len() * 4 / 3,
    };
    let mut line = Vec::with_capacity(256 + content_length);
    put_envelope(&mut line, kind, params);
    // Before the ends of the parameters and of the envelope.
    line.truncate(line.len() - 2);
    line.push(b',');
    content.put_field(&mut line);
    line.extend_from_slice(b"}}\n");
    line
}

fn put_envelope<T: Serialize>(line: &mut Vec<u8>, kind: NotificationKind, params: &T) {
    #[derive(Serialize)]
    struct Envelope<'a, T> {
        jsonrpc: &'static str,
        method: &'static str,
        params: &'a T,
    }
    serde_json::to_writer(line, &Envelope { jsonrpc: "2.0", method: kind.method(), params })
        .expect("strings and numbers can be written to memory");
}

fn event_of(event: &LifecycleEvent) -> Event {
    let change = &event.change;
    Event {
        sequence: event.sequence,
        at: Time(change.at),
        chat_id: change.chat.to_string(),
        session_id: change.session.to_string(),
        agent_id: change.agent.to_string(),
        container_id: change.container.as_ref().map(ToString::to_string),
        from: change.from.map(words::status),
        to: change.to.map(words::status),
        reason: words::reason(change.reason),
        message: change.message.clone(),
    }
}
