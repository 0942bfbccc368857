//! The core as its callers see it: requests in, answers out, each within a time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ractor::rpc::CallResult;
use ractor::{Actor, ActorRef, ActorStatus, RpcReplyPort, SpawnErr};
use tokio::task::JoinHandle;

use crate::chat::World;
use crate::chat::actor::{self as chat, Answer, Call};
use crate::chat::discovery::{Found, discover};
use crate::engine::{ContainerState, EngineError};
use crate::ids::ChatId;
use crate::outcome::{Created, Deletion, Page, SandboxError};
use crate::request::CreateRequest;
use crate::root::{self, Root};
use crate::sandbox::Sandbox;

/// The machine answers every request by itself; this only keeps a defect from holding a caller for ever. It leaves
/// room for a queue at the engine, a slow start and a roll-back.
const ANSWER_LIMIT: Duration = Duration::from_secs(600);

/// How soon it makes sense to ask again for a chat whose actor has just failed.
const RECOVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Sandboxes {
    root: ActorRef<root::Message>,
    world: Arc<World>,
}

/// What a listing of the engine led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adoption {
    pub adopted: usize,
    /// Containers with our label that could not be taken for sandboxes.
    pub skipped: usize,
}

impl Sandboxes {
    /// Starts the supervision tree. The handle resolves when its root has ended, which it never does by itself.
    pub async fn start(world: World) -> Result<(Self, JoinHandle<()>), SpawnErr> {
        let world = Arc::new(world);
        let (root, ended) = Root::spawn(None, Root, Arc::clone(&world)).await?;
        Ok((Self { root, world }, ended))
    }

    /// Lists the engine and takes over what an earlier run of the service left. Until this has succeeded once, every
    /// chat asks the engine for itself.
    pub async fn adopt(&self) -> Result<Adoption, EngineError> {
        let world = &self.world;
        let mut found = Vec::new();
        let mut skipped = 0;
        for container in world.engine.list(&world.instance).await? {
            let (id, ended) = (container.id.clone(), matches!(container.state, ContainerState::Exited(_)));
            match Found::recognise(container, &world.instance) {
                Ok(listed) if ended => {
                    // A listing does not say how a container ended. If that cannot be learned, it has ended all the same.
                    let looked = discover(&world.engine, &world.instance, listed.labels.chat).await;
                    found.extend(looked.map_or(Some(listed), |looked| looked.and_then(Result::ok)));
                }
                Ok(listed) => found.push(listed),
                Err(why) => {
                    skipped += 1;
                    tracing::warn!(container.id = %id, %why, "left alone a container that cannot be adopted");
                }
            }
        }
        let adopt = |adopted| root::Message::Adopt { found, adopted };
        let adopted = ask(&self.root, adopt).await.unwrap_or_default();
        Ok(Adoption { adopted, skipped })
    }

    /// Gives the chat its sandbox: the one it has, or a new one.
    pub async fn create(&self, request: CreateRequest) -> Result<Created, SandboxError> {
        let chat = request.chat;
        self.call(chat, |answer| Call::Create(Box::new(request), answer)).await
    }

    pub async fn get(&self, chat: ChatId) -> Result<Option<Sandbox>, SandboxError> {
        self.call(chat, Call::Get).await
    }

    pub async fn delete(&self, chat: ChatId) -> Result<Deletion, SandboxError> {
        self.call(chat, Call::Delete).await
    }

    /// The sandboxes of the chats after `after`, each as its own actor describes it.
    pub async fn list(&self, after: Option<ChatId>, limit: usize) -> Result<Page, SandboxError> {
        // One more than asked for tells whether there is a next page.
        let page = |page| root::Message::Page { after, limit: limit.saturating_add(1), page };
        let page = ask(&self.root, page).await.ok_or(SandboxError::ShuttingDown)?;
        let mut chats = page.ok_or(SandboxError::NotListed)?;
        let more = chats.len() > limit;
        chats.truncate(limit);
        let next = if more { chats.last().map(|(chat, _)| *chat) } else { None };
        let answers = join_all(chats.iter().map(|(_, actor)| ask(actor, chat::Message::Describe)));
        // A chat that retired meanwhile has no sandbox any more.
        let sandboxes = answers.await.into_iter().flatten().filter_map(|answer| answer.ok().flatten()).collect();
        Ok(Page { sandboxes, next })
    }

    /// How many chats have, or are getting, or may have a sandbox.
    pub async fn count(&self) -> usize {
        ask(&self.root, |count| root::Message::Count { count }).await.unwrap_or_default()
    }

    /// Takes no more requests, lets what is under way end within `grace`, and stops. Sandboxes stay.
    pub async fn shut_down(&self, grace: Duration) {
        let chats = ask(&self.root, |chats| root::Message::Close { chats }).await.unwrap_or_default();
        let settled = join_all(chats.iter().map(|actor| ask(actor, chat::Message::Settle)));
        if tokio::time::timeout(grace, settled).await.is_err() {
            tracing::warn!(?grace, "work was still under way at the end of the grace period");
        }
        let _ = self.root.stop_and_wait(None, Some(Duration::from_secs(5))).await;
    }

    async fn call<T: Send + 'static>(
        &self,
        chat: ChatId,
        call: impl FnOnce(Answer<T>) -> Call,
    ) -> Result<T, SandboxError> {
        let message = |answer| root::Message::Call { chat, call: call(answer) };
        match self.root.call(message, Some(ANSWER_LIMIT)).await {
            Ok(CallResult::Success(answer)) => answer,
            Ok(CallResult::Timeout) => Err(SandboxError::NoAnswer { chat, limit: ANSWER_LIMIT }),
            Ok(CallResult::SenderError) if self.root.get_status() < ActorStatus::Stopping => {
                Err(SandboxError::Recovering { chat, retry_after: RECOVERY })
            }
            Ok(CallResult::SenderError) | Err(_) => Err(SandboxError::ShuttingDown),
        }
    }
}

/// Asks an actor; `None` if it has ended or does not answer.
async fn ask<M: ractor::Message, T: Send + 'static>(
    actor: &ActorRef<M>,
    message: impl FnOnce(RpcReplyPort<T>) -> M,
) -> Option<T> {
    match actor.call(message, Some(ANSWER_LIMIT)).await {
        Ok(CallResult::Success(answer)) => Some(answer),
        _ => None,
    }
}
