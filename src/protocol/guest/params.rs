//! From parameters to what is to be done inside.

mod code;
mod files;
mod looks;

use std::collections::BTreeMap;

use sandboxd_actors::domain::environment::Environment;
use sandboxd_actors::domain::ids::ChatId;
use serde::Deserialize;

use super::{CommandId, DEFAULT_OUTPUT, Encoded, Exec, GuestRequest, Input, MAX_ARGUMENTS, MAX_OUTPUT, Output};
use crate::protocol::error::Error;
use crate::protocol::fields::{duration, fields, required};
use crate::protocol::method::Method;
use crate::protocol::request::Text;

/// `None`: the method is not about the inside of a sandbox.
pub(in crate::protocol) fn parse(method: Method, params: &str) -> Result<Option<(ChatId, GuestRequest)>, Error> {
    Ok(Some(match method {
        Method::SandboxExec => fields::<ExecFields<'_>>(params)?.checked()?,
        Method::SandboxRunCode => fields::<code::RunCodeFields<'_>>(params)?.checked()?,
        Method::SandboxLogs => fields::<looks::LogsFields<'_>>(params)?.checked()?,
        Method::SandboxStats => fields::<looks::StatsFields<'_>>(params)?.checked()?,
        Method::SandboxAttach => fields::<AttachFields<'_>>(params)?.checked()?,
        Method::SandboxCommands => {
            let CommandsFields { chat_id } = fields(params)?;
            (required("chat_id", chat_id)?, GuestRequest::Commands)
        }
        Method::SandboxKill => fields::<KillFields<'_>>(params)?.checked()?,
        Method::SandboxInput => fields::<InputFields<'_>>(params)?.checked()?,
        Method::SandboxResize => fields::<ResizeFields<'_>>(params)?.checked()?,
        _ => return files::parse(method, params),
    }))
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct ExecFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    command: Option<Command>,
    user: Option<String>,
    cwd: Option<String>,
    env: Option<BTreeMap<String, String>>,
    stdin: Option<String>,
    stdin_base64: Option<Encoded>,
    stdin_follows: Option<bool>,
    timeout: Option<f64>,
    max_output: Option<u64>,
    stream: Option<bool>,
    on_disconnect: Option<OnDisconnect>,
    detach: Option<bool>,
    sync: Option<bool>,
    terminal: Option<Terminal>,
}

