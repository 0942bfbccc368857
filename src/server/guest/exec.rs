//! Commands: started, their output relayed, and killed when the caller disconnects unless they detach.

use std::time::Duration;

use sandbox_init::codec::Bytes;
use sandbox_init::wire::{Control, Ending, Event, Request, Run, Size};
use sandboxd_actors::chat::events::Lease;
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::sandbox::{Holder, Sandbox};
use sandboxd_actors::sandboxes::Sandboxes;
use sandboxd_protocol::command::{self, DetachedCommand};
use sandboxd_protocol::error::{Error, ErrorKind};
use tokio_util::sync::CancellationToken;

use super::{ENGINE_FAILED, GuestCall, SyncBarrier, WriteTurn, disconnected, of_command, unexpected, unreachable};
use crate::guest::stream::{GuestFrame, GuestStream, GuestStreamError, StreamReader, StreamWriter};
use crate::protocol::answer::{Answer, CommandOutput, Ended};
use crate::protocol::content::StoredContent;
use crate::protocol::error::of_sandbox;
use crate::protocol::guest::{CommandId, DEFAULT_OUTPUT, Exec, Input, Output, whole_characters};
use crate::protocol::notification::Notification;
use crate::server::guest::activity::follow_detached_command;
use crate::server::guest::attachments::{AttachedInput, Attachment};
use crate::server::memory::Reservation;
use crate::server::outbox::Closed;

/// How long to wait for the end of a killed command.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Stored output of both streams together that needs no reservation.
const FREE_OUTPUT: usize = 16 << 10;

/// The least memory that is reserved for more output at a time.
const OUTPUT_STEP: usize = 64 << 10;

/// How long a command waits for memory for its output.
const MEMORY_WAIT_LIMIT: Duration = Duration::from_secs(15);

