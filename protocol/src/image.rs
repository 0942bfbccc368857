//! Images on the engine, and the images of configured repositories.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::Time;
use crate::words::words;

/// Result of `image.list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageListResult {
    /// Images on the engine.
    pub images: Vec<Image>,
    /// Configured repositories, each with the state of its image.
    pub repositories: Vec<Repository>,
}

/// An image on the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Image {
    /// Id of the image on the engine.
    pub image_id: String,
    /// Tags of the image. An image that a newer one replaced has none.
    pub tags: Vec<String>,
    /// Size, layers shared with other images included.
    pub bytes: u64,
    /// When the image was created.
    pub created_at: Time,
    /// Origin of the image.
    pub origin: ImageOrigin,
    /// Repository that the image was built from; null for other images.
    pub repository: Option<String>,
    /// Commit of that repository; null for other images.
    pub commit: Option<String>,
    /// When the service built the image; null if the service did not build it.
    pub built_at: Option<Time>,
    /// Whether the image may be out of date; null unless it is the newest image of a repository.
    pub stale: Option<bool>,
    /// Profiles that use the image.
    pub profiles: Vec<String>,
}

/// A configured repository and the state of its image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Repository {
    /// Name of the repository in the configuration.
    pub repository: String,
    /// Branch that the image is built from.
    pub branch: String,
    /// Tag of the image.
    pub image: String,
    /// Id of the image; null if there is none yet.
    pub image_id: Option<String>,
    /// Commit that the image was built from; null if there is no image yet.
    pub commit: Option<String>,
    /// When the image was built; null if there is none yet.
    pub built_at: Option<Time>,
    /// Commit of the branch at the last check; null before the first check.
    pub head: Option<String>,
    /// When the branch was last checked; null before the first check.
    pub checked_at: Option<Time>,
    /// Whether the image is missing, or was not known to be up to date for longer than `stale_after`.
    pub stale: bool,
    /// Whether the repository is being checked, or its image built, now.
    pub building: bool,
    /// The last failed update, after which the image before stays; null if the last update succeeded.
    pub failure: Option<ImageFailure>,
}

/// A failed update of a repository's image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageFailure {
    /// When the update failed.
    pub at: Time,
    /// Why the update failed, for people.
    pub message: String,
}

/// Parameters of `image.pull`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImagePullParams {
    /// Name of the image, such as `registry.local/app:1`. Without a tag, `latest` is meant.
    pub image: String,
}

/// Parameters of `image.build`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageBuildParams {
    /// Absolute path of a host directory, the build context. It lies below one of `images.context_roots` once symbolic
    /// links are resolved.
    pub context: String,
    /// Path of the Dockerfile within the context. Default: `Dockerfile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dockerfile: Option<String>,
    /// Tag of the image. An image that had the tag before loses it.
    pub tag: String,
    /// Build arguments. They become part of the history of the image, so they must not contain secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<BTreeMap<String, String>>,
}

/// Parameters of `image.refresh`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageRefreshParams {
    /// Name of the repository in the configuration.
    pub repository: String,
    /// Whether to build the image even if it is up to date. A build that is under way is joined. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
}

/// Result of `image.pull`, `image.build` and `image.refresh`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageResult {
    /// Tag of the image.
    pub image: String,
    /// Id of the image on the engine.
    pub image_id: String,
    /// Commit of the repository that the image was built from; null for other images.
    pub commit: Option<String>,
    /// Whether the image changed.
    pub changed: bool,
}

/// Parameters of `image.prune`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImagePruneParams {
    /// Whether to report the images without removing them. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

/// Result of `image.prune`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImagePruneResult {
    /// Whether the images were only reported.
    pub dry_run: bool,
    /// Images that were, or would be, removed.
    pub removed: Vec<RemovedImage>,
    /// Bytes freed by removing the build cache; 0 in a dry run.
    pub build_cache_bytes: u64,
    /// Bytes that the removal frees, or would free. A layer shared by removed images counts once; a layer of an image
    /// that stays does not count.
    pub bytes: u64,
}

/// An image that was, or would be, removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovedImage {
    /// Id of the image on the engine.
    pub image_id: String,
    /// Tags of the image.
    pub tags: Vec<String>,
    /// Size, layers shared with other images included.
    pub bytes: u64,
}

/// Progress of a pull or a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// Line of a build, or a state such as `Downloading`.
    pub message: String,
    /// Layer that is being pulled; null if it does not apply.
    pub layer: Option<String>,
    /// Bytes of the layer that are done; null if unknown.
    pub done_bytes: Option<u64>,
    /// Bytes of the layer in total; null if unknown.
    pub total_bytes: Option<u64>,
}

words! {
    /// Origin of an image.
    enum ImageOrigin {
        /// The service built the image from a configured repository.
        Repository = "repository",
        /// The service built the image with `image.build`.
        Build = "build",
        /// The service did not build the image.
        Other = "other",
    }
}
