//! Composes the container specification from a request and a profile.

use std::collections::BTreeMap;

use crate::domain::create_request::CreateRequest;
use crate::domain::environment::{self, Environment};
use crate::domain::hash::Canonical;
use crate::domain::host_path::HostPath;
use crate::domain::ids::{ContainerName, InstanceName, SessionId};
use crate::domain::labels::{SessionLabels, SlotLabels};
use crate::domain::profile::{Limits, Network, Profile, User};
use crate::ports::clock::Timestamp;
use crate::ports::guest::GuestSetup;

/// The specification of a container. The properties of every sandbox (all capabilities dropped, no new privileges, an
/// init, never privileged) are not configurable: the engine adapter applies them.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerSpec {
    pub name: ContainerName,
    pub image: String,
    /// The first program. Its arguments are the command of the image and of this container.
    pub entry_point: Option<String>,
    /// Empty: the image's own command.
    pub command: Vec<String>,
    pub environment: Environment,
    pub labels: BTreeMap<String, String>,
    pub mounts: Vec<Mount>,
    /// Writable memory: the path in the guest and the size in bytes.
    pub tmpfs: BTreeMap<String, u64>,
    pub network: Network,
    pub limits: Limits,
    pub user: Option<User>,
    pub read_only_root: bool,
    pub runtime: Option<String>,
    pub capabilities: Vec<String>,
}

impl ContainerSpec {
    /// Adds the guest setup.
    pub fn prepared(mut self, setup: GuestSetup) -> Self {
        self.entry_point = Some(setup.entry_point);
        self.mounts.extend(setup.mounts);
        for (name, value) in setup.environment {
            self.environment = self.environment.with(&name, &value);
        }
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub source: HostPath,
    pub target: String,
    pub read_only: bool,
    /// Later mounts at the source also appear at the target.
    pub propagated: bool,
}

/// The mount points of the host's directories in every sandbox, and the directories that all sandboxes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoints {
    pub chat: String,
    pub volume: String,
    pub dependencies: String,
    pub lambda_tools: String,
    pub dependencies_source: HostPath,
    pub lambda_tools_source: HostPath,
}

/// Returns the specification of the container for one session of a chat.
pub fn compose(
    instance: &InstanceName,
    points: &MountPoints,
    request: &CreateRequest,
    chat_directory: HostPath,
    session: SessionId,
    created_at: Timestamp,
) -> ContainerSpec {
    let profile = &*request.profile;
    let labels = session_labels(instance, points, request, session, created_at);
    let mut mounts = chat_mounts(points, request, chat_directory);
    mounts.extend([
        mount(points.dependencies_source.clone(), &points.dependencies, true),
        mount(points.lambda_tools_source.clone(), &points.lambda_tools, true),
    ]);
    mounts.extend(profile.mounts.iter().cloned());
    let mut spec = base_spec(profile, ContainerName::of(instance, request.chat), labels, mounts);
    spec.environment = spec.environment.overlaid(&chat_environment(request));
    spec
}

/// Returns the binding that turns a slot into the container for one session of a chat.
pub fn compose_binding(
    instance: &InstanceName,
    points: &MountPoints,
    request: &CreateRequest,
    chat_directory: HostPath,
    session: SessionId,
    created_at: Timestamp,
) -> Binding {
    let mut mounts = chat_mounts(points, request, chat_directory);
    mounts.sort_by(|a, b| a.target.cmp(&b.target));
    Binding {
        mounts,
        environment: chat_environment(request),
        labels: session_labels(instance, points, request, session, created_at),
    }
}

fn session_labels(
    instance: &InstanceName,
    points: &MountPoints,
    request: &CreateRequest,
    session: SessionId,
    created_at: Timestamp,
) -> BTreeMap<String, String> {
    let profile = &*request.profile;
    SessionLabels {
        instance: instance.clone(),
        chat: request.chat,
        session,
        agent: request.agent.clone(),
        workspace: request.workspace,
        volume: request.volume.clone(),
        port: profile.port,
        profile: profile.name.clone(),
        spec_hash: spec_hash(profile, points),
        created_at,
        expires_at: request.expires_at(created_at),
        idle_timeout: request.idle_timeout(),
        snapshot: request.snapshot,
    }
    .encode()
}

fn mount(source: HostPath, target: &str, read_only: bool) -> Mount {
    Mount { source, target: target.to_owned(), read_only, propagated: false }
}

/// Returns the mounts that only this chat's sandbox has.
fn chat_mounts(points: &MountPoints, request: &CreateRequest, chat_directory: HostPath) -> Vec<Mount> {
    let volume = request.volume.clone().map(|volume| mount(volume, &points.volume, false));
    [mount(chat_directory, &points.chat, false)].into_iter().chain(volume).collect()
}

