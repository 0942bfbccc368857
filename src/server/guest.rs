//! Executes guest requests: commands, files, logs and statistics of a sandbox.
//!
//! A request calls the chat once, which counts as use and returns the session. All further calls go directly to the
//! guest, through its init or via the engine (see [`crate::guest::Guest`]).

mod activity;
mod attachments;
mod code;
mod exec;
mod files;
mod logs;
mod stats;
mod syncs;
mod trees;

use std::sync::Arc;
use std::time::Duration;

use sandbox_init::wire::{Event, Request};
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::outcome::SandboxError;
use sandboxd_actors::domain::sandbox::{Sandbox, Status};
use sandboxd_actors::engine::bounded::Bounded;
use sandboxd_actors::ports::clock::Clock;
use sandboxd_actors::sandboxes::Sandboxes;
use sandboxd_protocol::command::CommandsResult;
use sandboxd_protocol::error::{Error, ErrorKind};
use tokio_util::sync::CancellationToken;

use super::access::Role;
use super::memory::{self, Reservation, Retention};
use super::outbox::{Closed, Ticket};
use crate::guest::stream::{GuestStream, GuestStreamError};
use crate::guest::{Guest, GuestsOnDisk, GuestsViaEngine, Unreachable};
use crate::languages::Languages;
use crate::protocol::answer::{self, Answer};
use crate::protocol::error::of_sandbox;
use crate::protocol::guest::{CommandId, GuestRequest};
use crate::protocol::notification::Notification;

pub use activity::follow_detached_commands;
pub use attachments::Attachments;
pub use syncs::Syncs;
use syncs::WriteTurn;
pub(super) use syncs::{QueuedWrite, SyncBarrier};

/// The error number of an engine failure, which is no failure of the command or the file; see
/// [`crate::guest::GuestViaEngine`].
const ENGINE_FAILED: i32 = rustix::io::Errno::NOTCONN.raw_os_error();

/// The error number of an init without memory for a further stream; see init's `budget`.
const TOO_MANY_STREAMS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

/// The position of a guest request relative to a sync of its chat, decided when the request arrives.
#[derive(Debug)]
pub(super) struct WriteOrder {
    /// The queue entry of a write that waits for an active sync.
    queued: Option<QueuedWrite>,
    /// The barrier of a request that is itself a sync: other writes wait for it.
    barrier: Option<SyncBarrier>,
}

impl WriteOrder {
    pub(super) fn of(syncs: &Syncs, chat: ChatId, request: &GuestRequest) -> Result<Self, Error> {
        let queued = if request.may_write() { syncs.queue_write(chat) } else { None };
        let barrier = match request {
            GuestRequest::Exec(exec) if exec.sync => Some(syncs.begin(chat)?),
            _ => None,
        };
        Ok(Self { queued, barrier })
    }
}

/// The context of one guest request.
pub(super) struct GuestCall<'a> {
    pub(super) sandboxes: &'a Sandboxes,
    pub(super) guests: &'a GuestsOnDisk,
    pub(super) guests_via_engine: &'a GuestsViaEngine,
    pub(super) engine: &'a Bounded,
    pub(super) languages: &'a Languages,
    pub(super) attachments: &'a Attachments,
    pub(super) syncs: &'a Syncs,
    pub(super) clock: &'a dyn Clock,
    /// The duration of a lease for work, which is renewed.
    pub(super) max_lease: Duration,
    /// A request with the read-only role does not count as use of the sandbox.
    pub(super) role: Role,
    /// Absent for work of the service itself.
    pub(super) ticket: Option<&'a Ticket>,
    /// Cancelled when the caller has disconnected.
    pub(super) disconnected: &'a CancellationToken,
    /// Cancelled when the service shuts down.
    pub(super) shutdown: &'a CancellationToken,
}

