//! The port to an engine's images, and the labels of the images that the service builds.
//!
//! This port is separate from [`crate::ports::engine::Engine`]: its operations take minutes, report progress and are
//! not on a sandbox's path.

#[cfg(feature = "fake-engine")]
pub mod fake;
pub mod labels;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;

use crate::ports::clock::Timestamp;

/// The images of an engine.
#[async_trait]
pub trait Images: Send + Sync + 'static {
    /// Returns every image except intermediate layers.
    async fn list(&self) -> Result<Vec<Image>, ImageError>;

    /// Looks an image up by tag or id.
    async fn inspect(&self, reference: &str) -> Result<Option<Image>, ImageError>;

    /// Pulls an image from its registry and returns its id.
    async fn pull(&self, reference: &str, reporter: &Reporter) -> Result<String, ImageError>;

    /// Builds and tags an image and returns its id. An image that had the tag before keeps its id and loses the tag.
    async fn build(&self, build: &Build, reporter: &Reporter) -> Result<String, ImageError>;

    /// Returns the images of all containers, running or not.
    async fn in_use(&self) -> Result<BTreeSet<String>, ImageError>;

    /// Returns the layers of an image, lowest first; none if the image is gone.
    async fn layers(&self, image: &Image) -> Result<Vec<Layer>, ImageError>;

    /// Removes an image and the layers that only it has. Succeeds if the image is gone already; fails if a container or
    /// another image needs it.
    async fn remove(&self, image: &Image) -> Result<(), ImageError>;

    /// Removes the build cache and returns the number of freed bytes.
    async fn prune_build_cache(&self) -> Result<u64, ImageError>;

    /// Returns the usage of the file system on which the engine stores images.
    async fn disk(&self) -> Result<Disk, ImageError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub id: String,
    /// Such as `sandbox:1`. An image that a newer one replaced has no tags.
    pub tags: Vec<String>,
    /// The size with shared layers.
    pub bytes: u64,
    pub created_at: Timestamp,
    pub labels: BTreeMap<String, String>,
}

impl Image {
    /// Returns a reference as engines show it among an image's tags: with its tag and without the default registry.
    pub fn full_tag(reference: &str) -> String {
        let short = reference.strip_prefix("docker.io/").unwrap_or(reference);
        let short = short.strip_prefix("library/").unwrap_or(short);
        match short.rsplit('/').next() {
            Some(last) if last.contains(':') => short.to_owned(),
            _ => format!("{short}:latest"),
        }
    }
}

/// A layer of an image. Images share a layer if they also share all layers below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub digest: String,
    pub bytes: u64,
}

/// The input of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    pub tag: String,
    pub context: Context,
    /// The path of the Dockerfile within the context.
    pub dockerfile: String,
    pub arguments: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
}

/// The files of a build: a directory of the host, and additional files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    pub directory: PathBuf,
    /// The path of the directory within the context; empty for the context itself.
    pub place: String,
    pub files: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

impl Disk {
    pub fn used_percent(&self) -> f64 {
        match self.total_bytes {
            0 => 0.0,
            total => 100.0 * (total - self.free_bytes.min(total)) as f64 / total as f64,
        }
    }
}

/// The progress of a pull or a build.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    pub message: String,
    /// The layer that the progress is about.
    pub layer: Option<String>,
    pub done_bytes: Option<u64>,
    pub total_bytes: Option<u64>,
}

/// Reports progress to its subscribers. A slow subscriber misses reports.
#[derive(Debug, Clone)]
pub struct Reporter(broadcast::Sender<Progress>);

impl Reporter {
    /// The number of reports held for a slow subscriber.
    const BACKLOG: usize = 512;

    pub fn new() -> Self {
        Self(broadcast::Sender::new(Self::BACKLOG))
    }

    pub fn report(&self, progress: Progress) {
        // There may be no subscriber.
        let _ = self.0.send(progress);
    }

    pub fn report_message(&self, message: impl Into<String>) {
        self.report(Progress { message: message.into(), ..Progress::default() });
    }

    /// Returns a channel of all reports from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Progress> {
        self.0.subscribe()
    }
}

impl Default for Reporter {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    #[error("the engine is unavailable: {reason}")]
    EngineUnavailable { reason: String },
    #[error("the engine refused: {reason}")]
    Refused { reason: String },
    #[error("image {image} cannot be pulled: {reason}")]
    PullFailed { image: String, registry: String, reason: String },
    #[error("the build of image {tag} failed: {reason}{}", at(.step))]
    BuildFailed {
        tag: String,
        /// The instruction that failed, such as `Step 3/7 : RUN make`.
        step: Option<String>,
        reason: String,
        /// The last lines that the build printed.
        log_tail: Vec<String>,
    },
    #[error("repository {repository} cannot be read: {reason}")]
    SourceUnavailable { repository: String, reason: String },
    #[error("{operation} took longer than {limit:?}")]
    TimedOut { operation: String, limit: Duration },
    #[error("no repository {repository} is configured")]
    NoSuchRepository { repository: String },
    /// The builder failed, or the service shuts down.
    #[error("the image builder was interrupted; try again")]
    Interrupted,
}

fn at(step: &Option<String>) -> String {
    step.as_ref().map(|step| format!(", at {step}")).unwrap_or_default()
}

impl ImageError {
    /// Returns the word for metric labels.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::EngineUnavailable { .. } => "engine_unavailable",
            Self::SourceUnavailable { .. } => "source_unavailable",
            Self::TimedOut { .. } => "timed_out",
            Self::Interrupted => "interrupted",
            _ => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_spelt_as_engines_spell_it() {
        for (given, shown) in [
            ("app", "app:latest"),
            ("app:1", "app:1"),
            ("docker.io/library/app", "app:latest"),
            ("docker.io/me/app:1", "me/app:1"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
        ] {
            assert_eq!(Image::full_tag(given), shown);
        }
    }
}
