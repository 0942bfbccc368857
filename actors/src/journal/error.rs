//! Why a journal cannot be used, or has not written, and what to do about it.

use std::time::Duration;

/// Shared by all writers of a batch, so it can be cloned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    #[error("the journal {file} has no room left ({message}); once there is space again, it goes on by itself")]
    Full { file: String, message: String },
    #[error(
        "the journal {file} is damaged ({message}); bring back a good copy of it, or start once with --rebuild-journal, \
         which sets it aside and begins with what the containers' labels tell"
    )]
    Corrupt { file: String, message: String },
    #[error(
        "the journal {file} is of version {found}, and this program knows none after {known}; run the program that \
         wrote it, or start once with --rebuild-journal, which sets it aside and begins with what the containers' \
         labels tell"
    )]
    Newer { file: String, found: i32, known: i32 },
    #[error("the journal {file} is in use by {holder}; stop that one, or give this one a state.dir of its own")]
    Busy { file: String, holder: String },
    #[error("the journal {file} belongs to instance {found}, not to {wanted}; check instance.name and state.dir")]
    OtherInstance { file: String, found: String, wanted: String },
    #[error("the journal {file} cannot be used ({message}); check its directory, its permissions and its disk")]
    Io { file: String, message: String },
    /// The write goes on, and nobody knows how it ends.
    #[error("the journal did not answer within {limit:?}; what was written may be on disk or not")]
    TimedOut { limit: Duration },
    #[error("the journal has {limit} entries waiting and takes no more until the disk keeps up")]
    Overloaded { limit: usize },
    #[error("the journal has stopped; what was written last may be on disk or not")]
    Stopped,
    /// A defect of the service.
    #[error("the journal failed: {message}")]
    Defect { message: String },
}

impl JournalError {
    /// For a metric's label and `error.type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Full { .. } => "full",
            Self::Corrupt { .. } => "corrupt",
            Self::Newer { .. } => "newer",
            Self::Busy { .. } => "busy",
            Self::OtherInstance { .. } => "other_instance",
            Self::Io { .. } => "io",
            Self::TimedOut { .. } => "timed_out",
            Self::Overloaded { .. } => "overloaded",
            Self::Stopped => "stopped",
            Self::Defect { .. } => "defect",
        }
    }

    /// The same write may succeed later, without anybody mending the journal itself.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::TimedOut { .. } | Self::Overloaded { .. })
    }
}
