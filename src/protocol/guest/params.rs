//! Checks of the parameters of guest methods.

use std::collections::BTreeMap;
use std::time::Duration;

use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::ports::engine::logs::LogRange;
use sandboxd_protocol::command::{AttachParams, Command, ExecParams, KillParams, OnDisconnect, RunCodeParams};
use sandboxd_protocol::error::Error;
use sandboxd_protocol::file::{ReadFileParams, WriteFileParams};
use sandboxd_protocol::guest::{LogsParams, StatsParams};
use sandboxd_protocol::sandbox::{GitBranch, SyncParams};

use super::{Code, DEFAULT_OUTPUT, Exec, GuestRequest, Input, MAX_ARGUMENTS, MAX_OUTPUT, MAX_READ, Output};
use crate::protocol::check;

const DEFAULT_LANGUAGE: &str = "python";

/// Shortest interval of statistics. A shorter one would cost more than it shows.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

impl Exec {
    pub(in crate::protocol) fn checked(given: ExecParams) -> Result<Self, Error> {
        let environment = environment(given.env)?;
        let arguments = arguments(given.command)?;
        let length = arguments.iter().map(String::len).sum::<usize>()
            + environment.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        if length > MAX_ARGUMENTS {
            let message = format!("with env it must be at most {MAX_ARGUMENTS} bytes long, got {length}");
            return Err(Error::invalid_params("command", message));
        }
        let input = match (given.stdin, given.stdin_base64, given.stdin_follows.unwrap_or_default()) {
            (None, None, false) => Input::None,
            (None, None, true) => Input::Follows,
            (Some(text), None, false) => Input::Whole(text.into_bytes()),
            (None, Some(encoded), false) => Input::Whole(check::base64("stdin_base64", &encoded)?),
            _ => {
                let message = "only one of stdin, stdin_base64 and stdin_follows can be given";
                return Err(Error::invalid_params("stdin", message));
            }
        };
        let exec = Exec {
            arguments,
            user: given.user.map(user).transpose()?,
            directory: given.cwd.map(|cwd| check::path("cwd", cwd)).transpose()?,
            environment,
            input,
            timeout: check::optional_duration("timeout", given.timeout)?,
            output: output(given.stream, given.max_output, given.on_disconnect)?,
            terminal: given.terminal.map(|terminal| (terminal.rows, terminal.columns)),
            detached: given.detach.unwrap_or_default(),
            sync: given.sync.unwrap_or_default(),
        };
        if exec.detached && exec.input != Input::None {
            return Err(Error::invalid_params("detach", "a detached command has no standard input"));
        }
        if exec.detached && exec.sync {
            return Err(Error::invalid_params("sync", "a detached command cannot be waited for"));
        }
        Ok(exec)
    }

    /// Returns the command of a create's sync. Its errors name the parameters below `sync`.
    pub(in crate::protocol) fn of_sync(given: SyncParams) -> Result<Self, Error> {
        let command = match (given.command, given.git) {
            (Some(command), None) => command,
            (None, Some(branch)) => fetch(branch)?,
            _ => return Err(Error::invalid_params("sync", "either command or git is required")),
        };
        Ok(Exec {
            arguments: arguments(command).map_err(within_sync)?,
            user: None,
            directory: given.cwd.map(|cwd| check::path("sync.cwd", cwd)).transpose()?,
            environment: BTreeMap::new(),
            input: Input::None,
            timeout: check::optional_duration("sync.timeout", given.timeout)?,
            output: output(None, None, None)?,
            terminal: None,
            detached: false,
            sync: true,
        })
    }
}

/// Returns the command that replaces the content of a directory by the head of a branch. The names are arguments and
/// never part of the line.
fn fetch(GitBranch { directory, branch, remote }: GitBranch) -> Result<Command, Error> {
    const LINE: &str = r#"git -C "$1" fetch --quiet "$2" "$3" && git -C "$1" reset --quiet --hard FETCH_HEAD"#;
    let remote = remote.unwrap_or_else(|| "origin".to_owned());
    for (field, name) in [("sync.git.branch", &branch), ("sync.git.remote", &remote)] {
        if name.is_empty() || name.starts_with('-') || name.contains(char::is_whitespace) {
            return Err(Error::invalid_params(
                field,
                format!("{name:?} is not a valid name: it must not be empty, start with - or contain white space"),
            ));
        }
    }
    let directory = check::path("sync.git.directory", directory)?;
    let words = ["/bin/sh", "-c", LINE, "sync"].map(str::to_owned).into_iter();
    Ok(Command::Arguments(words.chain([directory, remote, branch]).collect()))
}

fn within_sync(error: Error) -> Error {
    let message = error.message.replacen("command", "sync.command", 1);
    Error { message, ..error }.with("field", "sync.command")
}

impl GuestRequest {
    pub(in crate::protocol) fn run_code(given: RunCodeParams) -> Result<Self, Error> {
        if given.code.contains('\0') {
            return Err(Error::invalid_params("code", "must not contain a null character"));
        }
        let exec = Exec {
            arguments: Vec::new(),
            user: given.user.map(user).transpose()?,
            directory: given.cwd.map(|cwd| check::path("cwd", cwd)).transpose()?,
            environment: environment(given.env)?,
            input: given.stdin.map_or(Input::None, |text| Input::Whole(text.into_bytes())),
            timeout: check::optional_duration("timeout", given.timeout)?,
            output: output(given.stream, given.max_output, given.on_disconnect)?,
            terminal: None,
            detached: false,
            sync: false,
        };
        let language = given.language.unwrap_or_else(|| DEFAULT_LANGUAGE.to_owned());
        let limited = given.max_output.is_some();
        Ok(GuestRequest::RunCode(Box::new(Code { language, source: given.code, exec, limited })))
    }