impl GuestCall<'_> {
    /// Handles the request, after the sync and the earlier writes that it has to wait for.
    pub(super) async fn handle(
        &self,
        chat: ChatId,
        request: GuestRequest,
        WriteOrder { queued, barrier }: WriteOrder,
    ) -> Result<Answer, Error> {
        let turn = match queued {
            Some(queued) => Some(queued.wait().await?),
            None => None,
        };
        match request {
            GuestRequest::Exec(exec) => self.exec(chat, *exec, barrier, turn).await,
            GuestRequest::RunCode(code) => self.run_code(chat, *code, turn).await,
            GuestRequest::Logs(range) => self.logs(chat, range).await,
            GuestRequest::Stats { interval } => self.stats(chat, interval).await,
            GuestRequest::Attach { command, output } => self.attach(chat, command, output).await,
            GuestRequest::Input { command, bytes, end } => {
                let memory = self.ticket.and_then(Ticket::take_request_memory);
                self.attachments.of(chat, command)?.input(bytes, end, memory).await?;
                Ok(Answer::DONE)
            }
            GuestRequest::Resize { command, rows, columns } => {
                self.attachments.of(chat, command)?.resize(rows, columns).await?;
                Ok(Answer::DONE)
            }
            GuestRequest::Commands => self.commands(chat).await.map(Answer::Commands),
            GuestRequest::Kill { command, signal } => {
                let request = match signal {
                    None => Request::Kill { id: command },
                    Some(signal) => Request::Signal { id: command, signal },
                };
                let sandbox = self.sandboxes.touch(chat).await.map_err(of_sandbox)?;
                let stream =
                    self.guest_of_command(&sandbox, command)?.open_stream(&request).await.map_err(unreachable)?;
                match stream.answer().await {
                    Ok(Event::Done {}) => Ok(Answer::DONE),
                    Err(error) => Err(of_command(chat, command, error)),
                    other => Err(unexpected(other)),
                }
            }
            GuestRequest::ReadTree { path } => self.read_tree(chat, &path).await,
            GuestRequest::WriteTree { path, parents } => self.write_tree(chat, &path, parents).await,
            file => self.file(chat, file).await,
        }
    }

    /// Sends the caller a notification ahead of the answer.
    async fn notify(&self, notification: Notification<'_>) -> Result<(), Closed> {
        match self.ticket {
            Some(ticket) => ticket.notify(notification).await,
            None => Ok(()),
        }
    }

    /// Waits for memory of the pool for the answer. Work of the service itself has no answer and needs none.
    async fn reserve(&self, bytes: usize, retention: Retention) -> Result<Reservation, memory::Closed> {
        match self.ticket {
            Some(ticket) => ticket.memory().pooled(bytes, retention).await,
            None => Ok(Reservation::default()),
        }
    }

    /// Waits for the connection's own memory for the answer.
    async fn reserve_own(&self, bytes: usize) -> Result<Reservation, memory::Closed> {
        match self.ticket {
            Some(ticket) => ticket.memory().own(bytes).await,
            None => Ok(Reservation::default()),
        }
    }

    /// Waits for memory for the output of a command.
    async fn reserve_own_or_pooled(&self, bytes: usize) -> Result<Reservation, memory::Closed> {
        match self.ticket {
            Some(ticket) => ticket.memory().own_or_pooled(bytes, Retention::Lasting).await,
            None => Ok(Reservation::default()),
        }
    }

    /// Holds the memory until the answer is read.
    fn hold(&self, memory: Reservation) {
        if let Some(ticket) = self.ticket {
            ticket.hold_answer_memory(memory);
        }
    }

    /// Opens a guest stream with a file request. With the read-only role, the request only reads.
    async fn open_stream(&self, chat: ChatId, request: Request) -> Result<GuestStream, Error> {
        let sandbox = self.sandbox_to_read(chat).await?;
        self.guest(&sandbox)?.open_stream(&request).await.map_err(unreachable)
    }

    /// Returns the sandbox of a request that reads. With the full role this counts as use; see
    /// [`Effect::ReadGuest`](sandboxd_protocol::method::Effect::ReadGuest).
    async fn sandbox_to_read(&self, chat: ChatId) -> Result<Sandbox, Error> {
        match self.role {
            Role::Full => self.sandboxes.touch(chat).await.map_err(of_sandbox),
            Role::ReadOnly => self.running(chat).await,
        }
    }

    /// Returns the sandbox if it runs, without counting as use. A paused guest cannot reply.
    async fn running(&self, chat: ChatId) -> Result<Sandbox, Error> {
        let sandbox = self.sandboxes.find(chat).await.map_err(of_sandbox)?;
        match sandbox.status {
            Status::Running => Ok(sandbox),
            Status::Paused => {
                let message = format!(
                    "the sandbox of chat {chat} is paused and cannot reply; a caller with the full role can resume it"
                );
                let mut error = of_sandbox(SandboxError::NotRunning { chat, status: sandbox.status });
                error.message = message;
                Err(error)
            }
            status => Err(of_sandbox(SandboxError::NotRunning { chat, status })),
        }
    }

    async fn commands(&self, chat: ChatId) -> Result<CommandsResult, Error> {
        let sandbox = self.sandbox_to_read(chat).await?;
        let stream = self.guest(&sandbox)?.open_stream(&Request::Commands {}).await.map_err(unreachable)?;
        let mut commands = match stream.answer().await {
            Ok(Event::Commands { commands }) => commands,
            other => return Err(unexpected(other)),
        };
        if self.guests.of(sandbox.session).is_some() {
            // Commands of other users run via the engine.
            commands.extend(self.guests_via_engine.commands(sandbox.session));
        }
        Ok(answer::commands(commands, self.syncs.describe(chat, sandbox.session)))
    }

    /// Returns the guest through its init or, without one, via the engine.
    fn guest(&self, sandbox: &Sandbox) -> Result<Arc<dyn Guest>, Error> {
        match self.guests.of(sandbox.session) {
            Some(guest) => Ok(guest),
            None => self.via_engine(sandbox, None),
        }
    }

    fn via_engine(&self, sandbox: &Sandbox, user: Option<String>) -> Result<Arc<dyn Guest>, Error> {
        let not_running = || of_sandbox(SandboxError::NotRunning { chat: sandbox.chat, status: sandbox.status });
        let container = sandbox.container.clone().ok_or_else(not_running)?;
        let environment = self.guests.environment_of(sandbox.session);
        Ok(Arc::new(self.guests_via_engine.of(sandbox.session, container, user, environment)))
    }

    /// Returns the guest in the way in which the command was started.
    fn guest_of_command(&self, sandbox: &Sandbox, command: CommandId) -> Result<Arc<dyn Guest>, Error> {
        match self.guests_via_engine.has(sandbox.session, command) {
            true => self.via_engine(sandbox, None),
            false => self.guest(sandbox),
        }
    }
}

