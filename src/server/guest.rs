//! Work inside a sandbox, from a call to its answer.
//!
//! The chat is asked once, which is use of the sandbox and tells its session; everything else goes straight to the
//! sandbox's init, or to what stands in for it ([`crate::guest::Entrance`]).

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
use tokio_util::sync::CancellationToken;

use super::access::Role;
use super::memory::{self, Holding, Reservation};
use super::outbox::{Closed, Ticket};
use crate::guest::stream::{GuestStream, GuestStreamError};
use crate::guest::{Entrance, GuestsOnDisk, GuestsViaEngine, Unreachable};
use crate::languages::Languages;
use crate::protocol::answer::{self, Answer};
use crate::protocol::error::{Error, Kind, of_sandbox};
use crate::protocol::guest::{CommandId, GuestRequest};
use crate::protocol::notification::Notification;

pub use activity::keep_all;
pub use attachments::Attachments;
pub use syncs::Syncs;
use syncs::Turn;
pub(super) use syncs::{Barrier, Place};

/// What is not the command's or the file's fault; see [`crate::guest::GuestViaEngine`].
const ENGINE_FAILED: i32 = rustix::io::Errno::NOTCONN.raw_os_error();

/// Init has no memory for a further stream; see init's `budget`.
const TOO_MANY_STREAMS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

/// Where a request inside stands among the others of its chat, settled when it arrived.
#[derive(Debug)]
pub(super) struct Order {
    /// It has to wait for this.
    place: Option<Place>,
    /// Others have to wait for it.
    barrier: Option<Barrier>,
}

impl Order {
    pub(super) fn of(syncs: &Syncs, chat: ChatId, inside: &GuestRequest) -> Result<Self, Error> {
        let place = if inside.may_write() { syncs.queue(chat) } else { None };
        let barrier = match inside {
            GuestRequest::Exec(exec) if exec.sync => Some(syncs.begin(chat)?),
            _ => None,
        };
        Ok(Self { place, barrier })
    }
}

/// What a request inside needs of the service.
pub(super) struct GuestCall<'a> {
    pub(super) sandboxes: &'a Sandboxes,
    pub(super) guests: &'a GuestsOnDisk,
    pub(super) guests_via_engine: &'a GuestsViaEngine,
    pub(super) engine: &'a Bounded,
    pub(super) languages: &'a Languages,
    pub(super) attachments: &'a Attachments,
    pub(super) syncs: &'a Syncs,
    pub(super) clock: &'a dyn Clock,
    /// The longest that a sandbox is held open at a time.
    pub(super) max_lease: Duration,
    /// A caller with the read-only role changes nothing, not even when a sandbox was last used.
    pub(super) role: Role,
    /// Absent where the service works for itself.
    pub(super) ticket: Option<&'a Ticket>,
    /// The caller is gone.
    pub(super) gone: &'a CancellationToken,
    /// The service shuts down.
    pub(super) shutdown: &'a CancellationToken,
}

