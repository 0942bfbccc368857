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
#[error("{0}")]
pub struct NotReady(pub String);
