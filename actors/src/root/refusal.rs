//! What a caller is told for whose sandbox there is no room: what is full, and when to ask again.

use std::sync::Arc;
use std::time::Duration;

use ractor::ActorRef;

use crate::chat::actor::Answer;
use crate::domain::ids::ChatId;
use crate::domain::outcome::{Created, SandboxError};
use crate::ports::clock::Clock;
use crate::reaper;
use crate::root::limits::LimitReached;
use crate::sandboxes::ask_within;

/// Between these it makes sense to ask again.
const SOONEST_RETRY: Duration = Duration::from_secs(1);
const LATEST_RETRY: Duration = Duration::from_secs(60);

/// How long the reaper may take to say when the next sandbox ends.
const NEXT_LIMIT: Duration = Duration::from_millis(200);

/// In the background, for the reaper is asked when the next sandbox ends: there may be room then.
pub(super) fn answer(
    chat: ChatId,
    LimitReached { what, limit }: LimitReached,
    answer: Answer<Created>,
    reaper: Option<ActorRef<reaper::Message>>,
    clock: &Arc<dyn Clock>,
) {
    metrics::counter!("sandboxd_admission_denied_total", "what" => what.as_str()).increment(1);
    let clock = Arc::clone(clock);
    tokio::spawn(async move {
        let next = match reaper {
            Some(reaper) => ask_within(&reaper, NEXT_LIMIT, reaper::Message::Next).await.flatten(),
            None => None,
        };
        let until = next.and_then(|next| (next - clock.now()).to_std().ok()).unwrap_or(SOONEST_RETRY);
        let retry_after = until.clamp(SOONEST_RETRY, LATEST_RETRY);
        let _ = answer.send(Err(SandboxError::AdmissionDenied { chat, what, limit, retry_after }));
    });
}
