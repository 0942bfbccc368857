//! What a caller is told when a request fails, and the one place where the core's errors become that.

use sandboxd_actors::domain::outcome::{Death, NotSaved, RemovalError, SandboxError, StartFailure};
use sandboxd_actors::engine::fair_queue::QueueTimeout;
use sandboxd_actors::journal::JournalError;
use sandboxd_actors::ports::engine::EngineError;
use sandboxd_actors::ports::images::ImageError;
use serde::ser::{Serialize, SerializeStruct, Serializer};
use serde_json::{Map, Value, json};

use crate::images::base::how_to_get;

/// A failure as it goes over the wire.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    pub kind: Kind,
    /// For people.
    pub message: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// For programs; which entries there are depends on the kind.
    pub details: Map<String, Value>,
}

/// Which failure it is. A kind always has the same code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    ParseError,
    InvalidRequest,
    MethodNotFound,
    InvalidParams,
    Internal,
    SandboxNotFound,
    SandboxConflict,
    SandboxStartFailed,
    SandboxDeleteFailed,
    SandboxNotRunning,
    LeaseNotFound,
    TooManyLeases,
    SnapshotNotFound,
    SnapshotFailed,
    SnapshotInUse,
    PurgeFailed,
    JournalUnavailable,
    GuestUnreachable,
    CommandNotStarted,
    CommandNotFound,
    FileError,
    SyncFailed,
    ImagePullFailed,
    ImageBuildFailed,
    RepositoryUnavailable,
    EngineUnavailable,
    ImageNotFound,
    ReadinessTimeout,
    AdmissionDenied,
    Busy,
    Unauthorized,
    ShuttingDown,
    LineTooLong,
    TooManyConnections,
    PathUnavailable,
}

