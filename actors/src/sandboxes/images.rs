//! Images, as callers of the core see them. The builder is asked through root, which knows the one that is there now.

use ractor::RpcReplyPort;

use super::{Sandboxes, ask};
use crate::builder::{BuildRequest, Following, Listing, Message, Pruned};
use crate::ports::images::ImageError;
use crate::root;

impl Sandboxes {
    /// Pulls an image; whoever asks for one that is being pulled joins.
    pub async fn pull_image(&self, image: String) -> Result<Following, ImageError> {
        self.builder(|following| Message::Pull { image, following }).await
    }

    pub async fn build_image(&self, request: BuildRequest) -> Result<Following, ImageError> {
        self.builder(|following| Message::Build { request: Box::new(request), following }).await
    }

    /// Looks at a repository now, and builds its image if need be, or in any case if `force` is set.
    pub async fn refresh_image(&self, repository: String, force: bool) -> Result<Following, ImageError> {
        self.builder(|following| Message::Refresh { repository, force, following }).await?
    }

    pub async fn images(&self) -> Result<Listing, ImageError> {
        self.builder(|listing| Message::List { listing }).await?
    }

    /// Removes the images that nobody needs, or says which those are.
    pub async fn prune_images(&self, dry_run: bool) -> Result<Pruned, ImageError> {
        self.builder(|pruned| Message::Prune { dry_run, pruned }).await?
    }

    async fn builder<T: Send + 'static>(
        &self,
        message: impl FnOnce(RpcReplyPort<T>) -> Message,
    ) -> Result<T, ImageError> {
        let asked = ask(&self.root, |answer| root::Message::Images(message(answer))).await;
        asked.ok_or(ImageError::Interrupted)
    }
}
