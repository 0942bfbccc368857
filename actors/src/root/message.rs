//! What root is told and asked: by callers, by its children, and by itself.

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

/// Chats and the actors that serve them. A chat whose actor failed has none until it is started again.
pub type Adopted = Vec<(ChatId, Option<ActorRef<chat::Message>>)>;

#[derive(Debug)]
pub enum Message {
    /// For the chat's actor, which is started if need be.
    Call {
        chat: ChatId,
        call: Call,
    },
    /// A chat has nothing left to own, having handled so many calls.
    Retire {
        chat: ChatId,
        incarnation: u64,
        handled: u64,
    },
    /// A chat has no sandbox any more, having handled so many calls.
    Left {
        chat: ChatId,
        incarnation: u64,
        handled: u64,
    },
    /// What a chat has, or is getting, is of these.
    Counts {
        chat: ChatId,
        incarnation: u64,
        share: LimitKeys,
    },
    /// A chat whose actor failed may have a new one.
    Respawn {
        chat: ChatId,
        incarnation: u64,
    },
    /// Gives chats actors that begin with these sandboxes.
    Adopt {
        sandboxes: Vec<Box<Sandbox>>,
        adopted: RpcReplyPort<()>,
    },
    /// From now on, a chat without an actor has no container.
    AllAdopted {
        known: RpcReplyPort<()>,
    },
    /// Every chat that has an actor.
    Adopted {
        chats: RpcReplyPort<BTreeSet<ChatId>>,
    },
    /// A listing showed these live containers for the chats, or none.
    Seen {
        live_containers: Vec<(ChatId, Option<LiveContainer>)>,
        told: RpcReplyPort<()>,
    },
    /// The engine says that something happened to a container of the chat.
    EngineEvent {
        chat: ChatId,
        container: ContainerId,
    },
    /// A chat is going to have a sandbox: for the profile's pool.
    Claim {
        chat: ChatId,
        profile: ProfileName,
        slot: RpcReplyPort<Option<Slot>>,
    },
    /// What became of a slot that was handed out.
    Settled {
        profile: ProfileName,
        slot: SlotId,
        container: ContainerId,
        bound: bool,
    },
    /// The engine says that something happened to the container of a slot.
    SlotEvent {
        slot: SlotId,
    },
    /// A listing showed these slots.
    SlotsSeen {
        slots: Vec<(SlotLabels, Observed)>,
    },
    /// A sandbox of the profile will be wanted soon.
    Hint {
        profile: ProfileName,
        chat: Option<ChatId>,
        ttl: Duration,
        hinted: RpcReplyPort<Result<Hinted, String>>,
    },
    Pools(RpcReplyPort<Vec<pool::Status>>),
    /// Removes the free slots of one profile, or of all, and keeps its pool empty.
    DrainPools {
        profile: Option<ProfileName>,
        statuses: RpcReplyPort<Vec<pool::Status>>,
    },
    /// Lets a pool that was drained keep slots again.
    FillPools {
        profile: Option<ProfileName>,
        statuses: RpcReplyPort<Vec<pool::Status>>,
    },
    /// A pool failed and may have a successor.
    RestartPool(ProfileName),
    /// A chat's next deadline.
    Arm {
        chat: ChatId,
        at: Timestamp,
    },
    Disarm {
        chat: ChatId,
    },
    /// A chat's deadline has come.
    Due {
        chat: ChatId,
    },
    ClockStepped {
        by: TimeDelta,
    },
    /// For the reconciler.
    Reconcile {
        because: Trigger,
        dry_run: bool,
        report: Option<RpcReplyPort<Result<Report, EngineError>>>,
    },
    /// For the builder, if there is one.
    Images(builder::Message),
    /// A child of which there is one failed and may have a successor.
    Restart(Child),
    /// Answered in turn, as a sign of progress.
    Ping(RpcReplyPort<()>),
    /// The same of the reaper.
    PingReaper(RpcReplyPort<()>),
    /// Some chats in order of their ids, once it is known which there are.
    Page {
        after: Option<ChatId>,
        limit: usize,
        page: RpcReplyPort<Option<Adopted>>,
    },
    Count {
        count: RpcReplyPort<usize>,
    },
    /// Takes no more calls; answers with the actors that may still be at work.
    Close {
        at_work: RpcReplyPort<AtWork>,
    },
}

/// Actors that may have something under way.
#[derive(Debug, Default)]
pub struct AtWork {
    pub chats: Vec<ActorRef<chat::Message>>,
    pub pools: Vec<ActorRef<pool::actor::Message>>,
}