impl GuestCall<'_> {
    pub(super) async fn exec(
        &self,
        chat: ChatId,
        exec: Exec,
        barrier: Option<SyncBarrier>,
        turn: Option<WriteTurn>,
    ) -> Result<Answer, Error> {
        let id = self.attachments.new_command();
        let lease = WorkLease::acquire(self.sandboxes, chat, Holder::Command { id }, self.max_lease).await?;
        if let Some(barrier) = &barrier {
            barrier.set_command(lease.sandbox.session, id);
        }
        let outcome = self.run(chat, id, exec, &lease, turn).await;
        if let Some(barrier) = barrier {
            self.complete_sync(chat, id, barrier, &outcome).await;
        }
        lease.release().await;
        outcome
    }

    pub(super) async fn run(
        &self,
        chat: ChatId,
        id: CommandId,
        exec: Exec,
        lease: &WorkLease<'_>,
        turn: Option<WriteTurn>,
    ) -> Result<Answer, Error> {
        let Exec { arguments, user, directory, environment, input, timeout, output, terminal, detached, .. } = exec;
        let program = arguments.first().cloned().unwrap_or_default();
        let guest = match user {
            // Init may not change its user.
            Some(user) => self.via_engine(&lease.sandbox, Some(user))?,
            None => self.guest(&lease.sandbox)?,
        };
        let command = Run {
            id,
            arguments: arguments.into_iter().map(Bytes::from).collect(),
            environment: environment.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            directory: directory.map(Bytes::from),
            timeout: timeout.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1)),
            terminal: terminal.map(|(rows, columns)| Size { rows, columns }),
            input: input != Input::None,
            detached,
        };
        let mut stream = guest.open_stream(&Request::Run { command }).await.map_err(unreachable)?;
        match stream.started().await {
            Ok(Event::Started { .. }) => {}
            Err(GuestStreamError::Failed(failure)) if failure.errno != ENGINE_FAILED => {
                let reason = String::from_utf8_lossy(&failure.message.0).into_owned();
                return Err(ErrorKind::CommandNotStarted
                    .error(format!("the command was not started: {program}: {reason}"))
                    .with("chat_id", chat.to_string())
                    .with("errno", failure.errno));
            }
            other => return Err(unexpected(other)),
        }
        // Queued writes wait for the start of a command, not for its end.
        drop(turn);
        if detached {
            self.follow_detached(lease, id).await;
            return Ok(Answer::Detached(DetachedCommand { command_id: id }));
        }
        self.follow(chat, id, stream, input, output, lease).await
    }

    pub(super) async fn attach(&self, chat: ChatId, id: CommandId, output: Output) -> Result<Answer, Error> {
        let lease = WorkLease::acquire(self.sandboxes, chat, Holder::Command { id }, self.max_lease).await?;
        // Taken before init ends the stream of the caller that was attached until now.
        let barrier = self.syncs.barrier(chat, id);
        let outcome = async {
            let opened = self.guest_of_command(&lease.sandbox, id)?.open_stream(&Request::Attach { id }).await;
            let mut stream = opened.map_err(unreachable)?;
            match stream.reader.event().await {
                Ok(Event::Started { .. }) => {}
                Err(error) => return Err(of_command(chat, id, error)),
                other => return Err(unexpected(other)),
            }
            self.follow(chat, id, stream, Input::None, output, &lease).await
        }
        .await;
        if let Some(barrier) = barrier {
            self.complete_sync(chat, id, barrier, &outcome).await;
        }
        lease.release().await;
        outcome
    }

    /// Reports the end of a sync to its queued writes. If the caller has disconnected, the sync is followed without one.
    async fn complete_sync(&self, chat: ChatId, id: CommandId, barrier: SyncBarrier, outcome: &Result<Answer, Error>) {
        match outcome {
            Ok(Answer::Ended(ended)) => barrier.complete(ended.failure().map_or(Ok(()), Err)),
            Ok(_) => barrier.complete(Ok(())),
            Err(_) if self.disconnected.is_cancelled() => {
                let never_cancelled = CancellationToken::new();
                let unattended = GuestCall { ticket: None, disconnected: &never_cancelled, ..*self };
                let output = Output { stream: false, limit: DEFAULT_OUTPUT, detach_on_disconnect: true };
                let _ = Box::pin(unattended.attach(chat, id, output)).await;
            }
            Err(error) => barrier.give_up(&error.message),
        }
    }

    /// Relays the output of the command until it ends, or until the caller disconnects.
    async fn follow(
        &self,
        chat: ChatId,
        id: CommandId,
        stream: GuestStream,
        input: Input,
        output: Output,
        lease: &WorkLease<'_>,
    ) -> Result<Answer, Error> {
        let GuestStream { mut reader, mut writer } = stream;
        let mut attachment = self.attachments.attach(chat, id);
        let mut relay = OutputRelay::new(Some(id), output, self);
        if (output.stream || input == Input::Follows)
            && self.notify(Notification::Started { command: id }).await.is_err()
        {
            self.disconnected.cancelled().await;
        }
        let forwarding = relay.forward_until_end(&mut reader);
        let outcome = tokio::select! {
            ended = forwarding => ended,
            never = forward_input(&mut attachment, &mut writer, input) => match never {},
            never = lease.renew() => match never {},
            () = self.disconnected.cancelled() => Err(Stop::Disconnected),
            () = self.shutdown.cancelled() => Err(Stop::Shutdown),
        };
        match outcome {
            Ok(ending) => Ok(Answer::Ended(Box::new(Ended::of(id, &ending, relay.missed, relay.into_outputs())))),
            Err(Stop::Disconnected) if output.detach_on_disconnect => {
                self.follow_detached(lease, id).await;
                Err(disconnected())
            }
            Err(Stop::Disconnected) => Err(kill_command(reader, writer).await),
            // The command continues, and the next process of the service finds it.
            Err(Stop::Shutdown) => Err(ErrorKind::ShuttingDown
                .error("the service is shutting down; the command continues, attach to it after the restart")
                .with("command_id", id)),
            Err(Stop::Broken(error)) => Err(unexpected(Err(error))),
        }
    }

    /// Leases the sandbox for a command without an attached caller.
    async fn follow_detached(&self, lease: &WorkLease<'_>, command: CommandId) {
        if let Ok(guest) = self.guest_of_command(&lease.sandbox, command) {
            follow_detached_command(self.sandboxes.clone(), guest, lease.sandbox.chat, command).await;
        }
    }
}

