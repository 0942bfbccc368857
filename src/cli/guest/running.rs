//! Follows commands in a sandbox: output, input and exit code.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::pin::Pin;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandboxd_protocol::command::{
    self, AttachParams, CommandEnd, ExecParams, InputParams, KillParams, ResizeParams, RunCodeParams, Terminal,
};
use sandboxd_protocol::empty::Empty;
use sandboxd_protocol::error::ErrorKind;
use sandboxd_protocol::guest::{LogsParams, LogsResult};
use sandboxd_protocol::method::Method;
use sandboxd_protocol::notification::{
    MissedNotification, Notification as Kind, OutputNotification, StartedNotification,
};
use serde_json::value::RawValue;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::arguments::Exec;
use super::terminal::{self, RawMode};
use crate::cli::failure::CliError;
use crate::cli::{Exit, Service, parsed, print_notice};
use crate::client::{Client, ClientError, Notification, Stream};

/// The same exit code as that of `timeout`.
const TIMED_OUT: u8 = 124;

const INTERRUPTED: u8 = 128 + 2;
const TERMINATED: u8 = 128 + 15;

/// The size of one read from standard input. In base64 it has to fit into a line of the protocol.
const CHUNK: usize = 64 << 10;

pub(super) async fn shell(service: &Service, chat: &str) -> Result<(Exit, String), CliError> {
    exec(service, &Exec::shell(chat)).await
}

pub(super) async fn exec(service: &Service, exec: &Exec) -> Result<(Exit, String), CliError> {
    let terminal = exec.terminal.then(terminal::size);
    let params = ExecParams { stream: Some(!service.json), terminal, ..exec.params() };
    // In raw mode, Ctrl-C goes to the command.
    let raw = (exec.terminal && exec.interactive).then(RawMode::enter).flatten();
    let stream = service.client.stream(Method::SandboxExec, params).await?;
    let input = exec.interactive.then(standard_input);
    let resized = raw.is_some().then(|| signal(SignalKind::window_change()).ok()).flatten();
    let running = Running { input, resized, ..Running::new(service, &exec.chat) };
    let ended = running.follow(stream).await;
    drop(raw);
    ended
}

pub(super) async fn attach(service: &Service, chat: &str, command_id: u64) -> Result<(Exit, String), CliError> {
    let stream = Some(!service.json);
    let params = AttachParams { chat_id: chat.to_owned(), command_id, stream, ..AttachParams::default() };
    let stream = service.client.stream(Method::SandboxAttach, params).await?;
    let running = Running { command: Some(command_id), kills: false, ..Running::new(service, chat) };
    running.follow(stream).await
}

pub(super) async fn code(service: &Service, params: RunCodeParams) -> Result<(Exit, String), CliError> {
    let params = RunCodeParams { stream: Some(!service.json), ..params };
    let stream = service.client.stream(Method::SandboxRunCode, &params).await?;
    Running::new(service, &params.chat_id).follow(stream).await
}

/// Prints the output of the sandbox's main program. There is no exit code to return.
pub(super) async fn logs(service: &Service, params: LogsParams) -> Result<(Exit, String), CliError> {
    let mut stream = service.client.stream(Method::SandboxLogs, &params).await?;
    let mut followed = Running::new(service, &params.chat_id);
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let notification = tokio::select! {
            notification = stream.next() => notification,
            _ = &mut interrupted => return Ok((Exit::Done, String::new())),
        };
        let Some(notification) = notification else { break };
        if !followed.handle(&notification)? {
            return Ok((Exit::Done, String::new()));
        }
    }
    stream.end::<LogsResult>().await?;
    Ok((Exit::Done, String::new()))
}

