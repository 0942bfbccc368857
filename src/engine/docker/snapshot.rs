//! Snapshots as images, without the container's own configuration.
//!
//! An engine's commit includes the container's configuration, and merges the configuration of the request into it
//! instead of replacing it. Engines with their own image store also save the unchanged configuration a second time,
//! with every token in its environment. So a commit creates only a *draft*, of which only the layers are used: they
//! become a separate image with the configuration of the container's base image, and the draft is removed. The engine
//! already has the layers, so this takes milliseconds.
//!
//! An engine with the containerd image store requires every layer in the import, and saves the configuration once.
//! There, the commit is the snapshot, and every variable of the container is blank in it.

use std::collections::{BTreeMap, HashMap};

use bollard::Docker;
use bollard::models::{ContainerConfig, ContainerInspectResponse, ImageConfig, ImageInspect, ImageSummary};
use bollard::query_parameters::{
    CommitContainerOptions, ImportImageOptionsBuilder, ListImagesOptionsBuilder, RemoveImageOptionsBuilder,
};
use futures_util::TryStreamExt;
use sandboxd_actors::domain::ids::{ChatId, ContainerId, InstanceName, SnapshotId};
use sandboxd_actors::domain::snapshot::{self, Snapshot, SnapshotOrigin, image_name};
use sandboxd_actors::ports::clock::Timestamp;
use sandboxd_actors::ports::engine::{EngineError, Operation, SnapshotRemoval};
use serde_json::{Value, json};

use super::archive::archive;
use super::errors::{self, Failure, OrGone};

/// The prefix of the service's labels, which a snapshot must not inherit from its container.
const SERVICE_LABELS: &str = "sandboxd.";

pub(super) async fn commit(
    docker: &Docker,
    container: &ContainerId,
    origin: &SnapshotOrigin,
) -> Result<Snapshot, EngineError> {
    let during = Operation::Commit;
    let inspected = docker.inspect_container(container.as_str(), None).await;
    let inspected = inspected.map_err(|error| errors::container_error(during, container, error))?;
    let base = docker.inspect_image(inspected.image.as_deref().unwrap_or_default()).await.during(during)?;
    let base = base.config.unwrap_or_default();
    if keeps_images_in_containerd(docker).await? {
        let config = override_all(inspected, &base, origin.labels().into_iter().collect());
        let name = origin.image_name();
        let (repository, tag) = name.rsplit_once(':').unwrap_or((&name, "latest"));
        commit_as(docker, container, config, Some((repository, tag))).await?;
    } else {
        let label = (snapshot::DRAFT.to_owned(), origin.instance.to_string());
        let config = override_all(inspected, &base, HashMap::from([label]));
        let draft = commit_as(docker, container, config, None).await?;
        let finished = finish(docker, &draft, base, origin).await;
        // A draft that cannot be removed now holds secrets until `remove_drafts` removes it. The snapshot is valid.
        if let Err(error) = remove_image(docker, &draft, Operation::RemoveDrafts, true).await {
            tracing::warn!(image = draft, %error, "draft of a snapshot not removed; retrying later");
        }
        finished?;
    }
    let created = inspect(docker, &origin.instance, origin.id).await?;
    created.ok_or_else(|| invalid_response("the committed snapshot does not exist"))
}

async fn commit_as(
    docker: &Docker,
    container: &ContainerId,
    config: ContainerConfig,
    name: Option<(&str, &str)>,
) -> Result<String, EngineError> {
    let options = CommitContainerOptions {
        container: Some(container.to_string()),
        repo: name.map(|(repository, _)| repository.to_owned()),
        tag: name.map(|(_, tag)| tag.to_owned()),
        // A copy of half-written files would be useless.
        pause: true,
        ..Default::default()
    };
    let answer = docker.commit_container(options, config).await;
    answer.map(|created| created.id).map_err(|error| errors::container_error(Operation::Commit, container, error))
}

