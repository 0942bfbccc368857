//! The engine's own configuration, for the checks of `sandboxctl doctor`. The core does not use it.

use async_trait::async_trait;
use sandboxd_actors::domain::subnet::Subnet;
use sandboxd_actors::ports::engine::EngineError;

/// Access to the engine's own configuration.
#[async_trait]
pub trait EngineCondition: Send + Sync + 'static {
    async fn condition(&self) -> Result<Condition, EngineError>;

    /// Returns every network of exactly this name.
    async fn networks(&self, name: &str) -> Result<Vec<NetworkCondition>, EngineError>;
}

/// The configuration of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The limits that the engine can enforce.
    pub limits: Enforced,
    /// Containers survive a restart of the engine.
    pub live_restore: bool,
}

/// The limits that an engine can enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforced {
    pub memory: bool,
    pub cpus: bool,
    pub pids: bool,
}

/// A network as the engine describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkCondition {
    /// Containers on the network cannot reach each other.
    pub isolated: bool,
    /// The host's bridge interface, if the engine names it.
    pub bridge: Option<String>,
    /// The block of the containers' addresses, if the engine reports it.
    pub subnet: Option<Subnet>,
    /// The number of containers on the network.
    pub containers: usize,
}

/// The number of ports of a Linux bridge.
const BRIDGE_PORTS: u64 = 1023;

/// The network address, the gateway and the broadcast address.
const RESERVED: u64 = 3;

impl NetworkCondition {
    /// Returns how many containers fit on the network, by its addresses and by the ports of its bridge.
    pub fn capacity(&self) -> Option<u64> {
        self.subnet.map(|subnet| subnet.size().saturating_sub(RESERVED).min(BRIDGE_PORTS))
    }
}
