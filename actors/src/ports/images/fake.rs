//! A fake image store and fake repositories in memory, for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;

use super::{Build, Disk, Image, ImageError, Images, Layer, Progress, Reporter};
use crate::builder::repository_image::Repository;
use crate::ports::repositories::{Checkout, CheckoutGuard, Sources};

#[derive(Debug, Clone)]
pub struct FakeImages {
    inner: Arc<Mutex<Inner>>,
    /// Pulls and builds wait until the gate is open.
    gate: watch::Sender<bool>,
}

#[derive(Debug)]
struct Inner {
    images: Vec<Image>,
    in_use: BTreeSet<String>,
    disk: Disk,
    pulls: Vec<String>,
    builds: Vec<Build>,
    failure: Option<ImageError>,
    made: u64,
}

impl Default for FakeImages {
    fn default() -> Self {
        let inner = Inner {
            images: Vec::new(),
            in_use: BTreeSet::new(),
            disk: Disk { total_bytes: 100 << 30, free_bytes: 50 << 30 },
            pulls: Vec::new(),
            builds: Vec::new(),
            failure: None,
            made: 0,
        };
        Self { inner: Arc::new(Mutex::new(inner)), gate: watch::Sender::new(true) }
    }
}

impl FakeImages {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an image with this tag and returns its id. Another image with the tag loses it.
    pub fn add(&self, tag: &str, labels: BTreeMap<String, String>) -> String {
        let mut inner = self.locked();
        inner.made += 1;
        let id = format!("sha256:{:064x}", inner.made);
        for image in &mut inner.images {
            image.tags.retain(|other| other != tag);
        }
        let created_at = chrono::Utc::now();
        inner.images.push(Image { id: id.clone(), tags: vec![tag.to_owned()], bytes: 1 << 20, created_at, labels });
        id
    }

    pub fn close(&self) {
        self.gate.send_replace(false);
    }

    pub fn open(&self) {
        self.gate.send_replace(true);
    }

    /// Makes builds and pulls fail with this error, or succeed again.
    pub fn fail(&self, failure: Option<ImageError>) {
        self.locked().failure = failure;
    }

    pub fn use_image(&self, id: &str) {
        self.locked().in_use.insert(id.to_owned());
    }

    pub fn pulls(&self) -> Vec<String> {
        self.locked().pulls.clone()
    }

    pub fn builds(&self) -> Vec<Build> {
        self.locked().builds.clone()
    }

    pub fn ids(&self) -> Vec<String> {
        self.locked().images.iter().map(|image| image.id.clone()).collect()
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn pass_gate(&self) -> Result<(), ImageError> {
        // The sender lives in this value, so the wait cannot fail.
        let _ = self.gate.subscribe().wait_for(|open| *open).await;
        self.locked().failure.clone().map_or(Ok(()), Err)
    }
}

#[async_trait]
impl Images for FakeImages {
    async fn list(&self) -> Result<Vec<Image>, ImageError> {
        Ok(self.locked().images.clone())
    }

    async fn inspect(&self, reference: &str) -> Result<Option<Image>, ImageError> {
        let matches = |image: &&Image| image.id == reference || image.tags.iter().any(|tag| tag == reference);
        Ok(self.locked().images.iter().find(matches).cloned())
    }

    async fn pull(&self, reference: &str, reporter: &Reporter) -> Result<String, ImageError> {
        self.locked().pulls.push(reference.to_owned());
        self.pass_gate().await?;
        let (layer, total_bytes) = (Some("a3ed95caeb02".to_owned()), Some(1 << 20));
        reporter.report(Progress { message: "Downloading".into(), layer, done_bytes: Some(1 << 19), total_bytes });
        Ok(self.add(reference, BTreeMap::new()))
    }

    async fn build(&self, build: &Build, reporter: &Reporter) -> Result<String, ImageError> {
        self.locked().builds.push(build.clone());
        reporter.report_message("Step 1/2 : FROM sandbox:1");
        self.pass_gate().await?;
        Ok(self.add(&build.tag, build.labels.clone()))
    }

    async fn in_use(&self) -> Result<BTreeSet<String>, ImageError> {
        Ok(self.locked().in_use.clone())
    }

    /// Returns one layer, which no other image shares.
    async fn layers(&self, image: &Image) -> Result<Vec<Layer>, ImageError> {
        Ok(vec![Layer { digest: image.id.clone(), bytes: image.bytes }])
    }

    async fn remove(&self, image: &Image) -> Result<(), ImageError> {
        self.locked().images.retain(|other| other.id != image.id);
        Ok(())
    }

    async fn prune_build_cache(&self) -> Result<u64, ImageError> {
        Ok(0)
    }

    async fn disk(&self) -> Result<Disk, ImageError> {
        Ok(self.locked().disk)
    }
}

/// A repository whose branch a test sets to any commit.
#[derive(Debug, Clone, Default)]
pub struct FakeSources(Arc<Mutex<Option<String>>>);

impl FakeSources {
    pub fn at(commit: &str) -> Self {
        let sources = Self::default();
        sources.move_to(Some(commit));
        sources
    }

    /// Moves the branch. With `None`, the repository cannot be read.
    pub fn move_to(&self, commit: Option<&str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = commit.map(str::to_owned);
    }
}

#[async_trait]
impl Sources for FakeSources {
    async fn head(&self, repository: &Repository) -> Result<String, ImageError> {
        let head = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let unavailable =
            || ImageError::SourceUnavailable { repository: repository.name.clone(), reason: "gone".into() };
        head.ok_or_else(unavailable)
    }

    async fn check_out(&self, repository: &Repository) -> Result<Checkout, ImageError> {
        let commit = self.head(repository).await?;
        Ok(Checkout { directory: "/checkout".into(), commit, guard: Box::new(NoGuard) })
    }
}

#[derive(Debug)]
struct NoGuard;

impl CheckoutGuard for NoGuard {}
