//! The private engine's bridge and addresses: a free block 10.N.0.0/16 of this host.
//!
//! The bridge uses 10.N.0.0/24; the engine's networks use 10.N.128.0/17.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use sandboxd_actors::domain::subnet::Subnet;
use tokio::process::Command;

use super::PrivateEngineError;
use crate::engine::host_network::HostNetwork;

/// The private engine's bridge.
pub(super) struct Bridge {
    pub(super) name: String,
    /// The address pool of the engine's networks.
    pub(super) pool: String,
}

/// Creates the bridge if it is missing. `block_file` stores the block for later runs, because the engine's networks
/// persist.
pub(super) async fn up(id: &str, block_file: &Path) -> Result<Bridge, PrivateEngineError> {
    let name = name(id);
    let block = match fs::read_to_string(block_file).ok().and_then(|text| text.trim().parse::<u8>().ok()) {
        Some(block) => block,
        None => {
            let host = HostNetwork::read().map_err(PrivateEngineError::Routes)?;
            let first = id.bytes().fold(0, u8::wrapping_add);
            let block = free_block(&host, first).ok_or(PrivateEngineError::NoAddresses)?;
            let failed = |error| PrivateEngineError::Prepare { path: block_file.to_owned(), error };
            fs::write(block_file, format!("{block}\n")).map_err(failed)?;
            block
        }
    };
    if ip(&["link", "show", "dev", &name]).await.is_err() {
        ip(&["link", "add", "name", &name, "type", "bridge"]).await?;
    }
    ip(&["addr", "replace", &format!("10.{block}.0.1/24"), "dev", &name]).await?;
    ip(&["link", "set", &name, "up"]).await?;
    Ok(Bridge { name, pool: format!("10.{block}.128.0/17") })
}

pub(super) async fn down(id: &str) {
    if let Err(error) = ip(&["link", "delete", &name(id)]).await {
        tracing::warn!(%error, "private engine's bridge not removed");
    }
}

/// An interface name has at most 15 bytes.
fn name(id: &str) -> String {
    format!("sbxd-{id}")
}

async fn ip(arguments: &[&str]) -> Result<(), PrivateEngineError> {
    let output = Command::new(super::find("ip", "iproute2")?).args(arguments).output().await;
    let message = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(PrivateEngineError::Bridge { command: format!("ip {}", arguments.join(" ")), message })
}

/// Returns N of the first free block, starting at `first`.
fn free_block(host: &HostNetwork, first: u8) -> Option<u8> {
    let block = |number: u8| Subnet::new(Ipv4Addr::new(10, number, 0, 0), 16).expect("a block");
    (0..=255).map(|step| first.wrapping_add(step)).find(|number| host.is_free(block(*number)))
}