impl Kind {
    pub const ALL: [Kind; 35] = [
        Kind::ParseError,
        Kind::InvalidRequest,
        Kind::MethodNotFound,
        Kind::InvalidParams,
        Kind::Internal,
        Kind::SandboxNotFound,
        Kind::SandboxConflict,
        Kind::SandboxStartFailed,
        Kind::SandboxDeleteFailed,
        Kind::SandboxNotRunning,
        Kind::LeaseNotFound,
        Kind::TooManyLeases,
        Kind::SnapshotNotFound,
        Kind::SnapshotFailed,
        Kind::SnapshotInUse,
        Kind::PurgeFailed,
        Kind::JournalUnavailable,
        Kind::GuestUnreachable,
        Kind::CommandNotStarted,
        Kind::CommandNotFound,
        Kind::FileError,
        Kind::SyncFailed,
        Kind::ImagePullFailed,
        Kind::ImageBuildFailed,
        Kind::RepositoryUnavailable,
        Kind::EngineUnavailable,
        Kind::ImageNotFound,
        Kind::ReadinessTimeout,
        Kind::AdmissionDenied,
        Kind::Busy,
        Kind::Unauthorized,
        Kind::ShuttingDown,
        Kind::LineTooLong,
        Kind::TooManyConnections,
        Kind::PathUnavailable,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Kind::ParseError => "parse_error",
            Kind::InvalidRequest => "invalid_request",
            Kind::MethodNotFound => "method_not_found",
            Kind::InvalidParams => "invalid_params",
            Kind::Internal => "internal",
            Kind::SandboxNotFound => "sandbox_not_found",
            Kind::SandboxConflict => "sandbox_conflict",
            Kind::SandboxStartFailed => "sandbox_start_failed",
            Kind::SandboxDeleteFailed => "sandbox_delete_failed",
            Kind::SandboxNotRunning => "sandbox_not_running",
            Kind::LeaseNotFound => "lease_not_found",
            Kind::TooManyLeases => "too_many_leases",
            Kind::SnapshotNotFound => "snapshot_not_found",
            Kind::SnapshotFailed => "snapshot_failed",
            Kind::SnapshotInUse => "snapshot_in_use",
            Kind::PurgeFailed => "purge_failed",
            Kind::JournalUnavailable => "journal_unavailable",
            Kind::GuestUnreachable => "guest_unreachable",
            Kind::CommandNotStarted => "command_not_started",
            Kind::CommandNotFound => "command_not_found",
            Kind::FileError => "file_error",
            Kind::SyncFailed => "sync_failed",
            Kind::ImagePullFailed => "image_pull_failed",
            Kind::ImageBuildFailed => "image_build_failed",
            Kind::RepositoryUnavailable => "repository_unavailable",
            Kind::EngineUnavailable => "engine_unavailable",
            Kind::ImageNotFound => "image_not_found",
            Kind::ReadinessTimeout => "readiness_timeout",
            Kind::AdmissionDenied => "admission_denied",
            Kind::Busy => "busy",
            Kind::Unauthorized => "unauthorized",
            Kind::ShuttingDown => "shutting_down",
            Kind::LineTooLong => "line_too_long",
            Kind::TooManyConnections => "too_many_connections",
            Kind::PathUnavailable => "path_unavailable",
        }
    }

    pub fn code(self) -> i32 {
        match self {
            Kind::ParseError => -32700,
            Kind::InvalidRequest => -32600,
            Kind::MethodNotFound => -32601,
            Kind::InvalidParams => -32602,
            Kind::Internal => -32603,
            Kind::SandboxNotFound => -32001,
            Kind::SandboxConflict => -32002,
            Kind::SandboxStartFailed => -32003,
            Kind::SandboxDeleteFailed => -32004,
            Kind::SandboxNotRunning => -32005,
            Kind::LeaseNotFound => -32006,
            Kind::TooManyLeases => -32007,
            Kind::SnapshotNotFound => -32008,
            Kind::SnapshotFailed => -32009,
            Kind::SnapshotInUse => -32014,
            Kind::PurgeFailed => -32016,
            Kind::JournalUnavailable => -32013,
            Kind::GuestUnreachable => -32040,
            Kind::CommandNotStarted => -32041,
            Kind::CommandNotFound => -32042,
            Kind::FileError => -32043,
            Kind::SyncFailed => -32044,
            Kind::ImagePullFailed => -32050,
            Kind::ImageBuildFailed => -32051,
            Kind::RepositoryUnavailable => -32052,
            Kind::EngineUnavailable => -32010,
            Kind::ImageNotFound => -32011,
            Kind::ReadinessTimeout => -32012,
            Kind::AdmissionDenied => -32023,
            Kind::Busy => -32020,
            Kind::Unauthorized => -32021,
            Kind::ShuttingDown => -32022,
            Kind::LineTooLong => -32030,
            Kind::TooManyConnections => -32031,
            Kind::PathUnavailable => -32015,
        }
    }

    pub fn error(self, message: impl Into<String>) -> Error {
        let retryable = matches!(
            self,
            Kind::SandboxDeleteFailed
                | Kind::TooManyLeases
                | Kind::SnapshotFailed
                | Kind::SnapshotInUse
                | Kind::PurgeFailed
                | Kind::JournalUnavailable
                | Kind::EngineUnavailable
                | Kind::GuestUnreachable
                | Kind::ReadinessTimeout
                | Kind::RepositoryUnavailable
                | Kind::AdmissionDenied
                | Kind::Busy
                | Kind::ShuttingDown
                | Kind::TooManyConnections
                | Kind::PathUnavailable
        );
        Error { kind: self, message: message.into(), retryable, details: Map::new() }
    }
}

impl Error {
    pub fn invalid_params(field: &str, message: impl std::fmt::Display) -> Error {
        Kind::InvalidParams.error(format!("{field}: {message}")).with("field", field)
    }

    /// Of a path whose file system does not answer.
    pub fn path_unavailable(field: &str, message: impl std::fmt::Display) -> Error {
        Kind::PathUnavailable.error(format!("{field}: {message}")).with("field", field)
    }