/// Returns the chunks of standard input. A thread reads them, because a pending read cannot be cancelled, not even to
/// exit.
fn standard_input() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut buffer = vec![0; CHUNK];
        while let Ok(length @ 1..) = stdin.read(&mut buffer) {
            if sender.blocking_send(buffer[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// A command that sandboxctl follows.
struct Running<'a> {
    service: &'a Service,
    chat: &'a str,
    /// The id of the command, once the service has sent it.
    command: Option<u64>,
    input: Option<mpsc::Receiver<Vec<u8>>>,
    resized: Option<Signal>,
    /// Whether Ctrl-C kills the command. Otherwise it only ends sandboxctl.
    kills: bool,
}

impl<'a> Running<'a> {
    fn new(service: &'a Service, chat: &'a str) -> Self {
        Self { service, chat, command: None, input: None, resized: None, kills: true }
    }

    async fn follow(mut self, mut stream: Stream) -> Result<(Exit, String), CliError> {
        let mut interrupted = signal(SignalKind::interrupt()).map_err(CliError::Signals)?;
        let mut terminated = signal(SignalKind::terminate()).map_err(CliError::Signals)?;
        let mut hung_up = signal(SignalKind::hangup()).map_err(CliError::Signals)?;
        let mut forwarding = std::pin::pin!(None);
        let mut is_interrupted = false;
        loop {
            if forwarding.is_none()
                && let Some(command) = self.command
            {
                let forwarder = Forwarder { client: self.service.client.clone(), chat: self.chat.to_owned(), command };
                forwarding.set(Some(forwarder.run(self.input.take(), self.resized.take())));
            }
            let notification = tokio::select! {
                biased;
                _ = interrupted.recv() => {
                    // A second Ctrl-C does not wait for the command, which the service kills when this connection
                    // closes.
                    if !self.kills || is_interrupted {
                        return Ok((Exit::Command(INTERRUPTED), String::new()));
                    }
                    is_interrupted = true;
                    let Some(command_id) = self.command else {
                        return Ok((Exit::Command(INTERRUPTED), String::new()));
                    };
                    let params = KillParams { chat_id: self.chat.to_owned(), command_id, signal: None };
                    let client = self.service.client.clone();
                    // Not awaited here, because the answer comes after the output up to then.
                    tokio::spawn(async move { client.call::<Empty>(Method::SandboxKill, params).await });
                    continue;
                }
                _ = terminated.recv() => return Ok((Exit::Command(TERMINATED), String::new())),
                _ = hung_up.recv() => return Ok((Exit::Command(TERMINATED), String::new())),
                never = forwarded(forwarding.as_mut()) => match never {},
                notification = stream.next() => notification,
            };
            let Some(notification) = notification else { break };
            if !self.handle(&notification)? {
                // The reader has closed the output.
                return Ok((Exit::Done, String::new()));
            }
        }
        let ended: Result<Box<RawValue>, _> = stream.end().await;
        let ended = ended.map_err(|error| self.connection_error(error))?;
        let end: CommandEnd = parsed(&ended)?;
        if end.oom_killed {
            print_notice("the command was killed because its sandbox ran out of memory");
        }
        let code = if is_interrupted { INTERRUPTED } else { exit_code(&end) };
        let output = if self.service.json { format!("{}\n", ended.get()) } else { String::new() };
        Ok((Exit::Command(code), output))
    }

    /// Returns the error for a lost service. The command still runs, and a restarted service can attach to it.
    fn connection_error(&self, error: ClientError) -> CliError {
        let command = match &error {
            ClientError::Disconnected => self.command,
            ClientError::Failed(failure) if failure.data.kind == ErrorKind::ShuttingDown => {
                failure.detail("command_id").or(self.command)
            }
            _ => None,
        };
        match command {
            Some(command) => CliError::CommandStillRunning { error, chat: self.chat.to_owned(), command },
            None => error.into(),
        }
    }

    /// Prints the output in a notification. Returns false if the reader has closed it.
    fn handle(&mut self, notification: &Notification) -> Result<bool, ClientError> {
        let params = &notification.params;
        let written = match notification.kind() {
            Some(Kind::Output) => {
                let output: OutputNotification = parsed(params)?;
                let bytes = content(output.text, output.base64)?;
                match output.stream {
                    command::Stream::Stderr => std::io::stderr().lock().write_all(&bytes),
                    command::Stream::Stdout => {
                        let mut stdout = std::io::stdout().lock();
                        stdout.write_all(&bytes).and_then(|()| stdout.flush())
                    }
                }
            }
            Some(Kind::Started) => {
                self.command = Some(parsed::<StartedNotification>(params)?.command_id);
                Ok(())
            }
            Some(Kind::Missed) => {
                let missed: MissedNotification = parsed(params)?;
                print_notice(&format!("{} bytes of output were lost", missed.bytes));
                Ok(())
            }
            _ => Ok(()),
        };
        Ok(written.is_ok())
    }
}

/// Decodes bytes that the service sent as text or in base64.
pub(super) fn content(text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, ClientError> {
    let invalid_response = |error| ClientError::InvalidResponse(serde::de::Error::custom(error));
    match (text, base64) {
        (Some(text), _) => Ok(text.into_bytes()),
        (None, Some(encoded)) => STANDARD.decode(encoded).map_err(invalid_response),
        (None, None) => Ok(Vec::new()),
    }
}

/// Forwards standard input and window sizes to a command.
struct Forwarder {
    client: Client,
    chat: String,
    command: u64,
}

impl Forwarder {
    /// Runs without end. Stops forwarding input once the command accepts no more.
    async fn run(self, mut input: Option<mpsc::Receiver<Vec<u8>>>, mut resized: Option<Signal>) -> Infallible {
        loop {
            tokio::select! {
                bytes = next(&mut input) => {
                    let is_last = bytes.is_none();
                    let (chat_id, command_id) = (self.chat.clone(), self.command);
                    let base64 = Some(STANDARD.encode(bytes.unwrap_or_default()));
                    let params = InputParams { chat_id, command_id, text: None, base64, end: Some(is_last) };
                    let sent = self.client.call::<Empty>(Method::SandboxInput, params).await;
                    if is_last || sent.is_err() {
                        input = None;
                    }
                }
                () = changed(&mut resized) => {
                    let Terminal { rows, columns } = terminal::size();
                    let params = ResizeParams { chat_id: self.chat.clone(), command_id: self.command, rows, columns };
                    let _ = self.client.call::<Empty>(Method::SandboxResize, params).await;
                }
            }
        }
    }
}

/// Polls the forwarder once the id of the command is known.
async fn forwarded(forwarding: Pin<&mut Option<impl Future<Output = Infallible>>>) -> Infallible {
    match forwarding.as_pin_mut() {
        Some(forwarding) => forwarding.await,
        None => std::future::pending().await,
    }
}

async fn next(input: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match input {
        Some(input) => input.recv().await,
        None => std::future::pending().await,
    }
}

async fn changed(resized: &mut Option<Signal>) {
    match resized {
        Some(resized) => {
            resized.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Returns the exit code by the convention of shells.
fn exit_code(end: &CommandEnd) -> u8 {
    match *end {
        CommandEnd { timed_out: true, .. } => TIMED_OUT,
        CommandEnd { exit_code: Some(code), .. } => code as u8,
        CommandEnd { signal, .. } => 128 + signal.unwrap_or_default() as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_has_the_exit_code_of_a_shell() {
        let code = |code, signal, timed_out| {
            let (killed, oom_killed) = (false, false);
            exit_code(&CommandEnd { exit_code: code, signal, timed_out, killed, oom_killed, duration: 1.0 })
        };
        assert_eq!([code(Some(3), None, false), code(None, Some(9), false), code(None, Some(9), true)], [3, 137, 124]);
    }

    #[test]
    fn bytes_come_as_text_or_in_base64() {
        assert_eq!(content(Some("é".into()), None).expect("text"), "é".as_bytes());
        assert_eq!(content(None, Some("/w==".into())).expect("base64"), [0xff]);
        assert!(content(None, Some("%".into())).is_err());
    }
}
