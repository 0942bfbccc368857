//! The API of the core: requests in, answers out, each within a time limit.

mod directories;
mod images;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ractor::rpc::CallResult;
use ractor::{Actor, ActorRef, ActorStatus, RpcReplyPort, SpawnErr};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::addresses::Address;
use crate::builder::BuilderSetup;
use crate::chat::World;
use crate::chat::actor::{self as chat, Answer, Call};
use crate::chat::events::Lease;
use crate::domain::create_request::CreateRequest;
use crate::domain::ended::Ended;
use crate::domain::ids::{ChatId, LeaseId, ProfileName};
use crate::domain::outcome::{Created, Deletion, Page, SandboxError, Undescribed};
use crate::domain::sandbox::Sandbox;
use crate::domain::snapshot::{Snapshot, SnapshotLabel};
use crate::journal::{Contents, JournalError, JournalHandle};
use crate::pool;
use crate::pool::inventory::Hinted;
use crate::ports::engine::EngineError;
use crate::reaper;
use crate::reconciler::{self, Report, Trigger};
use crate::root::{self, ActiveActors, Chats, DRAIN_LIMIT, Root};

/// The lifecycle answers every request by itself; this limit only keeps a defect from holding a caller for ever. It
/// leaves room for the engine queue, a slow start and a roll-back.
const ANSWER_LIMIT: Duration = Duration::from_secs(600);

/// The retry delay for a chat whose actor has just failed.
const RECOVERY: Duration = Duration::from_secs(1);

/// The number of a chat's last events that are searched for the end of its sandbox, and the time limit for the search.
/// The answer is complete without them.
const LAST_EVENTS: usize = 8;
const LAST_EVENTS_LIMIT: Duration = Duration::from_secs(1);

/// The time limit for a hint, which a pool answers at once.
const HINT_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct Sandboxes {
    root: ActorRef<root::Message>,
    world: Arc<World>,
}

/// The intervals of periodic work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intervals {
    /// Ticks of the reaper.
    pub reap: Duration,
    /// Passes of the reconciler.
    pub reconcile: Duration,
}

impl Sandboxes {
    /// Starts the supervision tree with the contents of the journal. The handle resolves when root has ended, which
    /// never happens by itself.
    pub async fn start(
        world: World,
        contents: Contents,
        intervals: Intervals,
    ) -> Result<(Self, JoinHandle<()>), SpawnErr> {
        Self::start_with(world, contents, intervals, None).await
    }

    /// Starts the supervision tree with an image builder.
    pub async fn start_with(
        world: World,
        contents: Contents,
        intervals: Intervals,
        builder_setup: Option<Arc<BuilderSetup>>,
    ) -> Result<(Self, JoinHandle<()>), SpawnErr> {
        let world = Arc::new(world);
        let arguments = root::Arguments { world: Arc::clone(&world), contents, intervals, builder_setup };
        let (root, ended) = Root::spawn(None, Root, arguments).await?;
        Ok((Self { root, world }, ended))
    }

    /// Reconciles engine and journal. Until the first success, every chat asks the engine for itself.
    pub async fn reconcile(&self, because: Trigger, dry_run: bool) -> Result<Report, EngineError> {
        let pass = |report| reconciler::Message::Pass { because, dry_run, report: Some(report) };
        let ended = || Err(EngineError::Interrupted { message: "the reconciler has stopped; try again".to_owned() });
        self.world.addresses.reconciler.ask(pass).await.unwrap_or_else(ended)
    }

    /// Returns the chat's sandbox, and creates it if there is none.
    pub async fn create(&self, request: CreateRequest) -> Result<Created, SandboxError> {
        let chat = request.chat;
        self.call(chat, |answer| Call::Create(Box::new(request), answer)).await
    }

    pub async fn get(&self, chat: ChatId) -> Result<Option<Sandbox>, SandboxError> {
        self.call(chat, Call::Get).await
    }

    /// Returns the chat's sandbox. The error says how the last sandbox ended, as far as the journal has its events.
    pub async fn find(&self, chat: ChatId) -> Result<Sandbox, SandboxError> {
        match self.get(chat).await? {
            Some(sandbox) => Ok(sandbox),
            None => Err(self.not_found(chat).await),
        }
    }

    /// Deletes the chat's sandbox, after a snapshot if its profile says so.
    pub async fn delete(&self, chat: ChatId) -> Result<Deletion, SandboxError> {
        self.delete_with(chat, None).await
    }

    /// Deletes the chat's sandbox. `snapshot` overrides the profile's setting.
    pub async fn delete_with(&self, chat: ChatId, snapshot: Option<bool>) -> Result<Deletion, SandboxError> {
        self.call(chat, |answer| Call::Delete(snapshot, answer)).await
    }

    /// Removes the directory of a chat without a sandbox, with all its files. Returns whether there was a directory.
    pub async fn purge(&self, chat: ChatId) -> Result<bool, SandboxError> {
        self.call(chat, Call::Purge).await
    }

