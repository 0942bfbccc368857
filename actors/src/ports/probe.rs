//! The port for readiness probes of started sandboxes.

use std::net::SocketAddr;

use async_trait::async_trait;

/// Probes a sandbox once. The caller limits the time.
#[async_trait]
pub trait Probe: Send + Sync + 'static {
    /// Ready if `GET path` answers 200.
    async fn http(&self, address: SocketAddr, path: &str) -> Result<(), NotReady>;

    /// Ready if a connection is accepted.
    async fn tcp(&self, address: SocketAddr) -> Result<(), NotReady>;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// The sandbox's service refused the connection or returned an unexpected answer.
    #[error("{0}")]
    Refused(String),
    /// The probe failed on this host, so the state of the sandbox is unknown.
    #[error("{0}")]
    NotProbed(String),
}
