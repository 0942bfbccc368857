//! The errors of the journal, with their remedies.

use std::time::Duration;

/// An error of the journal. All writers of a batch get a clone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    #[error("the disk of the journal {file} is full ({message}); free some space, and writing resumes by itself")]
    Full { file: String, message: String },
    #[error(
        "the journal {file} is damaged ({message}); restore a backup of it, or start once with --rebuild-journal, \
         which sets it aside and rebuilds it from the labels of the containers"
    )]
    Corrupt { file: String, message: String },
    #[error(
        "the journal {file} has version {found}, but this program supports at most {known}; run the program that \
         wrote it, or start once with --rebuild-journal, which sets it aside and rebuilds it from the labels of the \
         containers"
    )]
    Newer { file: String, found: i32, known: i32 },
    #[error("the journal {file} is in use by {holder}; stop that process, or set another state.dir for this one")]
    Busy { file: String, holder: String },
    #[error("the journal {file} belongs to instance {found}, not to {wanted}; check instance.name and state.dir")]
    OtherInstance { file: String, found: String, wanted: String },
    #[error("the journal {file} cannot be used ({message}); check its directory, its permissions and its disk")]
    Io { file: String, message: String },
    /// The write continues with an unknown result.
    #[error("the journal did not answer within {limit:?}; the write may be on disk or not")]
    TimedOut { limit: Duration },
    #[error("the journal has {limit} entries queued and accepts no more; try again when the disk keeps up")]
    Overloaded { limit: usize },
    #[error("the journal has stopped; the last writes may be on disk or not")]
    Stopped,
    /// A defect of the service.
    #[error("the journal failed: {message}")]
    Defect { message: String },
}

impl JournalError {
    /// Returns the word for metric labels and `error.type`.
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

    /// Whether the same write may succeed later without a repair of the journal.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::TimedOut { .. } | Self::Overloaded { .. })
    }
}
