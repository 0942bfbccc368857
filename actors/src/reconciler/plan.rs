//! What to do about the difference between what the engine holds, what was promised, and what is being looked after.
//! Pure: a listing, the journal's records and the chats that have an actor go in, actions come out.
//!
//! A chat that has an actor is never acted on from here: its actor is told what was seen, and decides with what it
//! knows. So a pass can neither adopt what is being torn down nor remove what was just created.
//!
//! For a chat without an actor:
//!
//! | record | container | action |
//! |---|---|---|
//! | running or paused | alive, same session | resume, with the record's times, running |
//! | running or paused | paused, same session | resume, with the record's times, paused |
//! | running or paused | ended or ill, same session | failed, with the cause |
//! | running or paused | none | failed, vanished |
//! | failed or stopped | alive, ended or none | stays so; its restart or its end is its actor's business |
//! | being deleted | any or none | finish the removal |
//! | being created | any or none | never acknowledged: remove it |
//! | any other | half made, same session | remove it |
//! | any | another session | the container was never acknowledged: remove it, and the record with it |
//! | none | alive or ended, and the journal is new | adopt from its labels |
//! | none | half made, and the journal is new | never acknowledged: remove it |
//! | none | any, older than the grace or than the service | never acknowledged: remove it |
//! | none | any, younger | leave it: somebody may be creating it |
//!
//! A container with our label whose labels cannot be read, or whose name is not its chat's, is left alone and reported.

use std::collections::{BTreeMap, BTreeSet};

use crate::chat::effects::discover::{Condition, Found, LiveContainer};
use crate::domain::ids::{ChatId, ContainerId, InstanceName};
use crate::domain::labels::SlotLabels;
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::ports::clock::Timestamp;
use crate::ports::engine::Observed;

#[derive(Debug, Clone, PartialEq)]
pub struct PlanInput {
    /// Every container of the instance, whatever its state.
    pub listed: Vec<Found>,
    /// Containers with our label that are not what they should be, and why.
    pub unrecognised: Vec<(ContainerId, String)>,
    pub records: Vec<Sandbox>,
    /// Chats that have an actor.
    pub adopted: BTreeSet<ChatId>,
    /// The journal has no history: containers without a record are not suspicious.
    pub journal_is_new: bool,
    pub now: Timestamp,
    /// A container made after this may still be on its way to being acknowledged; `None` where none can be.
    pub underway_since: Option<Timestamp>,
}

/// The chats' containers, slots, and what merely claims to be one of them.
pub type Recognised = (Vec<Found>, Vec<(SlotLabels, Observed)>, Vec<(ContainerId, String)>);

