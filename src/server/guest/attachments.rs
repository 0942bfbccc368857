//! The input of commands with an attached caller.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sandboxd_actors::domain::ids::ChatId;
use sandboxd_protocol::error::Error;
use tokio::sync::mpsc;

use super::no_such_command;
use crate::protocol::guest::CommandId;
use crate::server::memory::Reservation;

/// Messages that are queued for a command that does not read its input.
const QUEUE_LENGTH: usize = 4;

/// The commands and transfers with an attached caller.
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
        /// Held until the bytes are forwarded.
        memory: Option<Reservation>,
    },
    Resize {
        rows: u16,
        columns: u16,
    },
}

impl Default for Attachments {
    /// Command ids count up from the time of day in microseconds, so that a later run of the service uses new ones.
    fn default() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { commands: Mutex::default(), last: AtomicU64::new(since.as_micros() as u64) }
    }
}

impl Attachments {
    pub(super) fn new_command(&self) -> CommandId {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn attach(&self, chat: ChatId, command: CommandId) -> Attachment<'_> {
        let (sender, receiver) = mpsc::channel(QUEUE_LENGTH);
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

/// The attachment of one caller, ended on drop.
#[derive(Debug)]
pub(super) struct Attachment<'a> {
    attachments: &'a Attachments,
    key: (ChatId, CommandId),
    sender: mpsc::Sender<AttachedInput>,
    receiver: mpsc::Receiver<AttachedInput>,
}

impl Attachment<'_> {
    /// Waits for the next input, for ever if none comes.
    pub(super) async fn next_input(&mut self) -> AttachedInput {
        match self.receiver.recv().await {
            Some(input) => input,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Attachment<'_> {
    fn drop(&mut self) {
        let mut commands = self.attachments.commands();
        // A later attachment may have replaced this one.
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
    /// Queues input. Waits while the queue is full.
    pub(super) async fn input(self, bytes: Vec<u8>, end: bool, memory: Option<Reservation>) -> Result<(), Error> {
        self.send(AttachedInput::Input { bytes, end, memory }).await
    }

    pub(super) async fn resize(self, rows: u16, columns: u16) -> Result<(), Error> {
        self.send(AttachedInput::Resize { rows, columns }).await
    }

    async fn send(self, input: AttachedInput) -> Result<(), Error> {
        let not_found = |_| no_such_command(self.chat, self.command);
        self.sender.send(input).await.map_err(not_found)
    }
}