/// Kills the command of a disconnected caller, with all its processes, and waits for its end.
async fn kill_command(mut reader: StreamReader, mut writer: StreamWriter) -> Error {
    if writer.control(&Control::Kill {}).await.is_ok() {
        let end =
            async { while !matches!(reader.next().await, Ok(GuestFrame::Event(Event::Ended { .. })) | Err(_)) {} };
        let _ = tokio::time::timeout(KILL_LIMIT, end).await;
    }
    disconnected()
}

pub(super) enum Stop {
    Disconnected,
    Shutdown,
    Broken(GuestStreamError),
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Self {
        Stop::Disconnected
    }
}

/// Forwards input to the command. Never returns; a command that does not read its input is sent no more.
async fn forward_input(
    attachment: &mut Attachment<'_>,
    writer: &mut StreamWriter,
    input: Input,
) -> std::convert::Infallible {
    if let Input::Whole(bytes) = input {
        let _ = writer.data(&bytes).await;
        let _ = writer.end().await;
    }
    loop {
        let _ = match attachment.next_input().await {
            AttachedInput::Input { bytes, end, memory: _memory } => {
                let sent = writer.data(&bytes).await;
                if end { writer.end().await } else { sent }
            }
            AttachedInput::Resize { rows, columns } => {
                writer.control(&Control::Resize { size: Size { rows, columns } }).await
            }
        };
    }
}

/// Relays the output of a command, or of the sandbox's own program if `command` is absent: as notifications, or stored
/// for the answer.
pub(super) struct OutputRelay<'a> {
    command: Option<CommandId>,
    output: Output,
    guest_call: &'a GuestCall<'a>,
    streams: [OutputStream; 2],
    /// Bytes that init dropped while no caller was attached.
    missed: u64,
    /// The memory of the stored output.
    memory: Reservation,
    /// No memory was available: further output is not stored.
    is_cut_off: bool,
}

#[derive(Default)]
struct OutputStream {
    bytes: u64,
    delivered: usize,
    /// The output for the answer.
    stored: StoredContent,
    /// The beginning of a character whose rest is not received yet.
    partial: Vec<u8>,
}

const STREAMS: [command::Stream; 2] = [command::Stream::Stdout, command::Stream::Stderr];

impl<'a> OutputRelay<'a> {
    pub(super) fn new(command: Option<CommandId>, output: Output, guest_call: &'a GuestCall<'a>) -> Self {
        let (streams, memory) = Default::default();
        Self { command, output, guest_call, streams, missed: 0, memory, is_cut_off: false }
    }

    async fn forward_until_end(&mut self, reader: &mut StreamReader) -> Result<Ending, Stop> {
        loop {
            match reader.next().await.map_err(Stop::Broken)? {
                GuestFrame::Stdout(bytes) => self.forward(0, bytes).await?,
                GuestFrame::Stderr(bytes) => self.forward(1, bytes).await?,
                GuestFrame::Event(Event::Missed { bytes }) => {
                    self.missed += bytes;
                    if let Some(command) = self.command.filter(|_| self.output.stream) {
                        self.guest_call.notify(Notification::Missed { command, bytes }).await?;
                    }
                }
                GuestFrame::Event(Event::Ended { ending }) => {
                    self.finish().await?;
                    return Ok(ending);
                }
                _ => return Err(Stop::Broken(GuestStreamError::InvalidResponse)),
            }
        }
    }

    pub(super) async fn forward(&mut self, which: usize, bytes: &[u8]) -> Result<(), Stop> {
        let stream = &mut self.streams[which];
        stream.bytes += bytes.len() as u64;
        let bytes = &bytes[..bytes.len().min(self.output.limit - stream.delivered)];
        if !self.output.stream {
            return self.store(which, bytes).await;
        }
        stream.delivered += bytes.len();
        let mut joined = std::mem::take(&mut stream.partial);
        let bytes = if joined.is_empty() {
            bytes
        } else {
            joined.extend_from_slice(bytes);
            &joined
        };
        let (whole, rest) = bytes.split_at(whole_characters(bytes));
        stream.partial = rest.to_vec();
        self.notify(which, whole).await
    }

