//! The sandboxes' network. Exactly one network has the configured name.
//!
//! Engines before 25 accept a second network of the same name, and then refuse every container on either as ambiguous.
//! So after a creation the service lists the networks again. If it sees a second one, it removes its own and starts
//! over. It never removes a network that another process created.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use bollard::Docker;
use bollard::models::{Ipam, IpamConfig, Network, NetworkCreateRequest};
use bollard::query_parameters::ListNetworksOptionsBuilder;
use sandboxd_actors::domain::subnet::{AddressRange, Subnet};
use sandboxd_actors::ports::engine::{EngineError, NetworkSpec, Operation};

use super::errors::{self, Failure, OrGone};
use crate::engine::host_network::{HostNetwork, has_interface};

const INTER_CONTAINER: &str = "com.docker.network.bridge.enable_icc";
const BRIDGE_NAME: &str = "com.docker.network.bridge.name";
const ATTEMPTS: usize = 10;

/// The kernel's limit on the name of an interface.
const LONGEST_INTERFACE: usize = 15;

pub(super) async fn ensure(docker: &Docker, spec: &NetworkSpec) -> Result<(), EngineError> {
    let mut refused_blocks = Vec::new();
    let mut last = None;
    for _ in 0..ATTEMPTS {
        match named(docker, &spec.name).await?.as_slice() {
            [] => {}
            [network] => {
                warn_if_not_isolated(network, spec);
                return Ok(());
            }
            // Another process is about to remove its duplicate.
            [..] => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        }
        let block = block(docker, spec, &refused_blocks).await?;
        let created = match docker.create_network(request(spec, block)).await {
            Ok(network) => network.id,
            Err(error) if errors::already_exists(&error) => {
                last = Some(error);
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
            Err(error) if errors::is_overlap(&error) && matches!(spec.addresses, AddressRange::Free { .. }) => {
                refused_blocks.extend(block);
                last = Some(error);
                continue;
            }
            Err(error) => return Err(error).during(Operation::EnsureNetwork),
        };
        if named(docker, &spec.name).await?.len() == 1 {
            let addresses = block.map_or_else(|| "of the engine's choice".to_owned(), |block| block.to_string());
            tracing::info!(network = spec.name, addresses, "network created");
            return Ok(());
        }
        docker.remove_network(&created).await.or_gone(Operation::EnsureNetwork)?;
        tokio::time::sleep(jitter(&created)).await;
    }
    if let Some(error) = last {
        return Err(error).during(Operation::EnsureNetwork);
    }
    let message = format!("several networks have the name {}; remove all but one", spec.name);
    Err(EngineError::Refused { operation: Operation::EnsureNetwork, message })
}

/// Returns the block to request; `None` lets the engine choose.
async fn block(docker: &Docker, spec: &NetworkSpec, refused: &[Subnet]) -> Result<Option<Subnet>, EngineError> {
    let prefix = match spec.addresses {
        AddressRange::EngineChoice => return Ok(None),
        AddressRange::Exactly(subnet) => return Ok(Some(subnet)),
        AddressRange::Free { prefix } => prefix,
    };
    let networks = docker.list_networks(None).await.during(Operation::EnsureNetwork)?;
    let chosen = match HostNetwork::read() {
        Ok(host) => choose(&host, &networks, prefix, refused),
        Err(error) => Err(format!("cannot read the host's routes: {error}")),
    };
    Ok(chosen
        .inspect_err(|reason| {
            tracing::warn!(network = spec.name, reason, "no block chosen; using the engine's address pool")
        })
        .ok())
}

/// Returns a block that is free on this host and on the engine. The host's routes do not apply to an engine in another
/// network namespace, and such an engine may route only blocks of its own pools.
fn choose(host: &HostNetwork, networks: &[Network], prefix: u8, refused: &[Subnet]) -> Result<Subnet, String> {
    let bridges = networks.iter().filter(|network| network.driver.as_deref() == Some("bridge"));
    let gateways: Vec<Ipv4Addr> = bridges.flat_map(configs).filter_map(gateway).collect();
    if !gateways.is_empty() && !gateways.iter().any(|gateway| host.has(*gateway)) {
        return Err(format!("none of the engine's gateways is an address of this host: {gateways:?}"));
    }
    let subnets = networks.iter().flat_map(configs).filter_map(|config| config.subnet.as_ref()?.parse().ok());
    let taken: Vec<_> = subnets.chain(refused.iter().copied()).collect();
    host.free_block(prefix, &taken).ok_or_else(|| format!("this host has no free block /{prefix}"))
}

fn configs(network: &Network) -> impl Iterator<Item = &IpamConfig> {
    network.ipam.iter().flat_map(|ipam| ipam.config.iter().flatten())
}

/// Some engines append the prefix length.
fn gateway(config: &IpamConfig) -> Option<Ipv4Addr> {
    config.gateway.as_ref()?.split('/').next()?.parse().ok()
}

/// Returns the IPv4 block of the containers' addresses.
pub(super) fn block_of(network: &Network) -> Option<Subnet> {
    configs(network).find_map(|config| {
        let range = config.ip_range.as_ref().filter(|range| !range.is_empty());
        range.or(config.subnet.as_ref())?.parse().ok()
    })
}

fn request(spec: &NetworkSpec, block: Option<Subnet>) -> NetworkCreateRequest {
    let mut options = HashMap::from([(BRIDGE_NAME.to_owned(), bridge_name(&spec.name))]);
    if spec.isolated {
        options.insert(INTER_CONTAINER.to_owned(), "false".to_owned());
    }
    // An engine reports the gateway only if the request names it.
    let ipam = |block: Subnet| {
        let (subnet, gateway) = (Some(block.to_string()), Some(block.gateway().to_string()));
        Ipam { config: Some(vec![IpamConfig { subnet, gateway, ..Default::default() }]), ..Default::default() }
    };
    NetworkCreateRequest {
        name: spec.name.clone(),
        driver: Some("bridge".to_owned()),
        options: Some(options),
        ipam: block.map(ipam),
        labels: Some(spec.labels.clone().into_iter().collect()),
        ..Default::default()
    }
}

/// Returns the network's name, so that a firewall rule can name the interface before it exists. A name that is too long
/// for an interface, or that another interface has, is replaced by a hash of it.
fn bridge_name(network: &str) -> String {
    if network.len() <= LONGEST_INTERFACE && !has_interface(network) {
        return network.to_owned();
    }
    format!("sbx-{:08x}", crate::engine::fnv1a(network.as_bytes()))
}

/// Returns the interface of a network: the configured one, or the one that the engine derives from the network's id.
pub(super) fn bridge_of(network: &Network) -> Option<String> {
    let named = network.options.as_ref().and_then(|options| options.get(BRIDGE_NAME)).cloned();
    named.or_else(|| Some(format!("br-{}", network.id.as_ref()?.get(..12)?)))
}

/// Returns the networks of exactly this name. The engine's filter also matches parts of names.
pub(super) async fn named(docker: &Docker, name: &str) -> Result<Vec<Network>, EngineError> {
    let options = ListNetworksOptionsBuilder::default().filters(&HashMap::from([("name", vec![name])])).build();
    let mut networks = docker.list_networks(Some(options)).await.during(Operation::EnsureNetwork)?;
    networks.retain(|network| network.name.as_deref() == Some(name));
    Ok(networks)
}

/// An existing network is used unchanged: it may be the operator's.
fn warn_if_not_isolated(network: &Network, spec: &NetworkSpec) {
    if spec.isolated && !is_isolated(network) {
        tracing::warn!(network = spec.name, "existing network is not isolated: its sandboxes can reach each other");
    }
}

/// Returns whether sandboxes on the network cannot reach each other.
pub(super) fn is_isolated(network: &Network) -> bool {
    network.options.as_ref().is_some_and(|options| options.get(INTER_CONTAINER).is_some_and(|v| v == "false"))
}

/// Two processes that removed their networks at the same time must not retry at the same time. Ids are random.
fn jitter(id: &str) -> Duration {
    Duration::from_millis(u64::from_str_radix(id.get(..2).unwrap_or_default(), 16).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bridge(subnet: &str, gateway: &str) -> Network {
        let config = IpamConfig { subnet: Some(subnet.into()), gateway: Some(gateway.into()), ..Default::default() };
        let ipam = Ipam { config: Some(vec![config]), ..Default::default() };
        Network { driver: Some("bridge".into()), ipam: Some(ipam), ..Default::default() }
    }

    #[test]
    fn a_block_is_chosen_only_where_the_host_has_the_engines_bridges() {
        let host = HostNetwork::from_routes("|-- 172.17.0.0\n/16 link UNICAST\n|-- 172.17.0.1\n/32 host LOCAL\n");
        let own = bridge("172.17.0.0/16", "172.17.0.1");
        let elsewhere = bridge("10.9.0.0/24", "10.9.0.1/24");
        let first = "172.16.0.0/16".parse().expect("a block");
        let third = "172.19.0.0/16".parse().expect("a block");
        assert_eq!(choose(&host, &[], 16, &[]), Ok(first));
        assert_eq!(choose(&host, &[own.clone(), bridge("172.18.3.0/24", "172.18.3.1")], 16, &[first]), Ok(third));
        assert_eq!(choose(&host, &[own, elsewhere.clone()], 16, &[]), Ok(first), "one of them may have no address");
        let refused = choose(&host, &[elsewhere], 16, &[]).expect_err("it is elsewhere");
        assert!(refused.contains("10.9.0.1"), "{refused}");
    }

    #[test]
    fn a_bridge_is_named_after_its_network_where_that_is_possible() {
        assert_eq!(bridge_name("sandboxd"), "sandboxd");
        assert_eq!(bridge_name("a-name-of-sixteen"), "sbx-ec65bad3");
        assert!(bridge_name("lo").starts_with("sbx-"), "an interface has this name already");
    }
}
