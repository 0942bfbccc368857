//! sandboxctl: the service from a shell.

mod arguments;
mod doctor;
mod failure;
mod following;
mod images;
mod inside;
mod moment;
mod snapshots;
mod tables;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::client::{Client, ClientError};

pub use arguments::Arguments;
use arguments::{Command, Snapshots};
use failure::{Trouble, explain};

/// What the exit code says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    Done,
    /// The service refused the request or could not fulfil it; or it is not well.
    Failed,
    WrongUsage,
    CannotConnect,
    NotFound,
    /// How a command in a sandbox ended, or why there is none.
    Command(u8),
}

impl Exit {
    fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::WrongUsage => 2,
            Exit::CannotConnect => 3,
            Exit::NotFound => 4,
            Exit::Command(code) => code,
        }
    }
}

/// Carries out one command.
pub async fn run(arguments: Arguments) -> ExitCode {
    let exit = match execute(&arguments).await {
        Ok((exit, output)) => {
            print(&output);
            exit
        }
        Err(error) => {
            let (exit, message) = explain(&error, &arguments);
            let _ = writeln!(std::io::stderr(), "{message}");
            exit
        }
    };
    ExitCode::from(exit.code())
}

async fn execute(arguments: &Arguments) -> Result<(Exit, String), Trouble> {
    if let Command::Doctor = &arguments.command {
        // Of use also where nobody can be connected to.
        return doctor::examine(arguments).await;
    }
    let service = Service { client: Client::connect(&arguments.socket).await?, json: arguments.json };
    match &arguments.command {
        Command::Health => {
            let health = service.call("system.health", json!({})).await?;
            let well = parsed::<Value>(&health)?["status"] == "ok";
            let exit = if well { Exit::Done } else { Exit::Failed };
            Ok((exit, service.show(&health, tables::fields)?))
        }
        Command::Info => {
            let info = service.call("system.info", json!({})).await?;
            Ok((Exit::Done, service.show(&info, tables::fields)?))
        }
        Command::Doctor => doctor::examine(arguments).await,
        Command::Create(create) => {
            let created = service.call("sandbox.create", create.params()).await?;
            Ok((Exit::Done, service.show(&created, tables::sandbox)?))
        }
        Command::Get { chat } => {
            let sandbox = service.call("sandbox.get", json!({ "chat_id": chat })).await?;
            Ok((Exit::Done, service.show(&sandbox, tables::sandbox)?))
        }
        Command::List { all } => {
            let page = if *all { service.whole_list().await? } else { service.page(None).await? };
            Ok((Exit::Done, service.show(&page, tables::list)?))
        }
        Command::Renew { chat, ttl } => {
            let params = json!({ "chat_id": chat, "ttl": ttl.as_secs_f64() });
            let sandbox = service.call("sandbox.renew", params).await?;
            Ok((Exit::Done, service.show(&sandbox, tables::sandbox)?))
        }
        Command::Touch { chat } => {
            let sandbox = service.call("sandbox.touch", json!({ "chat_id": chat })).await?;
            Ok((Exit::Done, service.show(&sandbox, tables::sandbox)?))
        }
        Command::Pause { chat } => {
            let sandbox = service.call("sandbox.pause", json!({ "chat_id": chat })).await?;
            Ok((Exit::Done, service.show(&sandbox, tables::sandbox)?))
        }
        Command::Resume { chat } => {
            let sandbox = service.call("sandbox.resume", json!({ "chat_id": chat })).await?;
            Ok((Exit::Done, service.show(&sandbox, tables::sandbox)?))
        }
        Command::Lease { chat, length, durable } => {
            let params = json!({ "chat_id": chat, "duration": length.as_secs_f64(), "durable": durable });
            let sandbox = service.call("sandbox.lease", params).await?;
            let shown = service.show(&sandbox, tables::sandbox)?;
            if !durable {
                print(&shown);
                following::hold(&service.client, *length).await?;
                return Ok((Exit::Done, String::new()));
            }
            Ok((Exit::Done, shown))
        }
        Command::Release { chat, lease } => {
            let params = json!({ "chat_id": chat, "lease_id": lease });
            let sandbox = service.call("sandbox.release", params).await?;
            Ok((Exit::Done, service.show(&sandbox, tables::sandbox)?))
        }
        Command::Pools => {
            let pools = service.call("pool.status", json!({})).await?;
            Ok((Exit::Done, service.show(&pools, tables::pools)?))
        }
        Command::Hint { profile, chat, ttl } => {
            let ttl = ttl.map(|ttl| ttl.as_secs_f64());
            let params = json!({ "profile": profile, "chat_id": chat, "ttl": ttl });
            let hinted = service.call("sandbox.hint", params).await?;
            Ok((Exit::Done, service.show(&hinted, tables::fields)?))
        }
        Command::Events { after, chat } => {
            let params = json!({ "after": after, "chat_id": chat });
            following::events(&service.client, params, service.json).await?;
            Ok((Exit::Done, String::new()))
        }
        Command::Reconcile { dry_run } => {
            let report = service.call("system.reconcile", json!({ "dry_run": dry_run })).await?;
            Ok((Exit::Done, service.show(&report, tables::report)?))
        }
        Command::Images => images::list(&service).await,
        Command::Image { command } => images::execute(&service, command).await,
        Command::Inside(inside) => inside::execute(&service, inside).await,
        Command::Snapshot { chat, label } => snapshots::take(&service, chat, label.as_deref()).await,
        Command::Snapshots { command: Some(Snapshots::Delete { snapshot }), .. } => {
            snapshots::delete(&service, snapshot).await
        }
        Command::Snapshots { command: None, chat, all } => snapshots::list(&service, chat.as_deref(), *all).await,
        Command::Delete { chat, snapshot, no_snapshot } => {
            let mut params = json!({ "chat_id": chat });
            if *snapshot || *no_snapshot {
                params["snapshot"] = json!(snapshot);
            }
            let deletion = service.call("sandbox.delete", params).await?;
            let found = parsed::<Value>(&deletion)?["result"] == "deleted";
            let exit = if found { Exit::Done } else { Exit::NotFound };
            Ok((exit, service.show(&deletion, tables::deletion)?))
        }
    }
}

