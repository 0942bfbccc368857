//! The sandboxes' network: there is exactly one of its name, whoever made it.
//!
//! Engines before 25 accept a second network of the same name, and then refuse every container on either as ambiguous.
//! So whoever creates looks again, and on seeing another withdraws its own and starts over. Nobody ever removes a
//! network that somebody else made.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::models::{Network, NetworkCreateRequest};
use bollard::query_parameters::ListNetworksOptionsBuilder;
use sandboxd_actors::engine::{EngineError, NetworkSpec, Operation};

use super::errors::{self, Failure, OrGone};

const INTER_CONTAINER: &str = "com.docker.network.bridge.enable_icc";
const ATTEMPTS: usize = 10;

pub(super) async fn ensure(docker: &Docker, spec: &NetworkSpec) -> Result<(), EngineError> {
    for _ in 0..ATTEMPTS {
        match named(docker, &spec.name).await?.as_slice() {
            [] => {}
            [network] => {
                warn_if_open(network, spec);
                return Ok(());
            }
            // Somebody is about to withdraw.
            [..] => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        }
        let ours = match docker.create_network(request(spec)).await {
            Ok(created) => created.id,
            Err(error) if errors::is_already_there(&error) => continue,
            Err(error) => return Err(error).during(Operation::EnsureNetwork),
        };
        if named(docker, &spec.name).await?.len() == 1 {
            return Ok(());
        }
        docker.remove_network(&ours).await.or_gone(Operation::EnsureNetwork)?;
        tokio::time::sleep(jitter(&ours)).await;
    }
    let message = format!("several networks are named {}; remove all but one", spec.name);
    Err(EngineError::Refused { operation: Operation::EnsureNetwork, message })
}

fn request(spec: &NetworkSpec) -> NetworkCreateRequest {
    let isolation = || HashMap::from([(INTER_CONTAINER.to_owned(), "false".to_owned())]);
    NetworkCreateRequest {
        name: spec.name.clone(),
        driver: Some("bridge".to_owned()),
        options: spec.isolated.then(isolation),
        labels: Some(spec.labels.clone().into_iter().collect()),
        ..Default::default()
    }
}

/// The engine's own filter matches parts of names.
pub(super) async fn named(docker: &Docker, name: &str) -> Result<Vec<Network>, EngineError> {
    let options = ListNetworksOptionsBuilder::default().filters(&HashMap::from([("name", vec![name])])).build();
    let mut networks = docker.list_networks(Some(options)).await.during(Operation::EnsureNetwork)?;
    networks.retain(|network| network.name.as_deref() == Some(name));
    Ok(networks)
}

/// A network that exists is used as it is: it may be the operator's own.
fn warn_if_open(network: &Network, spec: &NetworkSpec) {
    if spec.isolated && !is_closed(network) {
        tracing::warn!(network = spec.name, "the network exists and lets its sandboxes reach each other");
    }
}

/// Sandboxes on it cannot reach each other.
pub(super) fn is_closed(network: &Network) -> bool {
    network.options.as_ref().is_some_and(|options| options.get(INTER_CONTAINER).is_some_and(|v| v == "false"))
}

/// Two that withdrew at the same time must not come back at the same time. Ids are random.
fn jitter(id: &str) -> Duration {
    Duration::from_millis(u64::from_str_radix(id.get(..2).unwrap_or_default(), 16).unwrap_or(0))
}
