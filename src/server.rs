//! The server on the Unix socket: it accepts callers, checks their permissions, and limits the resources of each.

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

use sandboxd_protocol::error::{Error, ErrorKind};
use sandboxd_protocol::system::ConnectionLimits;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::protocol::request::Id;
use crate::protocol::response;
use access::{Access, Peer, Role};
use connection::{Connection, Shared};
use handler::Handler;
use listener::Listener;
use measure::ServerMetrics;
use memory::Memory;

/// The limits of connections and their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub max_connections: usize,
    /// In bytes, without the newline. The rest of a longer line is skipped and never buffered.
    pub max_line: usize,
    /// Active requests per connection. At the limit, the server does not read from the connection.
    pub max_in_flight: usize,
    /// Bytes of unread answers per connection. At the limit, the server does not read from the connection.
    pub max_output: usize,
    /// Bytes of large requests and answers of all callers together. At the limit, further ones wait.
    pub max_memory: usize,
    /// The part of `max_memory` that one connection can hold.
    pub max_memory_per_connection: usize,
    /// A caller that reads no byte of its answers for this long is disconnected.
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

    /// Serves until `shutdown`. Then the server accepts no connections and no requests, and active requests have
    /// `grace` to be answered.
    pub async fn serve(self, listener: Listener, shutdown: CancellationToken, grace: Duration) {
        let Server { handler, limits, access } = self;
        let (metrics, memory) = (ServerMetrics::new(), Memory::new(&limits));
        let shared = Arc::new(Shared { handler, limits, metrics, memory, shutdown: shutdown.clone() });
        let connections = TaskTracker::new();
        let force_close = CancellationToken::new();
        let acceptor = Acceptor {
            permits: Arc::new(Semaphore::new(limits.max_connections)),
            access,
            shared,
            connections: connections.clone(),
            force_close: force_close.clone(),
        };
        // Dropping the acceptor removes the socket file, so that no new caller connects and waits.
        shutdown.run_until_cancelled_owned(acceptor.run(listener)).await;

        connections.close();
        if tokio::time::timeout(grace, connections.wait()).await.is_err() {
            tracing::warn!(
                connections = connections.len(),
                ?grace,
                "shutdown grace period elapsed; closing connections with active requests"
            );
            force_close.cancel();
            connections.wait().await;
        }
    }
}

struct Acceptor {
    permits: Arc<Semaphore>,
    access: Access,
    shared: Arc<Shared>,
    connections: TaskTracker,
    force_close: CancellationToken,
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
                    self.accept(stream);
                }
                // The caller disconnected while it waited in the backlog.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // The process is out of descriptors or memory. Waiting callers stay in the backlog.
                Err(error) => {
                    tracing::warn!(%error, ?delay, "cannot accept a connection; retrying");
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(LONGEST_DELAY);
                }
            }
        }
    }

    fn accept(&mut self, stream: UnixStream) {
        match self.admit(&stream) {
            Ok((role, permit)) => self.serve(stream, role, permit),
            Err(error) => {
                self.shared.metrics.refused_connection(error.data.kind);
                // One line always fits into the socket buffer of a new connection.
                let _ = stream.try_write(&response::encode(&Id::NULL, Err(error)).into_bytes());
            }
        }
    }

    fn admit(&mut self, stream: &UnixStream) -> Result<(Role, OwnedSemaphorePermit), Error> {
        let credentials = stream.peer_cred().map_err(|error| ErrorKind::Internal.error(error.to_string()))?;
        let peer = Peer { uid: credentials.uid(), gid: credentials.gid() };
        let role = self.access.role(peer).ok_or_else(|| {
            tracing::warn!(uid = peer.uid, gid = peer.gid, pid = credentials.pid(), "connection refused: unauthorized");
            ErrorKind::Unauthorized
                .error(format!("user {} may not call this service; see [socket] in its configuration", peer.uid))
        })?;
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            let limit = self.shared.limits.max_connections;
            tracing::warn!(limit, "connection refused: too many connections");
            ErrorKind::TooManyConnections
                .error(format!("the limit of {limit} connections is reached"))
                .with("limit", limit)
        })?;
        Ok((role, permit))
    }

    fn serve(&self, stream: UnixStream, role: Role, permit: OwnedSemaphorePermit) {
        let shared = Arc::clone(&self.shared);
        let force_close = self.force_close.clone();
        self.connections.spawn(async move {
            let open = shared.metrics.connections.clone();
            open.increment(1);
            let connection = Connection::new(shared, role);
            if let Some(Err(error)) = force_close.run_until_cancelled(connection.serve(stream)).await {
                tracing::debug!(%error, "connection failed");
            }
            open.decrement(1);
            drop(permit);
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