/// Whether anybody still reads it. A reader that has seen enough is no failure.
fn print(output: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(output.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

struct Service {
    client: Client,
    json: bool,
}

impl Service {
    async fn call(&self, method: &str, params: Value) -> Result<Box<RawValue>, ClientError> {
        self.client.call(method, params).await
    }

    /// Programs get the result as the service sent it, people get a table of it.
    fn show<T: DeserializeOwned>(
        &self,
        result: &RawValue,
        table: impl FnOnce(T) -> String,
    ) -> Result<String, ClientError> {
        if self.json { Ok(format!("{}\n", result.get())) } else { Ok(table(parsed(result)?)) }
    }

    async fn page(&self, after: Option<&Value>) -> Result<Box<RawValue>, ClientError> {
        self.call("sandbox.list", json!({ "after": after })).await
    }

    /// Every page as if it were one.
    async fn whole_list(&self) -> Result<Box<RawValue>, ClientError> {
        let mut sandboxes = Vec::new();
        let mut after = None;
        loop {
            let page = self.page(after.as_ref()).await?;
            let List { sandboxes: some, next } = parsed(&page)?;
            sandboxes.extend(some);
            match next {
                Value::Null => break,
                next => after = Some(next),
            }
        }
        Ok(serde_json::value::to_raw_value(&List { sandboxes, next: Value::Null })?)
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct List {
    sandboxes: Vec<Box<RawValue>>,
    next: Value,
}

fn parsed<T: DeserializeOwned>(result: &RawValue) -> Result<T, ClientError> {
    Ok(serde_json::from_str(result.get())?)
}

/// Where the service listens unless it is told otherwise.
const DEFAULT_SOCKET: &str = "/run/sandboxd/sandboxd.sock";

fn shown(socket: &Path) -> String {
    socket.display().to_string()
}
