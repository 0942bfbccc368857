//! The image API of the core.

use ractor::RpcReplyPort;

use super::Sandboxes;
use crate::builder::{BuildRequest, Follower, Listing, Message, Pruned};
use crate::ports::images::ImageError;

impl Sandboxes {
    /// Pulls an image. A request for an image that is being pulled joins that pull.
    pub async fn pull_image(&self, image: String) -> Result<Follower, ImageError> {
        self.builder(|follower| Message::Pull { image, follower }).await
    }

    pub async fn build_image(&self, request: BuildRequest) -> Result<Follower, ImageError> {
        self.builder(|follower| Message::Build { request: Box::new(request), follower }).await
    }

    /// Checks a repository now, and builds its image if it is outdated, or always if `force` is set.
    pub async fn refresh_image(&self, repository: String, force: bool) -> Result<Follower, ImageError> {
        self.builder(|follower| Message::Refresh { repository, force, follower }).await?
    }

    pub async fn images(&self) -> Result<Listing, ImageError> {
        self.builder(|listing| Message::List { listing }).await?
    }

    /// Removes the unused images, or returns them without removing if `dry_run` is set.
    pub async fn prune_images(&self, dry_run: bool) -> Result<Pruned, ImageError> {
        self.builder(|pruned| Message::Prune { dry_run, pruned }).await?
    }

    async fn builder<T: Send + 'static>(
        &self,
        message: impl FnOnce(RpcReplyPort<T>) -> Message,
    ) -> Result<T, ImageError> {
        self.world.addresses.builder.ask(message).await.ok_or(ImageError::Interrupted)
    }
}