/// Returns a configuration that overrides the container's own: each variable by the image's value or an empty one, each
/// label of the service by an empty one, and the program by the image's program.
fn override_all(
    container: ContainerInspectResponse,
    base: &ImageConfig,
    labels: HashMap<String, String>,
) -> ContainerConfig {
    let own = container.config.unwrap_or_default();
    let name_of = |variable: &str| variable.split_once('=').map_or(variable, |(name, _)| name).to_owned();
    let known: HashMap<_, _> = base.env.iter().flatten().map(|variable| (name_of(variable), variable)).collect();
    let blank = |variable: &String| {
        let name = name_of(variable);
        known.get(&name).map_or_else(|| format!("{name}="), |variable| (*variable).clone())
    };
    let service_labels = own.labels.unwrap_or_default().into_keys().filter(|label| label.starts_with(SERVICE_LABELS));
    ContainerConfig {
        env: Some(own.env.iter().flatten().map(blank).collect()),
        labels: Some(
            service_labels
                .map(|label| (label, String::new()))
                .chain(base.labels.clone().unwrap_or_default())
                .chain(labels)
                .collect(),
        ),
        entrypoint: Some(base.entrypoint.clone().unwrap_or_default()),
        cmd: Some(base.cmd.clone().unwrap_or_default()),
        user: base.user.clone(),
        ..Default::default()
    }
}

/// Creates the snapshot from the draft's layers and the configuration of the base image.
async fn finish(docker: &Docker, draft: &str, base: ImageConfig, origin: &SnapshotOrigin) -> Result<(), EngineError> {
    let draft = docker.inspect_image(draft).await.during(Operation::Commit)?;
    let archive = loadable(&draft, base, origin).map_err(|error| invalid_response(&error.to_string()))?;
    let options = ImportImageOptionsBuilder::default().quiet(true).build();
    let messages = docker.import_image(options, bollard::body_full(archive.into()), None);
    messages.try_collect::<Vec<_>>().await.during(Operation::Commit).map(drop)
}

/// Returns an image archive that names the draft's layers without containing them.
fn loadable(draft: &ImageInspect, base: ImageConfig, origin: &SnapshotOrigin) -> Result<Vec<u8>, serde_json::Error> {
    let layers = draft.root_fs.as_ref().and_then(|root| root.layers.clone()).unwrap_or_default();
    let mut labels = base.labels.clone().unwrap_or_default();
    labels.retain(|label, _| !label.starts_with(snapshot::LABEL_PREFIX));
    labels.extend(origin.labels());
    let config = json!({
        "architecture": draft.architecture,
        "variant": draft.variant,
        "os": draft.os,
        "created": origin.created_at,
        "config": ImageConfig { labels: Some(labels), ..base },
        "rootfs": { "type": "layers", "diff_ids": layers },
    });
    let manifest = json!([{
        "Config": "config.json",
        "RepoTags": [origin.image_name()],
        "Layers": layers.iter().map(|layer| layer.replace(':', "-")).collect::<Vec<_>>(),
    }]);
    let file = |content: &Value| serde_json::to_vec(content);
    Ok(archive(&[("config.json", &file(&config)?), ("manifest.json", &file(&manifest)?)]))
}

pub(super) async fn inspect(
    docker: &Docker,
    instance: &InstanceName,
    id: SnapshotId,
) -> Result<Option<Snapshot>, EngineError> {
    let image = docker.inspect_image(&image_name(instance, id)).await.or_gone(Operation::Snapshot)?;
    let described = |image: ImageInspect| {
        let labels = image.config.and_then(|config| config.labels).unwrap_or_default();
        described(labels, image.size.unwrap_or_default())
    };
    Ok(image.and_then(described))
}