fn chat_environment(request: &CreateRequest) -> Environment {
    request.environment.clone().with(environment::AGENT_ID, request.agent.as_str())
}

/// Returns the specification that all containers of a profile share.
fn base_spec(
    profile: &Profile,
    name: ContainerName,
    labels: BTreeMap<String, String>,
    mounts: Vec<Mount>,
) -> ContainerSpec {
    ContainerSpec {
        name,
        image: profile.image.clone(),
        entry_point: None,
        command: profile.command.clone(),
        environment: profile.environment.clone(),
        labels,
        mounts,
        tmpfs: profile.tmpfs.clone(),
        network: profile.network.clone(),
        limits: profile.limits,
        user: profile.user,
        read_only_root: profile.read_only_root,
        runtime: profile.runtime.clone(),
        capabilities: profile.capabilities.clone(),
    }
}

/// Returns the specification of a slot. The directories of its chat are mounted later, at `late_mount_points`.
pub fn compose_slot(points: &MountPoints, profile: &Profile, labels: &SlotLabels) -> ContainerSpec {
    let mut mounts = vec![
        mount(points.dependencies_source.clone(), &points.dependencies, true),
        mount(points.lambda_tools_source.clone(), &points.lambda_tools, true),
    ];
    mounts.extend(profile.mounts.iter().cloned());
    base_spec(profile, ContainerName::of_slot(&labels.instance, labels.slot), labels.encode(), mounts)
}

/// Returns the mount points of the chat's directories in a slot, in the order of mounting: one may be within another.
pub(crate) fn late_mount_points(points: &MountPoints) -> [String; 2] {
    let mut targets = [points.chat.clone(), points.volume.clone()];
    targets.sort();
    targets
}

/// The mounts, environment and labels that turn a slot into the sandbox of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Writable mounts, each at one of the slot's mount points.
    pub mounts: Vec<Mount>,
    /// Added to the profile's environment.
    pub environment: Environment,
    /// The labels of a container that is created for the chat.
    pub labels: BTreeMap<String, String>,
}

/// The version of the encoding below. Slots with a hash of another version are drained, as after a profile change.
const SPEC_VERSION: u32 = 2;

/// Returns a hash of the specification of a profile's containers, stable across restarts and versions of the service.
/// Environment values are included, but cannot be read back from it.
pub(crate) fn spec_hash(profile: &Profile, points: &MountPoints) -> String {
    // Every field is named, so that a new field does not compile without a decision. Ignored fields do not affect a
    // container.
    let Profile {
        image,
        command,
        port,
        network,
        environment,
        limits,
        mounts,
        tmpfs,
        user,
        read_only_root,
        init,
        runtime,
        capabilities,
        name: _,
        readiness: _,
        ttl: _,
        idle_timeout: _,
        on_expire: _,
        snapshot_on_delete: _,
        restart: _,
        pool: _,
        max_sandboxes: _,
    } = profile;
    let Limits { memory_bytes, cpus, pids, disk_bytes } = limits;
    let MountPoints { chat, volume, dependencies, lambda_tools, dependencies_source, lambda_tools_source } = points;
    let mut encoding = Canonical::default();
    encoding
        .field("environment", environment.iter().flat_map(|(name, value)| [name, value]))
        .field("image", [image])
        .field("command", command)
        .field("port", [port.to_string()])
        .field(
            "network",
            match network {
                Network::Blocked => vec!["blocked"],
                Network::Named(name) => vec!["named", name],
            },
        )
        // In billionths of a CPU, the unit of engines.
        .field("limits", [*memory_bytes, (cpus * 1e9).round() as u64, u64::from(*pids)].map(|limit| limit.to_string()))
        .field("disk", disk_bytes.map(|bytes| bytes.to_string()))
        .field(
            "mounts",
            mounts.iter().flat_map(|Mount { source, target, read_only, propagated }| {
                [source.as_str(), target, flag(*read_only), flag(*propagated)]
            }),
        )
        .field("tmpfs", tmpfs.iter().flat_map(|(path, bytes)| [path.clone(), bytes.to_string()]))
        .field("user", user.iter().flat_map(|User { uid, gid }| [uid.to_string(), gid.to_string()]))
        .field("read_only_root", [flag(*read_only_root)])
        .field("init", [flag(*init)])
        .field("runtime", runtime)
        .field("capabilities", capabilities)
        .field("points", [chat, volume, dependencies, lambda_tools])
        .field("shared", [dependencies_source.as_str(), lambda_tools_source.as_str()]);
    format!("v{SPEC_VERSION}-{:016x}", encoding.hash())
}

