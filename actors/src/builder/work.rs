//! The work of the builder, each step within its time limit. Decisions are made elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::Unit;
use tokio::sync::Semaphore;

use super::job::Outcome;
use super::{BuildRequest, BuilderSetup, Listed, Listing, Made, Pruned, RepositoryStatus};
use crate::builder::garbage_collection::{Needs, Occasion, Plan, freed, plan};
use crate::builder::repository_image::{self, Repository, RepositoryState};
use crate::ports::images::labels::{Origin, Source};
use crate::ports::images::{Build, Context, Disk, Image, ImageError, Layer, Reporter};

const PULLS: &str = "sandboxd_image_pulls_total";
const PULL_DURATION: &str = "sandboxd_image_pull_duration_seconds";
const BUILDS: &str = "sandboxd_image_builds_total";
const BUILD_DURATION: &str = "sandboxd_image_build_duration_seconds";
const COLLECTED: &str = "sandboxd_images_collected_total";
const DISK_USED: &str = "sandboxd_image_disk_used_ratio";

/// The time limit for reading the head of a branch.
const HEAD_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn describe_metrics() {
    metrics::describe_counter!(PULLS, "Image pulls, by outcome");
    metrics::describe_histogram!(PULL_DURATION, Unit::Seconds, "Duration of image pulls");
    metrics::describe_counter!(BUILDS, "Image builds, by kind (request, repository) and outcome");
    metrics::describe_histogram!(BUILD_DURATION, Unit::Seconds, "Duration of image builds, by kind");
    metrics::describe_counter!(COLLECTED, "Unused images removed by garbage collection");
    metrics::describe_gauge!(DISK_USED, "Used share of the file system with the engine's images, from 0 to 1");
    metrics::counter!(COLLECTED).increment(0);
}

pub(super) async fn pull(setup: &BuilderSetup, image: String, reporter: &Reporter) -> Outcome {
    let started = Instant::now();
    let pulled = with_limit(setup.limits.pull, &format!("pulling {image}"), setup.images.pull(&image, reporter)).await;
    let outcome = pulled.map(|id| Made { image, id, commit: None, changed: true });
    let result = outcome.as_ref().map_or_else(ImageError::outcome, |_| "pulled");
    metrics::counter!(PULLS, "outcome" => result).increment(1);
    metrics::histogram!(PULL_DURATION).record(started.elapsed().as_secs_f64());
    outcome
}

pub(super) async fn build(
    setup: &BuilderSetup,
    slots: &Semaphore,
    request: BuildRequest,
    reporter: &Reporter,
) -> Outcome {
    let BuildRequest { tag, directory, dockerfile, arguments } = request;
    let origin = Origin { tag: tag.clone(), built_at: setup.clock.now(), source: None };
    let context = Context { directory, place: String::new(), files: BTreeMap::new() };
    let labels = origin.encode(&setup.instance);
    let build = Build { tag, context, dockerfile, arguments, labels };
    let outcome = run(setup, slots, &build, setup.limits.build, "request", reporter).await;
    outcome.map(|id| Made { image: build.tag, id, commit: None, changed: true })
}

async fn run(
    setup: &BuilderSetup,
    slots: &Semaphore,
    build: &Build,
    limit: Duration,
    kind: &'static str,
    reporter: &Reporter,
) -> Result<String, ImageError> {
    if slots.available_permits() == 0 {
        reporter.report_message("waiting for another build to end");
    }
    let _slot = slots.acquire().await.map_err(|_| ImageError::Interrupted)?;
    let started = Instant::now();
    let outcome = with_limit(limit, &format!("building {}", build.tag), setup.images.build(build, reporter)).await;
    let result = outcome.as_ref().map_or_else(ImageError::outcome, |_| "built");
    metrics::counter!(BUILDS, "kind" => kind, "outcome" => result).increment(1);
    metrics::histogram!(BUILD_DURATION, "kind" => kind).record(started.elapsed().as_secs_f64());
    outcome
}

/// Reads the head of a repository's branch, and builds its image if it is outdated. Also returns the head, if known.
pub(super) async fn refresh(
    setup: &BuilderSetup,
    slots: &Semaphore,
    repository: &Repository,
    force: bool,
    reporter: &Reporter,
) -> (Option<String>, Outcome) {
    let head = with_limit(HEAD_LIMIT, "reading the repository", setup.sources.head(repository)).await;
    match head {
        Ok(head) => {
            let outcome = update_image(setup, slots, repository, &head, force, reporter).await;
            (Some(head), outcome)
        }
        Err(error) => {
            metrics::counter!(BUILDS, "kind" => "repository", "outcome" => error.outcome()).increment(1);
            (None, Err(error))
        }
    }
}

