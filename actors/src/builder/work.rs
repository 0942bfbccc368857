//! What the builder does, each within its time. It decides nothing but in which order to ask.

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

/// For finding out where a branch is.
const LOOK_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn describe_metrics() {
    metrics::describe_counter!(PULLS, "Pulls of images, by outcome");
    metrics::describe_histogram!(PULL_DURATION, Unit::Seconds, "How long a pull took");
    metrics::describe_counter!(BUILDS, "Builds of images, by kind (request, repository) and outcome");
    metrics::describe_histogram!(BUILD_DURATION, Unit::Seconds, "How long a build took, by kind");
    metrics::describe_counter!(COLLECTED, "Images that were removed because nobody needed them");
    metrics::describe_gauge!(DISK_USED, "How full the file system with the engine's images is, from 0 to 1");
    metrics::counter!(COLLECTED).increment(0);
}

pub(super) async fn pull(shop: &BuilderSetup, image: String, reporter: &Reporter) -> Outcome {
    let begun = Instant::now();
    let pulled = within(shop.limits.pull, &format!("pulling {image}"), shop.images.pull(&image, reporter)).await;
    let outcome = pulled.map(|id| Made { image, id, commit: None, changed: true });
    let result = outcome.as_ref().map_or_else(ImageError::outcome, |_| "pulled");
    metrics::counter!(PULLS, "outcome" => result).increment(1);
    metrics::histogram!(PULL_DURATION).record(begun.elapsed().as_secs_f64());
    outcome
}

pub(super) async fn build(
    shop: &BuilderSetup,
    slots: &Semaphore,
    request: BuildRequest,
    reporter: &Reporter,
) -> Outcome {
    let BuildRequest { tag, directory, dockerfile, arguments } = request;
    let origin = Origin { tag: tag.clone(), built_at: shop.clock.now(), source: None };
    let context = Context { directory, place: String::new(), files: BTreeMap::new() };
    let labels = origin.encode(&shop.instance);
    let build = Build { tag, context, dockerfile, arguments, labels };
    let outcome = run(shop, slots, &build, shop.limits.build, "request", reporter).await;
    outcome.map(|id| Made { image: build.tag, id, commit: None, changed: true })
}

async fn run(
    shop: &BuilderSetup,
    slots: &Semaphore,
    build: &Build,
    limit: Duration,
    kind: &'static str,
    reporter: &Reporter,
) -> Result<String, ImageError> {
    if slots.available_permits() == 0 {
        reporter.say("waiting for another build to end");
    }
    let _slot = slots.acquire().await.map_err(|_| ImageError::Interrupted)?;
    let begun = Instant::now();
    let outcome = within(limit, &format!("building {}", build.tag), shop.images.build(build, reporter)).await;
    let result = outcome.as_ref().map_or_else(ImageError::outcome, |_| "built");
    metrics::counter!(BUILDS, "kind" => kind, "outcome" => result).increment(1);
    metrics::histogram!(BUILD_DURATION, "kind" => kind).record(begun.elapsed().as_secs_f64());
    outcome
}

/// Looks where a repository's branch is, and builds its image if that is not what it has. Answers the branch's commit,
/// too, as far as it was found out.
pub(super) async fn refresh(
    shop: &BuilderSetup,
    slots: &Semaphore,
    repository: &Repository,
    force: bool,
    reporter: &Reporter,
) -> (Option<String>, Outcome) {
    let looking = within(LOOK_LIMIT, "reading the repository", shop.sources.head(repository)).await;
    match looking {
        Ok(head) => {
            let outcome = bring_to(shop, slots, repository, &head, force, reporter).await;
            (Some(head), outcome)
        }
        Err(error) => {
            metrics::counter!(BUILDS, "kind" => "repository", "outcome" => error.outcome()).increment(1);
            (None, Err(error))
        }
    }
}

async fn bring_to(
    shop: &BuilderSetup,
    slots: &Semaphore,
    repository: &Repository,
    head: &str,
    force: bool,
    reporter: &Reporter,
) -> Outcome {
    let tag = &repository.tag;
    let base = match inspect(shop, &repository.base).await? {
        Some(base) => base.id,
        None => pull(shop, repository.base.clone(), reporter).await?.id,
    };
    let recipe = repository.recipe(&base);
    let current = inspect(shop, tag).await?;
    let built = current.as_ref().and_then(|image| of_repository(image, shop, repository));
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
    tracing::info!(repository = repository.name, because = because.as_str(), commit = head, "building its image");
    reporter.say(format!("building {tag}: {}", because.as_str()));
    let checking_out = shop.sources.check_out(repository);
    let checkout = within(repository.timeout, "checking out the repository", checking_out).await?;
    let source = Source { repository: repository.name.clone(), commit: checkout.commit.clone(), recipe };
    let origin = Origin { tag: tag.clone(), built_at: shop.clock.now(), source: Some(source) };
    let build = Build {
        tag: tag.clone(),
        context: Context {
            directory: checkout.directory.clone(),
            place: repository_image::PLACE.to_owned(),
            files: BTreeMap::from([(repository_image::DOCKERFILE.to_owned(), repository.instructions().into_bytes())]),
        },
        dockerfile: repository_image::DOCKERFILE.to_owned(),
        arguments: BTreeMap::new(),
        labels: origin.encode(&shop.instance),
    };
    let id = run(shop, slots, &build, repository.timeout, "repository", reporter).await?;
    tracing::info!(repository = repository.name, commit = checkout.commit, image.id = id, "its image is built");
    Ok(Made { image: tag.clone(), id, commit: Some(checkout.commit), changed: true })
}

fn of_repository(image: &Image, shop: &BuilderSetup, repository: &Repository) -> Option<Source> {
    let source = Origin::of(image, &shop.instance)?.source?;
    (source.repository == repository.name).then_some(source)
}

