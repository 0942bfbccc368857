//! Tests of the lifecycle, one behaviour at a time. [`Stage`] plays the callers, the engine, the journal and the clock.

mod any_order;
mod creating;
mod deleting;
mod disk;
mod expiring;
mod finding;
mod keeping;
mod owing;
mod pausing;
mod restarting;
mod resuming;
mod saving;
mod snapshotting;
mod stage;
mod verifying;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::chat::effects::discover::{Found, LiveContainer, Liveness};
use crate::chat::events::{LaunchFailure, Launched, Lease, Remains};
use crate::domain::create_request::tests::request;
use crate::domain::host_path::HostPath;
use crate::domain::ids::{ContainerId, InstanceName, LeaseId};
use crate::domain::labels::SessionLabels;
use crate::domain::outcome::{Death, NotSaved};
use crate::domain::profile::{OnExpire, Restart};
use crate::domain::sandbox::{Hold, Holder};
use crate::domain::snapshot::{Parent, Snapshot, SnapshotOrigin};
use crate::ports::engine::{ContainerState, EngineError, Exit, Health, Observed};
use disk::{Disk, no_room};
use stage::{DiskIs, Stage};

const TRUST: Duration = Duration::from_secs(2);

/// The time past its absolute deadline that leases hold a sandbox.
const MAX_LEASE: Duration = Duration::from_secs(2 * 3600);

fn rules() -> Rules {
    rules_with(OnExpire::Delete, Restart::Never)
}

fn rules_with(on_expire: OnExpire, restart: Restart) -> Rules {
    let mut profile = request().profile;
    let changed = Arc::make_mut(&mut profile);
    (changed.on_expire, changed.restart) = (on_expire, restart);
    let profiles = BTreeMap::from([(profile.name.clone(), profile)]);
    Rules { trust: TRUST, profiles: Arc::new(profiles), max_leases: 4, max_lease: MAX_LEASE }
}

fn noon() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn instance() -> InstanceName {
    "default".parse().unwrap()
}

fn name() -> ContainerName {
    ContainerName::of(&instance(), request().chat)
}

fn unreachable() -> EngineError {
    EngineError::Unreachable { message: "connection refused".into() }
}

fn from_another_agent() -> CreateRequest {
    CreateRequest { agent: "another".parse().unwrap(), ..request() }
}

/// Returns a container of the chat as [`request`] would have created it at noon, in another run of the service.
fn found(state: ContainerState) -> Found {
    let request = request();
    let labels = SessionLabels {
        instance: instance(),
        chat: request.chat,
        session: SessionId::random(),
        agent: request.agent.clone(),
        workspace: request.workspace,
        volume: request.volume.clone(),
        port: request.profile.port,
        profile: request.profile.name.clone(),
        spec_hash: "0".into(),
        created_at: noon(),
        expires_at: request.expires_at(noon()),
        idle_timeout: request.idle_timeout(),
        snapshot: None,
    };
    let container = Observed {
        id: ContainerId::new("found"),
        name: name().to_string(),
        image: request.profile.image.clone(),
        labels: labels.encode(),
        state,
        started_at: Some(noon()),
        address: None,
        health: None,
    };
    let death = match state {
        ContainerState::Exited(exit) => Some(Death { exit, ..death() }),
        _ => None,
    };
    Found { labels, container, death }
}

/// As [`found`], but past its deadline at noon.
fn found_expired(state: ContainerState) -> Found {
    let mut found = found(state);
    found.labels.expires_at = noon();
    found
}

fn snapshot_of(sandbox: &Sandbox, created_at: Timestamp) -> Box<Snapshot> {
    let origin = SnapshotOrigin {
        id: SnapshotId::next(),
        instance: instance(),
        chat: sandbox.chat,
        session: sandbox.session,
        profile: sandbox.profile.clone(),
        label: None,
        parent: Parent::Image(sandbox.image.clone()),
        created_at,
    };
    Box::new(Snapshot { origin, size_bytes: 1 })
}

fn out_of_memory() -> Exit {
    Exit { code: 137, oom_killed: true }
}

fn death() -> Death {
    Death { exit: Some(out_of_memory()), memory_limit_bytes: None, log_tail: vec![] }
}

fn ended() -> ContainerState {
    ContainerState::Exited(Some(out_of_memory()))
}
