//! Mapping of the core's errors to errors of the wire.

#[cfg(test)]
mod tests;

use std::fmt::Display;

use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::outcome::{RemovalError, SandboxError, StartFailure};
use sandboxd_actors::domain::sandbox::Reason;
use sandboxd_actors::engine::fair_queue::QueueTimeout;
use sandboxd_actors::journal::JournalError;
use sandboxd_actors::ports::engine::EngineError;
use sandboxd_actors::ports::images::ImageError;
use sandboxd_protocol::error::{Error, ErrorKind, StartFailureCause as Cause};
use sandboxd_protocol::time::Time;
use serde_json::json;

use super::words;
use crate::images::base::how_to_get;

/// Returns the error for a path whose file system does not reply.
pub fn path_unavailable(field: &str, message: impl Display) -> Error {
    ErrorKind::PathUnavailable.error(format!("{field}: {message}")).with("field", field)
}

/// Maps an error of the core about a chat, or about all chats.
pub fn of_sandbox(error: SandboxError) -> Error {
    let message = error.to_string();
    let of_chat = |kind: ErrorKind, chat: ChatId| kind.error(message.as_str()).with("chat_id", chat.to_string());
    match error {
        SandboxError::Conflict { chat, session, fields } => {
            of_chat(ErrorKind::SandboxConflict, chat).with("session_id", session.to_string()).with("fields", fields)
        }
        SandboxError::StartFailed { chat, failure } => start_failed(&failure, |kind| of_chat(kind, chat)),
        SandboxError::DeleteOwed { chat, error } => {
            let kind = match &error {
                RemovalError::Engine(error) if error.is_unavailable() => ErrorKind::EngineUnavailable,
                RemovalError::Engine(_) => ErrorKind::SandboxDeleteFailed,
                RemovalError::Journal(_) => ErrorKind::JournalUnavailable,
            };
            of_chat(kind, chat).with("reason", error.to_string()).with("owed", true)
        }
        SandboxError::NotFound { chat } => of_chat(ErrorKind::SandboxNotFound, chat),
        SandboxError::Ended { chat, ended } => of_chat(ErrorKind::SandboxNotFound, chat)
            .with("session_id", ended.session.to_string())
            .with("reason", words::reason(ended.reason).as_str())
            .with("ended_at", json!(Time(ended.at))),
        SandboxError::NotRunning { chat, status } => {
            of_chat(ErrorKind::SandboxNotRunning, chat).with("status", words::status(status).as_str())
        }
        SandboxError::NoSuchLease { chat, lease } => {
            of_chat(ErrorKind::LeaseNotFound, chat).with("lease_id", lease.to_string())
        }
        SandboxError::TooManyLeases { chat, limit } => of_chat(ErrorKind::TooManyLeases, chat).with("limit", limit),
        SandboxError::SnapshotFailed { chat, error } => {
            of_chat(ErrorKind::SnapshotFailed, chat).with("reason", error.to_string())
        }
        SandboxError::NotPurged { chat, why } => of_chat(ErrorKind::PurgeFailed, chat).with("reason", why.to_string()),
        SandboxError::NotSaved { chat, error } => {
            of_chat(ErrorKind::JournalUnavailable, chat).with("reason", error.to_string())
        }
        SandboxError::NotListed => ErrorKind::EngineUnavailable.error(message),
        // The engine replied or not; the operation was not done.
        SandboxError::Unknown { chat, error }
        | SandboxError::NotPaused { chat, error }
        | SandboxError::NotResumed { chat, error } => {
            of_chat(ErrorKind::EngineUnavailable, chat).with("reason", error.to_string())
        }
        SandboxError::Recovering { chat, retry_after } => {
            of_chat(ErrorKind::Busy, chat).with("retry_after", retry_after.as_secs_f64())
        }
        SandboxError::AdmissionDenied { chat, what, limit, retry_after } => of_chat(ErrorKind::AdmissionDenied, chat)
            .with("what", words::limit_key(what).as_str())
            .with("limit", limit)
            .with("retry_after", retry_after.as_secs_f64()),
        SandboxError::ShuttingDown => ErrorKind::ShuttingDown.error(message),
        // Every request can be repeated safely, and the repetition finds the result of the first.
        SandboxError::NoAnswer { chat, .. } => of_chat(ErrorKind::Internal, chat).retryable(true),
    }
}

/// Maps an error of the engine to a request about the engine as a whole.
pub fn of_engine(error: EngineError) -> Error {
    let message = error.to_string();
    ErrorKind::EngineUnavailable.error(message.as_str()).with("reason", message)
}

