//! Converts the profiles and mounts of the configuration to those of the core.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandboxd_actors::domain::container::{Mount, MountPoints};
use sandboxd_actors::domain::environment::{Environment, InvalidVariable};
use sandboxd_actors::domain::host_path::{HostPath, InvalidHostPath};
use sandboxd_actors::domain::ids::{InvalidId, ProfileName};
use sandboxd_actors::domain::profile::{
    Limits, Network, OnExpire, PoolTargets, Profile, Readiness, ReadinessCheck, Restart, User,
};

use crate::config::{self, ReadinessKind};

/// The profiles by name.
pub type Profiles = BTreeMap<ProfileName, Arc<Profile>>;

/// A setting that is invalid on this host.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("profiles.{profile}: {source}")]
    Name { profile: String, source: InvalidId },
    #[error("profiles.{profile}.env: {source}")]
    Environment { profile: String, source: InvalidVariable },
    #[error("{key}: {path}: {source}")]
    Unusable { key: String, path: PathBuf, source: io::Error },
    #[error("{key}: {source}")]
    Unmountable { key: String, source: InvalidHostPath },
}

/// Converts all profiles. Those without a network use `shared_network`.
pub fn profiles(
    configured: &BTreeMap<String, config::Profile>,
    shared_network: &str,
) -> Result<Profiles, ProfileError> {
    configured
        .iter()
        .map(|(name, profile)| {
            let profile = convert(name, profile, shared_network)?;
            Ok((profile.name.clone(), Arc::new(profile)))
        })
        .collect()
}

/// Returns the mount points of every sandbox. Creates the directories that all sandboxes share.
pub fn mount_points(mounts: &config::Mounts) -> Result<MountPoints, ProfileError> {
    let guest_path = |path: &Path| path.to_string_lossy().into_owned();
    Ok(MountPoints {
        chat: guest_path(&mounts.chat),
        volume: guest_path(&mounts.volume),
        dependencies: guest_path(&mounts.dependencies),
        lambda_tools: guest_path(&mounts.lambda_tools),
        dependencies_source: ensure_directory("mounts.dependencies_source", &mounts.dependencies_source)?,
        lambda_tools_source: ensure_directory("mounts.lambda_tools_source", &mounts.lambda_tools_source)?,
    })
}

fn convert(name: &str, configured: &config::Profile, shared_network: &str) -> Result<Profile, ProfileError> {
    let environment = configured.env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned()));
    let readiness = &configured.readiness;
    let port = readiness.port.unwrap_or(configured.port);
    let mount = |(target, mount): (&PathBuf, &config::HostMount)| {
        let key = format!("profiles.{name}.mounts");
        let source = existing_path(&key, &mount.source)?;
        Ok(Mount {
            source,
            target: target.to_string_lossy().into_owned(),
            read_only: mount.read_only,
            propagated: false,
        })
    };
    Ok(Profile {
        name: name.parse().map_err(|source| ProfileError::Name { profile: name.into(), source })?,
        image: configured.image.clone(),
        command: configured.command.clone(),
        port: configured.port,
        network: match &configured.network {
            config::Network::Shared => Network::Named(shared_network.to_owned()),
            config::Network::Blocked => Network::Blocked,
            config::Network::Named(network) => Network::Named(network.clone()),
        },
        environment: Environment::checked(environment)
            .map_err(|source| ProfileError::Environment { profile: name.into(), source })?,
        limits: Limits {
            memory_bytes: configured.memory.bytes(),
            cpus: configured.cpus,
            pids: configured.pids,
            disk_bytes: configured.disk.map(|disk| disk.bytes()),
        },
        mounts: configured.mounts.iter().map(mount).collect::<Result<_, _>>()?,
        tmpfs: configured.tmpfs.iter().map(|(path, size)| (path.to_string_lossy().into(), size.bytes())).collect(),
        user: configured.user.map(|user| User { uid: user.uid, gid: user.gid.unwrap_or(user.uid) }),
        read_only_root: configured.read_only_root,
        init: configured.init,
        runtime: configured.runtime.clone(),
        capabilities: configured.capabilities.clone(),
        readiness: Readiness {
            check: match readiness.kind {
                ReadinessKind::None => ReadinessCheck::None,
                ReadinessKind::Http => ReadinessCheck::Http { port, path: readiness.path.clone() },
                ReadinessKind::Tcp => ReadinessCheck::Tcp { port },
                ReadinessKind::Health => ReadinessCheck::Health,
            },
            timeout: readiness.timeout,
        },
        ttl: configured.ttl,
        idle_timeout: configured.idle_timeout,
        on_expire: match configured.on_expire {
            config::OnExpire::Delete => OnExpire::Delete,
            config::OnExpire::Stop => OnExpire::Stop,
            config::OnExpire::Pause => OnExpire::Pause,
            config::OnExpire::Snapshot => OnExpire::Snapshot,
        },
        snapshot_on_delete: configured.snapshot_on_delete,
        restart: match configured.restart {
            config::Restart::Never => Restart::Never,
            config::Restart::OnFailure => Restart::OnFailure,
        },
        max_sandboxes: configured.max_sandboxes,
        pool: PoolTargets {
            size: configured.pool.size as usize,
            spare: configured.pool.spare as usize,
            max_age: configured.pool.max_age,
            hints: configured.pool.hints as usize,
        },
    })
}

fn ensure_directory(key: &str, path: &Path) -> Result<HostPath, ProfileError> {
    std::fs::create_dir_all(path).map_err(|source| ProfileError::Unusable {
        key: key.to_owned(),
        path: path.to_owned(),
        source,
    })?;
    existing_path(key, path)
}

fn existing_path(key: &str, path: &Path) -> Result<HostPath, ProfileError> {
    let canonical = path.canonicalize().map_err(|source| ProfileError::Unusable {
        key: key.to_owned(),
        path: path.to_owned(),
        source,
    })?;
    HostPath::from_canonical(&canonical).map_err(|source| ProfileError::Unmountable { key: key.to_owned(), source })
}