    /// Of a field that is itself part of another.
    pub(super) fn within(self, outer: &str) -> Error {
        match self.details.get("field").and_then(Value::as_str) {
            Some(field) => {
                let message = self.message.strip_prefix(field).and_then(|message| message.strip_prefix(": "));
                Error::invalid_params(&format!("{outer}.{field}"), message.unwrap_or(&self.message))
            }
            None => self,
        }
    }

    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Error {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    fn retryable(mut self, retryable: bool) -> Error {
        self.retryable = retryable;
        self
    }
}

/// The one mapping of the core's errors to the wire.
impl From<SandboxError> for Error {
    fn from(error: SandboxError) -> Error {
        let message = error.to_string();
        match error {
            SandboxError::Conflict { chat, session, fields } => Kind::SandboxConflict
                .error(message)
                .with("chat_id", chat.to_string())
                .with("session_id", session.to_string())
                .with("fields", fields),
            SandboxError::StartFailed { chat, failure } => {
                start_failed(message, &failure).with("chat_id", chat.to_string())
            }
            SandboxError::DeleteOwed { chat, error: RemovalError::Engine(error) } if error.is_unavailable() => {
                engine_unavailable(message, &error).with("chat_id", chat.to_string()).with("owed", true)
            }
            SandboxError::DeleteOwed { chat, error } => match &error {
                RemovalError::Engine(_) => Kind::SandboxDeleteFailed,
                RemovalError::Journal(_) => Kind::JournalUnavailable,
            }
            .error(message)
            .with("chat_id", chat.to_string())
            .with("reason", error.to_string())
            .with("owed", true),
            SandboxError::NotFound { chat } => Kind::SandboxNotFound.error(message).with("chat_id", chat.to_string()),
            SandboxError::Ended { chat, ended } => Kind::SandboxNotFound
                .error(message)
                .with("chat_id", chat.to_string())
                .with("session_id", ended.session.to_string())
                .with("reason", ended.reason.as_str())
                .with("ended_at", ended.at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)),
            SandboxError::NotRunning { chat, status } => {
                Kind::SandboxNotRunning.error(message).with("chat_id", chat.to_string()).with("status", status.as_str())
            }
            SandboxError::NoSuchLease { chat, lease } => {
                Kind::LeaseNotFound.error(message).with("chat_id", chat.to_string()).with("lease_id", lease.to_string())
            }
            SandboxError::TooManyLeases { chat, limit } => {
                Kind::TooManyLeases.error(message).with("chat_id", chat.to_string()).with("limit", limit)
            }
            SandboxError::SnapshotFailed { chat, error } => {
                Kind::SnapshotFailed.error(message).with("chat_id", chat.to_string()).with("reason", error.to_string())
            }
            SandboxError::NotPurged { chat, why } => {
                Kind::PurgeFailed.error(message).with("chat_id", chat.to_string()).with("reason", why.to_string())
            }
            SandboxError::NotSaved { chat, error } => {
                journal_unavailable(message, &error).with("chat_id", chat.to_string())
            }
            SandboxError::NotListed => Kind::EngineUnavailable.error(message),
            // Whatever the engine answered, it did not do what was needed.
            SandboxError::Unknown { chat, error }
            | SandboxError::NotPaused { chat, error }
            | SandboxError::NotResumed { chat, error } => {
                engine_unavailable(message, &error).with("chat_id", chat.to_string())
            }
            SandboxError::Recovering { chat, retry_after } => Kind::Busy
                .error(message)
                .with("chat_id", chat.to_string())
                .with("retry_after", retry_after.as_secs_f64()),
            SandboxError::AdmissionDenied { chat, what, limit, retry_after } => Kind::AdmissionDenied
                .error(message)
                .with("chat_id", chat.to_string())
                .with("what", what.as_str())
                .with("limit", limit)
                .with("retry_after", retry_after.as_secs_f64()),
            SandboxError::ShuttingDown => Kind::ShuttingDown.error(message),
            // Every request can be repeated safely, and the repetition finds what became of the first.
            SandboxError::NoAnswer { chat, .. } => {
                Kind::Internal.error(message).retryable(true).with("chat_id", chat.to_string())
            }
        }
    }
}

/// Of a request that is about the engine as a whole.
impl From<EngineError> for Error {
    fn from(error: EngineError) -> Error {
        engine_unavailable(error.to_string(), &error)
    }
}

impl From<JournalError> for Error {
    fn from(error: JournalError) -> Error {
        Kind::JournalUnavailable.error("the journal cannot be read").with("reason", error.to_string())
    }
}

