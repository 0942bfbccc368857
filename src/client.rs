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

/// A connection. Clones share it; it is closed when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Client {
    lines: mpsc::Sender<Vec<u8>>,
    waiting: Arc<Mutex<Waiting>>,
    last_id: Arc<AtomicU64>,
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
    Nonsense(#[from] serde_json::Error),
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
        tokio::spawn(write(sink, outgoing));
        tokio::spawn(read(source, Arc::clone(&waiting)));
        Ok(Self { lines, waiting, last_id: Arc::default() })
    }

    /// Sends a request and waits for its answer. A call that is dropped is carried out all the same.
    pub async fn call<R: DeserializeOwned>(&self, method: &str, params: impl Serialize) -> Result<R, ClientError> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut line = serde_json::to_vec(&Request { jsonrpc: "2.0", id, method, params })?;
        line.push(b'\n');
        let answer = locked(&self.waiting).expect_answer(id)?;
        // Where nobody writes any more, nobody answers either, and the answer tells why.
        let _ = self.lines.send(line).await;
        let result = answer.await.unwrap_or(Err(ClientError::Disconnected))?;
        Ok(serde_json::from_str(result.get())?)
    }
}

type Outcome = Result<Box<RawValue>, ClientError>;

#[derive(Debug, Default)]
struct Waiting {
    answers: HashMap<u64, oneshot::Sender<Outcome>>,
    /// Nothing will be answered any more, and why, if the service said so.
    ended: Option<Option<Failure>>,
}

impl Waiting {
    fn expect_answer(&mut self, id: u64) -> Result<oneshot::Receiver<Outcome>, ClientError> {
        match &self.ended {
            None => {
                let (sender, receiver) = oneshot::channel();
                self.answers.insert(id, sender);
                Ok(receiver)
            }
            Some(reason) => Err(ended(reason)),
        }
    }

    fn end(&mut self, reason: Option<Failure>) {
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
struct Response {
    id: Option<u64>,
    result: Option<Box<RawValue>>,
    error: Option<Failure>,
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
        match serde_json::from_str(&line) {
            Ok(Response { id: Some(id), result, error }) => {
                let outcome = match (result, error) {
                    (_, Some(failure)) => Err(failure.into()),
                    (Some(result), None) => Ok(result),
                    (None, None) => Ok(RawValue::NULL.to_owned()),
                };
                if let Some(answer) = locked(&waiting).answers.remove(&id) {
                    let _ = answer.send(outcome);
                }
            }
            // Not an answer to a request, but to the connection: it is refused.
            Ok(Response { id: None, error: Some(failure), .. }) => locked(&waiting).end(Some(failure)),
            // A notification.
            Ok(_) => {}
            Err(_) => break,
        }
    }
    locked(&waiting).end(None);
}
