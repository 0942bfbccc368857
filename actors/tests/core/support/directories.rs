//! Directories that are always ready, unless they are told not to be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use sandboxd_actors::domain::host_path::HostPath;
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::profile::User;
use sandboxd_actors::ports::chat_directories::{ChatDirectories, DirectoryError};
use sandboxd_actors::ports::clock::Timestamp;
use tokio::sync::watch;

#[derive(Clone)]
pub(crate) struct TestDirectories {
    state: Arc<watch::Sender<State>>,
    /// What was done to them, in its order.
    done: Arc<Mutex<Vec<Done>>>,
    /// Those that are there, each with its last change.
    there: Arc<Mutex<BTreeMap<ChatId, Timestamp>>>,
    /// Those that cannot be removed.
    stuck: Arc<Mutex<BTreeSet<ChatId>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    Prepared(ChatId),
    Removed(ChatId),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    Failing,
    Hanging,
}

impl Default for TestDirectories {
    fn default() -> Self {
        Self {
            state: Arc::new(watch::Sender::new(State::Ready)),
            done: Arc::default(),
            there: Arc::default(),
            stuck: Arc::default(),
        }
    }
}

impl TestDirectories {
    pub(crate) fn fail(&self) {
        self.state.send_replace(State::Failing);
    }

    pub(crate) fn hang(&self) {
        self.state.send_replace(State::Hanging);
    }

    pub(crate) fn heal(&self) {
        self.state.send_replace(State::Ready);
    }

    pub(crate) fn done(&self) -> Vec<Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts a directory there that was last changed then.
    pub(crate) fn place(&self, chat: ChatId, changed_at: Timestamp) {
        self.there().insert(chat, changed_at);
    }

    pub(crate) fn there(&self) -> MutexGuard<'_, BTreeMap<ChatId, Timestamp>> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, chat: ChatId) {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).insert(chat);
    }

    async fn ready(&self, path: &str, done: Done) -> Result<(), DirectoryError> {
        let mut state = self.state.subscribe();
        let ready = state.wait_for(|state| *state != State::Hanging).await.map(|state| *state == State::Ready);
        match ready {
            Ok(true) => {
                self.done.lock().unwrap_or_else(PoisonError::into_inner).push(done);
                Ok(())
            }
            _ => Err(DirectoryError::new(path, "the disk is full")),
        }
    }
}

#[async_trait]
impl ChatDirectories for TestDirectories {
    async fn prepare(&self, chat: ChatId, _: Option<User>) -> Result<HostPath, DirectoryError> {
        let path = format!("/srv/chats/{chat}");
        self.ready(&path, Done::Prepared(chat)).await.map(|()| super::path(&path))
    }

    async fn remove(&self, chat: ChatId) -> Result<bool, DirectoryError> {
        let path = format!("/srv/chats/{chat}");
        if self.stuck.lock().unwrap_or_else(PoisonError::into_inner).contains(&chat) {
            return Err(DirectoryError::new(path, "it is busy"));
        }
        self.ready(&path, Done::Removed(chat)).await?;
        self.there().remove(&chat);
        Ok(true)
    }

    async fn finish_removals(&self) -> Result<(), DirectoryError> {
        Ok(())
    }

    async fn list(&self) -> Result<Vec<ChatId>, DirectoryError> {
        Ok(self.there().keys().copied().collect())
    }

    async fn changed_at(&self, chat: ChatId) -> Result<Option<Timestamp>, DirectoryError> {
        Ok(self.there().get(&chat).copied())
    }

    async fn mark_used(&self, chat: ChatId) -> Result<(), DirectoryError> {
        self.there().insert(chat, Timestamp::MAX_UTC);
        Ok(())
    }
}
