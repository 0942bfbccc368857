//! What a sandbox uses, as its init sees it. Looking is no use of the sandbox: a monitor does not keep it from ending.

use std::time::Duration;

use sandbox_init::wire::{Event, Request, Usage};
use sandboxd_actors::domain::ids::ChatId;

use super::{GuestCall, gone, unexpected, unreachable};
use crate::protocol::answer::{self, Answer};
use crate::protocol::error::{Error, Kind};
use crate::protocol::notification::Notification;

/// How much a CPU is used shows only over some time.
const WINDOW: Duration = Duration::from_millis(100);

/// Init reads a few files of the kernel's.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

impl GuestCall<'_> {
    pub(super) async fn stats(&self, chat: ChatId, interval: Option<Duration>) -> Result<Answer, Error> {
        let looking = async {
            let mut before = self.usage(chat).await?;
            let mut pause = WINDOW;
            loop {
                tokio::time::sleep(pause).await;
                let now = self.usage(chat).await?;
                let stats = answer::stats(&before, &now, self.clock.now());
                let Some(interval) = interval else { return Ok(Answer::Stats(stats)) };
                self.notify(Notification::Stats(&stats)).await.map_err(|_| gone())?;
                (before, pause) = (now, interval);
            }
        };
        tokio::select! {
            outcome = looking => outcome,
            () = self.gone.cancelled() => Err(gone()),
            () = self.shutdown.cancelled() => Err(Kind::ShuttingDown.error("the service is shutting down")),
        }
    }

    async fn usage(&self, chat: ChatId) -> Result<Usage, Error> {
        let sandbox = self.running(chat).await?;
        let conversation = self.interior(&sandbox)?.open_stream(&Request::Usage {}).await.map_err(unreachable)?;
        match tokio::time::timeout(LOOK_LIMIT, conversation.answer()).await {
            Ok(Ok(Event::Usage { usage })) => Ok(usage),
            Ok(other) => Err(unexpected(other)),
            Err(_) => Err(Kind::GuestUnreachable.error(format!("its init did not answer within {LOOK_LIMIT:?}"))),
        }
    }
}
