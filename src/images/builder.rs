//! Creates the setup of the image builder from the configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandboxd_actors::builder::garbage_collection::Watermarks;
use sandboxd_actors::builder::repository_image::Repository;
use sandboxd_actors::builder::{BuilderLimits, BuilderSetup, CollectionSettings};
use sandboxd_actors::domain::ids::InstanceName;
use sandboxd_actors::ports::clock::SystemClock;
use sandboxd_actors::ports::images::{Image, Images};

use crate::config::{self, Config};
use crate::engine::docker::Registries;
use crate::images::credentials::Credentials;
use crate::images::repositories::{GitSources, Login, SourcesError};

pub fn builder_setup(
    config: &Config,
    instance: &InstanceName,
    images: Arc<dyn Images>,
) -> Result<BuilderSetup, SourcesError> {
    let logins = config.repositories.iter().map(|(name, repository)| (name.clone(), login(repository)));
    let sources = GitSources::open(&config.state.dir.join("repositories"), logins.collect())?;
    let gc = &config.images.gc;
    let repositories = config.repositories.iter();
    Ok(BuilderSetup {
        instance: instance.clone(),
        images,
        sources: Arc::new(sources),
        clock: Arc::new(SystemClock),
        repositories: repositories.map(|(name, it)| (name.clone(), Arc::new(repository(name, it)))).collect(),
        profiles: profiles(config),
        limits: BuilderLimits {
            pull: config.images.pull_timeout,
            build: config.images.build_timeout,
            ask: config.engine.timeouts.list,
            builds_at_once: config.images.max_builds,
        },
        collection: CollectionSettings {
            interval: gc.interval,
            watermarks: Watermarks { high: gc.high_watermark.into(), low: gc.low_watermark.into() },
            all: gc.all,
        },
    })
}

/// Returns the configured credentials for registries.
pub fn registries(config: &Config) -> Registries {
    let credentials =
        |it: &config::Registry| Credentials::configured(it.credentials_file.as_deref(), &it.credentials_command);
    config.registries.values().map(|registry| (registry.host.clone(), credentials(registry))).collect()
}

fn profiles(config: &Config) -> BTreeMap<String, String> {
    config.profiles.iter().map(|(name, profile)| (name.clone(), profile.image.clone())).collect()
}

fn login(repository: &config::Repository) -> Login {
    let config::Repository { credentials_file, credentials_command, known_hosts, .. } = repository;
    Login {
        credentials: Credentials::configured(credentials_file.as_deref(), credentials_command),
        known_hosts: known_hosts.clone(),
    }
}

fn repository(name: &str, configured: &config::Repository) -> Repository {
    let tag = configured.image.as_deref().map_or_else(|| format!("sandboxd-{name}:latest"), Image::full_tag);
    let config::Repository { url, branch, base, directory, install, build, warm_up, .. } = configured.clone();
    let config::Repository { submodules, every, stale_after, timeout, .. } = *configured;
    let name = name.to_owned();
    Repository {
        name,
        url,
        branch,
        submodules,
        base,
        tag,
        directory,
        install,
        build,
        warm_up,
        every,
        stale_after,
        timeout,
    }
}
