//! The supervisor: one actor per chat that has, or is getting, a sandbox.
//!
//! Requests reach a chat through here, in mailbox order. Nothing in a handler waits for the engine.

mod roster;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::time::Instant;

use crate::chat::World;
use crate::chat::actor::{self as chat, Call, Chat, Start};
use crate::chat::discovery::Found;
use crate::ids::ChatId;
use crate::outcome::{Deletion, SandboxError};
use roster::{Roster, Route};

/// Chats and the actors that serve them.
pub type Attended = Vec<(ChatId, ActorRef<chat::Message>)>;

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
    /// A chat whose actor failed may have a new one.
    Respawn {
        chat: ChatId,
        incarnation: u64,
    },
    /// Containers that a listing showed. From now on, a chat without an actor is a chat without a container.
    Adopt {
        found: Vec<Found>,
        adopted: RpcReplyPort<usize>,
    },
    /// Some chats in order of their ids, once it is known which there are.
    Page {
        after: Option<ChatId>,
        limit: usize,
        page: RpcReplyPort<Option<Attended>>,
    },
    Count {
        count: RpcReplyPort<usize>,
    },
    /// Takes no more calls; answers with the actors that may still be at work.
    Close {
        chats: RpcReplyPort<Vec<ActorRef<chat::Message>>>,
    },
}

#[derive(Debug)]
pub struct Root;

#[derive(Debug)]
pub struct State {
    world: Arc<World>,
    roster: Roster<ActorRef<chat::Message>>,
    chats: HashMap<ActorId, (ChatId, u64)>,
    /// Whether the engine has been listed: only then is an unknown chat known to have nothing.
    listed: bool,
    closed: bool,
}

impl Actor for Root {
    type Msg = Message;
    type State = State;
    type Arguments = Arc<World>;

    async fn pre_start(&self, _: ActorRef<Message>, world: Arc<World>) -> Result<State, ActorProcessingErr> {
        Ok(State { world, roster: Roster::default(), chats: HashMap::new(), listed: false, closed: false })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Call { call, .. } if state.closed => call.refuse(SandboxError::ShuttingDown),
            Message::Call { chat, call } => state.route(&myself, chat, call).await,
            Message::Retire { chat, incarnation, handled } => {
                if let Some(actor) = state.roster.retire(chat, incarnation, handled) {
                    state.chats.remove(&actor.get_id());
                    actor.stop(None);
                }
            }
            Message::Respawn { chat, incarnation } => {
                if !state.closed && state.roster.is_down(chat, incarnation) {
                    state.spawn(&myself, chat, Start::Unknown).await;
                }
            }
            Message::Adopt { found, adopted } => {
                let mut count = 0;
                for found in found {
                    // A chat that has an actor knows better than a listing made a moment ago.
                    if !state.roster.contains(found.labels.chat) {
                        let chat = found.labels.chat;
                        state.spawn(&myself, chat, Start::Found(Box::new(found))).await;
                        count += 1;
                    }
                }
                state.listed = true;
                let _ = adopted.send(count);
            }
            Message::Page { after, limit, page } => {
                let _ = page.send(state.listed.then(|| state.roster.page(after, limit)));
            }
            Message::Count { count } => drop(count.send(state.roster.len())),
            Message::Close { chats } => {
                state.closed = true;
                let _ = chats.send(state.roster.page(None, usize::MAX).into_iter().map(|(_, actor)| actor).collect());
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Message>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let (actor, why) = match event {
            SupervisionEvent::ActorFailed(actor, error) => (actor, error.to_string()),
            SupervisionEvent::ActorTerminated(actor, _, reason) => {
                (actor, reason.unwrap_or_else(|| "it stopped".to_owned()))
            }
            _ => return Ok(()),
        };
        // One that was retired is no longer listed here.
        if let Some((chat, incarnation)) = state.chats.remove(&actor.get_id())
            && let Some(delay) = state.roster.crashed(chat, incarnation, Instant::now())
        {
            tracing::error!(chat.id = %chat, %why, ?delay, "a chat's actor failed and is started again");
            respawn_after(&myself, delay, chat, incarnation);
        }
        Ok(())
    }
}

impl State {
    async fn route(&mut self, myself: &ActorRef<Message>, chat: ChatId, call: Call) {
        let start = if self.listed { Start::Absent } else { Start::Unknown };
        match self.roster.route(chat, Instant::now()) {
            Route::Down { retry_after } => return call.refuse(SandboxError::Recovering { chat, retry_after }),
            Route::Forward => {}
            Route::Spawn => match (call, start) {
                // Nothing to look up and nothing to delete: no need for an actor.
                (Call::Get(answer), Start::Absent) => return drop(answer.send(Ok(None))),
                (Call::Delete(answer), Start::Absent) => {
                    metrics::counter!("sandboxd_delete_total", "result" => "not_found").increment(1);
                    return drop(answer.send(Ok(Deletion::NotFound)));
                }
                (call, start) => {
                    self.spawn(myself, chat, start).await;
                    return self.forward(chat, call);
                }
            },
        }
        self.forward(chat, call);
    }

    fn forward(&mut self, chat: ChatId, call: Call) {
        // If the actor has just failed, the message and its reply port are dropped, and the caller is told to retry.
        if let Some(actor) = self.roster.forward(chat) {
            let _ = actor.cast(chat::Message::Call(call));
        }
    }

    async fn spawn(&mut self, myself: &ActorRef<Message>, chat: ChatId, start: Start) {
        let incarnation = self.roster.next_incarnation();
        let arguments =
            chat::Arguments { chat, incarnation, start, world: Arc::clone(&self.world), root: myself.clone() };
        match Actor::spawn_linked(None, Chat, arguments, myself.get_cell()).await {
            Ok((actor, _)) => {
                self.chats.insert(actor.get_id(), (chat, incarnation));
                self.roster.admit(chat, incarnation, actor);
            }
            Err(error) => {
                let delay = self.roster.take_down(chat, incarnation, Instant::now());
                tracing::error!(chat.id = %chat, %error, ?delay, "a chat's actor did not start and is tried again");
                respawn_after(myself, delay, chat, incarnation);
            }
        }
    }
}

fn respawn_after(root: &ActorRef<Message>, delay: Duration, chat: ChatId, incarnation: u64) {
    metrics::counter!("sandboxd_chat_restarts_total").increment(1);
    root.send_after(delay, move || Message::Respawn { chat, incarnation });
}
