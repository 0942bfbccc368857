//! Conversion of the core's enums to the words of the wire. A new variant of the core needs a word before it compiles.

use sandboxd_actors::domain::{outcome, sandbox};
use sandboxd_actors::reconciler::plan;
use sandboxd_protocol as wire;

/// Defines functions from an enum of the core to the enum of the wire with the same variants.
macro_rules! conversions {
    ($($name:ident: $core:path => $wire:path { $($variant:ident),+ $(,)? })+) => {$(
        pub(super) fn $name(word: $core) -> $wire {
            use $core as Core;
            use $wire as Wire;
            match word {
                $(Core::$variant => Wire::$variant,)+
            }
        }
    )+};
}

conversions! {
    status: sandbox::Status => wire::sandbox::Status { Creating, Running, Paused, Stopped, Deleting, Failed }

    reason: sandbox::Reason => wire::sandbox::Reason {
        Requested, Ready, Adopted, Expired, Idle, Exited, Killed, OomKilled, Unhealthy, Vanished, RolledBack, Incomplete,
        Restarting, Resumed, ByOthers, Snapshotted, SnapshotFailed,
    }

    outcome: outcome::Outcome => wire::sandbox::Outcome { Created, Reused, Replaced, Restored }

    launch: outcome::Launch => wire::sandbox::Launch { Warm, Cold, None }

    limit_key: outcome::LimitKind => wire::error::LimitKey { Sandboxes, Profile, Workspace, Agent }

    because: plan::Because => wire::system::ReconcileBecause {
        Resumed, AdoptedFromLabels, Ended, Vanished, RemovalUnfinished, NeverAcknowledged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_has_the_words_of_the_wire() {
        assert_eq!(
            sandbox::Status::ALL.map(|word| status(word).as_str()),
            sandbox::Status::ALL.map(|word| word.as_str())
        );
        assert_eq!(
            sandbox::Reason::ALL.map(|word| reason(word).as_str()),
            sandbox::Reason::ALL.map(|word| word.as_str())
        );
    }
}
