//! Work inside a sandbox.

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

pub(super) use arguments::Inside;
pub(super) use progress::size;

use super::failure::Trouble;
use super::{Exit, Service};
use crate::client::{ClientError, Failure};

impl Inside {
    /// Its exit code is that of a command in the sandbox, and its own failures must not be taken for that.
    pub(super) fn exits_as_a_command(&self) -> bool {
        matches!(self, Inside::Exec(_) | Inside::Run { .. } | Inside::Shell { .. } | Inside::Attach { .. })
    }
}

pub(super) async fn execute(service: &Service, inside: &Inside) -> Result<(Exit, String), Trouble> {
    match inside {
        Inside::Exec(exec) if exec.detach => {
            let started = service.call("sandbox.exec", exec.params()).await?;
            Ok((Exit::Done, service.show(&started, listing::started)?))
        }
        Inside::Exec(exec) => running::exec(service, exec).await,
        Inside::Run { chat, language, timeout, file } => {
            let code = if file == Path::new("-") {
                std::io::read_to_string(std::io::stdin())
            } else {
                std::fs::read_to_string(file)
            };
            let code = code.map_err(|error| Trouble::local(file, error))?;
            let mut params = json!({ "chat_id": chat, "code": code });
            if let Some(language) = language {
                params["language"] = json!(language);
            }
            if let Some(timeout) = timeout {
                params["timeout"] = json!(timeout.as_secs_f64());
            }
            running::code(service, chat, params).await
        }
        Inside::Logs { chat, tail, follow } => {
            running::logs(service, chat, json!({ "chat_id": chat, "tail": tail, "follow": follow })).await
        }
        Inside::Stats { chat } => {
            let stats = service.call("sandbox.stats", json!({ "chat_id": chat })).await?;
            Ok((Exit::Done, service.show(&stats, |stats| stats::table(stats, service.width))?))
        }
        Inside::Shell { chat } => running::shell(service, chat).await,
        Inside::Attach { chat, command } => running::attach(service, chat, *command).await,
        Inside::Ps { chat } => {
            let commands = service.call("sandbox.commands", json!({ "chat_id": chat })).await?;
            Ok((Exit::Done, service.show(&commands, |commands| listing::commands(commands, service.width))?))
        }
        Inside::Kill { chat, command, signal } => {
            done(service, "sandbox.kill", json!({ "chat_id": chat, "command_id": command, "signal": signal })).await
        }
        Inside::Cat { chat, path } => transfer::cat(service, chat, path).await,
        &Inside::Cp { ref from, ref to, parents, recursive } => {
            transfer::copy(service, from, to, transfer::How { parents, recursive }).await
        }
        Inside::Ls { chat, path } => {
            let params = json!({ "chat_id": chat, "path": path });
            match service.call("sandbox.list_files", params.clone()).await {
                Err(ClientError::Failed(failure)) if is_no_directory(&failure) => {
                    let file = service.call("sandbox.stat_file", params).await?;
                    Ok((Exit::Done, service.show(&file, |file| listing::file(path, file))?))
                }
                files => Ok((Exit::Done, service.show(&files?, listing::files)?)),
            }
        }
        Inside::Rm { chat, path, recursive } => {
            let params = json!({ "chat_id": chat, "path": path, "recursive": recursive });
            done(service, "sandbox.remove_file", params).await
        }
        Inside::Mkdir { chat, path, parents } => {
            let params = json!({ "chat_id": chat, "path": path, "parents": parents });
            done(service, "sandbox.make_directory", params).await
        }
        Inside::Mv { chat, from, to } => {
            done(service, "sandbox.move_file", json!({ "chat_id": chat, "from": from, "to": to })).await
        }
    }
}

fn is_no_directory(failure: &Failure) -> bool {
    failure.data.details.get("reason").is_some_and(|reason| reason == "not_a_directory")
}

/// Silent, as the commands of the same names are.
async fn done(service: &Service, method: &str, params: serde_json::Value) -> Result<(Exit, String), Trouble> {
    let result = service.call(method, params).await?;
    Ok((Exit::Done, service.show(&result, |_: serde_json::Value| String::new())?))
}
