//! Directories that are always ready, unless the test makes them fail or hang.

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
    /// The operations on the directories, in order.
    done: Arc<Mutex<Vec<Done>>>,
    /// The existing directories, each with its last change.
    existing: Arc<Mutex<BTreeMap<ChatId, Timestamp>>>,
    /// The directories whose removal fails.
    unremovable: Arc<Mutex<BTreeSet<ChatId>>>,
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
            existing: Arc::default(),
            unremovable: Arc::default(),
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

    /// Adds a directory with this time of its last change.
    pub(crate) fn place(&self, chat: ChatId, changed_at: Timestamp) {
        self.existing().insert(chat, changed_at);
    }

    pub(crate) fn existing(&self) -> MutexGuard<'_, BTreeMap<ChatId, Timestamp>> {
        self.existing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fail_removal(&self, chat: ChatId) {
        self.unremovable.lock().unwrap_or_else(PoisonError::into_inner).insert(chat);
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
        if self.unremovable.lock().unwrap_or_else(PoisonError::into_inner).contains(&chat) {
            return Err(DirectoryError::new(path, "the directory is busy"));
        }
        self.ready(&path, Done::Removed(chat)).await?;
        self.existing().remove(&chat);
        Ok(true)
    }

    async fn finish_removals(&self) -> Result<(), DirectoryError> {
        Ok(())
    }

    async fn list(&self) -> Result<Vec<ChatId>, DirectoryError> {
        Ok(self.existing().keys().copied().collect())
    }

    async fn changed_at(&self, chat: ChatId) -> Result<Option<Timestamp>, DirectoryError> {
        Ok(self.existing().get(&chat).copied())
    }

    async fn mark_used(&self, chat: ChatId) -> Result<(), DirectoryError> {
        self.existing().insert(chat, Timestamp::MAX_UTC);
        Ok(())
    }
}
