//! What is sent to a command that somebody is attached to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sandboxd_actors::domain::ids::ChatId;
use tokio::sync::mpsc;

use super::no_such_command;
use crate::protocol::error::Error;
use crate::protocol::guest::CommandId;
use crate::server::memory::Reservation;

/// Messages that wait for a command which takes no input.
const WAITING: usize = 4;

/// The commands that somebody is attached to through this service.
#[derive(Debug)]
pub struct Attachments {
    commands: Mutex<HashMap<(ChatId, CommandId), mpsc::Sender<AttachedInput>>>,
    last: AtomicU64,
}

#[derive(Debug)]
pub(super) enum AttachedInput {
    Input {
        bytes: Vec<u8>,
        end: bool,
        /// Held until the bytes are handed on.
        memory: Option<Reservation>,
    },
    Resize {
        rows: u16,
        columns: u16,
    },
}

impl Default for Attachments {
    /// Numbers go up from the time of day in microseconds, so that a later run of the service gives new ones.
    fn default() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { commands: Mutex::default(), last: AtomicU64::new(since.as_micros() as u64) }
    }
}

impl Attachments {
    pub(super) fn new_command(&self) -> CommandId {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn take(&self, chat: ChatId, command: CommandId) -> Attachment<'_> {
        let (sender, receiver) = mpsc::channel(WAITING);
        self.commands().insert((chat, command), sender.clone());
        Attachment { attachments: self, key: (chat, command), sender, receiver }
    }

    pub(super) fn of(&self, chat: ChatId, command: CommandId) -> Result<AttachmentHandle, Error> {
        let missing = || no_such_command(chat, command);
        let sender = self.commands().get(&(chat, command)).cloned().ok_or_else(missing)?;
        Ok(AttachmentHandle { sender, chat, command })
    }

    fn commands(&self) -> MutexGuard<'_, HashMap<(ChatId, CommandId), mpsc::Sender<AttachedInput>>> {
        // No panic can leave the map half changed.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held by whoever is attached.
#[derive(Debug)]
pub(super) struct Attachment<'a> {
    attachments: &'a Attachments,
    key: (ChatId, CommandId),
    sender: mpsc::Sender<AttachedInput>,
    receiver: mpsc::Receiver<AttachedInput>,
}

impl Attachment<'_> {
    /// Waits for ever while nothing is sent.
    pub(super) async fn turned(&mut self) -> AttachedInput {
        match self.receiver.recv().await {
            Some(steer) => steer,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Attachment<'_> {
    fn drop(&mut self) {
        let mut commands = self.attachments.commands();
        // Whoever attached later has taken the place.
        if commands.get(&self.key).is_some_and(|sender| sender.same_channel(&self.sender)) {
            commands.remove(&self.key);
        }
    }
}

#[derive(Debug)]
pub(super) struct AttachmentHandle {
    sender: mpsc::Sender<AttachedInput>,
    chat: ChatId,
    command: CommandId,
}

impl AttachmentHandle {
    /// Waits while the command does not take its input.
    pub(super) async fn input(self, bytes: Vec<u8>, end: bool, memory: Option<Reservation>) -> Result<(), Error> {
        self.send(AttachedInput::Input { bytes, end, memory }).await
    }

    pub(super) async fn resize(self, rows: u16, columns: u16) -> Result<(), Error> {
        self.send(AttachedInput::Resize { rows, columns }).await
    }

    async fn send(self, steer: AttachedInput) -> Result<(), Error> {
        let over = |_| no_such_command(self.chat, self.command);
        self.sender.send(steer).await.map_err(over)
    }
}
