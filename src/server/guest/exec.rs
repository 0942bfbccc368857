//! Commands: run, told, and ended with their caller unless they are to go on.

use std::time::Duration;

use sandbox_init::codec::Bytes;
use sandbox_init::wire::{Control, Ending, Event, Request, Run, Size};
use sandboxd_actors::chat::events::Lease;
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::sandbox::{Holder, Sandbox};
use sandboxd_actors::sandboxes::Sandboxes;
use sandboxd_protocol::command::{self, DetachedCommand};
use tokio_util::sync::CancellationToken;

use super::{Barrier, ENGINE_FAILED, GuestCall, Turn, gone, of_command, unexpected, unreachable};
use crate::guest::stream::{GuestFrame, GuestStream, GuestStreamError, StreamReader, StreamWriter};
use crate::protocol::answer::{Answer, Ended, Printed};
use crate::protocol::content::StoredContent;
use crate::protocol::error::{Error, Kind, of_sandbox};
use crate::protocol::guest::{CommandId, DEFAULT_OUTPUT, Exec, Input, Output, whole_characters};
use crate::protocol::notification::Notification;
use crate::server::guest::activity::keep;
use crate::server::guest::attachments::{AttachedInput, Attachment};
use crate::server::memory::Reservation;
use crate::server::outbox::Closed;

/// How long the end of a command that was killed is waited for.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Output that is kept without being counted, of both streams together.
const FREE_OUTPUT: usize = 16 << 10;

/// Memory for more output is reserved in steps.
const MORE_OUTPUT: usize = 64 << 10;

/// How long a command waits for memory for its output.
const MEMORY_PATIENCE: Duration = Duration::from_secs(15);

impl GuestCall<'_> {
    pub(super) async fn exec(
        &self,
        chat: ChatId,
        exec: Exec,
        barrier: Option<Barrier>,
        turn: Option<Turn>,
    ) -> Result<Answer, Error> {
        let id = self.attachments.new_command();
        let held = Held::take(self.sandboxes, chat, Holder::Command { id }, self.max_lease).await?;
        if let Some(barrier) = &barrier {
            barrier.runs_as(held.sandbox.session, id);
        }
        let outcome = self.run(chat, id, exec, &held, turn).await;
        if let Some(barrier) = barrier {
            self.settle(chat, id, barrier, &outcome).await;
        }
        held.release().await;
        outcome
    }

    pub(super) async fn run(
        &self,
        chat: ChatId,
        id: CommandId,
        exec: Exec,
        held: &Held<'_>,
        turn: Option<Turn>,
    ) -> Result<Answer, Error> {
        let Exec { arguments, user, directory, environment, input, timeout, output, terminal, detached, .. } = exec;
        let program = arguments.first().cloned().unwrap_or_default();
        let entrance = match user {
            // Init has no right to become somebody else.
            Some(user) => self.via_engine(&held.sandbox, Some(user))?,
            None => self.interior(&held.sandbox)?,
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
        let mut conversation = entrance.open_stream(&Request::Run { command }).await.map_err(unreachable)?;
        match conversation.started().await {
            Ok(Event::Started { .. }) => {}
            Err(GuestStreamError::Failed(failure)) if failure.errno != ENGINE_FAILED => {
                let reason = String::from_utf8_lossy(&failure.message.0).into_owned();
                return Err(Kind::CommandNotStarted
                    .error(format!("the command was not started: {program}: {reason}"))
                    .with("chat_id", chat.to_string())
                    .with("errno", failure.errno));
            }
            other => return Err(unexpected(other)),
        }
        // Commands are started one after the other, and run beside each other.
        drop(turn);
        if detached {
            self.keep(held, id).await;
            return Ok(Answer::Detached(DetachedCommand { command_id: id }));
        }
        self.follow(chat, id, conversation, input, output, held).await
    }

    pub(super) async fn attach(&self, chat: ChatId, id: CommandId, output: Output) -> Result<Answer, Error> {
        let held = Held::take(self.sandboxes, chat, Holder::Command { id }, self.max_lease).await?;
        // Before whoever follows it now is sent away.
        let barrier = self.syncs.barrier(chat, id);
        let outcome = async {
            let opened = self.way_to(&held.sandbox, id)?.open_stream(&Request::Attach { id }).await;
            let mut conversation = opened.map_err(unreachable)?;
            match conversation.reader.event().await {
                Ok(Event::Started { .. }) => {}
                Err(error) => return Err(of_command(chat, id, error)),
                other => return Err(unexpected(other)),
            }
            self.follow(chat, id, conversation, Input::None, output, &held).await
        }
        .await;
        if let Some(barrier) = barrier {
            self.settle(chat, id, barrier, &outcome).await;
        }
        held.release().await;
        outcome
    }

    /// Tells those who wait for a sync how it ended. If its caller is gone, it is followed without one.
    async fn settle(&self, chat: ChatId, id: CommandId, barrier: Barrier, outcome: &Result<Answer, Error>) {
        match outcome {
            Ok(Answer::Ended(ended)) => barrier.lift(ended.failure().map_or(Ok(()), Err)),
            Ok(_) => barrier.lift(Ok(())),
            Err(_) if self.gone.is_cancelled() => {
                let nobody = CancellationToken::new();
                let unattended = GuestCall { ticket: None, gone: &nobody, ..*self };
                let output = Output { stream: false, limit: DEFAULT_OUTPUT, detach_on_disconnect: true };
                let _ = Box::pin(unattended.attach(chat, id, output)).await;
            }
            Err(error) => barrier.give_up(&error.message),
        }
    }

    /// Tells what the command prints until it ends, or until there is nobody to tell.
    async fn follow(
        &self,
        chat: ChatId,
        id: CommandId,
        conversation: GuestStream,
        input: Input,
        output: Output,
        held: &Held<'_>,
    ) -> Result<Answer, Error> {
        let GuestStream { mut reader, mut writer } = conversation;
        let mut wheel = self.attachments.take(chat, id);
        let mut told = Told::new(Some(id), output, self);
        if (output.stream || input == Input::Follows)
            && self.notify(Notification::Started { command: id }).await.is_err()
        {
            self.gone.cancelled().await;
        }
        let listened = told.listen(&mut reader);
        let outcome = tokio::select! {
            ended = listened => ended,
            never = steer(&mut wheel, &mut writer, input) => match never {},
            never = held.keep() => match never {},
            () = self.gone.cancelled() => Err(Stop::Gone),
            () = self.shutdown.cancelled() => Err(Stop::Shutdown),
        };
        match outcome {
            Ok(ending) => Ok(Answer::Ended(Box::new(Ended::of(id, &ending, told.missed, told.printed())))),
            Err(Stop::Gone) if output.detach_on_disconnect => {
                self.keep(held, id).await;
                Err(gone())
            }
            Err(Stop::Gone) => Err(abandon(reader, writer).await),
            // It goes on, and the next process of the service finds it.
            Err(Stop::Shutdown) => Err(Kind::ShuttingDown
                .error("the service is shutting down; the command goes on and can be attached to")
                .with("command_id", id)),
            Err(Stop::Broken(error)) => Err(unexpected(Err(error))),
        }
    }

    /// From now on, nobody is attached to the command.
    async fn keep(&self, held: &Held<'_>, command: CommandId) {
        if let Ok(entrance) = self.way_to(&held.sandbox, command) {
            keep(self.sandboxes.clone(), entrance, held.sandbox.chat, command).await;
        }
    }
}

