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
use super::{StandIn, failed, other, processes, unsupported};
use crate::engine::inside::{Command, Execution, InsideError, Look, Output, Streams};

/// Between two looks at a command that is about to begin or to end.
const PAUSE: Duration = Duration::from_millis(5);

/// Between two looks at one that nobody listens to.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// What is kept of what the engine says about a command that cannot be started, and of what a tool says.
const MOST_TEXT: usize = 4096;

impl StandIn {
    pub(super) async fn run(&self, run: Run, reader: Reader, writer: &mut Writer) -> Result<(), Failure> {
        let (id, timeout) = (run.id, run.timeout.map(Duration::from_millis));
        let started = Instant::now();
        let begun = self.engine.exec(&self.container, self.command(&run)).await;
        let Execution { id: execution, streams } = begun.map_err(|error| match error {
            InsideError::Engine(_) => error.into(),
            error => not_started(&error.to_string()),
        })?;
        let Some(mut streams) = streams else {
            let process = self.begun(&execution).await?.process;
            let Some(process) = process else { return Err(not_started("it ended before it began")) };
            self.commands.add(id, self.known(&run, execution.clone(), process, started, false));
            writer.event(&Event::Started { id }).await;
            tokio::spawn(self.clone().watch(id, execution, timeout));
            return Ok(());
        };
        let look = self.begun(&execution).await?;
        let Some(process) = look.process else { return Err(not_started(&said(streams).await)) };
        if let Some(size) = &run.terminal {
            let _ = self.engine.resize(&execution, size.rows, size.columns).await;
        }
        self.commands.add(id, self.known(&run, execution.clone(), process, started, true));
        writer.event(&Event::Started { id }).await;
        if !run.input && run.terminal.is_none() {
            let _ = streams.input.shutdown().await;
        }
        let timed_out = AtomicBool::new(false);
        let told = self.tell(streams, reader, writer, id, &execution, timeout, &timed_out).await;
        let ended = self.ended(&execution).await;
        let killed = self.commands.get(self.session, id).is_some_and(|known| known.killed);
        let ending =
            told.and(ended).map(|code| ending(code, started.elapsed(), timed_out.load(Ordering::Relaxed), killed));
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

    /// Hands on what goes in both directions, until the command's output ends.
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
    ) -> Result<(), Failure> {
        let telling = async {
            while let Some(piece) = output.next().await {
                match piece {
                    Ok(Output::Stdout(bytes)) => writer.data(Kind::Stdout, &bytes).await,
                    Ok(Output::Stderr(bytes)) => writer.data(Kind::Stderr, &bytes).await,
                    Err(_) => break,
                }
            }
            Ok(())
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
            std::future::pending::<Result<(), Failure>>().await
        };
        let limiting = async {
            match timeout {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
            timed_out.store(true, Ordering::Relaxed);
            self.kill(id).await?;
            std::future::pending::<Result<(), Failure>>().await
        };
        tokio::select! {
            told = telling => told,
            failed = steering => failed,
            failed = limiting => failed,
        }
    }

    /// Looks after a command that nobody listens to.
    async fn watch(self, id: u64, execution: String, timeout: Option<Duration>) {
        let started = Instant::now();
        let mut timed_out = false;
        loop {
            tokio::time::sleep(LONG_PAUSE.min(timeout.unwrap_or(LONG_PAUSE))).await;
            if !timed_out && timeout.is_some_and(|limit| started.elapsed() >= limit) {
                timed_out = self.kill(id).await.is_ok();
            }
            match self.engine.look(&execution).await {
                Ok(Look { exit_code: Some(code), .. }) => {
                    let age = started.elapsed();
                    return self.commands.change(id, |known| {
                        known.ending = Some(ending(code, age, timed_out, known.killed));
                    });
                }
                Ok(_) => {}
                // The sandbox is gone, and the engine with it at worst.
                Err(_) => return self.commands.forget(id),
            }
        }
    }

    pub(super) async fn kill(&self, id: u64) -> Result<(), Failure> {
        let known =
            self.commands.get(self.session, id).ok_or_else(|| failed(Errno::SRCH, "there is no such command"))?;
        self.commands.change(id, |known| known.killed = true);
        let mark = self.mark(id);
        self.reach(known, move |container, leader| processes::kill_all(container, leader, &mark)).await
    }

    pub(super) async fn signal(&self, id: u64, signal: i32) -> Result<(), Failure> {
        let known =
            self.commands.get(self.session, id).ok_or_else(|| failed(Errno::SRCH, "there is no such command"))?;
        let signal = Signal::from_named_raw(signal).ok_or_else(|| failed(Errno::INVAL, "there is no such signal"))?;
        self.reach(known, move |container, leader| processes::signal_group(container, leader, signal)).await
    }

    async fn reach(
        &self,
        known: Known,
        act: impl FnOnce(&str, i32) -> std::io::Result<()> + Send + 'static,
    ) -> Result<(), Failure> {
        let container = self.container.clone();
        let Known { process, execution, .. } = known;
        if self.engine.look(&execution).await.is_ok_and(|look| look.exit_code.is_some()) {
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
        match self.ended(&execution.id).await? {
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

    fn known(&self, run: &Run, execution: String, process: i32, started: Instant, attached: bool) -> Known {
        let (session, arguments) = (self.session, run.arguments.clone());
        Known { session, execution, arguments, process, started, attached, killed: false, ending: None }
    }

    /// Waits until it has begun, or it is clear that it will not.
    async fn begun(&self, execution: &str) -> Result<Look, Failure> {
        loop {
            let look = self.engine.look(execution).await?;
            if look.process.is_some() || look.exit_code.is_some() {
                return Ok(look);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ended(&self, execution: &str) -> Result<i32, Failure> {
        loop {
            if let Some(code) = self.engine.look(execution).await?.exit_code {
                return Ok(code);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The engine gives every command what the first process was told, and only that is to know.
fn blanked() -> Vec<String> {
    [SECRET_VARIABLE, SOCKET_VARIABLE, WAIT_VARIABLE].map(|name| format!("{name}=")).into()
}

/// An engine does not tell a signal from the code that a shell would make of it, except where we know.
fn ending(code: i32, lived: Duration, timed_out: bool, killed: bool) -> Ending {
    let by_us = (timed_out || killed) && code == 128 + Signal::KILL.as_raw();
    let how = if by_us { How::Signal { signal: Signal::KILL.as_raw() } } else { How::Code { code } };
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
