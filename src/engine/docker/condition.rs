//! Reads the engine's configuration.

use async_trait::async_trait;
use sandboxd_actors::ports::engine::{EngineError, Operation};

use super::errors::{Failure, OrGone};
use super::{DockerEngine, network};
use crate::engine::condition::{Condition, Enforced, EngineCondition, NetworkCondition};

#[async_trait]
impl EngineCondition for DockerEngine {
    async fn condition(&self) -> Result<Condition, EngineError> {
        let info = self.client().await?.info().await.during(Operation::Identify)?;
        let is = |reported: Option<bool>| reported.unwrap_or_default();
        let limits =
            Enforced { memory: is(info.memory_limit), cpus: is(info.cpu_cfs_quota), pids: is(info.pids_limit) };
        Ok(Condition { limits, live_restore: is(info.live_restore_enabled) })
    }

    async fn networks(&self, name: &str) -> Result<Vec<NetworkCondition>, EngineError> {
        let docker = self.client().await?;
        let mut found = Vec::new();
        for network in network::named(docker, name).await? {
            // Only an inspection lists the containers.
            let id = network.id.clone().unwrap_or_default();
            let inspected = docker.inspect_network(&id, None).await.or_gone(Operation::EnsureNetwork)?;
            let Some(inspected) = inspected else { continue };
            found.push(NetworkCondition {
                isolated: network::is_isolated(&network),
                bridge: network::bridge_of(&network),
                subnet: network::block_of(&network),
                containers: inspected.containers.unwrap_or_default().len(),
            });
        }
        Ok(found)
    }
}