/// A line for the shell, or arguments as they are.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a line for the shell, or an array of arguments")]
enum Command {
    Line(String),
    Arguments(Vec<String>),
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum OnDisconnect {
    Kill,
    Detach,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Terminal {
    rows: u16,
    columns: u16,
}

impl ExecFields<'_> {
    fn checked(mut self) -> Result<(ChatId, GuestRequest), Error> {
        let chat = required("chat_id", self.chat_id.take())?;
        Ok((chat, GuestRequest::Exec(Box::new(self.exec()?))))
    }

    fn exec(self) -> Result<Exec, Error> {
        let arguments = match self.command {
            None => return Err(Error::invalid_params("command", "is required")),
            Some(Command::Line(line)) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
            Some(Command::Arguments(arguments)) => arguments,
        };
        if arguments.first().is_none_or(String::is_empty) {
            return Err(Error::invalid_params("command", "must not be empty"));
        }
        if arguments.iter().any(|argument| argument.contains('\0')) {
            return Err(Error::invalid_params("command", "must not contain a null character"));
        }
        let environment = environment(self.env)?;
        let length = arguments.iter().map(String::len).sum::<usize>()
            + environment.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        if length > MAX_ARGUMENTS {
            let message = format!("with env it must be at most {MAX_ARGUMENTS} bytes long, got {length}");
            return Err(Error::invalid_params("command", message));
        }
        let input = match (self.stdin, self.stdin_base64, self.stdin_follows.unwrap_or_default()) {
            (None, None, false) => Input::None,
            (None, None, true) => Input::Follows,
            (Some(text), None, false) => Input::Whole(text.into_bytes()),
            (None, Some(encoded), false) => Input::Whole(encoded.decode("stdin_base64")?),
            _ => {
                let message = "only one of stdin, stdin_base64 and stdin_follows can be given";
                return Err(Error::invalid_params("stdin", message));
            }
        };
        let exec = Exec {
            arguments,
            user: self.user.map(user).transpose()?,
            directory: self.cwd.map(|cwd| plain_path("cwd", cwd)).transpose()?,
            environment,
            input,
            timeout: duration("timeout", self.timeout)?,
            output: output(self.stream, self.max_output, self.on_disconnect)?,
            terminal: self.terminal.map(|terminal| (terminal.rows, terminal.columns)),
            detached: self.detach.unwrap_or_default(),
            sync: self.sync.unwrap_or_default(),
        };
        if exec.detached && exec.input != Input::None {
            return Err(Error::invalid_params("detach", "a detached command has no standard input"));
        }
        if exec.detached && exec.sync {
            return Err(Error::invalid_params("sync", "a detached command cannot be waited for"));
        }
        Ok(exec)
    }
}

/// The sync of a create: a command, or a branch to be fetched.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::protocol) struct SyncFields {
    command: Option<Command>,
    git: Option<GitBranch>,
    cwd: Option<String>,
    timeout: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GitBranch {
    directory: String,
    branch: String,
    remote: Option<String>,
}

impl GitBranch {
    /// What is on the branch replaces what is in the directory. The names are arguments, never part of the line.
    fn command(self) -> Result<Command, Error> {
        const LINE: &str = r#"git -C "$1" fetch --quiet "$2" "$3" && git -C "$1" reset --quiet --hard FETCH_HEAD"#;
        let remote = self.remote.unwrap_or_else(|| "origin".to_owned());
        for (field, name) in [("sync.git.branch", &self.branch), ("sync.git.remote", &remote)] {
            if name.is_empty() || name.starts_with('-') || name.contains(char::is_whitespace) {
                return Err(Error::invalid_params(field, format!("{name:?} is no name")));
            }
        }
        let directory = plain_path("sync.git.directory", self.directory)?;
        let words = ["/bin/sh", "-c", LINE, "sync"].map(str::to_owned).into_iter();
        Ok(Command::Arguments(words.chain([directory, remote, self.branch]).collect()))
    }
}

impl SyncFields {
    pub(in crate::protocol) fn checked(self) -> Result<Box<Exec>, Error> {
        let command = match (self.command, self.git) {
            (Some(command), None) => command,
            (None, Some(branch)) => branch.command()?,
            _ => return Err(Error::invalid_params("sync", "either command or git is required")),
        };
        let exec = ExecFields { command: Some(command), cwd: self.cwd, timeout: self.timeout, ..ExecFields::default() };
        let mut exec = exec.exec().map_err(|error| error.within("sync"))?;
        exec.sync = true;
        Ok(Box::new(exec))
    }
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttachFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    command_id: Option<CommandId>,
    max_output: Option<u64>,
    stream: Option<bool>,
    on_disconnect: Option<OnDisconnect>,
}

impl AttachFields<'_> {
    fn checked(self) -> Result<(ChatId, GuestRequest), Error> {
        // Whoever attaches to what already runs detached does not own it.
        let on_disconnect = self.on_disconnect.or(Some(OnDisconnect::Detach));
        let output = output(self.stream, self.max_output, on_disconnect)?;
        Ok((required("chat_id", self.chat_id)?, GuestRequest::Attach { command: command(self.command_id)?, output }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandsFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KillFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    command_id: Option<CommandId>,
    signal: Option<i32>,
}

impl KillFields<'_> {
    fn checked(self) -> Result<(ChatId, GuestRequest), Error> {
        if let Some(signal) = self.signal.filter(|signal| !(1..=31).contains(signal)) {
            return Err(Error::invalid_params("signal", format!("must be from 1 to 31, got {signal}")));
        }
        let command = command(self.command_id)?;
        Ok((required("chat_id", self.chat_id)?, GuestRequest::Kill { command, signal: self.signal }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InputFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    command_id: Option<CommandId>,
    text: Option<String>,
    base64: Option<Encoded>,
    end: Option<bool>,
}

impl InputFields<'_> {
    fn checked(self) -> Result<(ChatId, GuestRequest), Error> {
        let bytes = either(("text", self.text), ("base64", self.base64))?.unwrap_or_default();
        let (command, end) = (command(self.command_id)?, self.end.unwrap_or_default());
        Ok((required("chat_id", self.chat_id)?, GuestRequest::Input { command, bytes, end }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResizeFields<'a> {
    #[serde(borrow)]
    chat_id: Option<Text<'a>>,
    command_id: Option<CommandId>,
    rows: Option<u16>,
    columns: Option<u16>,
}

impl ResizeFields<'_> {
    fn checked(self) -> Result<(ChatId, GuestRequest), Error> {
        let given = |field, value: Option<u16>| value.ok_or_else(|| Error::invalid_params(field, "is required"));
        let (rows, columns) = (given("rows", self.rows)?, given("columns", self.columns)?);
        let command = command(self.command_id)?;
        Ok((required("chat_id", self.chat_id)?, GuestRequest::Resize { command, rows, columns }))
    }
}

fn command(id: Option<CommandId>) -> Result<CommandId, Error> {
    id.ok_or_else(|| Error::invalid_params("command_id", "is required"))
}

fn either(text: (&str, Option<String>), encoded: (&str, Option<Encoded>)) -> Result<Option<Vec<u8>>, Error> {
    match (text.1, encoded.1) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(text.into_bytes())),
        (None, Some(bytes)) => bytes.decode(encoded.0).map(Some),
        (Some(_), Some(_)) => Err(Error::invalid_params(text.0, format!("{} is given, too", encoded.0))),
    }
}

/// A name or a number, and perhaps a group's behind a colon. Who that is, the sandbox's own tables say.
fn user(user: String) -> Result<String, Error> {
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    match user.len() <= 128 && user.split(':').count() <= 2 && user.split(':').all(plain) {
        true => Ok(user),
        false => Err(Error::invalid_params("user", "expected a name or a number, such as 1000 or 1000:1000")),
    }
}

fn checked_path(field: &str, path: Option<String>) -> Result<String, Error> {
    plain_path(field, path.ok_or_else(|| Error::invalid_params(field, "is required"))?)
}

fn plain_path(field: &str, path: String) -> Result<String, Error> {
    match &*path {
        "" => Err(Error::invalid_params(field, "must not be empty")),
        path if path.contains('\0') => Err(Error::invalid_params(field, "must not contain a null character")),
        path if path.len() > 4095 => Err(Error::invalid_params(field, "must be at most 4095 bytes long")),
        _ => Ok(path),
    }
}
