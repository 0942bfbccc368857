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

use super::commands::CommandState;
use super::frames::{Reader, Writer};
use super::processes::MemoryGroup;
use super::{GuestViaEngine, failed, other, processes, unsupported};
use crate::engine::guest::{Command, ExecStatus, Execution, GuestError, Output, Streams};

/// The first and the longest delay between two checks of a command that is about to begin or to end.
const MIN_DELAY: Duration = Duration::from_millis(5);
const MAX_DELAY: Duration = Duration::from_secs(2);

/// The time limit for a command to begin, and for the engine to report whether it has.
const BEGIN_LIMIT: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(30) };

/// How long a cancelled command is watched, in order to kill it once it begins.
const KILL_LIMIT: Duration = Duration::from_secs(600);

/// How long to wait for the end of a command after its stream broke, or while the engine does not answer.
const END_LIMIT: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(60) };

/// The delay between two checks of a command without an attached caller.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The failed checks in a row after which such a command is no longer watched.
const MAX_FAILED_CHECKS: u32 = 60;

/// The most bytes kept of an error message of the engine or of a tool.
const MAX_MESSAGE: usize = 4096;

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
            let process = self.wait_begun_or_kill(id, &execution).await?.process;
            let Some(process) = process else {
                return Err(not_started("the command ended before the engine reported its process"));
            };
            self.commands.add(id, self.known(&run, execution.clone(), process, started, memory));
            writer.event(&Event::Started { id }).await;
            tokio::spawn(self.clone().watch(id, execution, timeout));
            return Ok(());
        };
        let status = self.wait_begun_or_kill(id, &execution).await?;
        let Some(process) = status.process else { return Err(not_started(&printed(streams).await)) };
        if let Some(size) = &run.terminal {
            let _ = self.engine.resize(&execution, size.rows, size.columns).await;
        }
        self.commands.add(id, self.known(&run, execution.clone(), process, started, memory.clone()));
        writer.event(&Event::Started { id }).await;
        if !run.input && run.terminal.is_none() {
            let _ = streams.input.shutdown().await;
        }
        let timed_out = AtomicBool::new(false);
        let ended = self.relay(streams, reader, writer, id, &execution, timeout, &timed_out).await;
        let killed = self.commands.get(self.session, id).is_some_and(|known| known.killed);
        let timed_out = timed_out.load(Ordering::Relaxed);
        let ending = match ended {
            Ok(code) => Ok(ending(code, started.elapsed(), timed_out, killed, memory.as_ref())),
            Err(Lost::Running(failure)) => {
                // The command goes on as a detached one, with its time-out.
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
                self.commands.remove(id);
                writer.event(&Event::Ended { ending }).await;
            }
            Err(failure) => {
                self.commands.remove(id);
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Relays both directions until the command ends. The time-out and the kill stay in force after the stream of its
    /// output has ended or broken.
    #[allow(clippy::too_many_arguments, reason = "the parts of one guest stream")]
    async fn relay(
        &self,
        Streams { mut output, mut input }: Streams,
        mut reader: Reader,
        writer: &mut Writer,
        id: u64,
        execution: &str,
        timeout: Option<Duration>,
        timed_out: &AtomicBool,
    ) -> Result<i32, Lost> {
        let relaying = async {
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
            self.wait_ended(execution, broken).await
        };
        let controlling = async {
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
            // The caller has gone, and the command goes on.
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
            ended = relaying => ended,
            failed = controlling => failed.map_err(Lost::Unknown),
            failed = limiting => failed.map_err(Lost::Unknown),
        }
    }

    /// Watches a command without an attached caller.
    async fn watch(self, id: u64, execution: String, timeout: Option<Duration>) {
        let started = Instant::now();
        let (mut timed_out, mut failed_checks) = (false, 0);
        loop {
            tokio::time::sleep(WATCH_INTERVAL.min(timeout.unwrap_or(WATCH_INTERVAL))).await;
            if !timed_out && timeout.is_some_and(|limit| started.elapsed() >= limit) {
                timed_out = self.kill(id).await.is_ok();
            }
            match self.engine.inspect_exec(&execution).await {
                Ok(ExecStatus { exit_code: Some(code), .. }) => {
                    let age = started.elapsed();
                    return self.commands.change(id, |known| {
                        known.ending = Some(ending(code, age, timed_out, known.killed, known.memory.as_ref()));
                    });
                }
                Ok(_) => failed_checks = 0,
                // The sandbox was removed, or the engine does not answer now.
                Err(GuestError::NotFound) => return self.commands.remove(id),
                Err(_) if failed_checks >= MAX_FAILED_CHECKS => return self.commands.remove(id),
                Err(_) => failed_checks += 1,
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
        self.act_on(execution, process, move |container, leader| processes::kill_all(container, leader, &mark)).await
    }

    pub(super) async fn signal(&self, id: u64, signal: i32) -> Result<(), Failure> {
        let known =
            self.commands.get(self.session, id).ok_or_else(|| failed(Errno::SRCH, "there is no such command"))?;
        let signal = Signal::from_named_raw(signal).ok_or_else(|| failed(Errno::INVAL, "there is no such signal"))?;
        let CommandState { execution, process, .. } = known;
        self.act_on(&execution, process, move |container, leader| processes::signal_group(container, leader, signal))
            .await
    }

    /// Waits until the task that watches the command has recorded its end.
    pub(super) async fn wait_end_of(&self, id: u64) -> Result<(), Failure> {
        loop {
            match self.commands.get(self.session, id) {
                None => return Err(failed(Errno::SRCH, "there is no such command")),
                Some(CommandState { ending: Some(_), .. }) => return Ok(()),
                Some(_) => tokio::time::sleep(WATCH_INTERVAL).await,
            }
        }
    }

    async fn act_on(
        &self,
        execution: &str,
        process: i32,
        act: impl FnOnce(&str, i32) -> std::io::Result<()> + Send + 'static,
    ) -> Result<(), Failure> {
        let container = self.container.clone();
        if self.engine.inspect_exec(execution).await.is_ok_and(|status| status.exit_code.is_some()) {
            // The process id may be reused. Processes that the command left running no longer belong to it.
            return Ok(());
        }
        let acted = tokio::task::spawn_blocking(move || match processes::is_in(container.as_str(), process) {
            true => act(container.as_str(), process).map_err(|error| error.to_string()),
            false => Err(format!("process {process} of the engine is not visible on this host")),
        });
        match acted.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(message)) => {
                Err(unsupported(format!("the engine cannot kill commands, and neither can the service: {message}")))
            }
            Err(_) => Err(other("the task was cancelled")),
        }
    }

    /// Runs one of the image's own tools to its end.
    pub(super) async fn tool(&self, arguments: &[&str]) -> Result<(), Failure> {
        let missing =
            |why: &str| unsupported(format!("the image has no {} that the engine could run: {why}", arguments[0]));
        let command = Command {
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            environment: hidden_variables(),
            ..Command::default()
        };
        let execution =
            self.engine.exec(&self.container, command).await.map_err(|error| missing(&error.to_string()))?;
        let printed = match execution.streams {
            Some(streams) => printed(streams).await,
            None => String::new(),
        };
        if self.wait_begun(&execution.id).await?.process.is_none() {
            return Err(missing(&printed));
        }
        let ended = self.wait_ended(&execution.id, None).await;
        match ended.map_err(Lost::into_failure)? {
            0 => Ok(()),
            _ => Err(Failure { errno: errno_of(&printed), message: printed.into() }),
        }
    }

    fn command(&self, run: &Run) -> Command {
        let text = |bytes: &Bytes| String::from_utf8_lossy(&bytes.0).into_owned();
        let own = run.environment.iter().map(|(name, value)| format!("{}={}", text(name), text(value)));
        let given = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let mark = format!("{COMMAND_VARIABLE}={}", self.mark(run.id));
        Command {
            arguments: run.arguments.iter().map(text).collect(),
            environment: given.chain(own).chain(hidden_variables()).chain([mark]).collect(),
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
    ) -> CommandState {
        let (session, arguments, attached) = (self.session, run.arguments.clone(), !run.detached);
        CommandState { session, execution, arguments, process, started, attached, killed: false, memory, ending: None }
    }

    /// Returns the memory group of the container, if it is visible from this host.
    async fn memory(&self) -> Option<MemoryGroup> {
        let container = self.container.clone();
        tokio::task::spawn_blocking(move || MemoryGroup::of(container.as_str())).await.ok().flatten()
    }

    /// Waits until the command has begun, or certainly will not. A failed check tells neither, so it is repeated.
    async fn wait_begun(&self, execution: &str) -> Result<ExecStatus, Failure> {
        let mut backoff = Backoff::new();
        loop {
            let failure = match self.engine.inspect_exec(execution).await {
                Ok(status) if status.process.is_some() || status.exit_code.is_some() => return Ok(status),
                Ok(_) => {
                    let message = format!("the engine has not started the command within {BEGIN_LIMIT:?}");
                    failed(Errno::NOTCONN, message)
                }
                // There is no such command any more.
                Err(error @ GuestError::NotFound) => return Err(error.into()),
                Err(error) => error.into(),
            };
            if backoff.elapsed() >= BEGIN_LIMIT {
                return Err(failure);
            }
            backoff.next().await;
        }
    }

    /// Waits likewise for a caller's command. The caller takes a cancelled command for not started and cannot end it,
    /// so the command is killed if it begins later.
    async fn wait_begun_or_kill(&self, id: u64, execution: &str) -> Result<ExecStatus, Failure> {
        let begun = self.wait_begun(execution).await;
        if begun.is_err() {
            tokio::spawn(self.clone().kill_when_begun(id, execution.to_owned()));
        }
        begun
    }

    /// Kills a command as soon as it has a process.
    async fn kill_when_begun(self, id: u64, execution: String) {
        let mut backoff = Backoff::new();
        while backoff.elapsed() < KILL_LIMIT {
            match self.engine.inspect_exec(&execution).await {
                Ok(ExecStatus { exit_code: Some(_), .. }) | Err(GuestError::NotFound) => return,
                Ok(ExecStatus { process: Some(process), .. }) => {
                    let failure = self.kill_process(id, &execution, process).await.err();
                    let failure = failure.map(|failure| String::from_utf8_lossy(&failure.message.0).into_owned());
                    tracing::warn!(session.id = %self.session, process, failure, "killing a cancelled command");
                    return;
                }
                Ok(_) | Err(_) => {}
            }
            backoff.next().await;
        }
        tracing::warn!(session.id = %self.session, %execution, "a cancelled command may still begin");
    }

    /// Waits for the end of a command whose output has ended. `broken`: the error that ended the output too early.
    async fn wait_ended(&self, execution: &str, broken: Option<GuestError>) -> Result<i32, Lost> {
        let (mut backoff, mut silent_since) = (Backoff::new(), None);
        loop {
            let running = match self.engine.inspect_exec(execution).await {
                Ok(ExecStatus { exit_code: Some(code), .. }) => return Ok(code),
                Ok(ExecStatus { process, .. }) => {
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
                && backoff.elapsed() >= END_LIMIT
            {
                let message = format!(
                    "the engine's stream of the command broke ({error}); its output since then is lost, and {END_LIMIT:?} \
                     later the command still runs, as process {process} of the engine's host"
                );
                return Err(Lost::Running(failed(Errno::NOTCONN, message)));
            }
            backoff.next().await;
        }
    }
}

/// The reason why the end of a command is unknown.
enum Lost {
    /// The command still runs.
    Running(Failure),
    Unknown(Failure),
}

impl Lost {
    fn into_failure(self) -> Failure {
        let (Lost::Running(failure) | Lost::Unknown(failure)) = self;
        failure
    }
}

/// Increasing delays between two checks.
struct Backoff {
    since: tokio::time::Instant,
    next: Duration,
}

impl Backoff {
    fn new() -> Self {
        Self { since: tokio::time::Instant::now(), next: MIN_DELAY }
    }

    fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    async fn next(&mut self) {
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(MAX_DELAY);
    }
}

/// Returns empty values for init's own variables, which the engine passes to every command.
fn hidden_variables() -> Vec<String> {
    [SECRET_VARIABLE, SOCKET_VARIABLE, WAIT_VARIABLE].map(|name| format!("{name}=")).into()
}

/// Returns the end of a command. An engine reports a signal as the exit code of a shell, so only a kill by the service
/// is known as a signal. An engine does not report OOM kills, so the count since the start is compared.
fn ending(code: i32, duration: Duration, timed_out: bool, killed: bool, memory: Option<&MemoryGroup>) -> Ending {
    let is_kill = code == 128 + Signal::KILL.as_raw();
    let how = match (is_kill, timed_out || killed) {
        (true, true) => How::Signal { signal: Signal::KILL.as_raw() },
        (true, false) if memory.is_some_and(MemoryGroup::has_run_out) => How::CodeOutOfMemory { code },
        _ => How::Code { code },
    };
    Ending { how, duration: duration.as_micros() as u64, timed_out, killed: killed && !timed_out }
}

fn not_started(why: &str) -> Failure {
    let errno = match errno_of(why) {
        0 if why.contains("executable file not found") => Errno::NOENT.raw_os_error(),
        errno => errno,
    };
    Failure { errno, message: why.trim().into() }
}

/// Returns the printed text, limited to the length of a message.
async fn printed(Streams { mut output, input }: Streams) -> String {
    drop(input);
    let mut printed = Vec::new();
    while let Some(Ok(Output::Stdout(bytes) | Output::Stderr(bytes))) = output.next().await {
        printed.extend_from_slice(&bytes[..bytes.len().min(MAX_MESSAGE - printed.len())]);
    }
    String::from_utf8_lossy(&printed).trim().to_owned()
}

/// Returns the error number of a message, from the words that all systems use.
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
