//! The journal of a chat: writes queue up in order and are committed when the disk accepts them.

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
    /// The ticket of an acknowledged write.
    ticket: Option<Ticket>,
}

#[derive(Debug)]
enum Entry {
    Save(Box<Sandbox>),
    Remove(SessionId),
    Activity(SessionId, Timestamp),
}

impl Disk {
    /// Queues an effect that is a write; returns any other effect.
    pub(super) fn queue_write(&mut self, effect: Effect) -> Option<Effect> {
        let (entry, ticket) = match effect {
            Effect::Save { ticket, sandbox, .. } => (Entry::Save(sandbox), Some(ticket)),
            Effect::RemoveRecord { ticket, session } => (Entry::Remove(session), Some(ticket)),
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

    /// Commits the oldest write and returns its ticket.
    pub(super) fn take(&mut self) -> Option<Ticket> {
        let Write { entry, ticket } = self.queue.pop_front()?;
        let of = |session| move |record: &mut Sandbox| record.session == session;
        match entry {
            Entry::Save(sandbox) => self.record = Some(*sandbox),
            Entry::Remove(session) => drop(self.record.take_if(of(session))),
            Entry::Activity(session, at) => {
                if let Some(record) = self.record.as_mut().filter(|record| record.session == session) {
                    record.last_activity_at = at;
                }
            }
        }
        ticket
    }

    /// The disk is full: returns the tickets of the acknowledged writes and removes them. Unacknowledged writes stay
    /// queued.
    pub(super) fn refuse(&mut self) -> Vec<Ticket> {
        let refused = self.queue.iter().filter_map(|write| write.ticket).collect();
        self.queue.retain(|write| write.ticket.is_none());
        refused
    }

    /// Turns all writes into unacknowledged ones.
    pub(super) fn drop_tickets(&mut self) {
        self.queue.iter_mut().for_each(|write| write.ticket = None);
    }

    /// Drops all queued writes.
    pub(super) fn drop_writes(&mut self) {
        self.queue.clear();
    }

    /// Times out the oldest acknowledged write. It is still committed later.
    pub(super) fn time_out(&mut self) -> Option<Ticket> {
        self.queue.iter_mut().find_map(|write| write.ticket.take())
    }
}

pub(super) fn no_room() -> NotSaved {
    NotSaved("no space left".into())
}
