//! The decisions of a reconcile pass. Pure: a listing, the journal's records and the chats that have an actor go in,
//! actions come out.
//!
//! A pass never acts on a chat that has an actor: it notifies the actor, which decides with its current state. So a
//! pass can neither adopt a container that is being torn down nor remove one that was just created.
//!
//! For a chat without an actor:
//!
//! | record | container | action |
//! |---|---|---|
//! | running or paused | alive, same session | resume, with the record's times, running |
//! | running or paused | paused, same session | resume, with the record's times, paused |
//! | running or paused | ended or unhealthy, same session | failed, with the cause |
//! | running or paused | none | failed, vanished |
//! | failed or stopped | alive, ended or none | unchanged; its actor decides about restart and end |
//! | being deleted | any or none | finish the removal |
//! | being created | any or none | never acknowledged: remove it |
//! | any other | half made, same session | remove it |
//! | any | another session | the container was never acknowledged: remove it, and the record with it |
//! | none | alive or ended, and the journal is new | adopt from its labels |
//! | none | half made, and the journal is new | never acknowledged: remove it |
//! | none | any, older than the grace or than the service | never acknowledged: remove it |
//! | none | any, younger | leave it: it may be being created |
//!
//! A container with our label whose labels cannot be read, or whose name is not its chat's, is left alone and reported.

use std::collections::{BTreeMap, BTreeSet};

use crate::chat::effects::discover::{Condition, Found, LiveContainer, NotOurs, session_labels};
use crate::domain::ids::{ChatId, ContainerId, InstanceName};
use crate::domain::labels::SlotLabels;
use crate::domain::sandbox::{Reason, Sandbox, Status};
use crate::pool::claims::Claims;
use crate::ports::clock::Timestamp;
use crate::ports::engine::Observed;

#[derive(Debug, Clone, PartialEq)]
pub struct PlanInput {
    /// Every container of the instance, in any state.
    pub listed: Vec<Found>,
    /// Containers with our label that were not recognised, and why.
    pub unrecognised: Vec<(ContainerId, String)>,
    pub records: Vec<Sandbox>,
    /// Chats that have an actor.
    pub adopted: BTreeSet<ChatId>,
    /// The journal has no history, so a container without a record is not suspicious.
    pub journal_is_new: bool,
    pub now: Timestamp,
    /// A container created after this may still be acknowledged; `None` if no container is being created.
    pub underway_since: Option<Timestamp>,
}

/// The chats' containers, the slots, and the containers that were not recognised, with the cause.
pub type Recognised = (Vec<Found>, Vec<(SlotLabels, Observed)>, Vec<(ContainerId, String)>);

impl PlanInput {
    /// Sorts a listing into containers of chats, slots, and containers that were not recognised.
    pub fn recognise(instance: &InstanceName, claims: &Claims, listed: Vec<Observed>) -> Recognised {
        let (mut ours, mut slots, mut unrecognised) = (Vec::new(), Vec::new(), Vec::new());
        for container in listed {
            match session_labels(&container, instance, claims) {
                Ok(labels) => ours.push(Found { labels, container, death: None }),
                // Free slots belong to their pools.
                Err(NotOurs::Slot(labels)) => slots.push((labels, container)),
                Err(why) => unrecognised.push((container.id, why.to_string())),
            }
        }
        (ours, slots, unrecognised)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Starts an actor for the chat with this sandbox; its status decides the next step.
    Adopt { sandbox: Box<Sandbox>, because: Because },
    /// Notifies the chat's actor of the live container that the engine holds for it.
    Tell { chat: ChatId, seen: Option<LiveContainer> },
    /// Leaves a container alone, and reports why.
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
        return remove_unacknowledged(found, now);
    }
    let mut sandbox = record.clone();
    if let Some(found) = seen {
        sandbox.container = Some(found.container.id.clone());
        sandbox.endpoint = found.endpoint().or(sandbox.endpoint);
    }
    let because = match (record.status, seen.map(Found::condition)) {
        (Status::Deleting, _) => Because::RemovalUnfinished,
        // A record is written when a sandbox is ready. An earlier status was never acknowledged.
        (Status::Creating, _) | (_, Some(Condition::Incomplete)) => {
            set_status(&mut sandbox, Status::Deleting, Reason::Incomplete, None);
            Because::NeverAcknowledged
        }
        (Status::Failed | Status::Stopped, _) => Because::Ended,
        (Status::Running, Some(Condition::Alive)) | (Status::Paused, Some(Condition::Paused)) => Because::Resumed,
        (Status::Running, Some(Condition::Paused)) => {
            set_status(&mut sandbox, Status::Paused, Reason::Adopted, None);
            Because::Resumed
        }
        (Status::Paused, Some(Condition::Alive)) => {
            set_status(&mut sandbox, Status::Running, Reason::Adopted, None);
            // The time of the resume is unknown. A late expiry is better than an early one.
            sandbox.last_activity_at = now;
            Because::Resumed
        }
        (Status::Running | Status::Paused, Some(Condition::Ended | Condition::Unhealthy)) => {
            let seen = seen.map(|found| found.sandbox(now));
            let (reason, message) = seen.map_or((Reason::Exited, None), |seen| (seen.reason, seen.message));
            set_status(&mut sandbox, Status::Failed, reason, message);
            Because::Ended
        }
        (Status::Running | Status::Paused, None) => {
            let message = Some("the container was removed externally".to_owned());
            set_status(&mut sandbox, Status::Failed, Reason::Vanished, message);
            Because::Vanished
        }
    };
    Action::Adopt { sandbox: Box::new(sandbox), because }
}

fn without_record(found: &Found, situation: &PlanInput) -> Action {
    let now = situation.now;
    if situation.journal_is_new {
        // The record is lost, and labels do not contain renewals.
        let sandbox = Sandbox { expires_at: found.labels.expires_if_adopted(now), ..found.sandbox(now) };
        let because = match found.condition() {
            Condition::Alive | Condition::Paused => Because::AdoptedFromLabels,
            Condition::Ended | Condition::Unhealthy => Because::Ended,
            Condition::Incomplete => Because::NeverAcknowledged,
        };
        return Action::Adopt { sandbox: Box::new(sandbox), because };
    }
    if situation.underway_since.is_some_and(|since| found.labels.created_at > since) {
        let why = "the container is young and may still be acknowledged".to_owned();
        return Action::Leave { container: found.container.id.clone(), why };
    }
    remove_unacknowledged(found, now)
}

fn remove_unacknowledged(found: &Found, now: Timestamp) -> Action {
    let mut sandbox = found.sandbox(now);
    set_status(&mut sandbox, Status::Deleting, Reason::Incomplete, None);
    Action::Adopt { sandbox: Box::new(sandbox), because: Because::NeverAcknowledged }
}

fn set_status(sandbox: &mut Sandbox, status: Status, reason: Reason, message: Option<String>) {
    sandbox.status = status;
    sandbox.reason = reason;
    sandbox.message = message;
}

#[cfg(test)]
mod tests;