async fn update_image(
    setup: &BuilderSetup,
    slots: &Semaphore,
    repository: &Repository,
    head: &str,
    force: bool,
    reporter: &Reporter,
) -> Outcome {
    let tag = &repository.tag;
    let base = match inspect(setup, &repository.base).await? {
        Some(base) => base.id,
        None => pull(setup, repository.base.clone(), reporter).await?.id,
    };
    let recipe = repository.recipe(&base);
    let current = inspect(setup, tag).await?;
    let built = current.as_ref().and_then(|image| repository_source(image, setup, repository));
    let because = repository_image::because(built.as_ref(), head, &recipe, force);
    let because = match (because, current) {
        (Some(because), _) => because,
        (None, Some(image)) => {
            metrics::counter!(BUILDS, "kind" => "repository", "outcome" => "unchanged").increment(1);
            let commit = built.map(|built| built.commit);
            return Ok(Made { image: tag.clone(), id: image.id, commit, changed: false });
        }
        (None, None) => repository_image::Because::Missing,
    };
    tracing::info!(
        repository = repository.name,
        because = because.as_str(),
        commit = head,
        "building repository image"
    );
    reporter.report_message(format!("building {tag}: {}", because.as_str()));
    let checking_out = setup.sources.check_out(repository);
    let checkout = with_limit(repository.timeout, "checking out the repository", checking_out).await?;
    let source = Source { repository: repository.name.clone(), commit: checkout.commit.clone(), recipe };
    let origin = Origin { tag: tag.clone(), built_at: setup.clock.now(), source: Some(source) };
    let build = Build {
        tag: tag.clone(),
        context: Context {
            directory: checkout.directory.clone(),
            place: repository_image::CONTEXT_DIRECTORY.to_owned(),
            files: BTreeMap::from([(repository_image::DOCKERFILE.to_owned(), repository.instructions().into_bytes())]),
        },
        dockerfile: repository_image::DOCKERFILE.to_owned(),
        arguments: BTreeMap::new(),
        labels: origin.encode(&setup.instance),
    };
    let id = run(setup, slots, &build, repository.timeout, "repository", reporter).await?;
    tracing::info!(repository = repository.name, commit = checkout.commit, image.id = id, "repository image built");
    Ok(Made { image: tag.clone(), id, commit: Some(checkout.commit), changed: true })
}

fn repository_source(image: &Image, setup: &BuilderSetup, repository: &Repository) -> Option<Source> {
    let source = Origin::of(image, &setup.instance)?.source?;
    (source.repository == repository.name).then_some(source)
}

async fn inspect(setup: &BuilderSetup, reference: &str) -> Result<Option<Image>, ImageError> {
    with_limit(setup.limits.ask, "inspecting an image", setup.images.inspect(reference)).await
}

pub(super) async fn list(
    setup: &BuilderSetup,
    repository_states: &BTreeMap<String, RepositoryState>,
    building: &BTreeSet<String>,
) -> Result<Listing, ImageError> {
    let images = with_limit(setup.limits.ask, "listing images", setup.images.list()).await?;
    let mut profiles: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (profile, image) in &setup.profiles {
        if let Some(image) = inspect(setup, image).await? {
            profiles.entry(image.id).or_default().push(profile.clone());
        }
    }
    let now = setup.clock.now();
    let status = |repository: &Arc<Repository>| {
        let state = repository_states.get(&repository.name).cloned().unwrap_or_default();
        let tagged = images.iter().find(|image| image.tags.contains(&repository.tag));
        let image = tagged
            .filter(|image| repository_source(image, setup, repository).is_some())
            .and_then(|image| Some((image.id.clone(), Origin::of(image, &setup.instance)?)));
        let built_at = image.as_ref().map(|(_, origin)| origin.built_at);
        let stale = built_at.is_none_or(|built_at| state.is_stale(repository, built_at, now));
        let building = building.contains(&repository.name);
        RepositoryStatus { repository: Arc::clone(repository), state, image, stale, building }
    };
    let repositories: Vec<_> = setup.repositories.values().map(status).collect();
    let stale = |id: &String| {
        let of = |status: &&RepositoryStatus| status.image.as_ref().is_some_and(|(newest, _)| newest == id);
        repositories.iter().find(of).map(|status| status.stale)
    };
    let listed = |image: Image| Listed {
        origin: Origin::of(&image, &setup.instance),
        stale: stale(&image.id),
        profiles: profiles.get(&image.id).cloned().unwrap_or_default(),
        image,
    };
    let images = images.into_iter().map(listed).collect();
    Ok(Listing { images, repositories })
}

