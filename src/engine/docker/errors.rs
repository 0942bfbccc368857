//! What the engine's errors mean to the core. The one place that reads status codes and messages.

use bollard::errors::Error;
use sandboxd_actors::domain::container::ContainerSpec;
use sandboxd_actors::domain::ids::{ContainerId, ContainerName};
use sandboxd_actors::ports::engine::{EngineError, Operation};

/// An answer whose errors have no meaning beyond the general one.
pub(super) trait Failure<T> {
    fn during(self, operation: Operation) -> Result<T, EngineError>;
}

impl<T> Failure<T> for Result<T, Error> {
    fn during(self, operation: Operation) -> Result<T, EngineError> {
        self.map_err(|error| general(operation, error))
    }
}

/// An answer in which "there is no such thing" is a result, not an error.
pub(super) trait OrGone<T> {
    fn or_gone(self, operation: Operation) -> Result<Option<T>, EngineError>;
}

impl<T> OrGone<T> for Result<T, Error> {
    fn or_gone(self, operation: Operation) -> Result<Option<T>, EngineError> {
        match self {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if status(&error) == Some(404) => Ok(None),
            Err(error) => Err(general(operation, error)),
        }
    }
}

pub(super) fn of_create(container: &ContainerSpec, error: Error) -> EngineError {
    match refusal(&error) {
        // Podman answers 500.
        Some((409 | 500, message)) if message.contains("already in use") => {
            EngineError::NameTaken { name: container.name.to_string() }
        }
        Some((404, message)) if message.contains("no such image") || message.contains("image not known") => {
            EngineError::ImageNotFound { image: container.image.clone() }
        }
        Some((_, message)) if message.contains("storage-opt") => EngineError::Refused {
            operation: Operation::Create,
            message: format!("its storage driver cannot limit a container's disk: {}", self::message(&error)),
        },
        _ => general(Operation::Create, error),
    }
}

pub(super) fn of_container(operation: Operation, container: &ContainerId, error: Error) -> EngineError {
    match refusal(&error) {
        // A missing network is a 404 too.
        Some((404, message)) if message.contains("no such container") => {
            EngineError::NoSuchContainer { container: container.to_string() }
        }
        _ => general(operation, error),
    }
}

pub(super) fn of_rename(container: &ContainerId, name: &ContainerName, error: Error) -> EngineError {
    match refusal(&error) {
        Some((409 | 500, message)) if message.contains("already in use") => {
            EngineError::NameTaken { name: name.to_string() }
        }
        _ => of_container(Operation::Rename, container, error),
    }
}

pub(super) fn is_removal_in_progress(error: &Error) -> bool {
    refusal(error).is_some_and(|(status, message)| status == 409 && message.contains("already in progress"))
}

pub(super) fn is_already_there(error: &Error) -> bool {
    let is_there = |message: &str| message.contains("already exists") || message.contains("same bridge name");
    refusal(error).is_some_and(|(status, message)| status == 409 || is_there(&message))
}

/// Another network has addresses of the block that was asked for.
pub(super) fn is_overlap(error: &Error) -> bool {
    refusal(error).is_some_and(|(_, message)| message.contains("overlap") || message.contains("already used"))
}

/// A container is made of what should be removed.
pub(super) fn is_in_use(error: &Error) -> bool {
    let using = |message: &str| message.contains("is using its") || message.contains("being used by");
    refusal(error).is_some_and(|(status, message)| status == 409 && using(&message))
}

/// What the engine, or the system on the way to it, said.
pub(super) fn message(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::SocketNotFoundError(_) => "there is no such socket".to_owned(),
        Error::HyperLegacyError { err } => chain(err),
        other => other.to_string(),
    }
}

fn general(operation: Operation, error: Error) -> EngineError {
    let message = message(&error);
    match error {
        Error::SocketNotFoundError(_) => EngineError::Unreachable { message },
        Error::HyperLegacyError { err } if err.is_connect() => EngineError::Unreachable { message },
        Error::HyperLegacyError { .. }
        | Error::HyperResponseError { .. }
        | Error::IOError { .. }
        | Error::RequestTimeoutError => EngineError::Interrupted { message },
        // From something in front of the engine, or from an engine that is going down.
        Error::DockerResponseServerError { status_code: 502..=504, .. } => EngineError::Interrupted { message },
        Error::DockerResponseServerError { .. } => EngineError::Refused { operation, message },
        _ => EngineError::InvalidResponse { operation, message },
    }
}

fn status(error: &Error) -> Option<u16> {
    refusal(error).map(|(status, _)| status)
}

/// The status and the message, in lower case: Docker and Podman agree on the words, not on their spelling.
fn refusal(error: &Error) -> Option<(u16, String)> {
    match error {
        Error::DockerResponseServerError { status_code, message } => Some((*status_code, message.to_lowercase())),
        _ => None,
    }
}

/// The HTTP client's own messages leave out what the system said.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status_code: u16, message: &str) -> Error {
        Error::DockerResponseServerError { status_code, message: message.into() }
    }

    fn start(error: Error) -> EngineError {
        of_container(Operation::Start, &ContainerId::new("c1"), error)
    }

    #[test]
    fn a_missing_network_is_not_a_missing_container() {
        assert!(matches!(start(answer(404, "No such container: c1")), EngineError::NoSuchContainer { .. }));
        assert!(matches!(start(answer(404, "network n not found")), EngineError::Refused { .. }));
    }

    #[test]
    fn an_engine_that_is_going_down_may_have_done_what_it_was_asked() {
        assert!(start(answer(503, "shutting down")).may_have_happened());
        assert!(start(Error::RequestTimeoutError).may_have_happened());
        assert!(!start(answer(500, "no")).may_have_happened());
    }

    #[test]
    fn gone_is_only_what_the_engine_says_is_gone() {
        let ask = |error: Error| Err::<(), _>(error).or_gone(Operation::Inspect);
        assert_eq!(ask(answer(404, "no such container")), Ok(None));
        assert!(ask(answer(500, "no such container")).is_err());
        assert!(ask(Error::RequestTimeoutError).is_err());
    }
}
