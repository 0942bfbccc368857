//! Directories that are always ready, unless they are told not to be.

use std::sync::Arc;

use async_trait::async_trait;
use sandboxd_actors::directories::{ChatDirectories, DirectoryError};
use sandboxd_actors::host_path::HostPath;
use sandboxd_actors::ids::ChatId;
use sandboxd_actors::profile::User;
use tokio::sync::watch;

#[derive(Clone)]
pub(crate) struct TestDirectories {
    state: Arc<watch::Sender<State>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    Failing,
    Hanging,
}

impl Default for TestDirectories {
    fn default() -> Self {
        Self { state: Arc::new(watch::Sender::new(State::Ready)) }
    }
}

impl TestDirectories {
    pub(crate) fn fail(&self) {
        self.state.send_replace(State::Failing);
    }

    pub(crate) fn hang(&self) {
        self.state.send_replace(State::Hanging);
    }
}

#[async_trait]
impl ChatDirectories for TestDirectories {
    async fn prepare(&self, chat: ChatId, _: Option<User>) -> Result<HostPath, DirectoryError> {
        let path = format!("/srv/chats/{chat}");
        let mut state = self.state.subscribe();
        let ready = state.wait_for(|state| *state != State::Hanging).await.map(|state| *state == State::Ready);
        match ready {
            Ok(true) => Ok(super::path(&path)),
            _ => Err(DirectoryError { path, message: "the disk is full".into() }),
        }
    }
}
