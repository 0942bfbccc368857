//! What an engine says about how it was set up. The core has no use for it: it is for whoever asks whether this host is
//! fit.

use async_trait::async_trait;
use sandboxd_actors::engine::EngineError;

#[async_trait]
pub trait EngineCondition: Send + Sync + 'static {
    async fn condition(&self) -> Result<Condition, EngineError>;

    /// Every network of exactly this name, and whether those on it are kept from each other.
    async fn networks(&self, name: &str) -> Result<Vec<Isolated>, EngineError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Which limits it can hold a container to.
    pub limits: Enforced,
    /// Containers outlive its restart.
    pub live_restore: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforced {
    pub memory: bool,
    pub cpus: bool,
    pub pids: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isolated(pub bool);
