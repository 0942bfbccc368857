//! What a chat's journal holds: writes queue up in order, and reach the disk when it takes them.

use std::collections::VecDeque;

use super::*;

/// The journal of one chat.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) record: Option<Sandbox>,
    queue: VecDeque<Write>,
}

#[derive(Debug)]
struct Write {
    entry: Entry,
    /// Who waits for it, if anybody does.
    ticket: Option<Ticket>,
}

#[derive(Debug)]
enum Entry {
    Save(Box<Sandbox>),
    Forget(SessionId),
    Activity(SessionId, Timestamp),
}

impl Disk {
    /// Takes an effect that is a write; gives any other one back.
    pub(super) fn hand_over(&mut self, effect: Effect) -> Option<Effect> {
        let (entry, ticket) = match effect {
            Effect::Save { ticket, sandbox, .. } => (Entry::Save(sandbox), Some(ticket)),
            Effect::Forget { ticket, session } => (Entry::Forget(session), Some(ticket)),
            Effect::SaveLater(sandbox) => (Entry::Save(sandbox), None),
            Effect::SaveActivity { session, at } => (Entry::Activity(session, at), None),
            other => return Some(other),
        };
        self.queue.push_back(Write { entry, ticket });
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the oldest write, and says who waits for it.
    pub(super) fn take(&mut self) -> Option<Ticket> {
        let Write { entry, ticket } = self.queue.pop_front()?;
        let of = |session| move |record: &mut Sandbox| record.session == session;
        match entry {
            Entry::Save(sandbox) => self.record = Some(*sandbox),
            Entry::Forget(session) => drop(self.record.take_if(of(session))),
            Entry::Activity(session, at) => {
                if let Some(record) = self.record.as_mut().filter(|record| record.session == session) {
                    record.last_activity_at = at;
                }
            }
        }
        ticket
    }

    /// There is no room: whoever waits has to be told, and the rest is kept.
    pub(super) fn refuse(&mut self) -> Vec<Ticket> {
        let refused = self.queue.iter().filter_map(|write| write.ticket).collect();
        self.queue.retain(|write| write.ticket.is_none());
        refused
    }

    /// Nobody waits any more.
    pub(super) fn abandon(&mut self) {
        self.queue.iter_mut().for_each(|write| write.ticket = None);
    }

    /// What has not got there is lost.
    pub(super) fn lose(&mut self) {
        self.queue.clear();
    }

    /// The oldest one that is waited for has waited too long. It gets there all the same, some time.
    pub(super) fn time_out(&mut self) -> Option<Ticket> {
        self.queue.iter_mut().find_map(|write| write.ticket.take())
    }
}

pub(super) fn no_room() -> NotSaved {
    NotSaved("no space left".into())
}
