//! Maps the engine's errors to the core's. Status codes and messages are read in this file only.

use bollard::errors::Error;
use sandboxd_actors::domain::container::ContainerSpec;
use sandboxd_actors::domain::ids::{ContainerId, ContainerName};
use sandboxd_actors::ports::engine::{EngineError, Operation};

/// An answer whose errors need no mapping beyond the general one.
pub(super) trait Failure<T> {
    fn during(self, operation: Operation) -> Result<T, EngineError>;
}

impl<T> Failure<T> for Result<T, Error> {
    fn during(self, operation: Operation) -> Result<T, EngineError> {
        self.map_err(|error| general_error(operation, error))
    }
}

/// An answer for which "not found" is a result, not an error.
pub(super) trait OrGone<T> {
    fn or_gone(self, operation: Operation) -> Result<Option<T>, EngineError>;
}

impl<T> OrGone<T> for Result<T, Error> {
    fn or_gone(self, operation: Operation) -> Result<Option<T>, EngineError> {
        match self {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if status(&error) == Some(404) => Ok(None),
            Err(error) => Err(general_error(operation, error)),
        }
    }
}

pub(super) fn create_error(container: &ContainerSpec, error: Error) -> EngineError {
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
        _ => general_error(Operation::Create, error),
    }
}

pub(super) fn container_error(operation: Operation, container: &ContainerId, error: Error) -> EngineError {
    match refusal(&error) {
        // A missing network is a 404, too.
        Some((404, message)) if message.contains("no such container") => {
            EngineError::NoSuchContainer { container: container.to_string() }
        }
        _ => general_error(operation, error),
    }
}

pub(super) fn rename_error(container: &ContainerId, name: &ContainerName, error: Error) -> EngineError {
    match refusal(&error) {
        Some((409 | 500, message)) if message.contains("already in use") => {
            EngineError::NameTaken { name: name.to_string() }
        }
        _ => container_error(Operation::Rename, container, error),
    }
}

pub(super) fn is_removal_in_progress(error: &Error) -> bool {
    refusal(error).is_some_and(|(status, message)| status == 409 && message.contains("already in progress"))
}

pub(super) fn already_exists(error: &Error) -> bool {
    let exists = |message: &str| message.contains("already exists") || message.contains("same bridge name");
    refusal(error).is_some_and(|(status, message)| status == 409 || exists(&message))
}

/// Whether another network already uses addresses of the requested block.
pub(super) fn is_overlap(error: &Error) -> bool {
    refusal(error).is_some_and(|(_, message)| message.contains("overlap") || message.contains("already used"))
}

/// Whether a container uses the image to be removed.
pub(super) fn is_in_use(error: &Error) -> bool {
    let using = |message: &str| message.contains("is using its") || message.contains("being used by");
    refusal(error).is_some_and(|(status, message)| status == 409 && using(&message))
}

/// Returns the message of the engine, or of the operating system if the engine was not reached.
pub(super) fn message(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::SocketNotFoundError(_) => "no such socket".to_owned(),
        Error::HyperLegacyError { err } => chain(err),
        other => other.to_string(),
    }
}

fn general_error(operation: Operation, error: Error) -> EngineError {
    let message = message(&error);
    match error {
        Error::SocketNotFoundError(_) => EngineError::Unreachable { message },
        Error::HyperLegacyError { err } if err.is_connect() => EngineError::Unreachable { message },
        Error::HyperLegacyError { .. }
        | Error::HyperResponseError { .. }
        | Error::IOError { .. }
        | Error::RequestTimeoutError => EngineError::Interrupted { message },
        // From a proxy in front of the engine, or from an engine that shuts down.
        Error::DockerResponseServerError { status_code: 502..=504, .. } => EngineError::Interrupted { message },
        Error::DockerResponseServerError { .. } => EngineError::Refused { operation, message },
        _ => EngineError::InvalidResponse { operation, message },
    }
}

fn status(error: &Error) -> Option<u16> {
    refusal(error).map(|(status, _)| status)
}

/// Returns the status and the message in lower case: Docker and Podman use the same words with different case.
fn refusal(error: &Error) -> Option<(u16, String)> {
    match error {
        Error::DockerResponseServerError { status_code, message } => Some((*status_code, message.to_lowercase())),
        _ => None,
    }
}

/// Returns the message with its sources: the HTTP client's messages leave out the system error.
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
        container_error(Operation::Start, &ContainerId::new("c1"), error)
    }

    #[test]
    fn a_missing_network_is_not_a_missing_container() {
        assert!(matches!(start(answer(404, "No such container: c1")), EngineError::NoSuchContainer { .. }));
        assert!(matches!(start(answer(404, "network n not found")), EngineError::Refused { .. }));
    }

    #[test]
    fn a_call_to_an_engine_that_shuts_down_may_have_happened() {
        assert!(start(answer(503, "shutting down")).may_have_happened());
        assert!(start(Error::RequestTimeoutError).may_have_happened());
        assert!(!start(answer(500, "no")).may_have_happened());
    }

    #[test]
    fn only_a_404_means_gone() {
        let ask = |error: Error| Err::<(), _>(error).or_gone(Operation::Inspect);
        assert_eq!(ask(answer(404, "no such container")), Ok(None));
        assert!(ask(answer(500, "no such container")).is_err());
        assert!(ask(Error::RequestTimeoutError).is_err());
    }
}