impl PlanInput {
    /// Sorts a listing into what is ours and what merely claims to be.
    pub fn recognise(instance: &InstanceName, listed: Vec<Observed>) -> Recognised {
        let (mut ours, mut slots, mut unrecognised) = (Vec::new(), Vec::new(), Vec::new());
        for container in listed {
            // Slots that are nobody's are their pools' business.
            if let Ok(labels) = SlotLabels::decode(&container.labels)
                && labels.instance == *instance
            {
                slots.push((labels, container));
                continue;
            }
            let id = container.id.clone();
            match Found::recognise(container, instance) {
                Ok(found) => ours.push(found),
                Err(why) => unrecognised.push((id, why.to_string())),
            }
        }
        (ours, slots, unrecognised)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Gives the chat an actor that begins with this sandbox; its status says how to go on.
    Adopt { sandbox: Box<Sandbox>, because: Because },
    /// Tells the chat's actor which live container the engine holds for it.
    Tell { chat: ChatId, seen: Option<LiveContainer> },
    /// Does nothing about a container, and says why.
    Leave { container: ContainerId, why: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    Resumed,
    AdoptedFromLabels,
    Ended,
    Vanished,
    RemovalUnfinished,
    NeverAcknowledged,
}

impl Because {
    pub fn as_str(self) -> &'static str {
        match self {
            Because::Resumed => "resumed",
            Because::AdoptedFromLabels => "adopted_from_labels",
            Because::Ended => "ended",
            Because::Vanished => "vanished",
            Because::RemovalUnfinished => "removal_unfinished",
            Because::NeverAcknowledged => "never_acknowledged",
        }
    }
}

pub fn plan(situation: &PlanInput) -> Vec<Action> {
    let found: BTreeMap<ChatId, &Found> = situation.listed.iter().map(|found| (found.labels.chat, found)).collect();
    let records: BTreeMap<ChatId, &Sandbox> = situation.records.iter().map(|record| (record.chat, record)).collect();
    let chats: BTreeSet<ChatId> = found.keys().chain(records.keys()).chain(situation.adopted.iter()).copied().collect();

    let mut actions: Vec<Action> = chats
        .into_iter()
        .filter_map(|chat| {
            let seen = found.get(&chat).copied();
            if situation.adopted.contains(&chat) {
                return Some(Action::Tell { chat, seen: seen.and_then(Found::live_container) });
            }
            match (records.get(&chat).copied(), seen) {
                (Some(record), seen) => Some(with_record(record, seen, situation.now)),
                (None, Some(found)) => Some(without_record(found, situation)),
                (None, None) => None,
            }
        })
        .collect();
    let left = situation.unrecognised.iter();
    actions.extend(left.map(|(container, why)| Action::Leave { container: container.clone(), why: why.clone() }));
    actions
}

fn with_record(record: &Sandbox, seen: Option<&Found>, now: Timestamp) -> Action {
    if let Some(found) = seen
        && found.labels.session != record.session
    {
        return stray(found, now);
    }
    let mut sandbox = record.clone();
    if let Some(found) = seen {
        sandbox.container = Some(found.container.id.clone());
        sandbox.endpoint = found.endpoint().or(sandbox.endpoint);
    }
    let because = match (record.status, seen.map(Found::condition)) {
        (Status::Deleting, _) => Because::RemovalUnfinished,
        // A record is written when a sandbox is ready; one that says otherwise was never acknowledged.
        (Status::Creating, _) | (_, Some(Condition::Incomplete)) => {
            become_status(&mut sandbox, Status::Deleting, Reason::Incomplete, None);
            Because::NeverAcknowledged
        }
        (Status::Failed | Status::Stopped, _) => Because::Ended,
        (Status::Running, Some(Condition::Alive)) | (Status::Paused, Some(Condition::Paused)) => Because::Resumed,
        (Status::Running, Some(Condition::Paused)) => {
            become_status(&mut sandbox, Status::Paused, Reason::Adopted, None);
            Because::Resumed
        }
        (Status::Paused, Some(Condition::Alive)) => {
            become_status(&mut sandbox, Status::Running, Reason::Adopted, None);
            // Nobody knows since when. Rather too late an end than too early a one.
            sandbox.last_activity_at = now;
            Because::Resumed
        }
        (Status::Running | Status::Paused, Some(Condition::Ended | Condition::Unhealthy)) => {
            let seen = seen.map(|found| found.sandbox(now));
            let (reason, message) = seen.map_or((Reason::Exited, None), |seen| (seen.reason, seen.message));
            become_status(&mut sandbox, Status::Failed, reason, message);
            Because::Ended
        }
        (Status::Running | Status::Paused, None) => {
            let message = Some("its container was removed by somebody else".to_owned());
            become_status(&mut sandbox, Status::Failed, Reason::Vanished, message);
            Because::Vanished
        }
    };
    Action::Adopt { sandbox: Box::new(sandbox), because }
}

fn without_record(found: &Found, situation: &PlanInput) -> Action {
    let now = situation.now;
    if situation.journal_is_new {
        // Its record is lost, and labels do not tell of renewals.
        let sandbox = Sandbox { expires_at: found.labels.expires_if_adopted(now), ..found.sandbox(now) };
        let because = match found.condition() {
            Condition::Alive | Condition::Paused => Because::AdoptedFromLabels,
            Condition::Ended | Condition::Unhealthy => Because::Ended,
            Condition::Incomplete => Because::NeverAcknowledged,
        };
        return Action::Adopt { sandbox: Box::new(sandbox), because };
    }
    if situation.underway_since.is_some_and(|since| found.labels.created_at > since) {
        let why = "it is young and may still be on its way to being acknowledged".to_owned();
        return Action::Leave { container: found.container.id.clone(), why };
    }
    stray(found, now)
}

fn stray(found: &Found, now: Timestamp) -> Action {
    let mut sandbox = found.sandbox(now);
    become_status(&mut sandbox, Status::Deleting, Reason::Incomplete, None);
    Action::Adopt { sandbox: Box::new(sandbox), because: Because::NeverAcknowledged }
}

fn become_status(sandbox: &mut Sandbox, status: Status, reason: Reason, message: Option<String>) {
    sandbox.status = status;
    sandbox.reason = reason;
    sandbox.message = message;
}

#[cfg(test)]
mod tests;
