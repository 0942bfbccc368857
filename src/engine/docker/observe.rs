//! Translates the engine's description of a container into an observed container.

use std::collections::HashMap;
use std::net::IpAddr;

use bollard::models::{
    ContainerInspectResponse, ContainerState as DockerState, ContainerStateStatusEnum as Status, ContainerSummary,
    ContainerSummaryStateEnum as SummaryState, EndpointSettings, HealthStatusEnum,
};
use sandboxd_actors::domain::ids::ContainerId;
use sandboxd_actors::ports::clock::Timestamp;
use sandboxd_actors::ports::engine::{ContainerState, EngineError, Exit, Health, Observed, Operation};

pub(super) fn inspected(container: ContainerInspectResponse) -> Result<Observed, EngineError> {
    let missing = |field| invalid_response(Operation::Inspect, field);
    let state = container.state.ok_or_else(|| missing("state"))?;
    let config = container.config.ok_or_else(|| missing("config"))?;
    Ok(Observed {
        id: ContainerId::new(container.id.ok_or_else(|| missing("id"))?),
        name: without_slash(&container.name.ok_or_else(|| missing("name"))?),
        image: config.image.unwrap_or_default(),
        labels: config.labels.unwrap_or_default().into_iter().collect(),
        state: state_of(&state).ok_or_else(|| missing("status"))?,
        started_at: state.started_at.as_deref().and_then(time),
        address: address(container.network_settings.and_then(|settings| settings.networks)),
        health: state.health.and_then(|health| health.status).and_then(health_of),
    })
}

pub(super) fn listed(container: ContainerSummary) -> Result<Observed, EngineError> {
    let missing = |field| invalid_response(Operation::List, field);
    Ok(Observed {
        id: ContainerId::new(container.id.ok_or_else(|| missing("id"))?),
        name: container.names.unwrap_or_default().iter().map(|name| without_slash(name)).next().unwrap_or_default(),
        image: container.image.unwrap_or_default(),
        labels: container.labels.unwrap_or_default().into_iter().collect(),
        state: match container.state.ok_or_else(|| missing("state"))? {
            SummaryState::CREATED => ContainerState::Created,
            SummaryState::RUNNING | SummaryState::STOPPING => ContainerState::Running,
            SummaryState::PAUSED => ContainerState::Paused,
            SummaryState::RESTARTING => ContainerState::Restarting,
            SummaryState::REMOVING => ContainerState::Removing,
            SummaryState::EXITED => ContainerState::Exited(None),
            SummaryState::DEAD => ContainerState::Dead,
            SummaryState::EMPTY => return Err(missing("state")),
        },
        started_at: None,
        address: address(container.network_settings.and_then(|settings| settings.networks)),
        health: None,
    })
}

fn state_of(state: &DockerState) -> Option<ContainerState> {
    Some(match state.status? {
        Status::CREATED => ContainerState::Created,
        Status::RUNNING | Status::STOPPING => ContainerState::Running,
        Status::PAUSED => ContainerState::Paused,
        Status::RESTARTING => ContainerState::Restarting,
        Status::REMOVING => ContainerState::Removing,
        Status::EXITED => ContainerState::Exited(
            state.exit_code.map(|code| Exit { code, oom_killed: state.oom_killed.unwrap_or(false) }),
        ),
        Status::DEAD => ContainerState::Dead,
        Status::EMPTY => return None,
    })
}

fn health_of(status: HealthStatusEnum) -> Option<Health> {
    match status {
        HealthStatusEnum::STARTING => Some(Health::Starting),
        HealthStatusEnum::HEALTHY => Some(Health::Healthy),
        HealthStatusEnum::UNHEALTHY => Some(Health::Unhealthy),
        HealthStatusEnum::NONE | HealthStatusEnum::EMPTY => None,
    }
}

/// Returns the address on the first network by name. A sandbox is on one network only.
fn address(networks: Option<HashMap<String, EndpointSettings>>) -> Option<IpAddr> {
    let mut networks: Vec<_> = networks?.into_iter().collect();
    networks.sort_by(|(left, _), (right, _)| left.cmp(right));
    let parsed = |text: &Option<String>| text.as_deref().and_then(|text| text.parse().ok());
    networks.iter().find_map(|(_, at)| parsed(&at.ip_address).or_else(|| parsed(&at.global_ipv6_address)))
}

/// The engine reports the year 1 for a container that never started.
fn time(text: &str) -> Option<Timestamp> {
    text.parse::<Timestamp>().ok().filter(|at| at.timestamp() > 0)
}

fn without_slash(name: &str) -> String {
    name.trim_start_matches('/').to_owned()
}

fn invalid_response(operation: Operation, field: &str) -> EngineError {
    EngineError::InvalidResponse { operation, message: format!("a container without {field}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(ip: &str) -> EndpointSettings {
        EndpointSettings { ip_address: Some(ip.into()), ..Default::default() }
    }

    #[test]
    fn a_container_that_never_started_has_no_start() {
        assert_eq!(time("0001-01-01T00:00:00Z"), None);
        assert_eq!(time("2024-05-01T10:00:00.5Z").unwrap().timestamp_subsec_millis(), 500);
    }

    #[test]
    fn an_empty_address_is_none() {
        assert_eq!(address(Some(HashMap::from([("n".into(), network(""))]))), None);
        assert_eq!(address(Some(HashMap::from([("n".into(), network("10.1.2.3"))]))), "10.1.2.3".parse().ok());
    }

    #[test]
    fn a_container_without_a_status_is_an_invalid_response_rather_than_gone() {
        let container = ContainerInspectResponse {
            id: Some("1".into()),
            name: Some("/a".into()),
            state: Some(DockerState::default()),
            config: Some(Default::default()),
            ..Default::default()
        };
        assert!(matches!(inspected(container), Err(EngineError::InvalidResponse { .. })));
    }
}
