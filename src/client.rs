//! A small client of the protocol: many requests at a time over one connection.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// A connection. Clones share it; it is closed when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Client {
    lines: mpsc::Sender<Vec<u8>>,
    waiting: Arc<Mutex<Waiting>>,
    last_id: Arc<AtomicU64>,
    ended: CancellationToken,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot connect to {path}: {source}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("the service closed the connection")]
    Disconnected,
    /// What the service itself answered.
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("the service's answer makes no sense: {0}")]
    InvalidResponse(#[from] serde_json::Error),
}

/// An error as the service sent it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub code: i32,
    pub message: String,
    pub data: FailureData,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailureData {
    pub kind: String,
    pub retryable: bool,
    pub details: Map<String, Value>,
}

impl Client {
    pub async fn connect(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        let path = path.as_ref();
        let stream =
            UnixStream::connect(path).await.map_err(|source| ClientError::Connect { path: path.to_owned(), source })?;
        let (source, sink) = stream.into_split();
        let (lines, outgoing) = mpsc::channel(64);
        let waiting = Arc::default();
        let ended = CancellationToken::new();
        tokio::spawn(write(sink, outgoing));
        let reading = read(source, Arc::clone(&waiting));
        let guard = ended.clone().drop_guard();
        tokio::spawn(async move {
            reading.await;
            drop(guard);
        });
        Ok(Self { lines, waiting, last_id: Arc::default(), ended })
    }

    /// Resolves when the service has closed the connection.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Sends a request and waits for its answer. A call that is dropped is carried out all the same.
    pub async fn call<R: DeserializeOwned>(&self, method: &str, params: impl Serialize) -> Result<R, ClientError> {
        let answer = self.send(method, params, None).await?;
        let result = answer.await.unwrap_or(Err(ClientError::Disconnected))?;
        Ok(serde_json::from_str(result.get())?)
    }

    /// Sends a request that is answered by a stream. As long as nobody takes what it brings, nothing else is read from
    /// this connection either.
    pub async fn stream(&self, method: &str, params: impl Serialize) -> Result<Stream, ClientError> {
        let (sender, notifications) = mpsc::channel(64);
        let answer = self.send(method, params, Some(sender)).await?;
        Ok(Stream { notifications, answer })
    }

    async fn send(
        &self,
        method: &str,
        params: impl Serialize,
        stream: Option<mpsc::Sender<Notification>>,
    ) -> Result<oneshot::Receiver<Outcome>, ClientError> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut line = serde_json::to_vec(&Request { jsonrpc: "2.0", id, method, params })?;
        line.push(b'\n');
        let answer = locked(&self.waiting).expect_answer(id, stream)?;
        // Where nobody writes any more, nobody answers either, and the answer tells why.
        let _ = self.lines.send(line).await;
        Ok(answer)
    }
}

/// What the service sends ahead of an answer.
#[derive(Debug, Serialize)]
pub struct Notification {
    pub method: String,
    pub params: Box<RawValue>,
}

#[derive(Debug)]
pub struct Stream {
    notifications: mpsc::Receiver<Notification>,
    answer: oneshot::Receiver<Outcome>,
}

impl Stream {
    /// The next notification, or `None` once there are no more: then [`Stream::end`] tells why.
    pub async fn next(&mut self) -> Option<Notification> {
        self.notifications.recv().await
    }

    /// Waits for the answer, which is the end of the stream.
    pub async fn end<R: DeserializeOwned>(self) -> Result<R, ClientError> {
        let result = self.answer.await.unwrap_or(Err(ClientError::Disconnected))?;
        Ok(serde_json::from_str(result.get())?)
    }
}

type Outcome = Result<Box<RawValue>, ClientError>;

#[derive(Debug, Default)]
struct Waiting {
    answers: HashMap<u64, oneshot::Sender<Outcome>>,
    streams: HashMap<u64, mpsc::Sender<Notification>>,
    /// Nothing will be answered any more, and why, if the service said so.
    ended: Option<Option<Failure>>,
}

impl Waiting {
    fn expect_answer(
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

    fn settle(&mut self, id: u64, outcome: Outcome) {
        self.streams.remove(&id);
        if let Some(answer) = self.answers.remove(&id) {
            let _ = answer.send(outcome);
        }
    }

    fn end(&mut self, reason: Option<Failure>) {
        self.streams.clear();
        let reason = self.ended.get_or_insert(reason);
        for (_, answer) in self.answers.drain() {
            let _ = answer.send(Err(ended(reason)));
        }
    }
}

fn ended(reason: &Option<Failure>) -> ClientError {
    reason.clone().map_or(ClientError::Disconnected, ClientError::Failed)
}

fn locked(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Serialize)]
struct Request<'a, P> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: P,
}

#[derive(Deserialize)]
struct Message {
    id: Option<u64>,
    result: Option<Box<RawValue>>,
    error: Option<Failure>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
}

impl Message {
    /// A notification, and the id of the request that it belongs to.
    fn notification(self) -> Option<(u64, Notification)> {
        #[derive(Deserialize)]
        struct OfRequest {
            id: u64,
        }
        let (method, params) = (self.method?, self.params?);
        let OfRequest { id } = serde_json::from_str(params.get()).ok()?;
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

async fn read(source: OwnedReadHalf, waiting: Arc<Mutex<Waiting>>) {
    let mut lines = BufReader::with_capacity(64 << 10, source).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str::<Message>(&line) {
            Ok(Message { id: Some(id), result, error, .. }) => {
                let outcome = match (result, error) {
                    (_, Some(failure)) => Err(failure.into()),
                    (Some(result), None) => Ok(result),
                    (None, None) => Ok(RawValue::NULL.to_owned()),
                };
                locked(&waiting).settle(id, outcome);
            }
            // Not an answer to a request, but to the connection: it is refused.
            Ok(Message { id: None, error: Some(failure), .. }) => locked(&waiting).end(Some(failure)),
            Ok(message) => {
                let Some((id, notification)) = message.notification() else { continue };
                let stream = locked(&waiting).streams.get(&id).cloned();
                if let Some(stream) = stream {
                    // Nobody takes it if the stream was dropped.
                    let _ = stream.send(notification).await;
                }
            }
            Err(_) => break,
        }
    }
    locked(&waiting).end(None);
}