pub(super) async fn prune(
    setup: &BuilderSetup,
    slots: &Semaphore,
    occasion: Occasion,
    dry_run: bool,
) -> Result<Pruned, ImageError> {
    let ask = setup.limits.ask;
    // A build that is just ending has an image without a tag for a moment.
    let all_slots = u32::try_from(setup.limits.builds_at_once).unwrap_or(u32::MAX);
    let all_permits = slots.try_acquire_many(all_slots);
    if all_permits.is_err() && occasion == Occasion::Regular {
        return Ok(Pruned::default());
    }
    let disk = match with_limit(ask, "measuring disk use", setup.images.disk()).await {
        // The engine's files may be inaccessible to the service. Then the disk never counts as full.
        Err(ImageError::Refused { reason }) => {
            tracing::debug!(reason, "disk use of the engine unknown");
            Disk { total_bytes: 0, free_bytes: 0 }
        }
        disk => disk?,
    };
    metrics::gauge!(DISK_USED).set(disk.used_percent() / 100.0);
    let all = with_limit(ask, "listing images", setup.images.list()).await?;
    let mut images = all.clone();
    if all_permits.is_err() {
        images.retain(|image| !image.tags.is_empty());
    }
    let needs = needs(setup).await?;
    let watermarks = setup.collection.watermarks;
    let Plan { images, build_cache } = plan(&images, &needs, disk, watermarks, occasion, &setup.instance);
    let layers = match occasion {
        Occasion::Requested if !images.is_empty() => layers(setup, all).await?,
        _ => Vec::new(),
    };
    if dry_run {
        return Ok(Pruned { layer_bytes: freed_by(&images, layers), images, build_cache_bytes: 0 });
    }
    let mut pruned = Pruned::default();
    for image in images {
        match with_limit(ask, "removing an image", setup.images.remove(&image)).await {
            Ok(()) => {
                metrics::counter!(COLLECTED).increment(1);
                tracing::info!(image.id, tags = ?image.tags, bytes = image.bytes, "unused image removed");
                pruned.images.push(image);
            }
            // The image is in use by now, or another image is built upon it.
            Err(ImageError::Refused { reason }) => tracing::debug!(image.id, reason, "image not removed"),
            Err(error) => return Err(error),
        }
    }
    pruned.layer_bytes = freed_by(&pruned.images, layers);
    if build_cache {
        let pruning = setup.images.prune_build_cache();
        pruned.build_cache_bytes = with_limit(setup.limits.build, "pruning the build cache", pruning).await?;
    }
    Ok(pruned)
}

/// Returns the layers of each image, which have to be read before any image is removed.
async fn layers(setup: &BuilderSetup, images: Vec<Image>) -> Result<Vec<(String, Vec<Layer>)>, ImageError> {
    let mut found = Vec::new();
    for image in images {
        let layers =
            with_limit(setup.limits.ask, "reading the layers of an image", setup.images.layers(&image)).await?;
        found.push((image.id, layers));
    }
    Ok(found)
}

fn freed_by(images: &[Image], layers: Vec<(String, Vec<Layer>)>) -> u64 {
    let gone: BTreeSet<&String> = images.iter().map(|image| &image.id).collect();
    let (gone, kept): (Vec<_>, Vec<_>) = layers.into_iter().partition(|(id, _)| gone.contains(id));
    let without_ids =
        |images: Vec<(String, Vec<Layer>)>| images.into_iter().map(|(_, layers)| layers).collect::<Vec<_>>();
    freed(&without_ids(gone), &without_ids(kept))
}

async fn needs(setup: &BuilderSetup) -> Result<Needs, ImageError> {
    let bases = setup.repositories.values().flat_map(|repository| [&repository.base, &repository.tag]);
    let mut named = BTreeSet::new();
    for reference in setup.profiles.values().chain(bases).collect::<BTreeSet<_>>() {
        named.extend(inspect(setup, reference).await?.map(|image| image.id));
    }
    Ok(Needs {
        named,
        in_use: with_limit(setup.limits.ask, "listing containers", setup.images.in_use()).await?,
        repositories: setup.repositories.keys().cloned().collect(),
        all: setup.collection.all,
    })
}

async fn with_limit<T>(
    limit: Duration,
    operation: &str,
    work: impl Future<Output = Result<T, ImageError>>,
) -> Result<T, ImageError> {
    let timed_out = || ImageError::TimedOut { operation: operation.to_owned(), limit };
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(timed_out()))
}
