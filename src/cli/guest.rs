//! Commands and files in a sandbox.

mod arguments;
mod listing;
mod progress;
mod running;
mod stats;
mod terminal;
mod transfer;
mod trees;

use std::path::Path;

use sandboxd_protocol::command::{DetachedCommand, KillParams, RunCodeParams};
use sandboxd_protocol::empty::Empty;
use sandboxd_protocol::file::{FileReason, MakeDirectoryParams, MoveFileParams, RemoveFileParams};
use sandboxd_protocol::guest::{LogsParams, StatsParams};
use sandboxd_protocol::method::Method;
use sandboxd_protocol::sandbox::ChatParams;
use serde::Serialize;

pub(super) use arguments::GuestCommand;
pub(super) use progress::size;

use super::failure::CliError;
use super::{Exit, Service};
use crate::client::ClientError;

impl GuestCommand {
    /// Returns whether the exit code is that of a command in the sandbox, so that sandboxctl's own failures need other
    /// codes.
    pub(super) fn exits_as_a_command(&self) -> bool {
        matches!(
            self,
            GuestCommand::Exec(_) | GuestCommand::Run { .. } | GuestCommand::Shell { .. } | GuestCommand::Attach { .. }
        )
    }
}

pub(super) async fn execute(service: &Service, command: &GuestCommand) -> Result<(Exit, String), CliError> {
    match command {
        GuestCommand::Exec(exec) if exec.detach => {
            let table = |started: DetachedCommand, _| format!("{}\n", started.command_id);
            service.call_and_show(Method::SandboxExec, exec.params(), table).await
        }
        GuestCommand::Exec(exec) => running::exec(service, exec).await,
        GuestCommand::Run { chat, language, timeout, file } => {
            let code = if file == Path::new("-") {
                std::io::read_to_string(std::io::stdin())
            } else {
                std::fs::read_to_string(file)
            };
            let params = RunCodeParams {
                chat_id: chat.clone(),
                code: code.map_err(|error| CliError::local(file, error))?,
                language: language.clone(),
                timeout: timeout.map(|timeout| timeout.as_secs_f64()),
                ..RunCodeParams::default()
            };
            running::code(service, params).await
        }
        GuestCommand::Logs { chat, tail, follow } => {
            let params = LogsParams { chat_id: chat.clone(), tail: *tail, since: None, follow: Some(*follow) };
            running::logs(service, params).await
        }
        GuestCommand::Stats { chat } => {
            let params = StatsParams { chat_id: chat.clone(), interval: None };
            service.call_and_show(Method::SandboxStats, params, stats::table).await
        }
        GuestCommand::Shell { chat } => running::shell(service, chat).await,
        GuestCommand::Attach { chat, command } => running::attach(service, chat, *command).await,
        GuestCommand::Ps { chat } => {
            let params = ChatParams { chat_id: chat.clone() };
            service.call_and_show(Method::SandboxCommands, params, listing::commands).await
        }
        GuestCommand::Kill { chat, command, signal } => {
            let params = KillParams { chat_id: chat.clone(), command_id: *command, signal: *signal };
            done(service, Method::SandboxKill, params).await
        }
        GuestCommand::Cat { chat, path } => transfer::cat(service, chat, path).await,
        &GuestCommand::Cp { ref from, ref to, parents, recursive } => {
            transfer::copy(service, from, to, transfer::CopyOptions { parents, recursive }).await
        }
        GuestCommand::Ls { chat, path } => {
            let params = transfer::path_params(chat, path);
            match service.call(Method::SandboxListFiles, &params).await {
                Err(ClientError::Failed(failure)) if failure.detail("reason") == Some(FileReason::NotADirectory) => {
                    let table = |file, _| listing::file(path, file);
                    service.call_and_show(Method::SandboxStatFile, params, table).await
                }
                files => Ok((Exit::Done, service.show(&files?, listing::files)?)),
            }
        }
        GuestCommand::Rm { chat, path, recursive } => {
            let (chat_id, path) = (chat.clone(), path.clone());
            let params = RemoveFileParams { chat_id, path, recursive: Some(*recursive) };
            done(service, Method::SandboxRemoveFile, params).await
        }
        GuestCommand::Mkdir { chat, path, parents } => {
            let (chat_id, path) = (chat.clone(), path.clone());
            let params = MakeDirectoryParams { chat_id, path, mode: None, parents: Some(*parents) };
            done(service, Method::SandboxMakeDirectory, params).await
        }
        GuestCommand::Mv { chat, from, to } => {
            let params = MoveFileParams { chat_id: chat.clone(), from: from.clone(), to: to.clone() };
            done(service, Method::SandboxMoveFile, params).await
        }
    }
}

/// Calls a method and prints no result, like the shell commands of the same names.
async fn done(service: &Service, method: Method, params: impl Serialize) -> Result<(Exit, String), CliError> {
    service.call_and_show(method, params, |_: Empty, _| String::new()).await
}
