//! The port through which a started sandbox is asked whether it is ready.

use std::net::SocketAddr;

use async_trait::async_trait;

/// One try. The caller bounds its time; an error says why the sandbox is not ready yet.
#[async_trait]
pub trait Probe: Send + Sync + 'static {
    /// Ready if `GET path` answers 200.
    async fn http(&self, address: SocketAddr, path: &str) -> Result<(), NotReady>;

    /// Ready if a connection is accepted.
    async fn tcp(&self, address: SocketAddr) -> Result<(), NotReady>;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// The sandbox's service refused, or answered something else.
    #[error("{0}")]
    Refused(String),
    /// The try failed on this host and says nothing about the sandbox.
    #[error("{0}")]
    NotTried(String),
}
