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

use serde_json::json;

pub(super) use arguments::GuestCommand;
pub(super) use progress::size;

use super::failure::CliError;
use super::{Exit, Service};
use crate::client::{ClientError, Failure};

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
            let started = service.call("sandbox.exec", exec.params()).await?;
            Ok((Exit::Done, service.show(&started, listing::started)?))
        }
        GuestCommand::Exec(exec) => running::exec(service, exec).await,
        GuestCommand::Run { chat, language, timeout, file } => {
            let code = if file == Path::new("-") {
                std::io::read_to_string(std::io::stdin())
            } else {
                std::fs::read_to_string(file)
            };
            let code = code.map_err(|error| CliError::local(file, error))?;
            let mut params = json!({ "chat_id": chat, "code": code });
            if let Some(language) = language {
                params["language"] = json!(language);
            }
            if let Some(timeout) = timeout {
                params["timeout"] = json!(timeout.as_secs_f64());
            }
            running::code(service, chat, params).await
        }
        GuestCommand::Logs { chat, tail, follow } => {
            running::logs(service, chat, json!({ "chat_id": chat, "tail": tail, "follow": follow })).await
        }
        GuestCommand::Stats { chat } => {
            let stats = service.call("sandbox.stats", json!({ "chat_id": chat })).await?;
            Ok((Exit::Done, service.show(&stats, |stats| stats::table(stats, service.width))?))
        }
        GuestCommand::Shell { chat } => running::shell(service, chat).await,
        GuestCommand::Attach { chat, command } => running::attach(service, chat, *command).await,
        GuestCommand::Ps { chat } => {
            let commands = service.call("sandbox.commands", json!({ "chat_id": chat })).await?;
            Ok((Exit::Done, service.show(&commands, |commands| listing::commands(commands, service.width))?))
        }
        GuestCommand::Kill { chat, command, signal } => {
            done(service, "sandbox.kill", json!({ "chat_id": chat, "command_id": command, "signal": signal })).await
        }
        GuestCommand::Cat { chat, path } => transfer::cat(service, chat, path).await,
        &GuestCommand::Cp { ref from, ref to, parents, recursive } => {
            transfer::copy(service, from, to, transfer::CopyOptions { parents, recursive }).await
        }
        GuestCommand::Ls { chat, path } => {
            let params = json!({ "chat_id": chat, "path": path });
            match service.call("sandbox.list_files", params.clone()).await {
                Err(ClientError::Failed(failure)) if is_no_directory(&failure) => {
                    let file = service.call("sandbox.stat_file", params).await?;
                    Ok((Exit::Done, service.show(&file, |file| listing::file(path, file))?))
                }
                files => Ok((Exit::Done, service.show(&files?, listing::files)?)),
            }
        }
        GuestCommand::Rm { chat, path, recursive } => {
            let params = json!({ "chat_id": chat, "path": path, "recursive": recursive });
            done(service, "sandbox.remove_file", params).await
        }
        GuestCommand::Mkdir { chat, path, parents } => {
            let params = json!({ "chat_id": chat, "path": path, "parents": parents });
            done(service, "sandbox.make_directory", params).await
        }
        GuestCommand::Mv { chat, from, to } => {
            done(service, "sandbox.move_file", json!({ "chat_id": chat, "from": from, "to": to })).await
        }
    }
}

fn is_no_directory(failure: &Failure) -> bool {
    failure.data.details.get("reason").is_some_and(|reason| reason == "not_a_directory")
}

/// Calls a method and prints no result, like the shell commands of the same names.
async fn done(service: &Service, method: &str, params: serde_json::Value) -> Result<(Exit, String), CliError> {
    let result = service.call(method, params).await?;
    Ok((Exit::Done, service.show(&result, |_: serde_json::Value| String::new())?))
}