impl GuestCall<'_> {
    /// In its turn, if others have to write first.
    pub(super) async fn handle(
        &self,
        chat: ChatId,
        inside: GuestRequest,
        Order { place, barrier }: Order,
    ) -> Result<Answer, Error> {
        let turn = match place {
            Some(place) => Some(place.turn().await?),
            None => None,
        };
        match inside {
            GuestRequest::Exec(exec) => self.exec(chat, *exec, barrier, turn).await,
            GuestRequest::RunCode(code) => self.run_code(chat, *code, turn).await,
            GuestRequest::Logs(range) => self.logs(chat, range).await,
            GuestRequest::Stats { interval } => self.stats(chat, interval).await,
            GuestRequest::Attach { command, output } => self.attach(chat, command, output).await,
            GuestRequest::Input { command, bytes, end } => {
                let memory = self.ticket.and_then(Ticket::take_request);
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
                let stream = self.way_to(&sandbox, command)?.open_stream(&request).await.map_err(unreachable)?;
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

    /// Tells the caller something ahead of the answer.
    async fn notify(&self, notification: Notification<'_>) -> Result<(), Closed> {
        match self.ticket {
            Some(ticket) => ticket.notify(notification).await,
            None => Ok(()),
        }
    }

    /// Waits for memory for the answer. Where the service works for itself, there is none to be read.
    async fn reserve(&self, bytes: usize, holding: Holding) -> Result<Reservation, memory::Closed> {
        match self.ticket {
            Some(ticket) => ticket.share().pooled(bytes, holding).await,
            None => Ok(Reservation::default()),
        }
    }

    /// The same, of the memory that is the connection's own.
    async fn reserve_own(&self, bytes: usize) -> Result<Reservation, memory::Closed> {
        match self.ticket {
            Some(ticket) => ticket.share().own(bytes).await,
            None => Ok(Reservation::default()),
        }
    }

    /// Memory for the output of a command.
    async fn reserve_either(&self, bytes: usize) -> Result<Reservation, memory::Closed> {
        match self.ticket {
            Some(ticket) => ticket.share().either(bytes, Holding::Lasting).await,
            None => Ok(Reservation::default()),
        }
    }

    /// Keeps the memory until the answer is read.
    fn hold(&self, memory: Reservation) {
        if let Some(ticket) = self.ticket {
            ticket.hold_answer(memory);
        }
    }

    /// Asks the guest. A caller with the read-only role gets here with requests that change nothing.
    async fn ask(&self, chat: ChatId, request: Request) -> Result<GuestStream, Error> {
        let sandbox = self.visited(chat).await?;
        self.interior(&sandbox)?.open_stream(&request).await.map_err(unreachable)
    }

    /// The sandbox whose guest is asked without being changed. For the full role this is use; see
    /// [`Effect::ReadGuest`](sandboxd_protocol::method::Effect::ReadGuest).
    async fn visited(&self, chat: ChatId) -> Result<Sandbox, Error> {
        match self.role {
            Role::Full => self.sandboxes.touch(chat).await.map_err(of_sandbox),
            Role::ReadOnly => self.running(chat).await,
        }
    }

    /// The sandbox as it is, if it runs. A paused guest cannot reply.
    async fn running(&self, chat: ChatId) -> Result<Sandbox, Error> {
        let sandbox = self.sandboxes.find(chat).await.map_err(of_sandbox)?;
        match sandbox.status {
            Status::Running => Ok(sandbox),
            Status::Paused => {
                let message = format!(
                    "the sandbox of chat {chat} is paused, and cannot reply; a caller with the full role can resume it"
                );
                let mut error = of_sandbox(SandboxError::NotRunning { chat, status: sandbox.status });
                error.message = message;
                Err(error)
            }
            status => Err(of_sandbox(SandboxError::NotRunning { chat, status })),
        }
    }

    async fn commands(&self, chat: ChatId) -> Result<CommandsResult, Error> {
        let sandbox = self.visited(chat).await?;
        let stream = self.interior(&sandbox)?.open_stream(&Request::Commands {}).await.map_err(unreachable)?;
        let mut commands = match stream.answer().await {
            Ok(Event::Commands { commands }) => commands,
            other => return Err(unexpected(other)),
        };
        if self.guests.of(sandbox.session).is_some() {
            // Those that run as another user.
            commands.extend(self.guests_via_engine.commands(sandbox.session));
        }
        Ok(answer::commands(commands, self.syncs.describe(chat, sandbox.session)))
    }

    /// Through the sandbox's init, or, where it has none, through its engine.
    fn interior(&self, sandbox: &Sandbox) -> Result<Arc<dyn Entrance>, Error> {
        match self.guests.of(sandbox.session) {
            Some(interior) => Ok(interior),
            None => self.via_engine(sandbox, None),
        }
    }

    fn via_engine(&self, sandbox: &Sandbox, user: Option<String>) -> Result<Arc<dyn Entrance>, Error> {
        let gone = || of_sandbox(SandboxError::NotRunning { chat: sandbox.chat, status: sandbox.status });
        let container = sandbox.container.clone().ok_or_else(gone)?;
        let environment = self.guests.environment_of(sandbox.session);
        Ok(Arc::new(self.guests_via_engine.of(sandbox.session, container, user, environment)))
    }

    /// To a command that runs already.
    fn way_to(&self, sandbox: &Sandbox, command: CommandId) -> Result<Arc<dyn Entrance>, Error> {
        match self.guests_via_engine.has(sandbox.session, command) {
            true => self.via_engine(sandbox, None),
            false => self.interior(sandbox),
        }
    }
}

/// Returns the error for a guest that does not accept a stream.
fn unreachable(error: Unreachable) -> Error {
    match error {
        Unreachable::Silent(_) => Kind::GuestUnreachable.error(error.to_string()),
        Unreachable::Busy => Kind::Busy.error(error.to_string()),
    }
}

/// Nobody will read this.
fn gone() -> Error {
    Kind::GuestUnreachable.error("the caller is gone")
}

/// Anything that is not a failure which the request has its own words for.
fn unexpected(outcome: Result<Event, GuestStreamError>) -> Error {
    match outcome {
        Err(GuestStreamError::Failed(failure)) if failure.errno == TOO_MANY_STREAMS => {
            Kind::Busy.error(String::from_utf8_lossy(&failure.message.0))
        }
        // Not in this sandbox, now or later.
        Err(GuestStreamError::Failed(failure)) if failure.errno == rustix::io::Errno::NOSYS.raw_os_error() => {
            Kind::GuestUnreachable.error(String::from_utf8_lossy(&failure.message.0)).retryable(false)
        }
        Err(error) => Kind::GuestUnreachable.error(error.to_string()),
        Ok(_) => Kind::GuestUnreachable.error(GuestStreamError::InvalidResponse.to_string()),
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
    Kind::CommandNotFound
        .error(format!("chat {chat} has no command {command}, or it has been told of its end"))
        .with("chat_id", chat.to_string())
        .with("command_id", command)
}
