//! What an engine says about how it was set up. The core has no use for it: it is for whoever asks whether this host is
//! fit.

use async_trait::async_trait;
use sandboxd_actors::domain::subnet::Subnet;
use sandboxd_actors::ports::engine::EngineError;

#[async_trait]
pub trait EngineCondition: Send + Sync + 'static {
    async fn condition(&self) -> Result<Condition, EngineError>;

    /// Every network of exactly this name.
    async fn networks(&self, name: &str) -> Result<Vec<NetworkCondition>, EngineError>;
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

/// A network as the engine has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkCondition {
    /// Containers on it cannot reach each other.
    pub isolated: bool,
    /// The interface through which the host is connected to it, where the engine names it.
    pub bridge: Option<String>,
    /// The addresses that the engine gives to containers; absent where the engine does not say.
    pub subnet: Option<Subnet>,
    /// Containers that have one of these addresses.
    pub containers: usize,
}

/// A bridge of Linux has so many ports.
const BRIDGE_PORTS: u64 = 1023;

/// The network's own address, the gateway's, and that for all.
const RESERVED: u64 = 3;

impl NetworkCondition {
    /// How many containers can be on it, by its addresses and by the ports of its bridge.
    pub fn capacity(&self) -> Option<u64> {
        self.subnet.map(|subnet| subnet.size().saturating_sub(RESERVED).min(BRIDGE_PORTS))
    }
}
