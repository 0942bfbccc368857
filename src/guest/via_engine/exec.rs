//! Commands that the engine runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use rustix::io::Errno;
use rustix::process::Signal;
use sandbox_init::codec::{Bytes, decode};
use sandbox_init::wire::{
    COMMAND_VARIABLE, Control, Ending, Event, Failure, How, Kind, Run, SECRET_VARIABLE, SOCKET_VARIABLE, WAIT_VARIABLE,
};
use tokio::io::AsyncWriteExt;

use super::commands::Known;
use super::frames::{Reader, Writer};
use super::processes::MemoryGroup;
use super::{GuestViaEngine, failed, other, processes, unsupported};
use crate::engine::guest::{Command, Execution, GuestError, Look, Output, Streams};

/// Between two looks at a command that is about to begin or to end: first, and at most.
const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long a command may take to begin, and how long the engine may fail to tell whether it has.
const BEGIN_LIMIT: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(30) };

/// How long a command that was given up before it began is looked for, in order to kill it.
const PURSUIT_LIMIT: Duration = Duration::from_secs(600);

/// How long the end of a command is waited for once its stream broke, or while the engine does not answer.
const END_LIMIT: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(60) };

/// Between two looks at one that nobody listens to.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// So many looks in a row may fail before such a command is given up.
const MOST_SILENT: u32 = 60;

/// What is kept of what the engine says about a command that cannot be started, and of what a tool says.
const MOST_TEXT: usize = 4096;

