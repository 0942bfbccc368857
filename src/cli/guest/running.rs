//! Commands: what they print, what they are told, and how they end.

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
use crate::cli::failure::Trouble;
use crate::cli::{Exit, Service, parsed, say};
use crate::client::{Client, ClientError, Notification, Stream};

/// As the shell's `timeout` does.
const TIMED_OUT: u8 = 124;

const INTERRUPTED: u8 = 128 + 2;
const TERMINATED: u8 = 128 + 15;

/// Read from standard input at a time. In base64 it has to fit into a line.
const CHUNK: usize = 64 << 10;

pub(super) async fn shell(service: &Service, chat: &str) -> Result<(Exit, String), Trouble> {
    exec(service, &Exec::shell(chat)).await
}

pub(super) async fn exec(service: &Service, exec: &Exec) -> Result<(Exit, String), Trouble> {
    let mut params = exec.params();
    params["stream"] = json!(!service.json);
    if exec.terminal {
        let (rows, columns) = terminal::size();
        params["terminal"] = json!({ "rows": rows, "columns": columns });
    }
    // Ctrl-C is the command's where it has our terminal.
    let raw = (exec.terminal && exec.interactive).then(RawMode::enter).flatten();
    let stream = service.client.stream("sandbox.exec", params).await?;
    let input = exec.interactive.then(standard_input);
    let resized = raw.is_some().then(|| signal(SignalKind::window_change()).ok()).flatten();
    let running = Running { service, chat: &exec.chat, command: None, input, resized, kills: true };
    let ended = running.follow(stream).await;
    drop(raw);
    ended
}

pub(super) async fn attach(service: &Service, chat: &str, command: u64) -> Result<(Exit, String), Trouble> {
    let params = json!({ "chat_id": chat, "command_id": command, "stream": !service.json });
    let stream = service.client.stream("sandbox.attach", params).await?;
    let running = Running { service, chat, command: Some(command), input: None, resized: None, kills: false };
    running.follow(stream).await
}

pub(super) async fn code(service: &Service, chat: &str, mut params: Value) -> Result<(Exit, String), Trouble> {
    params["stream"] = json!(!service.json);
    let stream = service.client.stream("sandbox.run_code", params).await?;
    let running = Running { service, chat, command: None, input: None, resized: None, kills: true };
    running.follow(stream).await
}

/// What the sandbox's own program prints. It has no end to exit with.
pub(super) async fn logs(service: &Service, chat: &str, params: Value) -> Result<(Exit, String), Trouble> {
    let mut stream = service.client.stream("sandbox.logs", params).await?;
    let mut telling = Running { service, chat, command: None, input: None, resized: None, kills: false };
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let notification = tokio::select! {
            notification = stream.next() => notification,
            _ = &mut interrupted => return Ok((Exit::Done, String::new())),
        };
        let Some(notification) = notification else { break };
        if !telling.heed(&notification)? {
            return Ok((Exit::Done, String::new()));
        }
    }
    let _: Value = stream.end().await?;
    Ok((Exit::Done, String::new()))
}

/// What is typed or piped to us. By a thread, as a read of standard input cannot be broken off, not even to exit.
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

struct Running<'a> {
    service: &'a Service,
    chat: &'a str,
    /// Once it is known.
    command: Option<u64>,
    input: Option<mpsc::Receiver<Vec<u8>>>,
    resized: Option<Signal>,
    /// Ctrl-C ends the command, and not only the looking at it.
    kills: bool,
}

