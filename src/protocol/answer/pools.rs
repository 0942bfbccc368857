//! Hints and pools as they are on the wire.

use sandboxd_actors::domain::ids::{ChatId, ProfileName};
use sandboxd_actors::pool::Status;
use sandboxd_actors::pool::inventory::Hinted;
use sandboxd_actors::ports::slot;
use sandboxd_protocol::pool::{ClaimCounts, HintCounts, LateBinding, Pool, PoolsResult};
use sandboxd_protocol::sandbox::{HintOutcome, HintResult};
use sandboxd_protocol::time::Time;

/// Returns the result of a hint. `hinted` is absent if the pool is being restarted. No outcome is an error, since each
/// leaves the caller the same next step.
pub fn hint(profile: &ProfileName, chat: Option<ChatId>, hinted: Option<Result<Hinted, String>>) -> HintResult {
    let (outcome, until, message) = match hinted {
        Some(Ok(Hinted::Preparing { until })) => (HintOutcome::Preparing, Some(Time(until)), None),
        Some(Ok(Hinted::OverBudget { limit })) => {
            (HintOutcome::OverBudget, None, Some(format!("the limit of {limit} open hints is reached (pool.hints)")))
        }
        Some(Err(why)) => (HintOutcome::Unavailable, None, Some(why)),
        None => (HintOutcome::Unavailable, None, Some("the pool is restarting; try again".to_owned())),
    };
    HintResult { profile: profile.to_string(), chat_id: chat.map(|chat| chat.to_string()), outcome, until, message }
}

pub fn pools(statuses: Vec<Status>) -> PoolsResult {
    PoolsResult { pools: statuses.into_iter().map(pool).collect() }
}

fn pool(status: Status) -> Pool {
    let Status { profile, target, slots, is_drained, removing, hints, image_id, late_binding, .. } = status;
    let Status { last_error, retry_at, counters, .. } = status;
    let (late_binding, late_binding_because, unavailable) = match late_binding {
        Ok(slot::LateBinding::Injected) => (Some(LateBinding::Injected), None, None),
        Ok(slot::LateBinding::Propagated { because }) => (Some(LateBinding::Propagated), Some(because), None),
        Err(why) => (None, None, Some(why)),
    };
    Pool {
        profile: profile.to_string(),
        target: target as u64,
        free: slots.free as u64,
        coming: slots.coming as u64,
        taken: slots.taken as u64,
        removing: removing as u64,
        drained: is_drained,
        hints: hints as u64,
        image_id,
        late_binding,
        late_binding_because,
        unavailable,
        last_error,
        retry_at: retry_at.map(Time),
        claims: ClaimCounts { hits: counters.hits, misses: counters.misses, spoiled: counters.spoiled },
        hinted: HintCounts { hits: counters.hints_hit, wasted: counters.hints_wasted },
    }
}