pub(super) async fn list(
    docker: &Docker,
    instance: &InstanceName,
    chat: Option<ChatId>,
) -> Result<Vec<Snapshot>, EngineError> {
    let mut labels = vec![format!("{}={instance}", snapshot::INSTANCE)];
    labels.extend(chat.map(|chat| format!("{}={chat}", snapshot::CHAT_ID)));
    let images = labelled(docker, labels, Operation::Snapshots).await?.into_iter();
    // An image that a user built from a snapshot has its labels, but not its name.
    let named =
        |(names, snapshot): (Vec<String>, Snapshot)| names.contains(&snapshot.origin.image_name()).then_some(snapshot);
    Ok(images
        .filter_map(|image| Some((image.repo_tags, described(image.labels, image.size)?)))
        .filter_map(named)
        .collect())
}

pub(super) async fn remove(
    docker: &Docker,
    instance: &InstanceName,
    id: SnapshotId,
) -> Result<SnapshotRemoval, EngineError> {
    remove_image(docker, &image_name(instance, id), Operation::RemoveSnapshot, false).await
}

pub(super) async fn remove_drafts(
    docker: &Docker,
    instance: &InstanceName,
    before: Timestamp,
) -> Result<(), EngineError> {
    let label = format!("{}={instance}", snapshot::DRAFT);
    for draft in labelled(docker, vec![label], Operation::RemoveDrafts).await? {
        if draft.created < before.timestamp() {
            remove_image(docker, &draft.id, Operation::RemoveDrafts, true).await?;
        }
    }
    Ok(())
}

async fn labelled(docker: &Docker, labels: Vec<String>, during: Operation) -> Result<Vec<ImageSummary>, EngineError> {
    let options = ListImagesOptionsBuilder::default().filters(&HashMap::from([("label", labels)])).build();
    docker.list_images(Some(options)).await.during(during)
}

async fn remove_image(
    docker: &Docker,
    image: &str,
    during: Operation,
    force: bool,
) -> Result<SnapshotRemoval, EngineError> {
    // The parent images may be in use elsewhere.
    let options = RemoveImageOptionsBuilder::default().force(force).noprune(true).build();
    match docker.remove_image(image, Some(options), None).await {
        Err(error) if errors::is_in_use(&error) => Ok(SnapshotRemoval::InUse),
        answer => {
            let removed = answer.or_gone(during)?.is_some();
            Ok(if removed { SnapshotRemoval::Removed } else { SnapshotRemoval::NotFound })
        }
    }
}

fn described(labels: HashMap<String, String>, size: i64) -> Option<Snapshot> {
    let labels: BTreeMap<_, _> = labels.into_iter().collect();
    let origin = SnapshotOrigin::from_labels(&labels).ok()?;
    Some(Snapshot { origin, size_bytes: u64::try_from(size).unwrap_or_default() })
}

async fn keeps_images_in_containerd(docker: &Docker) -> Result<bool, EngineError> {
    let info = docker.info().await.during(Operation::Commit)?;
    let status = info.driver_status.unwrap_or_default();
    Ok(status.iter().flatten().any(|word| word.starts_with("io.containerd.snapshotter")))
}

fn invalid_response(message: &str) -> EngineError {
    EngineError::InvalidResponse { operation: Operation::Commit, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(strings: &[&str]) -> Option<Vec<String>> {
        Some(strings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_containers_own_variables_and_labels_are_blanked() {
        let own = ContainerConfig {
            env: strings(&["PATH=/opt/bin", "TOKEN=s3cret", "EMPTY="]),
            labels: Some(HashMap::from([("sandboxd.managed".into(), "true".into()), ("mine".into(), "1".into())])),
            ..Default::default()
        };
        let container = ContainerInspectResponse { config: Some(own), ..Default::default() };
        let base = ImageConfig { env: strings(&["PATH=/bin"]), cmd: strings(&["sh"]), ..Default::default() };
        let config = override_all(container, &base, HashMap::from([("new".into(), "label".into())]));
        assert_eq!(config.env, strings(&["PATH=/bin", "TOKEN=", "EMPTY="]));
        assert_eq!((config.entrypoint, config.cmd), (strings(&[]), strings(&["sh"])));
        let labels = config.labels.expect("there are labels");
        assert_eq!(labels["sandboxd.managed"], "");
        assert_eq!((labels.len(), labels["new"].as_str()), (2, "label"));
    }
}
