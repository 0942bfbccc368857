//! Errors of sandboxctl: one line each, with advice.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::arguments::Command;
use super::chats::ChatError;
use super::images::base::BaseImageError;
use super::{Arguments, Exit, shown};
use crate::client::{ClientError, Failure};

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
        CliError::Service(ClientError::Failed(Failure { data, .. })) if data.kind == "command_not_started" => {
            let is_missing = data.details.get("errno").is_some_and(|errno| *errno == NOT_FOUND);
            if is_missing { 127 } else { 126 }
        }
        _ => 125,
    }
}

/// The errno of a missing file.
const NOT_FOUND: i32 = rustix::io::Errno::NOENT.raw_os_error();

fn explain_service_error(error: &ClientError, hint: Option<String>, arguments: &Arguments) -> (Exit, String) {
    let exit = match error {
        ClientError::Connect { .. } => Exit::CannotConnect,
        ClientError::Failed(failure) if failure.data.kind == "sandbox_not_found" => Exit::NotFound,
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

fn connect_hint(kind: ErrorKind, socket: &str) -> Option<String> {
    match kind {
        ErrorKind::NotFound => Some("is sandboxd running? name another socket with --socket or SANDBOXD_SOCKET".into()),
        ErrorKind::ConnectionRefused => Some("sandboxd is not running and left this socket behind; start it".into()),
        ErrorKind::PermissionDenied => Some(format!("your user may not open it; `ls -l {socket}` shows who may")),
        _ => None,
    }
}

fn failure_hint(failure: &Failure) -> Option<String> {
    let details = &failure.data.details;
    match failure.data.kind.as_str() {
        "sandbox_conflict" => Some("use the same values, or delete the sandbox first".into()),
        "image_build_failed" => {
            let lines = details.get("log_tail").and_then(Value::as_array)?;
            let lines: Vec<_> = lines.iter().filter_map(Value::as_str).collect();
            Some(format!("the last lines of the log:\n{}", lines.join("\n")))
        }
        "sandbox_delete_failed" => Some("the service retries the removal until it succeeds".into()),
        "command_not_found" => Some("`sandboxctl ps` lists the commands".into()),
        "lease_not_found" => Some("the lease has ended or was released".into()),
        "unauthorized" => Some("socket.allow_users and socket.allow_groups name the allowed callers".into()),
        "busy" => {
            let seconds = details.get("retry_after").and_then(Value::as_f64);
            Some(seconds.map_or_else(|| "try again".to_owned(), |seconds| format!("try again in {seconds:.1}s")))
        }
        "invalid_params" => details.get("field").and_then(Value::as_str).and_then(field_hint),
        "admission_denied" => {
            let setting = match details.get("what").and_then(Value::as_str)? {
                "sandboxes" => "limits.sandboxes",
                "workspace" => "limits.per_workspace",
                "agent" => "limits.per_agent",
                _ => "max_sandboxes of the profile",
            };
            Some(format!("the setting is {setting}; delete a sandbox, or try again later"))
        }
        "too_many_leases" => Some("the setting is leases.max_per_sandbox; release one, or try again later".into()),
        "too_many_connections" => Some("the setting is socket.max_connections; try again".into()),
        "line_too_long" => Some("the setting is socket.max_line".into()),
        "readiness_timeout" => Some(
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
    use crate::client::FailureData;
    use clap::Parser;
    use serde_json::json;

    fn explained(error: &ClientError, arguments: &[&str]) -> (Exit, String) {
        let arguments = ["sandboxctl", "--socket", "/s"].iter().chain(arguments).chain(&["health"]);
        explain_service_error(error, None, &Arguments::parse_from(arguments))
    }

    fn failed(kind: &str, retryable: bool) -> ClientError {
        let details = json!({ "retry_after": 0.25 }).as_object().cloned().unwrap_or_default();
        let data = FailureData { kind: kind.into(), retryable, details };
        ClientError::Failed(Failure { code: -32000, message: "it failed".into(), data })
    }

    #[test]
    fn an_error_is_one_line_with_its_kind_and_a_hint() {
        for (error, exit, line) in [
            (failed("sandbox_not_found", false), Exit::NotFound, "sandboxctl: it failed [sandbox_not_found]"),
            (failed("engine_unavailable", true), Exit::Failed, "sandboxctl: it failed [engine_unavailable]; try again"),
            (failed("busy", true), Exit::Failed, "sandboxctl: it failed [busy]; try again in 0.2s"),
        ] {
            assert_eq!(explained(&error, &[]), (exit, line.to_owned()));
        }
        let source = ErrorKind::NotFound.into();
        let (exit, line) = explained(&ClientError::Connect { path: "/s".into(), source }, &[]);
        assert_eq!(exit, Exit::CannotConnect);
        assert!(
            line.starts_with("sandboxctl: cannot connect to /s: ") && line.contains("is sandboxd running?"),
            "{line}"
        );
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_option_and_its_setting() {
        let failed = |kind: &str, details: Value| {
            let details = details.as_object().cloned().unwrap_or_default();
            let data = FailureData { kind: kind.into(), retryable: false, details };
            explained(&ClientError::Failed(Failure { code: -32602, message: "no".into(), data }), &[]).1
        };
        for (kind, details, end) in [
            ("invalid_params", json!({ "field": "volume_host_path" }), "--volume, and the setting volumes.roots"),
            ("invalid_params", json!({ "field": "ttl" }), "; the option is --ttl"),
            ("invalid_params", json!({ "field": "code" }), "no [invalid_params]"),
            ("admission_denied", json!({ "what": "agent" }), "limits.per_agent; delete a sandbox, or try again later"),
        ] {
            let line = failed(kind, details);
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
        let (_, line) = explained(&failed("busy", true), &["--json"]);
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["data"]["kind"], "busy");
        let (_, line) = explained(&ClientError::Disconnected, &["--json"]);
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["message"], "the service closed the connection");
    }
}
