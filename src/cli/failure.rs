//! Errors of sandboxctl: one line each, with advice.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use sandboxd_protocol::error::{Error, ErrorKind, LimitKey};

use super::arguments::Command;
use super::chats::ChatError;
use super::images::base::BaseImageError;
use super::{Arguments, Exit, shown};
use crate::client::ClientError;

/// The failure of a command of sandboxctl.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error(transparent)]
    Service(#[from] ClientError),
    #[error("{}: {error}", path.display())]
    Local { path: PathBuf, error: io::Error },
    #[error("cannot install signal handlers: {0}")]
    Signals(io::Error),
    /// The service ended while sandboxctl waited for a command, which is still running.
    #[error("{error}")]
    CommandStillRunning { error: ClientError, chat: String, command: u64 },
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error(transparent)]
    BaseImage(#[from] BaseImageError),
    #[error("{0}")]
    Usage(&'static str),
}

impl CliError {
    pub(super) fn local(path: &Path, error: io::Error) -> Self {
        CliError::Local { path: path.to_owned(), error }
    }
}

pub(super) fn explain(error: &CliError, arguments: &Arguments) -> (Exit, String) {
    let (exit, message) = match error {
        CliError::Service(error) => explain_service_error(error, None, arguments),
        CliError::CommandStillRunning { error, chat, command } => {
            let hint = format!(
                "the command is still running; once the service has restarted: sandboxctl attach {chat} {command}"
            );
            explain_service_error(error, Some(hint), arguments)
        }
        other => {
            let exit = match other {
                CliError::Usage(_) | CliError::Chat(ChatError::NotAnId(_) | ChatError::Several { .. }) => {
                    Exit::WrongUsage
                }
                CliError::Chat(ChatError::None(_)) => Exit::NotFound,
                _ => Exit::Failed,
            };
            let message = if arguments.json { without_code(other) } else { format!("sandboxctl: {other}") };
            (exit, message)
        }
    };
    match &arguments.command {
        Command::Guest(command) if command.exits_as_a_command() => (Exit::Command(not_run_code(error)), message),
        _ => (exit, message),
    }
}

/// Returns the exit code for a command that did not run, by the convention of shells and engines.
fn not_run_code(error: &CliError) -> u8 {
    match error {
        CliError::Service(ClientError::Failed(failure)) if failure.data.kind == ErrorKind::CommandNotStarted => {
            if failure.detail("errno") == Some(NOT_FOUND) {
                127
            } else {
                126
            }
        }
        _ => 125,
    }
}

/// The errno of a missing file.
const NOT_FOUND: i32 = rustix::io::Errno::NOENT.raw_os_error();

fn explain_service_error(error: &ClientError, hint: Option<String>, arguments: &Arguments) -> (Exit, String) {
    let exit = match error {
        ClientError::Connect { .. } => Exit::CannotConnect,
        ClientError::Failed(failure) if failure.data.kind == ErrorKind::SandboxNotFound => Exit::NotFound,
        _ => Exit::Failed,
    };
    if arguments.json {
        return (exit, as_json(error));
    }
    let hint = hint.or_else(|| match error {
        ClientError::Connect { source, .. } => connect_hint(source.kind(), &shown(&arguments.socket)),
        ClientError::Failed(failure) => failure_hint(failure),
        ClientError::Disconnected => Some("see the service's log".to_owned()),
        ClientError::InvalidResponse(_) => Some("sandboxctl and sandboxd may have different versions".to_owned()),
    });
    let kind = match error {
        ClientError::Failed(failure) => format!(" [{}]", failure.data.kind),
        _ => String::new(),
    };
    let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    (exit, format!("sandboxctl: {error}{kind}{hint}"))
}

/// Returns an error as JSON. Only errors from the service have a code.
fn as_json(error: &ClientError) -> String {
    match error {
        ClientError::Failed(failure) => serde_json::json!(failure).to_string(),
        other => without_code(other),
    }
}

fn without_code(error: &impl Display) -> String {
    serde_json::json!({ "code": null, "message": error.to_string(), "data": null }).to_string()
}

fn connect_hint(kind: io::ErrorKind, socket: &str) -> Option<String> {
    match kind {
        io::ErrorKind::NotFound => {
            Some("is sandboxd running? name another socket with --socket or SANDBOXD_SOCKET".into())
        }
        io::ErrorKind::ConnectionRefused => {
            Some("sandboxd is not running and left this socket behind; start it".into())
        }
        io::ErrorKind::PermissionDenied => Some(format!("your user may not open it; `ls -l {socket}` shows who may")),
        _ => None,
    }
}

fn failure_hint(failure: &Error) -> Option<String> {
    match failure.data.kind {
        ErrorKind::SandboxConflict => Some("use the same values, or delete the sandbox first".into()),
        ErrorKind::ImageBuildFailed => {
            let lines: Vec<String> = failure.detail("log_tail")?;
            Some(format!("the last lines of the log:\n{}", lines.join("\n")))
        }
        ErrorKind::SandboxDeleteFailed => Some("the service retries the removal until it succeeds".into()),
        ErrorKind::CommandNotFound => Some("`sandboxctl ps` lists the commands".into()),
        ErrorKind::LeaseNotFound => Some("the lease has ended or was released".into()),
        ErrorKind::Unauthorized => Some("socket.allow_users and socket.allow_groups name the allowed callers".into()),
        ErrorKind::Busy => {
            let seconds: Option<f64> = failure.detail("retry_after");
            Some(seconds.map_or_else(|| "try again".to_owned(), |seconds| format!("try again in {seconds:.1}s")))
        }
        ErrorKind::InvalidParams => field_hint(&failure.detail::<String>("field")?),
        ErrorKind::AdmissionDenied => {
            let setting = match failure.detail("what")? {
                LimitKey::Sandboxes => "limits.sandboxes",
                LimitKey::Workspace => "limits.per_workspace",
                LimitKey::Agent => "limits.per_agent",
                LimitKey::Profile => "max_sandboxes of the profile",
            };
            Some(format!("the setting is {setting}; delete a sandbox, or try again later"))
        }
        ErrorKind::TooManyLeases => {
            Some("the setting is leases.max_per_sandbox; release one, or try again later".into())
        }
        ErrorKind::TooManyConnections => Some("the setting is socket.max_connections; try again".into()),
        ErrorKind::LineTooLong => Some("the setting is socket.max_line".into()),
        ErrorKind::ReadinessTimeout => Some(
            "the settings are readiness.kind and readiness.timeout of the profile; `sandboxctl doctor` may help".into(),
        ),
        _ => failure.data.retryable.then(|| "try again".to_owned()),
    }
}

/// Returns the option for a field of a request, and the setting that limits its values.
fn field_hint(field: &str) -> Option<String> {
    let (option, setting) = match field {
        "volume_host_path" => ("--volume", Some("volumes.roots")),
        "profile" => ("--profile", Some("[profiles.<name>]")),
        "duration" => ("--for", Some("leases.max")),
        "context" => ("DIRECTORY", Some("images.context_roots")),
        "repository" => ("REPOSITORY", Some("[repositories.<name>]")),
        "language" => ("--language", Some("languages.<name> of the profile")),
        "chat_id" => ("--chat-id or CHAT", None),
        "agent_id" => ("--agent-id", None),
        "workspace_id" => ("--workspace", None),
        "snapshot_id" => ("--snapshot", None),
        "ttl" => ("--ttl", None),
        "idle_timeout" => ("--idle-timeout", None),
        "timeout" => ("--timeout", None),
        "env" => ("--env", None),
        "user" => ("--user", None),
        "cwd" => ("--cwd", None),
        "signal" => ("--signal", None),
        "tag" => ("--tag", None),
        "dockerfile" => ("--dockerfile", None),
        "after" => ("--after", None),
        _ => return None,
    };
    let setting = setting.map(|setting| format!(", and the setting {setting}")).unwrap_or_default();
    Some(format!("the option is {option}{setting}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::Value;

    fn explained(error: &ClientError, arguments: &[&str]) -> (Exit, String) {
        let arguments = ["sandboxctl", "--socket", "/s"].iter().chain(arguments).chain(&["health"]);
        explain_service_error(error, None, &Arguments::parse_from(arguments))
    }

    fn failed(kind: ErrorKind) -> ClientError {
        kind.error("it failed").with("retry_after", 0.25).into()
    }

    #[test]
    fn an_error_is_one_line_with_its_kind_and_a_hint() {
        for (error, exit, line) in [
            (failed(ErrorKind::SandboxNotFound), Exit::NotFound, "sandboxctl: it failed [sandbox_not_found]"),
            (
                failed(ErrorKind::EngineUnavailable),
                Exit::Failed,
                "sandboxctl: it failed [engine_unavailable]; try again",
            ),
            (failed(ErrorKind::Busy), Exit::Failed, "sandboxctl: it failed [busy]; try again in 0.2s"),
        ] {
            assert_eq!(explained(&error, &[]), (exit, line.to_owned()));
        }
        let source = io::ErrorKind::NotFound.into();
        let (exit, line) = explained(&ClientError::Connect { path: "/s".into(), source }, &[]);
        assert_eq!(exit, Exit::CannotConnect);
        assert!(
            line.starts_with("sandboxctl: cannot connect to /s: ") && line.contains("is sandboxd running?"),
            "{line}"
        );
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_option_and_its_setting() {
        for (kind, detail, value, end) in [
            (ErrorKind::InvalidParams, "field", "volume_host_path", "--volume, and the setting volumes.roots"),
            (ErrorKind::InvalidParams, "field", "ttl", "; the option is --ttl"),
            (ErrorKind::InvalidParams, "field", "code", "no [invalid_params]"),
            (ErrorKind::AdmissionDenied, "what", "agent", "limits.per_agent; delete a sandbox, or try again later"),
        ] {
            let (_, line) = explained(&kind.error("no").with(detail, value).into(), &[]);
            assert!(line.ends_with(end), "{line}");
        }
    }

    #[test]
    fn a_command_that_outlives_the_service_is_reported_with_its_attach_command() {
        let error = CliError::CommandStillRunning { error: ClientError::Disconnected, chat: "c".into(), command: 7 };
        let (exit, line) = explain(&error, &Arguments::parse_from(["sandboxctl", "exec", "c", "make"]));
        assert_eq!(exit, Exit::Command(125));
        assert!(line.ends_with("sandboxctl attach c 7"), "{line}");
    }

    #[test]
    fn with_json_an_error_is_printed_unchanged() {
        let (_, line) = explained(&failed(ErrorKind::Busy), &["--json"]);
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["data"]["kind"], "busy");
        let (_, line) = explained(&ClientError::Disconnected, &["--json"]);
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["message"], "the service closed the connection");
    }
}
