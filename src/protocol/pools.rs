//! What is said about warm slots: hints that one will be wanted, and how each pool is doing.

use std::time::Duration;

use sandboxd_actors::domain::ids::{ChatId, ProfileName};
use sandboxd_actors::pool::Status;
use sandboxd_actors::pool::inventory::Hinted;
use sandboxd_actors::ports::slot::LateBinding;
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::fields::{duration, optional};
use super::request::Text;
use super::text::{Shown, Time};

/// How long a hint is good for that does not say: about as long as somebody types.
const DEFAULT_HINT: Duration = Duration::from_secs(60);

/// A sandbox will be wanted soon.
#[derive(Debug, PartialEq)]
pub struct Hint {
    pub profile: Option<ProfileName>,
    /// By this chat; by whichever comes first if absent.
    pub chat: Option<ChatId>,
    pub ttl: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HintFields<'a> {
    #[serde(borrow)]
    profile: Option<Text<'a>>,
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    ttl: Option<f64>,
}

impl HintFields<'_> {
    pub(super) fn checked(self) -> Result<Hint, Error> {
        Ok(Hint {
            profile: optional("profile", self.profile)?,
            chat: optional("chat_id", self.chat_id)?,
            ttl: duration("ttl", self.ttl)?.unwrap_or(DEFAULT_HINT),
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PoolFields<'a> {
    #[serde(borrow)]
    profile: Option<Text<'a>>,
}

impl PoolFields<'_> {
    pub(super) fn checked(self) -> Result<Option<ProfileName>, Error> {
        optional("profile", self.profile)
    }
}

/// A hint is never an error: whoever gives one goes on the same way whatever comes of it.
#[derive(Debug, Serialize)]
pub struct HintAnswer {
    profile: Shown<ProfileName>,
    chat_id: Option<Shown<ChatId>>,
    outcome: &'static str,
    until: Option<Time>,
    message: Option<String>,
}

impl HintAnswer {
    /// `hinted` is absent where the pool has failed a moment ago.
    pub fn of(profile: ProfileName, chat: Option<ChatId>, hinted: Option<Result<Hinted, String>>) -> Self {
        let (outcome, until, message) = match hinted {
            Some(Ok(Hinted::Preparing { until })) => ("preparing", Some(Time(until)), None),
            Some(Ok(Hinted::OverBudget { limit })) => {
                ("over_budget", None, Some(format!("{limit} hints are waiting to come true (pool.hints)")))
            }
            Some(Err(why)) => ("unavailable", None, Some(why)),
            None => ("unavailable", None, Some("the pool is being started again".to_owned())),
        };
        HintAnswer { profile: Shown(profile), chat_id: chat.map(Shown), outcome, until, message }
    }
}

#[derive(Debug, Serialize)]
pub struct PoolsAnswer {
    pools: Vec<PoolAnswer>,
}

#[derive(Debug, Serialize)]
struct PoolAnswer {
    profile: Shown<ProfileName>,
    target: usize,
    free: usize,
    coming: usize,
    taken: usize,
    removing: usize,
    drained: bool,
    hints: usize,
    image_id: Option<String>,
    /// How a slot becomes a chat's, where it can.
    late_binding: Option<&'static str>,
    /// Why in no better way.
    late_binding_because: Option<String>,
    unavailable: Option<String>,
    last_error: Option<String>,
    retry_at: Option<Time>,
    claims: ClaimFields,
    hinted: HintCounts,
}

#[derive(Debug, Serialize)]
struct ClaimFields {
    hits: u64,
    misses: u64,
    spoiled: u64,
}

#[derive(Debug, Serialize)]
struct HintCounts {
    hits: u64,
    wasted: u64,
}

impl PoolsAnswer {
    pub fn of(statuses: Vec<Status>) -> Self {
        PoolsAnswer { pools: statuses.into_iter().map(PoolAnswer::of).collect() }
    }
}

impl PoolAnswer {
    fn of(status: Status) -> Self {
        let Status { profile, target, slots, is_drained, removing, hints, image_id, late_binding, .. } = status;
        let Status { last_error, retry_at, tally, .. } = status;
        let because = |way: &LateBinding| match way {
            LateBinding::Injected => None,
            LateBinding::Propagated { because } => Some(because.clone()),
        };
        PoolAnswer {
            profile: Shown(profile),
            target,
            free: slots.free,
            coming: slots.coming,
            taken: slots.taken,
            removing,
            drained: is_drained,
            hints,
            image_id,
            late_binding: late_binding.as_ref().ok().map(LateBinding::as_str),
            late_binding_because: late_binding.as_ref().ok().and_then(because),
            unavailable: late_binding.err(),
            last_error,
            retry_at: retry_at.map(Time),
            claims: ClaimFields { hits: tally.hits, misses: tally.misses, spoiled: tally.spoiled },
            hinted: HintCounts { hits: tally.hints_hit, wasted: tally.hints_wasted },
        }
    }
}