async fn inspect(shop: &BuilderSetup, reference: &str) -> Result<Option<Image>, ImageError> {
    within(shop.limits.ask, "looking for an image", shop.images.inspect(reference)).await
}

pub(super) async fn list(
    shop: &BuilderSetup,
    standings: &BTreeMap<String, RepositoryState>,
    building: &BTreeSet<String>,
) -> Result<Listing, ImageError> {
    let images = within(shop.limits.ask, "listing images", shop.images.list()).await?;
    let mut profiles: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (profile, image) in &shop.profiles {
        if let Some(image) = inspect(shop, image).await? {
            profiles.entry(image.id).or_default().push(profile.clone());
        }
    }
    let now = shop.clock.now();
    let status = |repository: &Arc<Repository>| {
        let standing = standings.get(&repository.name).cloned().unwrap_or_default();
        let tagged = images.iter().find(|image| image.tags.contains(&repository.tag));
        let image = tagged
            .filter(|image| of_repository(image, shop, repository).is_some())
            .and_then(|image| Some((image.id.clone(), Origin::of(image, &shop.instance)?)));
        let built_at = image.as_ref().map(|(_, origin)| origin.built_at);
        let stale = built_at.is_none_or(|built_at| standing.is_stale(repository, built_at, now));
        let building = building.contains(&repository.name);
        RepositoryStatus { repository: Arc::clone(repository), standing, image, stale, building }
    };
    let repositories: Vec<_> = shop.repositories.values().map(status).collect();
    let stale = |id: &String| {
        let of = |status: &&RepositoryStatus| status.image.as_ref().is_some_and(|(newest, _)| newest == id);
        repositories.iter().find(of).map(|status| status.stale)
    };
    let listed = |image: Image| Listed {
        origin: Origin::of(&image, &shop.instance),
        stale: stale(&image.id),
        profiles: profiles.get(&image.id).cloned().unwrap_or_default(),
        image,
    };
    let images = images.into_iter().map(listed).collect();
    Ok(Listing { images, repositories })
}

pub(super) async fn prune(
    shop: &BuilderSetup,
    slots: &Semaphore,
    occasion: Occasion,
    dry_run: bool,
) -> Result<Pruned, ImageError> {
    let ask = shop.limits.ask;
    // A build that is just ending has an image without a tag for a moment.
    let all_slots = u32::try_from(shop.limits.builds_at_once).unwrap_or(u32::MAX);
    let quiet = slots.try_acquire_many(all_slots);
    if quiet.is_err() && occasion == Occasion::Regular {
        return Ok(Pruned::default());
    }
    let disk = match within(ask, "measuring the disk", shop.images.disk()).await {
        // The engine's files may be out of our sight: then nothing is known to be too full.
        Err(ImageError::Refused { reason }) => {
            tracing::debug!(reason, "the engine's disk cannot be measured");
            Disk { total_bytes: 0, free_bytes: 0 }
        }
        disk => disk?,
    };
    metrics::gauge!(DISK_USED).set(disk.used_percent() / 100.0);
    let all = within(ask, "listing images", shop.images.list()).await?;
    let mut images = all.clone();
    if quiet.is_err() {
        images.retain(|image| !image.tags.is_empty());
    }
    let needs = needs(shop).await?;
    let watermarks = shop.collecting.watermarks;
    let Plan { images, build_cache } = plan(&images, &needs, disk, watermarks, occasion, &shop.instance);
    let layers = match occasion {
        Occasion::Asked if !images.is_empty() => layers(shop, all).await?,
        _ => Vec::new(),
    };
    if dry_run {
        return Ok(Pruned { layer_bytes: freed_by(&images, layers), images, build_cache_bytes: 0 });
    }
    let mut pruned = Pruned::default();
    for image in images {
        match within(ask, "removing an image", shop.images.remove(&image)).await {
            Ok(()) => {
                metrics::counter!(COLLECTED).increment(1);
                tracing::info!(image.id, tags = ?image.tags, bytes = image.bytes, "removed an image that nobody needs");
                pruned.images.push(image);
            }
            // Something came to need it meanwhile, or another image is built upon it.
            Err(ImageError::Refused { reason }) => tracing::debug!(image.id, reason, "an image stays"),
            Err(error) => return Err(error),
        }
    }
    pruned.layer_bytes = freed_by(&pruned.images, layers);
    if build_cache {
        let pruning = shop.images.prune_build_cache();
        pruned.build_cache_bytes = within(shop.limits.build, "pruning the build cache", pruning).await?;
    }
    Ok(pruned)
}

/// By image. They have to be looked up before any is removed.
async fn layers(shop: &BuilderSetup, images: Vec<Image>) -> Result<Vec<(String, Vec<Layer>)>, ImageError> {
    let mut found = Vec::new();
    for image in images {
        let layers = within(shop.limits.ask, "looking up an image's layers", shop.images.layers(&image)).await?;
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

async fn needs(shop: &BuilderSetup) -> Result<Needs, ImageError> {
    let bases = shop.repositories.values().flat_map(|repository| [&repository.base, &repository.tag]);
    let mut named = BTreeSet::new();
    for reference in shop.profiles.values().chain(bases).collect::<BTreeSet<_>>() {
        named.extend(inspect(shop, reference).await?.map(|image| image.id));
    }
    Ok(Needs {
        named,
        in_use: within(shop.limits.ask, "listing containers", shop.images.in_use()).await?,
        repositories: shop.repositories.keys().cloned().collect(),
        all: shop.collecting.all,
    })
}

async fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = Result<T, ImageError>>,
) -> Result<T, ImageError> {
    let timed_out = || ImageError::TimedOut { what: what.to_owned(), limit };
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(timed_out()))
}
