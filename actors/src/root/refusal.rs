//! The answer to a create that reaches a limit: which limit, and when to retry.

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

/// The bounds of the retry delay.
const SOONEST_RETRY: Duration = Duration::from_secs(1);
const LATEST_RETRY: Duration = Duration::from_secs(60);

/// The time limit for the reaper to return its next deadline.
const NEXT_LIMIT: Duration = Duration::from_millis(200);

/// Answers from a background task: the retry delay is the time until the reaper's next deadline, when a sandbox may
/// end.
pub(super) fn answer(
    chat: ChatId,
    LimitReached { kind, limit }: LimitReached,
    answer: Answer<Created>,
    reaper: Option<ActorRef<reaper::Message>>,
    clock: &Arc<dyn Clock>,
) {
    metrics::counter!("sandboxd_admission_denied_total", "what" => kind.as_str()).increment(1);
    let clock = Arc::clone(clock);
    tokio::spawn(async move {
        let next = match reaper {
            Some(reaper) => ask_within(&reaper, NEXT_LIMIT, reaper::Message::Next).await.flatten(),
            None => None,
        };
        let until = next.and_then(|next| (next - clock.now()).to_std().ok()).unwrap_or(SOONEST_RETRY);
        let retry_after = until.clamp(SOONEST_RETRY, LATEST_RETRY);
        let _ = answer.send(Err(SandboxError::AdmissionDenied { chat, what: kind, limit, retry_after }));
    });
}
