//! Requests about images. A waiting caller gets progress notifications; a disconnect does not cancel the operation.

use sandboxd_actors::builder::{BuildRequest, Follower};
use sandboxd_protocol::error::{Error, ErrorKind};
use tokio_util::sync::CancellationToken;

use super::handler::{Handler, path_error};
use super::outbox::Ticket;
use crate::protocol::answer::{self, Answer};
use crate::protocol::error::of_image;
use crate::protocol::images::{ImageBuild, ImageCall};
use crate::protocol::notification::Notification;

impl Handler {
    pub(super) async fn image(
        &self,
        call: ImageCall,
        ticket: &Ticket,
        shutdown: &CancellationToken,
    ) -> Result<Answer, Error> {
        let sandboxes = &self.sandboxes;
        let follower = match call {
            ImageCall::List => {
                let listing = sandboxes.images().await.map_err(of_image)?;
                return Ok(Answer::Images(answer::images(listing)));
            }
            ImageCall::Prune { dry_run } => {
                let pruned = sandboxes.prune_images(dry_run).await.map_err(of_image)?;
                return Ok(Answer::Pruned(answer::pruned_images(pruned, dry_run)));
            }
            ImageCall::Pull { image } => sandboxes.pull_image(image).await,
            ImageCall::Refresh { repository, force } => sandboxes.refresh_image(repository, force).await,
            ImageCall::Build(build) => sandboxes.build_image(self.build_request(*build).await?).await,
        };
        let follower = follower.map_err(of_image)?;
        tokio::select! {
            answer = follow(follower, ticket) => answer,
            () = shutdown.cancelled() => Err(ErrorKind::ShuttingDown.error("the service is shutting down")),
        }
    }

    async fn build_request(&self, build: ImageBuild) -> Result<BuildRequest, Error> {
        let ImageBuild { context, dockerfile, tag, arguments } = build;
        let directory = self.contexts.resolve(&context).await.map_err(|why| path_error("context", why))?;
        let directory = directory.as_path().to_owned();
        Ok(BuildRequest { tag, directory, dockerfile, arguments })
    }
}

async fn follow(mut follower: Follower, ticket: &Ticket) -> Result<Answer, Error> {
    while let Some(progress) = follower.next().await {
        // The operation continues if the caller has disconnected.
        let _ = ticket.notify(Notification::Progress(&progress)).await;
    }
    let made = follower.outcome().await.map_err(of_image)?;
    Ok(Answer::Image(answer::made_image(made)))
}
