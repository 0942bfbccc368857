//! Requests about pools.

use std::time::Duration;

use sandboxd_actors::domain::ids::{ChatId, ProfileName};

/// A sandbox will be wanted soon.
#[derive(Debug, PartialEq)]
pub struct Hint {
    pub profile: Option<ProfileName>,
    /// By this chat; by whichever comes first if absent.
    pub chat: Option<ChatId>,
    pub ttl: Duration,
}

impl Hint {
    /// How long a hint without a duration lasts: about as long as a person types.
    pub(super) const DEFAULT_TTL: Duration = Duration::from_secs(60);
}
