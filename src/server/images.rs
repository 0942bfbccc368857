//! Images, from a call to its answer. Whoever waits is told how far it has come; whoever goes away does not end it.

use sandboxd_actors::builder::{BuildRequest, Follower};
use tokio_util::sync::CancellationToken;

use super::handler::{Handler, refused};
use super::outbox::Ticket;
use crate::protocol::answer::{self, Answer};
use crate::protocol::error::{Error, Kind, of_image};
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
        let following = match call {
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
        let following = following.map_err(of_image)?;
        tokio::select! {
            answer = follow(following, ticket) => answer,
            () = shutdown.cancelled() => Err(Kind::ShuttingDown.error("the service is shutting down")),
        }
    }

    async fn build_request(&self, build: ImageBuild) -> Result<BuildRequest, Error> {
        let ImageBuild { context, dockerfile, tag, arguments } = build;
        let directory = self.contexts.resolve(&context).await.map_err(|why| refused("context", why))?;
        let directory = directory.as_path().to_owned();
        Ok(BuildRequest { tag, directory, dockerfile, arguments })
    }
}

async fn follow(mut following: Follower, ticket: &Ticket) -> Result<Answer, Error> {
    while let Some(progress) = following.next().await {
        // Nobody may listen, and it is done all the same.
        let _ = ticket.notify(Notification::Progress(&progress)).await;
    }
    let made = following.outcome().await.map_err(of_image)?;
    Ok(Answer::Image(answer::made_image(made)))
}
