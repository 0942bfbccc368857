//! Images and repositories as they are on the wire.

use sandboxd_actors::builder::{Listed, Listing, Made, Pruned, RepositoryStatus};
use sandboxd_actors::ports::images;
use sandboxd_actors::ports::images::labels::Origin;
use sandboxd_protocol::image::{
    Image, ImageFailure, ImageListResult, ImageOrigin, ImagePruneResult, ImageResult, Progress, RemovedImage,
    Repository,
};
use sandboxd_protocol::time::Time;

pub fn images(listing: Listing) -> ImageListResult {
    let Listing { images, repositories } = listing;
    ImageListResult {
        images: images.into_iter().map(image).collect(),
        repositories: repositories.into_iter().map(repository).collect(),
    }
}

fn image(Listed { image, origin, stale, profiles }: Listed) -> Image {
    let kind = match &origin {
        None => ImageOrigin::Other,
        Some(Origin { source: None, .. }) => ImageOrigin::Build,
        Some(Origin { source: Some(_), .. }) => ImageOrigin::Repository,
    };
    let built_at = origin.as_ref().map(|origin| Time(origin.built_at));
    let (repository, commit) =
        origin.and_then(|origin| origin.source).map(|source| (source.repository, source.commit)).unzip();
    let images::Image { id: image_id, tags, bytes, created_at, .. } = image;
    let created_at = Time(created_at);
    Image { image_id, tags, bytes, created_at, origin: kind, repository, commit, built_at, stale, profiles }
}

fn repository(status: RepositoryStatus) -> Repository {
    let RepositoryStatus { repository, state, image, stale, building } = status;
    let (image_id, origin) = image.unzip();
    let failed = |at, error: &dyn ToString| ImageFailure { at: Time(at), message: error.to_string() };
    Repository {
        repository: repository.name.clone(),
        branch: repository.branch.clone(),
        image: repository.tag.clone(),
        image_id,
        built_at: origin.as_ref().map(|origin| Time(origin.built_at)),
        commit: origin.and_then(|origin| origin.source).map(|source| source.commit),
        head: state.head,
        checked_at: state.checked_at.map(Time),
        stale,
        building,
        failure: state.failure.map(|failure| failed(failure.at, &failure.error)),
    }
}

pub fn made_image(Made { image, id, commit, changed }: Made) -> ImageResult {
    ImageResult { image, image_id: id, commit, changed }
}

pub fn pruned_images(pruned: Pruned, dry_run: bool) -> ImagePruneResult {
    let bytes = pruned.bytes();
    let removed = |image: images::Image| RemovedImage { image_id: image.id, tags: image.tags, bytes: image.bytes };
    let build_cache_bytes = pruned.build_cache_bytes;
    ImagePruneResult { dry_run, removed: pruned.images.into_iter().map(removed).collect(), build_cache_bytes, bytes }
}

pub(in crate::protocol) fn progress(progress: &images::Progress) -> Progress {
    let images::Progress { message, layer, done_bytes, total_bytes } = progress.clone();
    Progress { message, layer, done_bytes, total_bytes }
}
