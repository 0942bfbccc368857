//! Follows commands in a sandbox: output, input and exit code.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::pin::Pin;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
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
    let mut params = exec.params();
    params["stream"] = json!(!service.json);
    if exec.terminal {
        let (rows, columns) = terminal::size();
        params["terminal"] = json!({ "rows": rows, "columns": columns });
    }
    // In raw mode, Ctrl-C goes to the command.
    let raw = (exec.terminal && exec.interactive).then(RawMode::enter).flatten();
    let stream = service.client.stream("sandbox.exec", params).await?;
    let input = exec.interactive.then(standard_input);
    let resized = raw.is_some().then(|| signal(SignalKind::window_change()).ok()).flatten();
    let running = Running { service, chat: &exec.chat, command: None, input, resized, kills: true };
    let ended = running.follow(stream).await;
    drop(raw);
    ended
}

pub(super) async fn attach(service: &Service, chat: &str, command: u64) -> Result<(Exit, String), CliError> {
    let params = json!({ "chat_id": chat, "command_id": command, "stream": !service.json });
    let stream = service.client.stream("sandbox.attach", params).await?;
    let running = Running { service, chat, command: Some(command), input: None, resized: None, kills: false };
    running.follow(stream).await
}

pub(super) async fn code(service: &Service, chat: &str, mut params: Value) -> Result<(Exit, String), CliError> {
    params["stream"] = json!(!service.json);
    let stream = service.client.stream("sandbox.run_code", params).await?;
    let running = Running { service, chat, command: None, input: None, resized: None, kills: true };
    running.follow(stream).await
}

/// Prints the output of the sandbox's main program. There is no exit code to return.
pub(super) async fn logs(service: &Service, chat: &str, params: Value) -> Result<(Exit, String), CliError> {
    let mut stream = service.client.stream("sandbox.logs", params).await?;
    let mut followed = Running { service, chat, command: None, input: None, resized: None, kills: false };
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
    let _: Value = stream.end().await?;
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

impl Running<'_> {
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
                    let Some(command) = self.command else {
                        return Ok((Exit::Command(INTERRUPTED), String::new()));
                    };
                    let params = json!({ "chat_id": self.chat, "command_id": command });
                    let client = self.service.client.clone();
                    // Not awaited here, because the answer comes after the output up to then.
                    tokio::spawn(async move { client.call::<Value>("sandbox.kill", params).await });
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
        let end: End = parsed(&ended)?;
        if end.oom_killed {
            print_notice("the command was killed because its sandbox ran out of memory");
        }
        let code = if is_interrupted { INTERRUPTED } else { end.code() };
        let output = if self.service.json { format!("{}\n", ended.get()) } else { String::new() };
        Ok((Exit::Command(code), output))
    }

    /// Returns the error for a lost service. The command still runs, and a restarted service can attach to it.
    fn connection_error(&self, error: ClientError) -> CliError {
        let command = match &error {
            ClientError::Disconnected => self.command,
            ClientError::Failed(failure) if failure.data.kind == "shutting_down" => {
                failure.data.details.get("command_id").and_then(Value::as_u64).or(self.command)
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
        let params: Params = parsed(&notification.params)?;
        self.command = params.command_id.or(self.command);
        if let Some(missed) = params.bytes {
            print_notice(&format!("{missed} bytes of output were lost"));
        }
        let bytes = content(params.text, params.base64)?;
        let written = match params.stream.as_deref() {
            Some("stderr") => std::io::stderr().lock().write_all(&bytes),
            _ => {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(&bytes).and_then(|()| stdout.flush())
            }
        };
        Ok(written.is_ok())
    }
}

#[derive(Deserialize)]
struct Params {
    command_id: Option<u64>,
    stream: Option<String>,
    text: Option<String>,
    base64: Option<String>,
    bytes: Option<u64>,
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
                    let encoded = STANDARD.encode(bytes.unwrap_or_default());
                    let sent = self.call("sandbox.input", json!({ "base64": encoded, "end": is_last })).await;
                    if is_last || sent.is_err() {
                        input = None;
                    }
                }
                () = changed(&mut resized) => {
                    let (rows, columns) = terminal::size();
                    let _ = self.call("sandbox.resize", json!({ "rows": rows, "columns": columns })).await;
                }
            }
        }
    }

    async fn call(&self, method: &str, mut params: Value) -> Result<Value, ClientError> {
        params["chat_id"] = json!(self.chat);
        params["command_id"] = json!(self.command);
        self.client.call(method, params).await
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

#[derive(Debug, Deserialize)]
struct End {
    exit_code: Option<i32>,
    signal: Option<i32>,
    timed_out: bool,
    #[serde(default)]
    oom_killed: bool,
}

impl End {
    /// Returns the exit code by the convention of shells.
    fn code(&self) -> u8 {
        match *self {
            End { timed_out: true, .. } => TIMED_OUT,
            End { exit_code: Some(code), .. } => code as u8,
            End { signal, .. } => 128 + signal.unwrap_or_default() as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_has_the_exit_code_of_a_shell() {
        let code = |exit_code, signal, timed_out| End { exit_code, signal, timed_out, oom_killed: false }.code();
        assert_eq!([code(Some(3), None, false), code(None, Some(9), false), code(None, Some(9), true)], [3, 137, 124]);
    }

    #[test]
    fn bytes_come_as_text_or_in_base64() {
        assert_eq!(content(Some("é".into()), None).expect("text"), "é".as_bytes());
        assert_eq!(content(None, Some("/w==".into())).expect("base64"), [0xff]);
        assert!(content(None, Some("%".into())).is_err());
    }
}