/// The caller is gone, and with it all that the command has started.
async fn abandon(mut reader: StreamReader, mut writer: StreamWriter) -> Error {
    if writer.control(&Control::Kill {}).await.is_ok() {
        let end =
            async { while !matches!(reader.next().await, Ok(GuestFrame::Event(Event::Ended { .. })) | Err(_)) {} };
        let _ = tokio::time::timeout(KILL_LIMIT, end).await;
    }
    gone()
}

pub(super) enum Stop {
    Gone,
    Shutdown,
    Broken(GuestStreamError),
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Self {
        Stop::Gone
    }
}

/// Hands on what is sent to the command. Without end: one that reads no more gets no more.
async fn steer(wheel: &mut Attachment<'_>, writer: &mut StreamWriter, input: Input) -> std::convert::Infallible {
    if let Input::Whole(bytes) = input {
        let _ = writer.data(&bytes).await;
        let _ = writer.end().await;
    }
    loop {
        let _ = match wheel.turned().await {
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

/// What was told so far of the output of a command, or, without one, of the sandbox's own program.
pub(super) struct Told<'a> {
    command: Option<CommandId>,
    output: Output,
    desk: &'a GuestCall<'a>,
    streams: [Stream; 2],
    /// Not kept while nobody listened.
    missed: u64,
    /// For what is kept for the answer.
    memory: Reservation,
    /// There was no more memory: nothing more is kept.
    is_cut: bool,
}

#[derive(Default)]
struct Stream {
    bytes: u64,
    told: usize,
    /// Kept for the answer.
    kept: StoredContent,
    /// The beginning of a character whose rest has not come yet.
    begun: Vec<u8>,
}

const STREAMS: [command::Stream; 2] = [command::Stream::Stdout, command::Stream::Stderr];

impl<'a> Told<'a> {
    pub(super) fn new(command: Option<CommandId>, output: Output, desk: &'a GuestCall<'a>) -> Self {
        let (streams, memory) = Default::default();
        Self { command, output, desk, streams, missed: 0, memory, is_cut: false }
    }

    async fn listen(&mut self, reader: &mut StreamReader) -> Result<Ending, Stop> {
        loop {
            match reader.next().await.map_err(Stop::Broken)? {
                GuestFrame::Stdout(bytes) => self.tell(0, bytes).await?,
                GuestFrame::Stderr(bytes) => self.tell(1, bytes).await?,
                GuestFrame::Event(Event::Missed { bytes }) => {
                    self.missed += bytes;
                    if let Some(command) = self.command.filter(|_| self.output.stream) {
                        self.desk.notify(Notification::Missed { command, bytes }).await?;
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

    pub(super) async fn tell(&mut self, which: usize, bytes: &[u8]) -> Result<(), Stop> {
        let stream = &mut self.streams[which];
        stream.bytes += bytes.len() as u64;
        let bytes = &bytes[..bytes.len().min(self.output.limit - stream.told)];
        if !self.output.stream {
            return self.keep(which, bytes).await;
        }
        stream.told += bytes.len();
        let mut joined = std::mem::take(&mut stream.begun);
        let bytes = if joined.is_empty() {
            bytes
        } else {
            joined.extend_from_slice(bytes);
            &joined
        };
        let (whole, rest) = bytes.split_at(whole_characters(bytes));
        stream.begun = rest.to_vec();
        self.notify(which, whole).await
    }

    /// Keeps output for the answer. While there is no memory, the command waits; after a while it goes on without its
    /// output being kept, since commands that wait for each other's memory would wait for ever.
    async fn keep(&mut self, which: usize, bytes: &[u8]) -> Result<(), Stop> {
        let kept: usize = self.streams.iter().map(|stream| stream.kept.len()).sum();
        let wanted = (kept + bytes.len()).saturating_sub(FREE_OUTPUT);
        if wanted > self.memory.bytes() && !self.is_cut {
            let more = (wanted - self.memory.bytes()).max(MORE_OUTPUT);
            match tokio::time::timeout(MEMORY_PATIENCE, self.desk.reserve_either(more)).await {
                Ok(memory) => self.memory.add(memory.map_err(|_| Stop::Gone)?),
                Err(_) => {
                    tracing::warn!("output of a command is cut off, as there is no memory to keep it in");
                    self.is_cut = true;
                }
            }
        }
        if !self.is_cut {
            let stream = &mut self.streams[which];
            stream.told += bytes.len();
            stream.kept.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// All of it, told or not.
    pub(super) fn bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.bytes).sum()
    }

    pub(super) async fn finish(&mut self) -> Result<(), Stop> {
        for stream in [0, 1] {
            self.tell_rest(stream).await?;
        }
        Ok(())
    }

    async fn tell_rest(&mut self, which: usize) -> Result<(), Stop> {
        if !self.output.stream {
            return Ok(());
        }
        let rest = std::mem::take(&mut self.streams[which].begun);
        self.notify(which, &rest).await
    }

    async fn notify(&self, which: usize, bytes: &[u8]) -> Result<(), Stop> {
        if bytes.is_empty() {
            return Ok(());
        }
        let output = Notification::Output { command: self.command, stream: STREAMS[which], bytes };
        Ok(self.desk.notify(output).await?)
    }

    fn printed(self) -> [Printed; 2] {
        let streamed = self.output.stream;
        if self.memory.bytes() > 0 {
            self.desk.hold(self.memory);
        }
        self.streams.map(|Stream { bytes, told, mut kept, .. }| {
            let truncated = (told as u64) < bytes;
            if truncated {
                // The limit may have cut a character in two.
                kept.cut_to_whole_characters();
            }
            Printed::of((!streamed).then_some(kept), bytes, truncated)
        })
    }
}

/// Work under way in a sandbox. It counts as activity; the sandbox's absolute end comes all the same.
pub(super) struct Held<'a> {
    sandboxes: &'a Sandboxes,
    pub(super) sandbox: Sandbox,
    /// Absent for a caller that may only look.
    lease: Option<Lease>,
}

impl<'a> Held<'a> {
    pub(super) async fn take(
        sandboxes: &'a Sandboxes,
        chat: ChatId,
        holder: Holder,
        longest: Duration,
    ) -> Result<Self, Error> {
        let lease = Lease::of_work(longest, holder);
        let sandbox = sandboxes.lease(chat, lease).await.map_err(of_sandbox)?;
        Ok(Self { sandboxes, sandbox, lease: Some(lease) })
    }

    /// For a caller that may only look: the sandbox may end meanwhile.
    pub(super) fn unheld(sandboxes: &'a Sandboxes, sandbox: Sandbox) -> Self {
        Self { sandboxes, sandbox, lease: None }
    }

    /// However long it takes.
    pub(super) async fn keep(&self) -> std::convert::Infallible {
        let Some(lease) = self.lease else { return std::future::pending().await };
        loop {
            tokio::time::sleep(lease.duration / 2).await;
            // A sandbox that has ended ends the conversation, too.
            let _ = self.sandboxes.lease(self.sandbox.chat, lease).await;
        }
    }

    pub(super) async fn release(self) {
        if let Some(lease) = self.lease {
            let _ = self.sandboxes.release(self.sandbox.chat, lease.id).await;
        }
    }
}