impl GuestViaEngine {
    pub(super) async fn run(&self, run: Run, reader: Reader, writer: &mut Writer) -> Result<(), Failure> {
        let (id, timeout) = (run.id, run.timeout.map(Duration::from_millis));
        let memory = self.memory().await;
        let started = Instant::now();
        let begun = self.engine.exec(&self.container, self.command(&run)).await;
        let Execution { id: execution, streams } = begun.map_err(|error| match error {
            GuestError::Engine(_) => error.into(),
            error => not_started(&error.to_string()),
        })?;
        let Some(mut streams) = streams else {
            let process = self.begun_or_pursued(id, &execution).await?.process;
            let Some(process) = process else { return Err(not_started("it ended before it began")) };
            self.commands.add(id, self.known(&run, execution.clone(), process, started, memory));
            writer.event(&Event::Started { id }).await;
            tokio::spawn(self.clone().watch(id, execution, timeout));
            return Ok(());
        };
        let look = self.begun_or_pursued(id, &execution).await?;
        let Some(process) = look.process else { return Err(not_started(&said(streams).await)) };
        if let Some(size) = &run.terminal {
            let _ = self.engine.resize(&execution, size.rows, size.columns).await;
        }
        self.commands.add(id, self.known(&run, execution.clone(), process, started, memory.clone()));
        writer.event(&Event::Started { id }).await;
        if !run.input && run.terminal.is_none() {
            let _ = streams.input.shutdown().await;
        }
        let timed_out = AtomicBool::new(false);
        let ended = self.tell(streams, reader, writer, id, &execution, timeout, &timed_out).await;
        let killed = self.commands.get(self.session, id).is_some_and(|known| known.killed);
        let timed_out = timed_out.load(Ordering::Relaxed);
        let ending = match ended {
            Ok(code) => Ok(ending(code, started.elapsed(), timed_out, killed, memory.as_ref())),
            Err(Lost::Running(failure)) => {
                // It goes on as one that runs detached, with its time-out.
                self.commands.change(id, |known| known.attached = false);
                let left = timeout.filter(|_| !timed_out).map(|limit| limit.saturating_sub(started.elapsed()));
                tokio::spawn(self.clone().watch(id, execution, left));
                return Err(failure);
            }
            Err(Lost::Unknown(failure)) => Err(failure),
        };
        match ending {
            Ok(ending) if writer.is_closed() => self.commands.change(id, |known| known.ending = Some(ending)),
            Ok(ending) => {
                self.commands.forget(id);
                writer.event(&Event::Ended { ending }).await;
            }
            Err(failure) => {
                self.commands.forget(id);
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Hands on what goes in both directions, until the command ends. Its time-out and its kill stay in force also once the
    /// stream of its output has ended or broken.
    #[allow(clippy::too_many_arguments, reason = "one conversation, taken apart")]
    async fn tell(
        &self,
        Streams { mut output, mut input }: Streams,
        mut reader: Reader,
        writer: &mut Writer,
        id: u64,
        execution: &str,
        timeout: Option<Duration>,
        timed_out: &AtomicBool,
    ) -> Result<i32, Lost> {
        let telling = async {
            let mut broken = None;
            while let Some(piece) = output.next().await {
                match piece {
                    Ok(Output::Stdout(bytes)) => writer.data(Kind::Stdout, &bytes).await,
                    Ok(Output::Stderr(bytes)) => writer.data(Kind::Stderr, &bytes).await,
                    Err(error) => {
                        broken = Some(error);
                        break;
                    }
                }
            }
            self.ended(execution, broken).await
        };
        let steering = async {
            while let Some((kind, payload)) = reader.next().await {
                match kind {
                    Kind::Data => drop(input.write_all(&payload).await),
                    Kind::End => drop(input.shutdown().await),
                    Kind::Control => match decode(&payload) {
                        Ok(Control::Kill {}) => self.kill(id).await?,
                        Ok(Control::Signal { signal }) => drop(self.signal(id, signal).await),
                        Ok(Control::Resize { size }) => {
                            drop(self.engine.resize(execution, size.rows, size.columns).await);
                        }
                        Err(_) => {}
                    },
                    _ => {}
                }
            }
            // Nobody listens any more, and the command goes on.
            self.commands.change(id, |known| known.attached = false);
            std::future::pending::<Result<i32, Failure>>().await
        };
        let limiting = async {
            match timeout {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
            timed_out.store(true, Ordering::Relaxed);
            self.kill(id).await?;
            std::future::pending::<Result<i32, Failure>>().await
        };
        tokio::select! {
            ended = telling => ended,
            failed = steering => failed.map_err(Lost::Unknown),
            failed = limiting => failed.map_err(Lost::Unknown),
        }
    }

    /// Looks after a command that nobody listens to.
    async fn watch(self, id: u64, execution: String, timeout: Option<Duration>) {
        let started = Instant::now();
        let (mut timed_out, mut silent) = (false, 0);
        loop {
            tokio::time::sleep(LONG_PAUSE.min(timeout.unwrap_or(LONG_PAUSE))).await;
            if !timed_out && timeout.is_some_and(|limit| started.elapsed() >= limit) {
                timed_out = self.kill(id).await.is_ok();
            }
            match self.engine.look(&execution).await {
                Ok(Look { exit_code: Some(code), .. }) => {
                    let age = started.elapsed();
                    return self.commands.change(id, |known| {
                        known.ending = Some(ending(code, age, timed_out, known.killed, known.memory.as_ref()));
                    });
                }
                Ok(_) => silent = 0,
                // The sandbox is gone, or the engine does not answer just now.
                Err(GuestError::NotFound) => return self.commands.forget(id),
                Err(_) if silent >= MOST_SILENT => return self.commands.forget(id),
                Err(_) => silent += 1,
            }
        }
    }

    pub(super) async fn kill(&self, id: u64) -> Result<(), Failure> {
        let known =
            self.commands.get(self.session, id).ok_or_else(|| failed(Errno::SRCH, "there is no such command"))?;
        self.commands.change(id, |known| known.killed = true);
        self.kill_process(id, &known.execution, known.process).await
    }

    async fn kill_process(&self, id: u64, execution: &str, process: i32) -> Result<(), Failure> {
        let mark = self.mark(id);
        self.reach(execution, process, move |container, leader| processes::kill_all(container, leader, &mark)).await
    }

    pub(super) async fn signal(&self, id: u64, signal: i32) -> Result<(), Failure> {
        let known =
            self.commands.get(self.session, id).ok_or_else(|| failed(Errno::SRCH, "there is no such command"))?;
        let signal = Signal::from_named_raw(signal).ok_or_else(|| failed(Errno::INVAL, "there is no such signal"))?;
        let Known { execution, process, .. } = known;
        self.reach(&execution, process, move |container, leader| processes::signal_group(container, leader, signal))
            .await
    }

    /// Waits until a command has ended, as whoever looks after it here finds out.
    pub(super) async fn end_of(&self, id: u64) -> Result<(), Failure> {
        loop {
            match self.commands.get(self.session, id) {
                None => return Err(failed(Errno::SRCH, "there is no such command")),
                Some(Known { ending: Some(_), .. }) => return Ok(()),
                Some(_) => tokio::time::sleep(LONG_PAUSE).await,
            }
        }
    }

    async fn reach(
        &self,
        execution: &str,
        process: i32,
        act: impl FnOnce(&str, i32) -> std::io::Result<()> + Send + 'static,
    ) -> Result<(), Failure> {
        let container = self.container.clone();
        if self.engine.look(execution).await.is_ok_and(|look| look.exit_code.is_some()) {
            // Its number may be another's; what it left running does not belong to it any more.
            return Ok(());
        }
        let acted = tokio::task::spawn_blocking(move || match processes::is_in(container.as_str(), process) {
            true => act(container.as_str(), process).map_err(|error| error.to_string()),
            false => Err(format!("process {process} of the engine cannot be seen from here")),
        });
        match acted.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(message)) => Err(unsupported(format!("the engine cannot end commands, and nor can we: {message}"))),
            Err(_) => Err(other("it was given up")),
        }
    }

    /// Runs one of the image's own tools to its end.
    pub(super) async fn tool(&self, arguments: &[&str]) -> Result<(), Failure> {
        let missing =
            |why: &str| unsupported(format!("the image has no {} that the engine could run: {why}", arguments[0]));
        let command = Command {
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            environment: blanked(),
            ..Command::default()
        };
        let execution =
            self.engine.exec(&self.container, command).await.map_err(|error| missing(&error.to_string()))?;
        let said = match execution.streams {
            Some(streams) => said(streams).await,
            None => String::new(),
        };
        if self.begun(&execution.id).await?.process.is_none() {
            return Err(missing(&said));
        }
        let ended = self.ended(&execution.id, None).await;
        match ended.map_err(Lost::into_failure)? {
            0 => Ok(()),
            _ => Err(Failure { errno: errno_of(&said), message: said.into() }),
        }
    }

    fn command(&self, run: &Run) -> Command {
        let text = |bytes: &Bytes| String::from_utf8_lossy(&bytes.0).into_owned();
        let own = run.environment.iter().map(|(name, value)| format!("{}={}", text(name), text(value)));
        let given = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let mark = format!("{COMMAND_VARIABLE}={}", self.mark(run.id));
        Command {
            arguments: run.arguments.iter().map(text).collect(),
            environment: given.chain(own).chain(blanked()).chain([mark]).collect(),
            directory: run.directory.as_ref().map(text),
            user: self.user.clone(),
            terminal: run.terminal.is_some(),
            input: !run.detached && (run.input || run.terminal.is_some()),
            detached: run.detached,
        }
    }

    fn mark(&self, id: u64) -> String {
        format!("{}.{id}", self.session)
    }

    fn known(
        &self,
        run: &Run,
        execution: String,
        process: i32,
        started: Instant,
        memory: Option<MemoryGroup>,
    ) -> Known {
        let (session, arguments, attached) = (self.session, run.arguments.clone(), !run.detached);
        Known { session, execution, arguments, process, started, attached, killed: false, memory, ending: None }
    }

    /// The memory of the container, as far as it can be seen from here.
    async fn memory(&self) -> Option<MemoryGroup> {
        let container = self.container.clone();
        tokio::task::spawn_blocking(move || MemoryGroup::of(container.as_str())).await.ok().flatten()
    }

    /// Waits until it has begun, or it is clear that it will not. A look that fails tells nothing about the command, so it
    /// is looked at again.
    async fn begun(&self, execution: &str) -> Result<Look, Failure> {
        let mut pauses = Pauses::new();
        loop {
            let failure = match self.engine.look(execution).await {
                Ok(look) if look.process.is_some() || look.exit_code.is_some() => return Ok(look),
                Ok(_) => {
                    let message = format!("the engine has not begun with the command within {BEGIN_LIMIT:?}");
                    failed(Errno::NOTCONN, message)
                }
                // There is no such command any more.
                Err(error @ GuestError::NotFound) => return Err(error.into()),
                Err(error) => error.into(),
            };
            if pauses.elapsed() >= BEGIN_LIMIT {
                return Err(failure);
            }
            pauses.next().await;
        }
    }

    /// The same for a caller's command. Its caller takes one that is given up for not started, and cannot end it, so that
    /// it is killed should it begin all the same.
    async fn begun_or_pursued(&self, id: u64, execution: &str) -> Result<Look, Failure> {
        let begun = self.begun(execution).await;
        if begun.is_err() {
            tokio::spawn(self.clone().pursue(id, execution.to_owned()));
        }
        begun
    }

    /// Kills a command as soon as it has a process.
    async fn pursue(self, id: u64, execution: String) {
        let mut pauses = Pauses::new();
        while pauses.elapsed() < PURSUIT_LIMIT {
            match self.engine.look(&execution).await {
                Ok(Look { exit_code: Some(_), .. }) | Err(GuestError::NotFound) => return,
                Ok(Look { process: Some(process), .. }) => {
                    let failure = self.kill_process(id, &execution, process).await.err();
                    let failure = failure.map(|failure| String::from_utf8_lossy(&failure.message.0).into_owned());
                    tracing::warn!(session.id = %self.session, process, failure, "killing a command that began too late");
                    return;
                }
                Ok(_) | Err(_) => {}
            }
            pauses.next().await;
        }
        tracing::warn!(session.id = %self.session, %execution, "a command that was given up may begin at any time");
    }

    /// Waits for the end of a command whose output has ended. `broken`: why it ended too early.
    async fn ended(&self, execution: &str, broken: Option<GuestError>) -> Result<i32, Lost> {
        let (mut pauses, mut silent_since) = (Pauses::new(), None);
        loop {
            let running = match self.engine.look(execution).await {
                Ok(Look { exit_code: Some(code), .. }) => return Ok(code),
                Ok(Look { process, .. }) => {
                    silent_since = None;
                    process
                }
                // There is no such command any more.
                Err(error @ GuestError::NotFound) => return Err(Lost::Unknown(error.into())),
                Err(error) => {
                    if silent_since.get_or_insert_with(tokio::time::Instant::now).elapsed() >= END_LIMIT {
                        return Err(Lost::Unknown(error.into()));
                    }
                    None
                }
            };
            if let (Some(error), Some(process)) = (&broken, running)
                && pauses.elapsed() >= END_LIMIT
            {
                let message = format!(
                    "the engine's stream of the command broke ({error}); its output since then is lost, and {END_LIMIT:?} \
                     later it still runs, as process {process} of the engine's host"
                );
                return Err(Lost::Running(failed(Errno::NOTCONN, message)));
            }
            pauses.next().await;
        }
    }
}

/// Why the end of a command cannot be told.
enum Lost {
    /// It still runs.
    Running(Failure),
    Unknown(Failure),
}

impl Lost {
    fn into_failure(self) -> Failure {
        let (Lost::Running(failure) | Lost::Unknown(failure)) = self;
        failure
    }
}

/// Ever longer pauses between two looks.
struct Pauses {
    since: tokio::time::Instant,
    next: Duration,
}

impl Pauses {
    fn new() -> Self {
        Self { since: tokio::time::Instant::now(), next: PAUSE }
    }

    fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    async fn next(&mut self) {
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(LONGEST_PAUSE);
    }
}

/// The engine gives every command what the first process was told, and only that is to know.
fn blanked() -> Vec<String> {
    [SECRET_VARIABLE, SOCKET_VARIABLE, WAIT_VARIABLE].map(|name| format!("{name}=")).into()
}

/// An engine does not tell a signal from the code that a shell would make of it, except where we know. Nor does it tell
/// that the kernel killed a command for want of memory, so the count of such kills since its start is looked at.
fn ending(code: i32, lived: Duration, timed_out: bool, killed: bool, memory: Option<&MemoryGroup>) -> Ending {
    let is_kill = code == 128 + Signal::KILL.as_raw();
    let how = match (is_kill, timed_out || killed) {
        (true, true) => How::Signal { signal: Signal::KILL.as_raw() },
        (true, false) if memory.is_some_and(MemoryGroup::has_run_out) => How::CodeOutOfMemory { code },
        _ => How::Code { code },
    };
    Ending { how, duration: lived.as_micros() as u64, timed_out, killed: killed && !timed_out }
}

fn not_started(why: &str) -> Failure {
    let errno = match errno_of(why) {
        0 if why.contains("executable file not found") => Errno::NOENT.raw_os_error(),
        errno => errno,
    };
    Failure { errno, message: why.trim().into() }
}

/// What was printed, as far as it is of use in a message.
async fn said(Streams { mut output, input }: Streams) -> String {
    drop(input);
    let mut said = Vec::new();
    while let Some(Ok(Output::Stdout(bytes) | Output::Stderr(bytes))) = output.next().await {
        said.extend_from_slice(&bytes[..bytes.len().min(MOST_TEXT - said.len())]);
    }
    String::from_utf8_lossy(&said).trim().to_owned()
}

/// From the words that all systems have for it.
fn errno_of(message: &str) -> i32 {
    let known = [
        ("o such file or directory", Errno::NOENT),
        ("ermission denied", Errno::ACCESS),
        ("peration not permitted", Errno::PERM),
        ("ead-only file system", Errno::ROFS),
        ("irectory not empty", Errno::NOTEMPTY),
        ("s a directory", Errno::ISDIR),
        ("ot a directory", Errno::NOTDIR),
    ];
    known.iter().find(|(words, _)| message.contains(words)).map_or(0, |(_, errno)| errno.raw_os_error())
}

#[cfg(test)]
mod tests;
