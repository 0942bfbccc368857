//! Translates a container specification into the engine's create request.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, ImageInspect, Mount as DockerMount, MountBindOptions,
    MountBindOptionsPropagationEnum, MountType,
};
use sandboxd_actors::domain::container::{ContainerSpec, Mount};
use sandboxd_actors::domain::profile::Network;

/// Builds the create request. `program` is the image's own program; it is used only if the specification has an entry
/// point.
pub(super) fn body(spec: &ContainerSpec, program: ImageProgram) -> ContainerCreateBody {
    let command = (!spec.command.is_empty()).then(|| spec.command.clone());
    let (entrypoint, cmd) = match &spec.entry_point {
        None => (None, command),
        Some(first) => (Some(vec![first.clone()]), Some(program.with_command(command))),
    };
    ContainerCreateBody {
        image: Some(spec.image.clone()),
        entrypoint,
        cmd,
        env: Some(spec.environment.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        labels: Some(spec.labels.clone().into_iter().collect()),
        user: spec.user.map(|user| format!("{}:{}", user.uid, user.gid)),
        hostname: Some("sandbox".to_owned()),
        host_config: Some(host_config(spec)),
        ..Default::default()
    }
}

/// The program of an image: its entry point, with its command as the arguments.
#[derive(Debug, Default)]
pub(super) struct ImageProgram {
    entry_point: Vec<String>,
    command: Vec<String>,
}

impl ImageProgram {
    pub(super) fn of(image: ImageInspect) -> Self {
        let config = image.config.unwrap_or_default();
        Self { entry_point: config.entrypoint.unwrap_or_default(), command: config.cmd.unwrap_or_default() }
    }

    /// Replaces the image's command by the container's command, if it has one, as the engine does without an entry
    /// point.
    fn with_command(self, command: Option<Vec<String>>) -> Vec<String> {
        let Self { mut entry_point, command: default } = self;
        entry_point.extend(command.unwrap_or(default));
        entry_point
    }
}

fn host_config(spec: &ContainerSpec) -> HostConfig {
    let memory = i64::try_from(spec.limits.memory_bytes).unwrap_or(i64::MAX);
    HostConfig {
        mounts: Some(spec.mounts.iter().map(mount).collect()),
        network_mode: Some(match &spec.network {
            Network::Blocked => "none".to_owned(),
            Network::Named(name) => name.clone(),
        }),

        memory: Some(memory),
        // The limit of memory and swap together: no swap.
        memory_swap: Some(memory),
        nano_cpus: Some((spec.limits.cpus * 1e9).round() as i64),
        pids_limit: Some(i64::from(spec.limits.pids)),
        storage_opt: spec.limits.disk_bytes.map(|bytes| HashMap::from([("size".to_owned(), bytes.to_string())])),
        log_config: Some(log_config()),

        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(spec.capabilities.clone()),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        privileged: Some(false),
        ipc_mode: Some("private".to_owned()),
        // sandbox-init already reaps orphans, so the engine's init is not needed.
        init: Some(spec.entry_point.is_none()),
        runtime: spec.runtime.clone(),
        readonly_rootfs: Some(spec.read_only_root),
        tmpfs: Some(writable_memory(spec)),
        ..Default::default()
    }
}

/// Uses a mount instead of a bind: the engine creates the missing source of a bind, with root as its owner.
fn mount(mount: &Mount) -> DockerMount {
    DockerMount {
        typ: Some(MountType::BIND),
        source: Some(mount.source.as_str().to_owned()),
        target: Some(mount.target.clone()),
        read_only: Some(mount.read_only),
        // Engines before 25 make the source read-only, but not the mounts below it, so these are left out.
        bind_options: Some(MountBindOptions {
            non_recursive: mount.read_only.then_some(true),
            propagation: mount.propagated.then_some(MountBindOptionsPropagationEnum::RSLAVE),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The output of a sandbox must not fill the host's disk, and its last lines must be readable.
fn log_config() -> HostConfigLogConfig {
    let options = [("max-size", "8m"), ("max-file", "2")];
    HostConfigLogConfig {
        typ: Some("json-file".to_owned()),
        config: Some(options.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
    }
}

/// Returns the tmpfs mounts. A sandbox with a read-only root always has a writable `/tmp`. Its pages count as the
/// sandbox's memory, so it needs no size limit.
fn writable_memory(spec: &ContainerSpec) -> HashMap<String, String> {
    let options = "rw,exec,nosuid,nodev,mode=1777";
    let scratch = spec.read_only_root.then(|| ("/tmp".to_owned(), options.to_owned()));
    let configured = spec.tmpfs.iter().map(|(path, size)| (path.clone(), format!("{options},size={size}")));
    scratch.into_iter().chain(configured).collect()
}