    /// Saves a chat's sandbox as a snapshot, without its mounts.
    pub async fn snapshot(&self, chat: ChatId, label: Option<SnapshotLabel>) -> Result<Snapshot, SandboxError> {
        self.call(chat, |answer| Call::Snapshot(label, answer)).await
    }

    /// Moves the absolute deadline to `ttl` from now.
    pub async fn renew(&self, chat: ChatId, ttl: Duration) -> Result<Sandbox, SandboxError> {
        self.call(chat, |answer| Call::Renew(ttl, answer)).await
    }

    /// Counts as activity, and resumes a paused sandbox.
    pub async fn touch(&self, chat: ChatId) -> Result<Sandbox, SandboxError> {
        self.call(chat, Call::Touch).await
    }

    /// Pauses a chat's sandbox until its next use.
    pub async fn pause(&self, chat: ChatId) -> Result<Sandbox, SandboxError> {
        self.call(chat, Call::Pause).await
    }

    /// Takes or extends a lease of the sandbox.
    pub async fn lease(&self, chat: ChatId, lease: Lease) -> Result<Sandbox, SandboxError> {
        self.call(chat, |answer| Call::Lease(lease, answer)).await
    }

    pub async fn release(&self, chat: ChatId, lease: LeaseId) -> Result<Sandbox, SandboxError> {
        self.call(chat, |answer| Call::Release(lease, answer)).await
    }

    pub fn journal(&self) -> &JournalHandle {
        &self.world.journal
    }

