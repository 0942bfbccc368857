//! What a watcher is sent without being asked each time: notifications, each with the id of the request to watch.

use std::fmt::Display;

use sandboxd_actors::journal::LifecycleEvent;
use sandboxd_actors::sandbox::Status;
use serde::Serialize;
use serde_json::value::RawValue;

use super::request::Id;
use super::text::{Shown, Time};

#[derive(Debug, Clone, Copy)]
pub enum Notification<'a> {
    /// The watch has begun: everything after this event follows.
    Watching {
        after: u64,
    },
    Event(&'a LifecycleEvent),
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
        }
    }

    /// The whole line, with its end.
    pub fn encode(&self, id: &Id) -> Vec<u8> {
        let id = id.as_json();
        let params = match *self {
            Notification::Watching { after } => Params { id, after: Some(after), resumes_at: None, event: None },
            Notification::Event(event) => {
                Params { id, after: None, resumes_at: None, event: Some(EventFields::of(event)) }
            }
            Notification::Gap { after, resumes_at } => {
                Params { id, after: Some(after), resumes_at: Some(resumes_at), event: None }
            }
        };
        let mut line = Vec::with_capacity(512);
        serde_json::to_writer(&mut line, &Envelope { jsonrpc: "2.0", method: self.method(), params })
            .expect("strings and numbers can be written to memory");
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
    after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resumes_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<EventFields<'a>>,
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