    /// Stores output for the answer. Without free memory, the command waits up to [`MEMORY_WAIT_LIMIT`] and then
    /// continues without further stored output: commands that wait for each other's memory would wait for ever.
    async fn store(&mut self, which: usize, bytes: &[u8]) -> Result<(), Stop> {
        let stored: usize = self.streams.iter().map(|stream| stream.stored.len()).sum();
        let wanted = (stored + bytes.len()).saturating_sub(FREE_OUTPUT);
        if wanted > self.memory.bytes() && !self.is_cut_off {
            let more = (wanted - self.memory.bytes()).max(OUTPUT_STEP);
            match tokio::time::timeout(MEMORY_WAIT_LIMIT, self.guest_call.reserve_own_or_pooled(more)).await {
                Ok(memory) => self.memory.add(memory.map_err(|_| Stop::Disconnected)?),
                Err(_) => {
                    tracing::warn!("command output truncated: no memory for the answer");
                    self.is_cut_off = true;
                }
            }
        }
        if !self.is_cut_off {
            let stream = &mut self.streams[which];
            stream.delivered += bytes.len();
            stream.stored.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Returns the number of bytes of both streams, delivered or not.
    pub(super) fn bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.bytes).sum()
    }

    pub(super) async fn finish(&mut self) -> Result<(), Stop> {
        for stream in [0, 1] {
            self.flush(stream).await?;
        }
        Ok(())
    }

    async fn flush(&mut self, which: usize) -> Result<(), Stop> {
        if !self.output.stream {
            return Ok(());
        }
        let rest = std::mem::take(&mut self.streams[which].partial);
        self.notify(which, &rest).await
    }

    async fn notify(&self, which: usize, bytes: &[u8]) -> Result<(), Stop> {
        if bytes.is_empty() {
            return Ok(());
        }
        let output = Notification::Output { command: self.command, stream: STREAMS[which], bytes };
        Ok(self.guest_call.notify(output).await?)
    }

    fn into_outputs(self) -> [CommandOutput; 2] {
        let streamed = self.output.stream;
        if self.memory.bytes() > 0 {
            self.guest_call.hold(self.memory);
        }
        self.streams.map(|OutputStream { bytes, delivered, mut stored, .. }| {
            let truncated = (delivered as u64) < bytes;
            if truncated {
                // The limit may have split a character.
                stored.cut_to_whole_characters();
            }
            CommandOutput::of((!streamed).then_some(stored), bytes, truncated)
        })
    }
}

/// A lease for work in a sandbox. The work counts as activity, up to the sandbox's absolute deadline.
pub(super) struct WorkLease<'a> {
    sandboxes: &'a Sandboxes,
    pub(super) sandbox: Sandbox,
    /// Absent for a caller with the read-only role.
    lease: Option<Lease>,
}

impl<'a> WorkLease<'a> {
    pub(super) async fn acquire(
        sandboxes: &'a Sandboxes,
        chat: ChatId,
        holder: Holder,
        longest: Duration,
    ) -> Result<Self, Error> {
        let lease = Lease::of_work(longest, holder);
        let sandbox = sandboxes.lease(chat, lease).await.map_err(of_sandbox)?;
        Ok(Self { sandboxes, sandbox, lease: Some(lease) })
    }

    /// For a caller with the read-only role: the sandbox may end during the work.
    pub(super) fn without_lease(sandboxes: &'a Sandboxes, sandbox: Sandbox) -> Self {
        Self { sandboxes, sandbox, lease: None }
    }

    /// Renews the lease for ever.
    pub(super) async fn renew(&self) -> std::convert::Infallible {
        let Some(lease) = self.lease else { return std::future::pending().await };
        loop {
            tokio::time::sleep(lease.duration / 2).await;
            // The end of a sandbox ends the guest stream, and with it the work.
            let _ = self.sandboxes.lease(self.sandbox.chat, lease).await;
        }
    }

    pub(super) async fn release(self) {
        if let Some(lease) = self.lease {
            let _ = self.sandboxes.release(self.sandbox.chat, lease.id).await;
        }
    }
}