/// Maps an error of a read of the journal.
pub fn of_journal(error: JournalError) -> Error {
    ErrorKind::JournalUnavailable.error("the journal cannot be read").with("reason", error.to_string())
}

/// Maps the failure of a start. `of_chat` returns an error of the chat, with the message.
fn start_failed(failure: &StartFailure, of_chat: impl Fn(ErrorKind) -> Error) -> Error {
    let caused_by = |cause: Cause| {
        of_chat(ErrorKind::SandboxStartFailed)
            .retryable(cause.is_retryable())
            .with("reason", failure.to_string())
            .with("cause", cause.as_str())
    };
    match failure {
        StartFailure::Engine(error) | StartFailure::PredecessorRemains(RemovalError::Engine(error))
            if error.is_unavailable() =>
        {
            of_chat(ErrorKind::EngineUnavailable).with("reason", error.to_string())
        }
        StartFailure::NotSaved(error) | StartFailure::PredecessorRemains(RemovalError::Journal(error)) => {
            of_chat(ErrorKind::JournalUnavailable).with("reason", error.to_string())
        }
        StartFailure::Engine(EngineError::ImageNotFound { image }) => {
            let mut error = of_chat(ErrorKind::ImageNotFound).with("image", image.as_str());
            error.message = format!("{}; {}", error.message, how_to_get(image));
            error
        }
        // The start has waited for as long as the engine takes for the work before it.
        StartFailure::QueueTimeout(QueueTimeout(waited)) => {
            of_chat(ErrorKind::Busy).with("retry_after", waited.as_secs_f64())
        }
        StartFailure::NotReady { limit, last, log_tail } => of_chat(ErrorKind::ReadinessTimeout)
            .with("timeout", limit.as_secs_f64())
            .with("last", last.as_str())
            .with("log_tail", log_tail.as_slice()),
        StartFailure::Directory(error) if error.is_full => {
            of_chat(ErrorKind::JournalUnavailable).with("reason", failure.to_string())
        }
        StartFailure::Directory(_) => caused_by(Cause::Directory),
        StartFailure::Engine(_) => caused_by(Cause::Engine),
        StartFailure::NameConflict { name, holder, .. } => {
            caused_by(Cause::NameTaken).with("container_name", name.as_str()).with("container_id", holder.as_str())
        }
        StartFailure::NoAddress => caused_by(Cause::NoAddress),
        StartFailure::NoHealthCheck => caused_by(Cause::NoHealthCheck),
        StartFailure::Died(death) => {
            let cause = match death.reason() {
                Reason::OomKilled => Cause::OomKilled,
                Reason::Killed => Cause::Killed,
                _ => Cause::Exited,
            };
            caused_by(cause)
                .with("exit_code", death.exit.map(|exit| exit.code))
                .with("signal", death.exit.and_then(|exit| exit.signal()))
                .with("oom_killed", death.exit.is_some_and(|exit| exit.oom_killed))
                .with("memory_limit_bytes", death.memory_limit_bytes)
                .with("log_tail", death.log_tail.as_slice())
        }
        StartFailure::Deleted => caused_by(Cause::Deleted),
        StartFailure::PredecessorRemains(_) => caused_by(Cause::PredecessorRemains),
        StartFailure::NotBound(_) => caused_by(Cause::NotBound),
        StartFailure::VolumeChanged(_) => caused_by(Cause::VolumeChanged).with("field", "volume_host_path"),
        StartFailure::NotBegun(_) => caused_by(Cause::NotBegun),
        StartFailure::Defect(_) => caused_by(Cause::Defect),
    }
}

/// Maps an error of a request about images.
pub fn of_image(error: ImageError) -> Error {
    let message = error.to_string();
    match error {
        ImageError::EngineUnavailable { reason } | ImageError::Refused { reason } => {
            ErrorKind::EngineUnavailable.error(message).with("reason", reason)
        }
        ImageError::PullFailed { image, registry, reason } => ErrorKind::ImagePullFailed
            .error(message)
            .with("image", image)
            .with("registry", registry)
            .with("reason", reason),
        ImageError::BuildFailed { tag, step, reason, log_tail } => ErrorKind::ImageBuildFailed
            .error(message)
            .with("image", tag)
            .with("step", step)
            .with("reason", reason)
            .with("log_tail", log_tail),
        ImageError::SourceUnavailable { repository, reason } => {
            ErrorKind::RepositoryUnavailable.error(message).with("repository", repository).with("reason", reason)
        }
        ImageError::NoSuchRepository { .. } => Error::invalid_params("repository", message),
        ImageError::TimedOut { .. } => ErrorKind::EngineUnavailable.error(message.as_str()).with("reason", message),
        ImageError::Interrupted => ErrorKind::ShuttingDown.error(message),
    }
}
