//! The messages of root: from callers, from its children, and from itself. Chats, callers and children reach the
//! supervised children through [`crate::addresses`], without root.

use chrono::TimeDelta;
use ractor::{ActorRef, RpcReplyPort};

use super::Child;
use crate::chat::actor::{self as chat, Call};
use crate::chat::effects::discover::LiveContainer;
use crate::domain::ids::{ChatId, ContainerId, ProfileName};
use crate::domain::sandbox::Sandbox;
use crate::pool;
use crate::root::limits::LimitKeys;

#[derive(Debug)]
pub enum Message {
    /// A call for the chat's actor, which root starts if there is none.
    Call { chat: ChatId, call: Call },
    /// The chat has no sandbox, after it has handled this number of calls. With `retire`, it owns no other resources either
    /// and asks to be stopped.
    Idle { chat: ChatId, incarnation: u64, handled: u64, retire: bool },
    /// The limit keys of the sandbox that the chat has or is getting.
    LimitKeys { chat: ChatId, incarnation: u64, keys: LimitKeys },
    /// A chat's deadline is reached.
    Due { chat: ChatId },
    /// The wall clock stepped.
    ClockStepped { by: TimeDelta },
    /// The engine reports an event about a container of the chat.
    EngineEvent { chat: ChatId, container: ContainerId },
    /// The results of a reconcile pass, or of a part of one.
    Reconciled { results: Reconciled, done: RpcReplyPort<()> },
    /// Requests a page of the chats that have an actor, in order of their ids.
    Chats { after: Option<ChatId>, limit: usize, chats: RpcReplyPort<Chats> },
    /// Removes the free slots of one profile, or of all, and keeps the pools empty, or lets them start slots again.
    DrainPools { profile: Option<ProfileName>, drained: bool, statuses: RpcReplyPort<Vec<pool::Status>> },
    /// The restart delay of a failed actor is over.
    Restart(Restart),
    /// A liveness check, answered in mailbox order.
    Ping(RpcReplyPort<()>),
    /// Stops taking calls; replies with the actors that may have work under way.
    Close { active: RpcReplyPort<ActiveActors> },
}

/// An actor that failed.
#[derive(Debug, Clone)]
pub enum Restart {
    Child(Child),
    Pool(ProfileName),
    Chat { chat: ChatId, incarnation: u64 },
}

/// The results of a reconcile pass, or of a part of one.
#[derive(Debug, Default)]
pub struct Reconciled {
    /// The live container of each chat in the listing, if it has one.
    pub observed: Vec<(ChatId, Option<LiveContainer>)>,
    /// Sandboxes that get an actor.
    pub adopted: Vec<Box<Sandbox>>,
    /// From now on, a chat without an actor has no container.
    pub complete: bool,
}

/// Chats and the actors that serve them. A chat whose actor failed has no actor until its restart.
pub type Routes = Vec<(ChatId, Option<ActorRef<chat::Message>>)>;

/// A page of the chats that have an actor.
#[derive(Debug, Default)]
pub struct Chats {
    /// Whether the engine is listed, so that a chat without an actor has no sandbox.
    pub is_listed: bool,
    /// The number of chats on all pages.
    pub total: usize,
    pub routes: Routes,
}

/// The actors that may have work under way.
#[derive(Debug, Default)]
pub struct ActiveActors {
    pub chats: Vec<ActorRef<chat::Message>>,
    pub pools: Vec<ActorRef<pool::actor::Message>>,
}
