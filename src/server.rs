//! The Unix socket: accepts callers, decides who may do what, and bounds what each of them may cost.

pub mod access;
pub mod accounts;
mod connection;
pub mod entry;
pub mod guest;
pub mod handler;
mod images;
mod leases;
mod lines;
pub mod listener;
mod measure;
mod memory;
mod outbox;
mod snapshots;
mod watch;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sandboxd_protocol::system::ConnectionLimits;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::protocol::error::{Error, Kind};
use crate::protocol::request::Id;
use crate::protocol::response;
use access::{Access, Peer, Role};
use connection::{Connection, Shared};
use handler::Handler;
use listener::Listener;
use measure::Measures;
use memory::Memory;

/// What callers may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub max_connections: usize,
    /// In bytes, without the newline. What is beyond it is skipped, never held.
    pub max_line: usize,
    /// Requests under way, per connection. At the limit, the connection is not read from.
    pub max_in_flight: usize,
    /// Bytes of answers that wait for a slow reader, per connection. At the limit, the connection is not read from.
    pub max_output: usize,
    /// Bytes of large requests and answers that the service holds for all callers together. At the limit, they wait.
    pub max_memory: usize,
    /// The part of it that one connection can hold.
    pub max_memory_per_connection: usize,
    /// A caller that takes no byte of its answers for this long is cut off.
    pub write_stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_line: 1 << 20,
            max_in_flight: 128,
            max_output: 1 << 20,
            max_memory: 96 << 20,
            max_memory_per_connection: 32 << 20,
            write_stall: Duration::from_secs(30),
        }
    }
}

#[derive(Debug)]
pub struct Server {
    handler: Handler,
    limits: Limits,
    access: Access,
}

impl Server {
    pub fn new(handler: Handler, limits: Limits, access: Access) -> Self {
        Self { handler, limits, access }
    }

    /// Serves until `shutdown`. Then no connection and no request is accepted any more, and what is under way has
    /// `grace` to be answered.
    pub async fn serve(self, listener: Listener, shutdown: CancellationToken, grace: Duration) {
        let Server { handler, limits, access } = self;
        let (measures, memory) = (Measures::new(), Memory::new(&limits));
        let shared = Arc::new(Shared { handler, limits, measures, memory, shutdown: shutdown.clone() });
        let connections = TaskTracker::new();
        let abandon = CancellationToken::new();
        let acceptor = Acceptor {
            places: Arc::new(Semaphore::new(limits.max_connections)),
            access,
            shared,
            connections: connections.clone(),
            abandon: abandon.clone(),
        };
        // Dropping it removes the socket file, before anybody is kept waiting.
        shutdown.run_until_cancelled_owned(acceptor.run(listener)).await;

        connections.close();
        if tokio::time::timeout(grace, connections.wait()).await.is_err() {
            tracing::warn!(
                connections = connections.len(),
                ?grace,
                "cutting off callers at the end of the grace period"
            );
            abandon.cancel();
            connections.wait().await;
        }
    }
}

struct Acceptor {
    places: Arc<Semaphore>,
    access: Access,
    shared: Arc<Shared>,
    connections: TaskTracker,
    abandon: CancellationToken,
}

impl Acceptor {
    async fn run(mut self, listener: Listener) {
        const FIRST_DELAY: Duration = Duration::from_millis(5);
        const LONGEST_DELAY: Duration = Duration::from_secs(1);
        let mut delay = FIRST_DELAY;
        loop {
            match listener.socket.accept().await {
                Ok((stream, _)) => {
                    delay = FIRST_DELAY;
                    self.welcome(stream);
                }
                // The caller gave up while it was waiting.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // Out of descriptors or memory: those waiting keep their place in the backlog.
                Err(error) => {
                    tracing::warn!(%error, ?delay, "cannot accept a connection");
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(LONGEST_DELAY);
                }
            }
        }
    }

    fn welcome(&mut self, stream: UnixStream) {
        match self.examine(&stream) {
            Ok((role, place)) => self.serve(stream, role, place),
            Err(error) => {
                self.shared.measures.refused_connection(error.data.kind);
                // One line always fits into the buffer of a new connection.
                let _ = stream.try_write(&response::encode(&Id::NULL, Err(error)).into_bytes());
            }
        }
    }

    fn examine(&mut self, stream: &UnixStream) -> Result<(Role, OwnedSemaphorePermit), Error> {
        let credentials = stream.peer_cred().map_err(|error| Kind::Internal.error(error.to_string()))?;
        let peer = Peer { uid: credentials.uid(), gid: credentials.gid() };
        let role = self.access.role(peer).ok_or_else(|| {
            tracing::warn!(uid = peer.uid, gid = peer.gid, pid = credentials.pid(), "refused a caller");
            Kind::Unauthorized.error(format!("user {} may not use this service", peer.uid))
        })?;
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let limit = self.shared.limits.max_connections;
            tracing::warn!(limit, "refused a connection, there are too many");
            Kind::TooManyConnections.error(format!("there are {limit} connections already")).with("limit", limit)
        })?;
        Ok((role, place))
    }

    fn serve(&self, stream: UnixStream, role: Role, place: OwnedSemaphorePermit) {
        let shared = Arc::clone(&self.shared);
        let abandon = self.abandon.clone();
        self.connections.spawn(async move {
            let open = shared.measures.connections.clone();
            open.increment(1);
            let connection = Connection::new(shared, role);
            if let Some(Err(error)) = abandon.run_until_cancelled(connection.serve(stream)).await {
                tracing::debug!(%error, "a connection broke");
            }
            open.decrement(1);
            drop(place);
            connection.end().await;
        });
    }
}

fn limit_fields(limits: &Limits) -> ConnectionLimits {
    ConnectionLimits {
        max_connections: limits.max_connections as u64,
        max_line: limits.max_line as u64,
        max_in_flight: limits.max_in_flight as u64,
        max_output: limits.max_output as u64,
        max_memory: limits.max_memory as u64,
        max_memory_per_connection: limits.max_memory_per_connection as u64,
    }
}
