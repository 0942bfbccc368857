//! Adapter of the image port for Docker.

mod context;
mod ignored;
mod import;
mod layers;
mod registries;

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{BuildInfo, ImageInspect, ImageSummary, ProgressDetail};
use bollard::query_parameters::{
    BuildImageOptions, CreateImageOptionsBuilder, ListContainersOptionsBuilder, ListImagesOptions, PruneBuildOptions,
    RemoveImageOptions,
};
use chrono::{DateTime, Utc};
use futures_util::{StreamExt, TryStreamExt};
use sandboxd_actors::ports::engine::EngineError;
use sandboxd_actors::ports::images::{Build, Disk, Image, ImageError, Images, Layer, Progress, Reporter};

use super::{DockerEngine, errors};
pub use registries::Registries;
use registries::SignIn;

/// How many of a build's last lines its error contains.
const TAIL: usize = 20;

/// The engine's placeholder for a missing tag.
const NO_TAG: &str = "<none>:<none>";

#[async_trait]
impl Images for DockerEngine {
    async fn list(&self) -> Result<Vec<Image>, ImageError> {
        let listed = docker(self).await?.list_images(None::<ListImagesOptions>).await.map_err(failed)?;
        Ok(listed.into_iter().map(summarised).collect())
    }

    async fn inspect(&self, reference: &str) -> Result<Option<Image>, ImageError> {
        match docker(self).await?.inspect_image(reference).await {
            Ok(image) => Ok(Some(inspected(image))),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    async fn pull(&self, reference: &str, reporter: &Reporter) -> Result<String, ImageError> {
        let docker = docker(self).await?;
        let not_pulled = |registry: &str, reason: String| {
            let (image, registry) = (reference.to_owned(), registry.to_owned());
            ImageError::PullFailed { image, registry, reason }
        };
        let signed_in = self.registries.sign_in(reference).await;
        let signed_in = signed_in.map_err(|error| not_pulled(&error.registry, error.to_string()))?;
        // Without a tag, the engine pulls every tag of the image.
        let options = CreateImageOptionsBuilder::default().from_image(reference);
        let options = if names_version(reference) { options } else { options.tag("latest") };
        let refused = |error: Error| match failed(error) {
            ImageError::Refused { reason } => not_pulled(&signed_in.registry, signed_in.explain(&reason)),
            error => error,
        };
        let client = registries::client(docker);
        let mut messages = client.create_image(Some(options.build()), None, signed_in.credentials());
        while let Some(info) = messages.try_next().await.map_err(refused)? {
            reporter.report(progress(info.status.unwrap_or_default(), info.id, info.progress_detail));
        }
        id_of(docker, reference).await
    }

    async fn build(&self, build: &Build, reporter: &Reporter) -> Result<String, ImageError> {
        let docker = docker(self).await?;
        let options = BuildImageOptions {
            dockerfile: build.dockerfile.clone(),
            t: Some(build.tag.clone()),
            buildargs: Some(build.arguments.clone().into_iter().collect::<HashMap<_, _>>()),
            labels: Some(build.labels.clone().into_iter().collect::<HashMap<_, _>>()),
            rm: true,
            // Removes also the container of a failed step.
            forcerm: true,
            ..Default::default()
        };
        let (pieces, packing) = context::stream(build.context.clone(), build.dockerfile.clone());
        let body = bollard::body_try_stream(pieces.map_ok(Into::into));
        let mut log = Log::default();
        let signed_in = self.registries.sign_in_all().await;
        let client = registries::client(docker);
        let credentials = registries::credentials_by_registry(&signed_in);
        let mut messages = std::pin::pin!(client.build_image(options, Some(credentials), Some(body)));
        let outcome = loop {
            match messages.next().await {
                None => break Ok(()),
                Some(Ok(info)) => log.push(info, reporter),
                Some(Err(error)) => break Err(failed(error)),
            }
        };
        // A failure to pack the context is the cause of the engine's error, so it takes precedence.
        let outcome = match packing.await {
            Ok(Err(error)) if !error.is_reader_gone() => Err(ImageError::Refused { reason: error.to_string() }),
            _ => outcome,
        };
        match outcome {
            Ok(()) => id_of(docker, &build.tag).await,
            Err(ImageError::Refused { reason }) => {
                let Log { step, layer, tail, .. } = log;
                if let Some(layer) = layer {
                    remove_unnamed(docker, &layer).await;
                }
                // The engine's message may repeat the registry's answer.
                let reason = signed_in.iter().fold(reason, |reason, it: &SignIn| it.redact(&reason));
                Err(ImageError::BuildFailed { tag: build.tag.clone(), step, reason, log_tail: tail })
            }
            Err(error) => Err(error),
        }
    }

    async fn in_use(&self) -> Result<BTreeSet<String>, ImageError> {
        let options = ListContainersOptionsBuilder::default().all(true).build();
        let containers = docker(self).await?.list_containers(Some(options)).await.map_err(failed)?;
        Ok(containers.into_iter().filter_map(|container| container.image_id).collect())
    }

    async fn layers(&self, image: &Image) -> Result<Vec<Layer>, ImageError> {
        let docker = docker(self).await?;
        let answers = tokio::try_join!(docker.inspect_image(&image.id), docker.image_history(&image.id));
        match answers {
            Ok((inspected, history)) => Ok(layers::layers(inspected, history)),
            Err(error) if is_missing(&error) => Ok(Vec::new()),
            Err(error) => Err(failed(error)),
        }
    }

    async fn remove(&self, image: &Image) -> Result<(), ImageError> {
        let docker = docker(self).await?;
        // Removes the image tag by tag. A removal by id of an image with several tags needs force, and force removes an
        // image that a container uses.
        let names = if image.tags.is_empty() { std::slice::from_ref(&image.id) } else { &image.tags };
        for name in names {
            match docker.remove_image(name, None::<RemoveImageOptions>, None).await {
                Ok(_) => {}
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    async fn prune_build_cache(&self) -> Result<u64, ImageError> {
        let pruned = docker(self).await?.prune_build(None::<PruneBuildOptions>).await.map_err(failed)?;
        Ok(pruned.space_reclaimed.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default())
    }

    async fn disk(&self) -> Result<Disk, ImageError> {
        let refused = |reason: String| ImageError::Refused { reason };
        let info = docker(self).await?.info().await.map_err(failed)?;
        let root = info.docker_root_dir.ok_or_else(|| refused("it does not report its data directory".to_owned()))?;
        let disk = rustix::fs::statvfs(&root).map_err(|error| refused(format!("{root}: {error}")))?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        Ok(Disk { total_bytes: bytes(disk.f_blocks), free_bytes: bytes(disk.f_bavail) })
    }
}

async fn docker(engine: &DockerEngine) -> Result<&Docker, ImageError> {
    let unavailable = |error: EngineError| ImageError::EngineUnavailable { reason: error.to_string() };
    engine.client().await.map_err(unavailable)
}

async fn id_of(docker: &Docker, reference: &str) -> Result<String, ImageError> {
    let image = docker.inspect_image(reference).await.map_err(failed)?;
    image.id.ok_or_else(|| ImageError::Refused { reason: format!("{reference} has no id") })
}

/// Removes an image without a name: the result of the steps before a failed one, which has no labels, or an image whose
/// name a newer one has taken. An image that is part of another, or that a container uses, stays.
async fn remove_unnamed(docker: &Docker, layer: &str) {
    let is_unnamed = |image: ImageInspect| {
        let unnamed = |names: Option<Vec<String>>| names.is_none_or(|names| names.iter().all(|name| name == NO_TAG));
        unnamed(image.repo_tags) && unnamed(image.repo_digests)
    };
    if docker.inspect_image(layer).await.is_ok_and(is_unnamed) {
        let removed = docker.remove_image(layer, None::<RemoveImageOptions>, None).await;
        if let Err(error) = removed {
            tracing::debug!(image.id = layer, error = errors::message(&error), "unnamed image not removed");
        }
    }
}

/// The output of a build so far.
#[derive(Default)]
struct Log {
    /// The current instruction.
    step: Option<String>,
    /// The image of the completed instructions.
    layer: Option<String>,
    tail: Vec<String>,
    /// The last line, which has no line break yet.
    partial_line: String,
}

impl Log {
    fn push(&mut self, info: BuildInfo, reporter: &Reporter) {
        if let Some(status) = info.status {
            // The build pulls its base image.
            return reporter.report(progress(status, info.id, info.progress_detail));
        }
        self.partial_line.push_str(&info.stream.unwrap_or_default());
        while let Some(end) = self.partial_line.find('\n') {
            let rest = self.partial_line.split_off(end + 1);
            let line = std::mem::replace(&mut self.partial_line, rest);
            self.line(line.trim_end(), reporter);
        }
    }

    fn line(&mut self, line: &str, reporter: &Reporter) {
        if line.is_empty() {
            return;
        }
        // Podman writes "STEP".
        if line.get(..5).is_some_and(|word| word.eq_ignore_ascii_case("step ")) {
            self.step = Some(line.to_owned());
        }
        if let Some(id) = line.trim_start().strip_prefix("---> ")
            && id.bytes().all(|digit| digit.is_ascii_hexdigit())
        {
            self.layer = Some(id.to_owned());
        }
        if self.tail.len() == TAIL {
            self.tail.remove(0);
        }
        self.tail.push(line.to_owned());
        reporter.report_message(line);
    }
}

fn progress(message: String, layer: Option<String>, detail: Option<ProgressDetail>) -> Progress {
    let bytes = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
    let (done_bytes, total_bytes) = detail.map(|it| (bytes(it.current), bytes(it.total))).unwrap_or_default();
    Progress { message, layer, done_bytes, total_bytes }
}

fn summarised(image: ImageSummary) -> Image {
    Image {
        id: image.id,
        tags: image.repo_tags.into_iter().filter(|tag| tag != NO_TAG).collect(),
        bytes: u64::try_from(image.size).unwrap_or_default(),
        created_at: DateTime::from_timestamp(image.created, 0).unwrap_or_default(),
        labels: image.labels.into_iter().collect(),
    }
}

fn inspected(image: ImageInspect) -> Image {
    let labels = image.config.and_then(|config| config.labels).unwrap_or_default();
    let created_at = image.created.and_then(|created| created.parse::<DateTime<Utc>>().ok());
    Image {
        id: image.id.unwrap_or_default(),
        tags: image.repo_tags.unwrap_or_default().into_iter().filter(|tag| tag != NO_TAG).collect(),
        bytes: image.size.and_then(|size| u64::try_from(size).ok()).unwrap_or_default(),
        created_at: created_at.unwrap_or_default(),
        labels: labels.into_iter().collect(),
    }
}

/// Returns whether a reference has a tag or a digest.
fn names_version(reference: &str) -> bool {
    reference.rsplit('/').next().is_some_and(|last| last.contains([':', '@']))
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}

fn failed(error: Error) -> ImageError {
    let reason = match &error {
        Error::DockerStreamError { error } => error.clone(),
        other => errors::message(other),
    };
    match error {
        Error::DockerResponseServerError { status_code: 502..=504, .. } => ImageError::EngineUnavailable { reason },
        Error::DockerResponseServerError { .. } | Error::DockerStreamError { .. } => ImageError::Refused { reason },
        _ => ImageError::EngineUnavailable { reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_a_registry_is_not_a_tag() {
        for versioned in ["a:1", "host:5000/a/b:1", "a@sha256:00"] {
            assert!(names_version(versioned), "{versioned}");
        }
        for open in ["a", "host:5000/a", "host/a/b"] {
            assert!(!names_version(open), "{open}");
        }
    }

    #[test]
    fn a_build_is_reported_line_by_line_with_its_last_step() {
        let (mut log, reporter) = (Log::default(), Reporter::new());
        let mut reported = reporter.subscribe();
        for piece in ["Step 1/2 : FROM a\n", " ---> 0123456789ab\n", "half a ", "line\nStep 2/2 : RUN b\n"] {
            log.push(BuildInfo { stream: Some(piece.into()), ..Default::default() }, &reporter);
        }
        let lines: Vec<_> = std::iter::from_fn(|| reported.try_recv().ok()).map(|progress| progress.message).collect();
        assert_eq!(lines, ["Step 1/2 : FROM a", " ---> 0123456789ab", "half a line", "Step 2/2 : RUN b"]);
        log.line(" ---> Running in cdef00000000", &reporter);
        assert_eq!(log.layer.as_deref(), Some("0123456789ab"));
        assert_eq!(log.step.as_deref(), Some("Step 2/2 : RUN b"));
        assert_eq!(log.tail.len(), 5);
    }
}