impl Running<'_> {
    async fn follow(mut self, mut stream: Stream) -> Result<(Exit, String), Trouble> {
        let mut interrupted = signal(SignalKind::interrupt()).map_err(Trouble::Signals)?;
        let mut terminated = signal(SignalKind::terminate()).map_err(Trouble::Signals)?;
        let mut hung_up = signal(SignalKind::hangup()).map_err(Trouble::Signals)?;
        let mut steering = std::pin::pin!(None);
        let mut is_interrupted = false;
        loop {
            if steering.is_none()
                && let Some(command) = self.command
            {
                let of = Steering { client: self.service.client.clone(), chat: self.chat.to_owned(), command };
                steering.set(Some(of.steer(self.input.take(), self.resized.take())));
            }
            let notification = tokio::select! {
                biased;
                _ = interrupted.recv() => {
                    // Whoever is in a hurry does not wait for its end either: it is killed when we are gone.
                    if !self.kills || is_interrupted {
                        return Ok((Exit::Command(INTERRUPTED), String::new()));
                    }
                    is_interrupted = true;
                    let Some(command) = self.command else {
                        return Ok((Exit::Command(INTERRUPTED), String::new()));
                    };
                    let params = json!({ "chat_id": self.chat, "command_id": command });
                    let client = self.service.client.clone();
                    // Beside this, as its answer comes after what was printed meanwhile.
                    tokio::spawn(async move { client.call::<Value>("sandbox.kill", params).await });
                    continue;
                }
                _ = terminated.recv() => return Ok((Exit::Command(TERMINATED), String::new())),
                _ = hung_up.recv() => return Ok((Exit::Command(TERMINATED), String::new())),
                never = steered(steering.as_mut()) => match never {},
                notification = stream.next() => notification,
            };
            let Some(notification) = notification else { break };
            if !self.heed(&notification)? {
                // Nobody reads it any more.
                return Ok((Exit::Done, String::new()));
            }
        }
        let ended: Result<Box<RawValue>, _> = stream.end().await;
        let ended = ended.map_err(|error| self.lost(error))?;
        let end: End = parsed(&ended)?;
        if end.oom_killed {
            say("the command was killed: its sandbox ran out of memory");
        }
        let code = if is_interrupted { INTERRUPTED } else { end.code() };
        let output = if self.service.json { format!("{}\n", ended.get()) } else { String::new() };
        Ok((Exit::Command(code), output))
    }

    /// A command goes on when the service ends, and the next service knows it.
    fn lost(&self, error: ClientError) -> Trouble {
        let command = match &error {
            ClientError::Disconnected => self.command,
            ClientError::Failed(failure) if failure.data.kind == "shutting_down" => {
                failure.data.details.get("command_id").and_then(Value::as_u64).or(self.command)
            }
            _ => None,
        };
        match command {
            Some(command) => Trouble::CommandGoesOn { error, chat: self.chat.to_owned(), command },
            None => error.into(),
        }
    }

    /// Whether what was printed could be handed on.
    fn heed(&mut self, notification: &Notification) -> Result<bool, ClientError> {
        let params: Params = parsed(&notification.params)?;
        self.command = params.command_id.or(self.command);
        if let Some(missed) = params.bytes {
            say(&format!("{missed} bytes of output were not kept"));
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

/// Bytes as the service writes them.
pub(super) fn content(text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, ClientError> {
    let invalid_response = |error| ClientError::InvalidResponse(serde::de::Error::custom(error));
    match (text, base64) {
        (Some(text), _) => Ok(text.into_bytes()),
        (None, Some(encoded)) => STANDARD.decode(encoded).map_err(invalid_response),
        (None, None) => Ok(Vec::new()),
    }
}

/// What goes to the command.
struct Steering {
    client: Client,
    chat: String,
    command: u64,
}

impl Steering {
    /// Without end: a command that takes no more is told no more.
    async fn steer(self, mut input: Option<mpsc::Receiver<Vec<u8>>>, mut resized: Option<Signal>) -> Infallible {
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

/// Nothing is, as long as it is not known what.
async fn steered(steering: Pin<&mut Option<impl Future<Output = Infallible>>>) -> Infallible {
    match steering.as_pin_mut() {
        Some(steering) => steering.await,
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
    /// As a shell would tell it.
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
    fn an_end_is_told_as_a_shell_tells_it() {
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
