//! Requests about pools.

use std::time::Duration;

use sandboxd_actors::domain::ids::{ChatId, ProfileName};

/// A hint that a sandbox is needed soon.
#[derive(Debug, PartialEq)]
pub struct Hint {
    pub profile: Option<ProfileName>,
    /// The chat that will need it; any chat if absent.
    pub chat: Option<ChatId>,
    pub ttl: Duration,
}

impl Hint {
    /// The duration of a hint without one: about as long as a person types.
    pub(super) const DEFAULT_TTL: Duration = Duration::from_secs(60);
}
