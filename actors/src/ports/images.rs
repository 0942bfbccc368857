//! The port to an engine's images, and what an image of ours says about itself.
//!
//! Beside [`crate::ports::engine::Engine`], and not a part of it: what is asked for here takes minutes and tells of its
//! progress, and nothing of it is on a sandbox's path.

#[cfg(feature = "fake-engine")]
pub mod fake;
pub mod labels;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;

use crate::ports::clock::Timestamp;

#[async_trait]
pub trait Images: Send + Sync + 'static {
    /// Every image but the layers that only others consist of.
    async fn list(&self) -> Result<Vec<Image>, ImageError>;

    /// Looks an image up by tag or id.
    async fn inspect(&self, reference: &str) -> Result<Option<Image>, ImageError>;

    /// Gets an image from its registry, and answers its id.
    async fn pull(&self, reference: &str, reporter: &Reporter) -> Result<String, ImageError>;

    /// Builds an image, tags it, and answers its id. An image that had the tag before keeps its id and loses the tag.
    async fn build(&self, build: &Build, reporter: &Reporter) -> Result<String, ImageError>;

    /// The images that containers are made of, whether they run or not.
    async fn in_use(&self) -> Result<BTreeSet<String>, ImageError>;

    /// What an image is made of, from the lowest up; nothing of one that is gone.
    async fn layers(&self, image: &Image) -> Result<Vec<Layer>, ImageError>;

    /// Removes an image and the layers that only it had. One that is gone already is fine; one that a container or
    /// another image needs is refused.
    async fn remove(&self, image: &Image) -> Result<(), ImageError>;

    /// Removes what earlier builds left for later ones; answers how many bytes that freed.
    async fn prune_build_cache(&self) -> Result<u64, ImageError>;

    /// The file system that the engine keeps images on.
    async fn disk(&self) -> Result<Disk, ImageError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub id: String,
    /// Such as `sandbox:1`. An image that was replaced by a newer one has none.
    pub tags: Vec<String>,
    /// With the layers that it shares with others.
    pub bytes: u64,
    pub created_at: Timestamp,
    pub labels: BTreeMap<String, String>,
}

impl Image {
    /// A reference as engines show it among an image's tags: with its tag, and without what they take for granted.
    pub fn full_tag(reference: &str) -> String {
        let short = reference.strip_prefix("docker.io/").unwrap_or(reference);
        let short = short.strip_prefix("library/").unwrap_or(short);
        match short.rsplit('/').next() {
            Some(last) if last.contains(':') => short.to_owned(),
            _ => format!("{short}:latest"),
        }
    }
}

/// A part of an image, which is the same as another's if those below it are, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub digest: String,
    pub bytes: u64,
}

/// What an image is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    pub tag: String,
    pub context: Context,
    /// Where the instructions are within the context.
    pub dockerfile: String,
    pub arguments: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
}

/// The files that a build sees: a directory of the host, and what is put beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    pub directory: PathBuf,
    /// Where the directory is within the context; empty for the context itself.
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

/// How far a pull or a build has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    pub message: String,
    /// The layer that it is about.
    pub layer: Option<String>,
    pub done_bytes: Option<u64>,
    pub total_bytes: Option<u64>,
}

/// Tells progress to whoever wants to know. Whoever is too slow for it misses some.
#[derive(Debug, Clone)]
pub struct Reporter(broadcast::Sender<Progress>);

impl Reporter {
    /// How much is kept for one who is slow.
    const KEPT: usize = 512;

    pub fn new() -> Self {
        Self(broadcast::Sender::new(Self::KEPT))
    }

    pub fn tell(&self, progress: Progress) {
        // Nobody may want to know.
        let _ = self.0.send(progress);
    }

    pub fn say(&self, message: impl Into<String>) {
        self.tell(Progress { message: message.into(), ..Progress::default() });
    }

    /// What is told from now on.
    pub fn listen(&self) -> broadcast::Receiver<Progress> {
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
    #[error("the engine does not answer: {reason}")]
    EngineUnavailable { reason: String },
    #[error("the engine refused: {reason}")]
    Refused { reason: String },
    #[error("image {image} cannot be pulled: {reason}")]
    PullFailed { image: String, registry: String, reason: String },
    #[error("image {tag} was not built: {reason}{}", at(.step))]
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
    #[error("{what} took longer than {limit:?}")]
    TimedOut { what: String, limit: Duration },
    #[error("there is no repository {repository}")]
    NoSuchRepository { repository: String },
    /// The builder failed, or the service shuts down.
    #[error("the builder was interrupted")]
    Interrupted,
}

fn at(step: &Option<String>) -> String {
    step.as_ref().map(|step| format!(", at {step}")).unwrap_or_default()
}

impl ImageError {
    /// For a metric's label.
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