/// Returns the error for a guest that does not accept a stream.
fn unreachable(error: Unreachable) -> Error {
    match error {
        Unreachable::Silent(_) => ErrorKind::GuestUnreachable.error(error.to_string()),
        Unreachable::Busy => ErrorKind::Busy.error(error.to_string()),
    }
}

/// Returns the error for a caller that has disconnected, and so does not receive it.
fn disconnected() -> Error {
    ErrorKind::GuestUnreachable.error("the caller has disconnected")
}

/// Maps an outcome that has no specific error for the request.
fn unexpected(outcome: Result<Event, GuestStreamError>) -> Error {
    match outcome {
        Err(GuestStreamError::Failed(failure)) if failure.errno == TOO_MANY_STREAMS => {
            ErrorKind::Busy.error(String::from_utf8_lossy(&failure.message.0))
        }
        // The guest does not support the request, so a retry is useless.
        Err(GuestStreamError::Failed(failure)) if failure.errno == rustix::io::Errno::NOSYS.raw_os_error() => {
            ErrorKind::GuestUnreachable.error(String::from_utf8_lossy(&failure.message.0)).retryable(false)
        }
        Err(error) => ErrorKind::GuestUnreachable.error(error.to_string()),
        Ok(_) => ErrorKind::GuestUnreachable.error(GuestStreamError::InvalidResponse.to_string()),
    }
}

fn of_command(chat: ChatId, command: CommandId, error: GuestStreamError) -> Error {
    match error {
        GuestStreamError::Failed(failure) if failure.errno == rustix::io::Errno::SRCH.raw_os_error() => {
            no_such_command(chat, command)
        }
        error => unexpected(Err(error)),
    }
}

fn no_such_command(chat: ChatId, command: CommandId) -> Error {
    ErrorKind::CommandNotFound
        .error(format!("chat {chat} has no command {command}, or its end has been reported"))
        .with("chat_id", chat.to_string())
        .with("command_id", command)
}
