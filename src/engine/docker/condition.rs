//! How the engine was set up, as it tells.

use async_trait::async_trait;
use sandboxd_actors::engine::{EngineError, Operation};

use super::errors::Failure;
use super::{DockerEngine, network};
use crate::engine::condition::{Condition, Enforced, EngineCondition, Isolated};

#[async_trait]
impl EngineCondition for DockerEngine {
    async fn condition(&self) -> Result<Condition, EngineError> {
        let info = self.client().await?.info().await.during(Operation::Identify)?;
        let is = |told: Option<bool>| told.unwrap_or_default();
        let limits =
            Enforced { memory: is(info.memory_limit), cpus: is(info.cpu_cfs_quota), pids: is(info.pids_limit) };
        Ok(Condition { limits, live_restore: is(info.live_restore_enabled) })
    }

    async fn networks(&self, name: &str) -> Result<Vec<Isolated>, EngineError> {
        let networks = network::named(self.client().await?, name).await?;
        Ok(networks.iter().map(|network| Isolated(network::is_closed(network))).collect())
    }
}