fn start_failed(message: String, failure: &StartFailure) -> Error {
    let failed = |cause: &str, retryable: bool| {
        Kind::SandboxStartFailed
            .error(message.clone())
            .retryable(retryable)
            .with("reason", failure.to_string())
            .with("cause", cause)
    };
    match failure {
        StartFailure::Engine(error) | StartFailure::PredecessorRemains(RemovalError::Engine(error))
            if error.is_unavailable() =>
        {
            engine_unavailable(message, error)
        }
        StartFailure::NotSaved(error) | StartFailure::PredecessorRemains(RemovalError::Journal(error)) => {
            journal_unavailable(message, error)
        }
        StartFailure::Engine(EngineError::ImageNotFound { image }) => {
            Kind::ImageNotFound.error(format!("{message}; {}", how_to_get(image))).with("image", image.as_str())
        }
        // It has waited for as long as it takes the engine to get through what came before.
        StartFailure::QueueTimeout(QueueTimeout(waited)) => {
            Kind::Busy.error(message).with("retry_after", waited.as_secs_f64())
        }
        StartFailure::NotReady { limit, last, log_tail } => Kind::ReadinessTimeout
            .error(message)
            .with("timeout", limit.as_secs_f64())
            .with("last", last.as_str())
            .with("log_tail", log_tail.as_slice()),
        StartFailure::Directory(error) if error.is_full => {
            Kind::JournalUnavailable.error(message).with("reason", failure.to_string())
        }
        StartFailure::Directory(_) => failed("directory", false),
        StartFailure::Engine(_) => failed("engine", false),
        StartFailure::InTheWay { name, holder, .. } => {
            failed("name_taken", false).with("container_name", name.as_str()).with("container_id", holder.as_str())
        }
        StartFailure::NoAddress => failed("no_address", true),
        StartFailure::NoHealthCheck => failed("no_health_check", false),
        StartFailure::Died(death) => died(failed(death.reason().as_str(), false), death),
        StartFailure::Deleted => failed("deleted", true),
        StartFailure::PredecessorRemains(_) => failed("predecessor_remains", true),
        StartFailure::NotBound(_) => failed("not_bound", true),
        StartFailure::VolumeChanged(_) => failed("volume_changed", true).with("field", "volume_host_path"),
        StartFailure::NotBegun(_) => failed("not_begun", true),
        StartFailure::Defect(_) => failed("defect", false),
    }
}

impl From<ImageError> for Error {
    fn from(error: ImageError) -> Error {
        let message = error.to_string();
        match error {
            ImageError::EngineUnavailable { reason } | ImageError::Refused { reason } => {
                Kind::EngineUnavailable.error(message).with("reason", reason)
            }
            ImageError::PullFailed { image, registry, reason } => Kind::ImagePullFailed
                .error(message)
                .with("image", image)
                .with("registry", registry)
                .with("reason", reason),
            ImageError::BuildFailed { tag, step, reason, log_tail } => Kind::ImageBuildFailed
                .error(message)
                .with("image", tag)
                .with("step", step)
                .with("reason", reason)
                .with("log_tail", log_tail),
            ImageError::SourceUnavailable { repository, reason } => {
                Kind::RepositoryUnavailable.error(message).with("repository", repository).with("reason", reason)
            }
            ImageError::NoSuchRepository { .. } => Error::invalid_params("repository", message),
            ImageError::TimedOut { .. } => Kind::EngineUnavailable.error(message.clone()).with("reason", message),
            ImageError::Interrupted => Kind::ShuttingDown.error(message),
        }
    }
}

fn died(error: Error, death: &Death) -> Error {
    error
        .with("exit_code", death.exit.map(|exit| exit.code))
        .with("signal", death.exit.and_then(|exit| exit.signal()))
        .with("oom_killed", death.exit.is_some_and(|exit| exit.oom_killed))
        .with("memory_limit_bytes", death.memory_limit_bytes)
        .with("log_tail", death.log_tail.as_slice())
}

fn engine_unavailable(message: String, error: &EngineError) -> Error {
    Kind::EngineUnavailable.error(message).with("reason", error.to_string())
}

fn journal_unavailable(message: String, error: &NotSaved) -> Error {
    Kind::JournalUnavailable.error(message).with("reason", error.to_string())
}

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Error", 3)?;
        object.serialize_field("code", &self.kind.code())?;
        object.serialize_field("message", &self.message)?;
        let data = json!({ "kind": self.kind.as_str(), "retryable": self.retryable, "details": self.details });
        object.serialize_field("data", &data)?;
        object.end()
    }
}

#[cfg(test)]
mod tests;
