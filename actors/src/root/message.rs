//! The messages of root: from callers, from its children, and from itself.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::TimeDelta;
use ractor::{ActorRef, RpcReplyPort};

use super::Child;
use crate::builder;
use crate::chat::actor::{self as chat, Call};
use crate::chat::effects::discover::LiveContainer;
use crate::domain::ids::{ChatId, ContainerId, ProfileName, SlotId};
use crate::domain::labels::SlotLabels;
use crate::domain::sandbox::Sandbox;
use crate::pool;
use crate::pool::inventory::Hinted;
use crate::ports::clock::Timestamp;
use crate::ports::engine::{EngineError, Observed};
use crate::ports::slot::Slot;
use crate::reconciler::{Report, Trigger};
use crate::root::limits::LimitKeys;

/// Chats and the actors that serve them. A chat whose actor failed has no actor until its restart.
pub type Routes = Vec<(ChatId, Option<ActorRef<chat::Message>>)>;

#[derive(Debug)]
pub enum Message {
    /// A call for the chat's actor, which root starts if there is none.
    Call {
        chat: ChatId,
        call: Call,
    },
    /// The chat owns no resources, after it has handled this number of calls.
    Retire {
        chat: ChatId,
        incarnation: u64,
        handled: u64,
    },
    /// The chat's sandbox is gone, after the chat has handled this number of calls.
    SandboxGone {
        chat: ChatId,
        incarnation: u64,
        handled: u64,
    },
    /// The limit keys of the sandbox that the chat has or is getting.
    LimitKeys {
        chat: ChatId,
        incarnation: u64,
        keys: LimitKeys,
    },
    /// The restart delay of a failed chat actor is over.
    Respawn {
        chat: ChatId,
        incarnation: u64,
    },
    /// Starts an actor for each of these sandboxes.
    Adopt {
        sandboxes: Vec<Box<Sandbox>>,
        done: RpcReplyPort<()>,
    },
    /// From now on, a chat without an actor has no container.
    AllAdopted {
        done: RpcReplyPort<()>,
    },
    /// Requests the chats that have an actor.
    ActiveChats {
        chats: RpcReplyPort<BTreeSet<ChatId>>,
    },
    /// The live container of each chat in a listing, if it has one.
    Observed {
        live_containers: Vec<(ChatId, Option<LiveContainer>)>,
        done: RpcReplyPort<()>,
    },
    /// The engine reports an event about a container of the chat.
    EngineEvent {
        chat: ChatId,
        container: ContainerId,
    },
    /// Claims a slot of the profile's pool for a chat.
    Claim {
        chat: ChatId,
        profile: ProfileName,
        slot: RpcReplyPort<Option<Slot>>,
    },
    /// The outcome of a claim: the slot is bound, or has to be removed.
    Settled {
        profile: ProfileName,
        slot: SlotId,
        container: ContainerId,
        bound: bool,
    },
    /// The engine reports an event about the container of a slot.
    SlotEvent {
        slot: SlotId,
    },
    /// The slots in a listing.
    SlotsObserved {
        slots: Vec<(SlotLabels, Observed)>,
    },
    /// Announces that a sandbox of the profile will be requested soon.
    Hint {
        profile: ProfileName,
        chat: Option<ChatId>,
        ttl: Duration,
        hinted: RpcReplyPort<Result<Hinted, String>>,
    },
    Pools(RpcReplyPort<Vec<pool::Status>>),
    /// Removes the free slots of one profile, or of all, and keeps the pools empty.
    DrainPools {
        profile: Option<ProfileName>,
        statuses: RpcReplyPort<Vec<pool::Status>>,
    },
    /// Lets drained pools start slots again.
    FillPools {
        profile: Option<ProfileName>,
        statuses: RpcReplyPort<Vec<pool::Status>>,
    },
    /// The restart delay of a failed pool is over.
    RestartPool(ProfileName),
    /// Sets a chat's next deadline.
    Arm {
        chat: ChatId,
        at: Timestamp,
    },
    Disarm {
        chat: ChatId,
    },
    /// A chat's deadline is reached.
    Due {
        chat: ChatId,
    },
    ClockStepped {
        by: TimeDelta,
    },
    /// A pass of the reconciler.
    Reconcile {
        because: Trigger,
        dry_run: bool,
        report: Option<RpcReplyPort<Result<Report, EngineError>>>,
    },
    /// A message for the image builder, if there is one.
    Images(builder::Message),
    /// The restart delay of a supervised child is over.
    Restart(Child),
    /// A liveness check, answered in mailbox order.
    Ping(RpcReplyPort<()>),
    /// The same for the reaper.
    PingReaper(RpcReplyPort<()>),
    /// A page of chats in order of their ids, or `None` until the engine is listed.
    Page {
        after: Option<ChatId>,
        limit: usize,
        page: RpcReplyPort<Option<Routes>>,
    },
    Count {
        count: RpcReplyPort<usize>,
    },
    /// Stops taking calls; replies with the actors that may have work under way.
    Close {
        active: RpcReplyPort<ActiveActors>,
    },
}

/// The actors that may have work under way.
#[derive(Debug, Default)]
pub struct ActiveActors {
    pub chats: Vec<ActorRef<chat::Message>>,
    pub pools: Vec<ActorRef<pool::actor::Message>>,
}