fn flag(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::create_request::tests::request;
    use std::path::Path;
    use std::sync::Arc;

    fn points() -> MountPoints {
        let path = |text| HostPath::from_canonical(Path::new(text)).unwrap();
        MountPoints {
            chat: "/chat".into(),
            volume: "/volume".into(),
            dependencies: "/dependencies".into(),
            lambda_tools: "/lambda-tools".into(),
            dependencies_source: path("/srv/dependencies"),
            lambda_tools_source: path("/srv/tools"),
        }
    }

    fn composed(request: &CreateRequest) -> ContainerSpec {
        let chat_directory = HostPath::from_canonical(Path::new("/srv/chats/1")).unwrap();
        let now = chrono::Utc::now();
        compose(&"default".parse().unwrap(), &points(), request, chat_directory, SessionId::random(), now)
    }

    #[test]
    fn the_chats_own_directories_are_writable_and_the_shared_ones_are_not() {
        let spec = composed(&request());
        let shown: Vec<_> = spec.mounts.iter().map(|m| (m.source.as_str(), m.target.as_str(), m.read_only)).collect();
        assert_eq!(
            shown,
            [
                ("/srv/chats/1", "/chat", false),
                ("/data/volume", "/volume", false),
                ("/srv/dependencies", "/dependencies", true),
                ("/srv/tools", "/lambda-tools", true),
            ]
        );
    }

    #[test]
    fn the_request_overrides_the_profile_but_not_the_agent() {
        let variables = |pairs: &[(&str, &str)]| {
            Environment::checked(pairs.iter().map(|(n, v)| (n.to_string(), v.to_string()))).unwrap()
        };
        let mut request = request();
        Arc::make_mut(&mut request.profile).environment = variables(&[("A", "profile"), ("B", "profile")]);
        request.environment = variables(&[("B", "request")]);
        let spec = composed(&request);
        assert_eq!(
            spec.environment.iter().collect::<Vec<_>>(),
            [("A", "profile"), ("AGENT_ID", "agent"), ("B", "request")]
        );
    }

    #[test]
    fn without_a_volume_there_is_one_mount_less() {
        let request = CreateRequest { volume: None, ..request() };
        let spec = composed(&request);
        assert!(spec.mounts.iter().all(|mount| mount.target != points().volume), "{:?}", spec.mounts);
        assert_eq!(spec.mounts.len(), composed(&crate::domain::create_request::tests::request()).mounts.len() - 1);
        assert_eq!(SessionLabels::decode(&spec.labels).unwrap().volume, None);
    }

    #[test]
    fn labels_rebuild_the_session() {
        let workspace = Some("8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1".parse().unwrap());
        let request = CreateRequest { workspace, ..request() };
        let labels = SessionLabels::decode(&composed(&request).labels).unwrap();
        assert_eq!(labels.chat, request.chat);
        assert_eq!(labels.agent, request.agent);
        assert_eq!(labels.workspace, request.workspace);
        assert_eq!(labels.volume, request.volume);
        assert_eq!(labels.expires_at - labels.created_at, chrono::TimeDelta::from_std(request.ttl()).unwrap());
    }

    #[test]
    fn a_slot_is_bound_with_the_labels_that_a_container_of_its_own_would_have() {
        let workspace = Some("8f14e45f-ceea-467f-9a36-dcc2b7c0f3a1".parse().unwrap());
        let request = CreateRequest { workspace, ..request() };
        let chat_directory = HostPath::from_canonical(Path::new("/srv/chats/1")).unwrap();
        let (instance, session, now) = ("default".parse().unwrap(), SessionId::random(), chrono::Utc::now());
        let bound = compose_binding(&instance, &points(), &request, chat_directory.clone(), session, now);
        let made = compose(&instance, &points(), &request, chat_directory, session, now);
        assert_eq!(bound.labels, made.labels);
        assert_eq!(SessionLabels::decode(&bound.labels).unwrap().workspace, workspace);
    }

    #[test]
    fn the_spec_hash_is_the_same_in_every_build() {
        assert_eq!(spec_hash(&request().profile, &points()), "v2-9e521d897a5129a2");
    }

    #[test]
    fn the_spec_hash_changes_with_the_profile_only() {
        let hash = |request: &CreateRequest| SessionLabels::decode(&composed(request).labels).unwrap().spec_hash;
        let mut other = request();
        assert_eq!(hash(&request()), hash(&other));
        Arc::make_mut(&mut other.profile).image = "another".into();
        assert_ne!(hash(&request()), hash(&other));
    }
}
