//! A client of the protocol: concurrent requests over one connection.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandboxd_protocol::error::Error;
use sandboxd_protocol::method::Method;
use sandboxd_protocol::notification;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// A connection to the service. Clones share it; it closes when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Client {
    lines: mpsc::Sender<Vec<u8>>,
    pending: Arc<Mutex<Pending>>,
    last_id: Arc<AtomicU64>,
    ended: CancellationToken,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot connect to {path}: {source}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("the service closed the connection")]
    Disconnected,
    /// An error that the service answered.
    #[error(transparent)]
    Failed(#[from] Error),
    #[error("invalid response from the service: {0}")]
    InvalidResponse(#[from] serde_json::Error),
}

impl Client {
    pub async fn connect(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        let path = path.as_ref();
        let stream =
            UnixStream::connect(path).await.map_err(|source| ClientError::Connect { path: path.to_owned(), source })?;
        let (source, sink) = stream.into_split();
        let (lines, outgoing) = mpsc::channel(64);
        let pending = Arc::default();
        let ended = CancellationToken::new();
        tokio::spawn(write(sink, outgoing));
        let reading = read(source, Arc::clone(&pending));
        let guard = ended.clone().drop_guard();
        tokio::spawn(async move {
            reading.await;
            drop(guard);
        });
        Ok(Self { lines, pending, last_id: Arc::default(), ended })
    }

    /// Resolves when the service has closed the connection.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Sends a request and waits for its answer. The service completes the request even if the call is dropped.
    pub async fn call<R: DeserializeOwned>(&self, method: Method, params: impl Serialize) -> Result<R, ClientError> {
        let answer = self.send(method, params, None).await?;
        let result = answer.await.unwrap_or(Err(ClientError::Disconnected))?;
        Ok(serde_json::from_str(result.get())?)
    }

    /// Sends a request whose answer is preceded by a stream of notifications. While the caller does not read the
    /// stream, no other message of this connection is read either.
    pub async fn stream(&self, method: Method, params: impl Serialize) -> Result<Stream, ClientError> {
        let (sender, notifications) = mpsc::channel(64);
        let answer = self.send(method, params, Some(sender)).await?;
        Ok(Stream { notifications, answer })
    }

    async fn send(
        &self,
        method: Method,
        params: impl Serialize,
        stream: Option<mpsc::Sender<Notification>>,
    ) -> Result<oneshot::Receiver<Outcome>, ClientError> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut line = serde_json::to_vec(&Request { jsonrpc: "2.0", id, method: method.name(), params })?;
        line.push(b'\n');
        let answer = locked(&self.pending).register(id, stream)?;
        // If the writer has ended, the reader ends too, and the answer has the reason.
        let _ = self.lines.send(line).await;
        Ok(answer)
    }
}

/// A message that the service sends before an answer.
#[derive(Debug, Serialize)]
pub struct Notification {
    pub method: String,
    pub params: Box<RawValue>,
}

impl Notification {
    /// Returns which notification of the protocol this is, if it is known.
    pub fn kind(&self) -> Option<notification::Notification> {
        notification::Notification::from_method(&self.method)
    }
}

/// The notifications and the answer of one request.
#[derive(Debug)]
pub struct Stream {
    notifications: mpsc::Receiver<Notification>,
    answer: oneshot::Receiver<Outcome>,
}

impl Stream {
    /// Returns the next notification, or `None` after the last one. [`Stream::end`] then returns the answer.
    pub async fn next(&mut self) -> Option<Notification> {
        self.notifications.recv().await
    }

    /// Waits for the answer, which ends the stream.
    pub async fn end<R: DeserializeOwned>(self) -> Result<R, ClientError> {
        let result = self.answer.await.unwrap_or(Err(ClientError::Disconnected))?;
        Ok(serde_json::from_str(result.get())?)
    }
}

type Outcome = Result<Box<RawValue>, ClientError>;

/// The requests that wait for an answer.
#[derive(Debug, Default)]
struct Pending {
    answers: HashMap<u64, oneshot::Sender<Outcome>>,
    streams: HashMap<u64, mpsc::Sender<Notification>>,
    /// Set once the connection has ended, with the error of the service, if any.
    ended: Option<Option<Error>>,
}

impl Pending {
    fn register(
        &mut self,
        id: u64,
        stream: Option<mpsc::Sender<Notification>>,
    ) -> Result<oneshot::Receiver<Outcome>, ClientError> {
        match &self.ended {
            None => {
                let (sender, receiver) = oneshot::channel();
                self.answers.insert(id, sender);
                self.streams.extend(stream.map(|stream| (id, stream)));
                Ok(receiver)
            }
            Some(reason) => Err(ended(reason)),
        }
    }

    fn complete(&mut self, id: u64, outcome: Outcome) {
        self.streams.remove(&id);
        if let Some(answer) = self.answers.remove(&id) {
            let _ = answer.send(outcome);
        }
    }

    fn end(&mut self, reason: Option<Error>) {
        self.streams.clear();
        let reason = self.ended.get_or_insert(reason);
        for (_, answer) in self.answers.drain() {
            let _ = answer.send(Err(ended(reason)));
        }
    }
}

fn ended(reason: &Option<Error>) -> ClientError {
    reason.clone().map_or(ClientError::Disconnected, ClientError::Failed)
}

fn locked(pending: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Serialize)]
struct Request<P> {
    jsonrpc: &'static str,
    id: u64,
    method: &'static str,
    params: P,
}

#[derive(Deserialize)]
struct Message {
    id: Option<u64>,
    result: Option<Box<RawValue>>,
    // An error of a kind that this client does not know fails one request, not the connection.
    error: Option<Box<RawValue>>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
}

impl Message {
    /// Returns the notification and the id of its request.
    fn notification(self) -> Option<(u64, Notification)> {
        #[derive(Deserialize)]
        struct WithRequestId {
            id: u64,
        }
        let (method, params) = (self.method?, self.params?);
        let WithRequestId { id } = serde_json::from_str(params.get()).ok()?;
        Some((id, Notification { method, params }))
    }
}

async fn write(mut sink: OwnedWriteHalf, mut outgoing: mpsc::Receiver<Vec<u8>>) {
    while let Some(mut batch) = outgoing.recv().await {
        while let Ok(line) = outgoing.try_recv() {
            batch.extend_from_slice(&line);
        }
        if sink.write_all(&batch).await.is_err() {
            return;
        }
    }
}

async fn read(source: OwnedReadHalf, pending: Arc<Mutex<Pending>>) {
    let mut lines = BufReader::with_capacity(64 << 10, source).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str::<Message>(&line) {
            Ok(Message { id: Some(id), result, error, .. }) => {
                let outcome = match (result, error) {
                    (_, Some(error)) => {
                        Err(serde_json::from_str(error.get()).map_or_else(ClientError::from, ClientError::Failed))
                    }
                    (Some(result), None) => Ok(result),
                    (None, None) => Ok(RawValue::NULL.to_owned()),
                };
                locked(&pending).complete(id, outcome);
            }
            // An error without an id refuses the connection.
            Ok(Message { id: None, error: Some(error), .. }) => {
                locked(&pending).end(serde_json::from_str(error.get()).ok());
            }
            Ok(message) => {
                let Some((id, notification)) = message.notification() else { continue };
                let stream = locked(&pending).streams.get(&id).cloned();
                if let Some(stream) = stream {
                    // Fails if the caller has dropped the stream.
                    let _ = stream.send(notification).await;
                }
            }
            Err(_) => break,
        }
    }
    locked(&pending).end(None);
}
