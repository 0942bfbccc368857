//! The resource usage of a sandbox, measured by its init. A request for it does not count as use, so that a monitor does
//! not keep the sandbox alive.

use std::time::Duration;

use sandbox_init::wire::{Event, Request, Usage};
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_protocol::error::{Error, ErrorKind};

use super::{GuestCall, disconnected, unexpected, unreachable};
use crate::protocol::answer::{self, Answer};
use crate::protocol::notification::Notification;

/// The first interval over which the CPU usage is measured.
const WINDOW: Duration = Duration::from_millis(100);

/// How long init may take; it reads only a few files of the kernel.
const USAGE_LIMIT: Duration = Duration::from_secs(5);

impl GuestCall<'_> {
    pub(super) async fn stats(&self, chat: ChatId, interval: Option<Duration>) -> Result<Answer, Error> {
        let measuring = async {
            let mut before = self.usage(chat).await?;
            let mut pause = WINDOW;
            loop {
                tokio::time::sleep(pause).await;
                let now = self.usage(chat).await?;
                let stats = answer::stats(&before, &now, self.clock.now());
                let Some(interval) = interval else { return Ok(Answer::Stats(stats)) };
                self.notify(Notification::Stats(&stats)).await.map_err(|_| disconnected())?;
                (before, pause) = (now, interval);
            }
        };
        tokio::select! {
            outcome = measuring => outcome,
            () = self.disconnected.cancelled() => Err(disconnected()),
            () = self.shutdown.cancelled() => Err(ErrorKind::ShuttingDown.error("the service is shutting down")),
        }
    }

    async fn usage(&self, chat: ChatId) -> Result<Usage, Error> {
        let sandbox = self.running(chat).await?;
        let stream = self.guest(&sandbox)?.open_stream(&Request::Usage {}).await.map_err(unreachable)?;
        match tokio::time::timeout(USAGE_LIMIT, stream.answer()).await {
            Ok(Ok(Event::Usage { usage })) => Ok(usage),
            Ok(other) => Err(unexpected(other)),
            Err(_) => {
                Err(ErrorKind::GuestUnreachable
                    .error(format!("the sandbox's init did not answer within {USAGE_LIMIT:?}")))
            }
        }
    }
}