    /// Returns which of root, reaper and journal did not work off their queue within `limit`.
    pub async fn stuck(&self, limit: Duration) -> Vec<&'static str> {
        let (root, reaper, journal) = tokio::join!(
            timeout(limit, ask(&self.root, root::Message::Ping)),
            timeout(limit, self.world.addresses.reaper.ask(reaper::Message::Ping)),
            timeout(limit, self.world.journal.flush()),
        );
        // A failed commit is progress. A full queue has not moved since it filled up.
        let is_stuck = |error| {
            matches!(error, JournalError::Stopped | JournalError::TimedOut { .. } | JournalError::Overloaded { .. })
        };
        let checks = [
            ("root", root.is_ok_and(|pong| pong.is_some())),
            ("reaper", reaper.is_ok_and(|pong| pong.is_some())),
            ("journal", journal.is_ok_and(|flushed| !flushed.is_err_and(is_stuck))),
        ];
        checks.into_iter().filter_map(|(actor, is_alive)| (!is_alive).then_some(actor)).collect()
    }

    /// Returns the sandboxes of the chats after `after`, each as its own actor describes it, and the chats that could
    /// not be described: the engine did not answer their actor, or their actor failed.
    pub async fn list(&self, after: Option<ChatId>, limit: usize) -> Result<Page, SandboxError> {
        // One more than `limit` shows whether there is a next page.
        let known = self.chats(after, limit.saturating_add(1)).await.ok_or(SandboxError::ShuttingDown)?;
        if !known.is_listed {
            return Err(SandboxError::NotListed);
        }
        let mut chats = known.routes;
        let more = chats.len() > limit;
        chats.truncate(limit);
        let next = if more { chats.last().map(|(chat, _)| *chat) } else { None };
        let answers = join_all(chats.iter().map(|(_, actor)| async move {
            match actor {
                Some(actor) => ask(actor, chat::Message::Describe).await,
                None => None,
            }
        }));
        let mut page = Page { sandboxes: Vec::new(), undescribed: Vec::new(), next };
        let mut unanswered = Vec::new();
        for ((chat, _), answer) in chats.iter().zip(answers.await) {
            match answer {
                Some(Ok(sandbox)) => page.sandboxes.extend(sandbox),
                Some(Err(error)) => page.undescribed.push(Undescribed { chat: *chat, error }),
                None => unanswered.push(*chat),
            }
        }
        if !unanswered.is_empty() {
            // An actor that retired meanwhile had no sandbox, and root does not know its chat. Root still knows a chat
            // whose actor failed.
            let known = self.known_chats().await.ok_or(SandboxError::ShuttingDown)?;
            let failed = unanswered.into_iter().filter(|chat| known.contains(chat));
            let recovering = |chat| SandboxError::Recovering { chat, retry_after: RECOVERY };
            page.undescribed.extend(failed.map(|chat| Undescribed { chat, error: recovering(chat) }));
            page.undescribed.sort_by_key(|undescribed| undescribed.chat);
        }
        Ok(page)
    }

    /// Returns whether the engine is listed, so that all sandboxes are known.
    pub async fn is_listed(&self) -> bool {
        self.chats(None, 0).await.is_some_and(|chats| chats.is_listed)
    }

    /// Returns a page of the chats that have an actor, or `None` if the service is shutting down.
    async fn chats(&self, after: Option<ChatId>, limit: usize) -> Option<Chats> {
        ask(&self.root, |chats| root::Message::Chats { after, limit, chats }).await
    }

    /// Returns every chat that has an actor.
    async fn known_chats(&self) -> Option<BTreeSet<ChatId>> {
        Some(self.chats(None, usize::MAX).await?.routes.into_iter().map(|(chat, _)| chat).collect())
    }

    /// Announces that a sandbox of the profile will be requested soon, perhaps by this chat. The inner error says why
    /// no slot can be prepared.
    pub async fn hint(
        &self,
        profile: ProfileName,
        chat: Option<ChatId>,
        ttl: Duration,
    ) -> Option<Result<Hinted, String>> {
        let pool = self.world.addresses.pool(&profile)?.actor()?;
        ask_within(&pool, HINT_LIMIT, |hinted| pool::actor::Message::Hint { chat, ttl, hinted }).await
    }

    pub async fn pools(&self) -> Vec<pool::Status> {
        let pools = self.world.addresses.pools();
        root::statuses(&pools.values().filter_map(Address::actor).collect::<Vec<_>>()).await
    }

    /// Removes the free slots of one profile, or of all, and keeps the pools empty until they are filled again. Returns
    /// the status of all pools once the slots are gone, or after a time limit.
    pub async fn drain_pools(&self, profile: Option<ProfileName>) -> Vec<pool::Status> {
        let limit = DRAIN_LIMIT + HINT_LIMIT;
        let drain = |statuses| root::Message::DrainPools { profile, drained: true, statuses };
        ask_within(&self.root, limit, drain).await.unwrap_or_default()
    }

    /// Lets drained pools start slots again.
    pub async fn fill_pools(&self, profile: Option<ProfileName>) -> Vec<pool::Status> {
        let fill = |statuses| root::Message::DrainPools { profile, drained: false, statuses };
        ask(&self.root, fill).await.unwrap_or_default()
    }

    /// Returns the number of chats that have, are getting or may have a sandbox.
    pub async fn count(&self) -> usize {
        self.chats(None, 0).await.unwrap_or_default().total
    }

    /// Refuses new requests, waits up to `grace` for work under way, and stops. Sandboxes stay.
    pub async fn shut_down(&self, grace: Duration) {
        let close = |active| root::Message::Close { active };
        let ActiveActors { chats, pools } = ask(&self.root, close).await.unwrap_or_default();
        let settled = async {
            if let Err(error) = root::flush::flush_unsaved(&chats, &self.world.journal).await {
                tracing::warn!(%error, "recent activity not persisted at shutdown");
            }
            let chats = join_all(chats.iter().map(|actor| ask(actor, chat::Message::Settle)));
            let pools = join_all(pools.iter().map(|actor| ask(actor, pool::actor::Message::Settle)));
            tokio::join!(chats, pools);
            self.world.cleanups.close();
            self.world.cleanups.wait().await;
        };
        if timeout(grace, settled).await.is_err() {
            tracing::warn!(?grace, "work still under way at the end of the grace period");
        }
        let _ = self.root.stop_and_wait(None, Some(Duration::from_secs(5))).await;
        if let Err(error) = self.world.journal.stop().await {
            tracing::warn!(%error, "journal not closed cleanly");
        }
    }

    async fn not_found(&self, chat: ChatId) -> SandboxError {
        let last = timeout(LAST_EVENTS_LIMIT, self.world.journal.last_events(chat, LAST_EVENTS)).await;
        let ended = last.ok().and_then(Result::ok).and_then(|events| Ended::of(&events, self.world.clock.now()));
        match ended {
            Some(ended) => SandboxError::Ended { chat, ended: Box::new(ended) },
            None => SandboxError::NotFound { chat },
        }
    }

    async fn call<T: Send + 'static>(
        &self,
        chat: ChatId,
        call: impl FnOnce(Answer<T>) -> Call,
    ) -> Result<T, SandboxError> {
        let message = |answer| root::Message::Call { chat, call: call(answer) };
        match self.root.call(message, Some(ANSWER_LIMIT)).await {
            Ok(CallResult::Success(Err(SandboxError::NotFound { chat }))) => Err(self.not_found(chat).await),
            Ok(CallResult::Success(answer)) => answer,
            Ok(CallResult::Timeout) => Err(SandboxError::NoAnswer { chat, limit: ANSWER_LIMIT }),
            Ok(CallResult::SenderError) if self.root.get_status() < ActorStatus::Stopping => {
                Err(SandboxError::Recovering { chat, retry_after: RECOVERY })
            }
            Ok(CallResult::SenderError) | Err(_) => Err(SandboxError::ShuttingDown),
        }
    }
}

/// Calls an actor. Returns `None` if the actor has ended or does not answer.
pub(crate) async fn ask<M: ractor::Message, T: Send + 'static>(
    actor: &ActorRef<M>,
    message: impl FnOnce(RpcReplyPort<T>) -> M,
) -> Option<T> {
    ask_within(actor, ANSWER_LIMIT, message).await
}

pub(crate) async fn ask_within<M: ractor::Message, T: Send + 'static>(
    actor: &ActorRef<M>,
    limit: Duration,
    message: impl FnOnce(RpcReplyPort<T>) -> M,
) -> Option<T> {
    match actor.call(message, Some(limit)).await {
        Ok(CallResult::Success(answer)) => Some(answer),
        _ => None,
    }
}