    pub(in crate::protocol) fn attach(given: &AttachParams) -> Result<Self, Error> {
        // A caller that attaches to a detached command does not own it.
        let on_disconnect = given.on_disconnect.or(Some(OnDisconnect::Detach));
        let output = output(given.stream, given.max_output, on_disconnect)?;
        Ok(GuestRequest::Attach { command: given.command_id, output })
    }

    pub(in crate::protocol) fn kill(given: &KillParams) -> Result<Self, Error> {
        if let Some(signal) = given.signal.filter(|signal| !(1..=31).contains(signal)) {
            return Err(Error::invalid_params("signal", format!("must be from 1 to 31, got {signal}")));
        }
        Ok(GuestRequest::Kill { command: given.command_id, signal: given.signal })
    }

    pub(in crate::protocol) fn read_file(given: ReadFileParams) -> Result<Self, Error> {
        let stream = given.stream.unwrap_or_default();
        let length = match given.length {
            None if stream => u64::MAX,
            None => MAX_READ,
            Some(length) if stream || length <= MAX_READ => length,
            Some(length) => {
                let message = format!("must be at most {MAX_READ} unless it is streamed, got {length}");
                return Err(Error::invalid_params("length", message));
            }
        };
        let (path, offset) = (check::path("path", given.path)?, given.offset.unwrap_or_default());
        if i64::try_from(offset).is_err() {
            return Err(Error::invalid_params("offset", format!("is beyond any file, got {offset}")));
        }
        Ok(GuestRequest::ReadFile { path, offset, length, stream })
    }

    pub(in crate::protocol) fn write_file(given: WriteFileParams) -> Result<Self, Error> {
        let content = check::bytes(given.text, given.base64)?;
        match (&content, given.follows.unwrap_or_default()) {
            (None, false) => return Err(Error::invalid_params("text", "or base64 or follows is required")),
            (Some(_), true) => return Err(Error::invalid_params("follows", "the content is given already")),
            _ => {}
        }
        let (path, mode) = (check::path("path", given.path)?, check::mode(given.mode)?);
        Ok(GuestRequest::WriteFile { path, content, mode, parents: given.parents.unwrap_or_default() })
    }

    pub(in crate::protocol) fn logs(given: &LogsParams) -> Self {
        let (tail, since) = (given.tail.map(|lines| lines as usize), given.since.map(|time| time.0));
        GuestRequest::Logs(LogRange { tail, since, follow: given.follow.unwrap_or_default() })
    }

    pub(in crate::protocol) fn stats(given: &StatsParams) -> Result<Self, Error> {
        let interval = check::optional_duration("interval", given.interval)?;
        if interval.is_some_and(|interval| interval < LEAST_INTERVAL) {
            let message = format!("must be at least {} seconds", LEAST_INTERVAL.as_secs_f64());
            return Err(Error::invalid_params("interval", message));
        }
        Ok(GuestRequest::Stats { interval })
    }
}

fn arguments(command: Command) -> Result<Vec<String>, Error> {
    let arguments = match command {
        Command::Line(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
        Command::Arguments(arguments) => arguments,
    };
    if arguments.first().is_none_or(String::is_empty) {
        return Err(Error::invalid_params("command", "must not be empty"));
    }
    if arguments.iter().any(|argument| argument.contains('\0')) {
        return Err(Error::invalid_params("command", "must not contain a null character"));
    }
    Ok(arguments)
}

fn environment(given: Option<BTreeMap<String, String>>) -> Result<BTreeMap<String, String>, Error> {
    let checked =
        Environment::checked(given.unwrap_or_default()).map_err(|error| Error::invalid_params("env", error))?;
    Ok(checked.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

fn output(stream: Option<bool>, limit: Option<u64>, on_disconnect: Option<OnDisconnect>) -> Result<Output, Error> {
    let stream = stream.unwrap_or_default();
    let limit = match limit {
        None if stream => usize::MAX,
        None => DEFAULT_OUTPUT,
        Some(limit) => match usize::try_from(limit) {
            Ok(limit) if stream || limit <= MAX_OUTPUT => limit,
            _ => {
                let message = format!("must be at most {MAX_OUTPUT} unless it is streamed, got {limit}");
                return Err(Error::invalid_params("max_output", message));
            }
        },
    };
    Ok(Output { stream, limit, detach_on_disconnect: on_disconnect == Some(OnDisconnect::Detach) })
}

/// Returns a user, as a name or a number with an optional group behind a colon. The sandbox's own tables resolve it.
fn user(user: String) -> Result<String, Error> {
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    match user.len() <= 128 && user.split(':').count() <= 2 && user.split(':').all(plain) {
        true => Ok(user),
        false => Err(Error::invalid_params("user", "expected a name or a number, such as 1000 or 1000:1000")),
    }
}
