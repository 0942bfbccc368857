//! sandboxctl: the command line client of the service.

mod arguments;
mod chats;
mod columns;
mod create;
mod deletion;
mod doctor;
mod failure;
mod filter;
mod following;
mod guest;
mod images;
mod moment;
mod snapshots;
mod tables;

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::client::{Client, ClientError};

pub use arguments::Arguments;
use arguments::{Command, Pools, Snapshots};
use columns::Width;
use deletion::DeleteOptions;
use failure::{CliError, explain};
use filter::Filter;
use images::ImageCommand;

/// The exit code of sandboxctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    Done,
    /// The service refused or failed the request, or it is degraded.
    Failed,
    WrongUsage,
    CannotConnect,
    NotFound,
    /// The exit code of a command in a sandbox, or the code for a command that did not start.
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

/// Runs one command and prints its result.
pub async fn run(mut arguments: Arguments) -> ExitCode {
    let exit = match execute(&mut arguments).await {
        Ok((exit, output)) => {
            print(&output);
            exit
        }
        Err(error) => {
            let (exit, message) = explain(&error, &arguments);
            print_error(&message);
            exit
        }
    };
    ExitCode::from(exit.code())
}

async fn execute(arguments: &mut Arguments) -> Result<(Exit, String), CliError> {
    if let Command::Doctor = &arguments.command {
        // The doctor also works without a connection to the service.
        return doctor::examine(arguments).await;
    }
    if let Command::Image { command: ImageCommand::Base(base) } = &arguments.command {
        // A first-time user builds the image before the service runs.
        let service = Client::connect(&arguments.socket).await.ok();
        return images::base::make(service.as_ref(), base, arguments.json).await;
    }
    let client = connect(&arguments.socket, arguments.wait).await?;
    let width = if arguments.wide { Width::UNLIMITED } else { Width::of_terminal() };
    let service = Service { client, json: arguments.json, width };
    for chat in arguments.command.chats() {
        chats::resolve(&service, chat).await?;
    }
    match &arguments.command {
        Command::Health => {
            let health = service.call("system.health", json!({})).await?;
            let well = parsed::<Value>(&health)?["status"] == "ok";
            let exit = if well { Exit::Done } else { Exit::Failed };
            Ok((exit, service.show(&health, |object| tables::fields(object, service.width))?))
        }
        Command::Info => {
            let info = service.call("system.info", json!({})).await?;
            Ok((Exit::Done, service.show(&info, |object| tables::fields(object, service.width))?))
        }
        Command::Doctor => doctor::examine(arguments).await,
        Command::Create(create) => {
            let created = service.call("sandbox.create", create.params()).await?;
            if create.quiet {
                let id = parsed::<Value>(&created)?["chat_id"].as_str().unwrap_or_default().to_owned();
                return Ok((Exit::Done, id + "\n"));
            }
            Ok((Exit::Done, service.show_sandbox(&created)?))
        }
        Command::Get { chat } => {
            let sandbox = service.call("sandbox.get", json!({ "chat_id": chat })).await?;
            Ok((Exit::Done, service.show_sandbox(&sandbox)?))
        }
        Command::List { all, filter } => {
            let whole = *all || !filter.is_empty();
            let page = match whole {
                true => {
                    let list = service.list_all(filter).await?;
                    serde_json::value::to_raw_value(&list).map_err(ClientError::from)?
                }
                false => service.page(None, filter).await?,
            };
            Ok((Exit::Done, service.show(&page, |page| tables::list(page, service.width))?))
        }
        Command::Renew { chat, ttl } => {
            let params = json!({ "chat_id": chat, "ttl": ttl.as_secs_f64() });
            let sandbox = service.call("sandbox.renew", params).await?;
            Ok((Exit::Done, service.show_sandbox(&sandbox)?))
        }
        Command::Touch { chat } => {
            let sandbox = service.call("sandbox.touch", json!({ "chat_id": chat })).await?;
            Ok((Exit::Done, service.show_sandbox(&sandbox)?))
        }
        Command::Pause { chat } => {
            let sandbox = service.call("sandbox.pause", json!({ "chat_id": chat })).await?;
            Ok((Exit::Done, service.show_sandbox(&sandbox)?))
        }
        Command::Resume { chat } => {
            let sandbox = service.call("sandbox.resume", json!({ "chat_id": chat })).await?;
            Ok((Exit::Done, service.show_sandbox(&sandbox)?))
        }
        Command::Lease { chat, length, durable } => {
            let params = json!({ "chat_id": chat, "duration": length.as_secs_f64(), "durable": durable });
            let sandbox = service.call("sandbox.lease", params).await?;
            let shown = service.show_sandbox(&sandbox)?;
            if !durable {
                print(&shown);
                following::hold_lease(&service.client, *length).await?;
                return Ok((Exit::Done, String::new()));
            }
            Ok((Exit::Done, shown))
        }
        Command::Release { chat, lease } => {
            let params = json!({ "chat_id": chat, "lease_id": lease });
            let sandbox = service.call("sandbox.release", params).await?;
            Ok((Exit::Done, service.show_sandbox(&sandbox)?))
        }
        Command::Pools { command: None } => {
            let pools = service.call("pool.status", json!({})).await?;
            Ok((Exit::Done, service.show(&pools, |pools| tables::pools(pools, service.width))?))
        }
        Command::Pools { command: Some(Pools::Drain { profile }) } => {
            let pools = service.call("pool.drain", json!({ "profile": profile })).await?;
            let exit = if tables::is_drained(&parsed(&pools)?) { Exit::Done } else { Exit::Failed };
            Ok((exit, service.show(&pools, |pools| tables::pools(pools, service.width))?))
        }
        Command::Pools { command: Some(Pools::Fill { profile }) } => {
            let pools = service.call("pool.fill", json!({ "profile": profile })).await?;
            Ok((Exit::Done, service.show(&pools, |pools| tables::pools(pools, service.width))?))
        }
        Command::Hint { profile, chat, ttl } => {
            let ttl = ttl.map(|ttl| ttl.as_secs_f64());
            let params = json!({ "profile": profile, "chat_id": chat, "ttl": ttl });
            let hinted = service.call("sandbox.hint", params).await?;
            Ok((Exit::Done, service.show(&hinted, |object| tables::fields(object, service.width))?))
        }
        Command::Events { after, chat } => {
            let params = json!({ "after": after, "chat_id": chat });
            following::events(&service.client, params, service.json).await?;
            Ok((Exit::Done, String::new()))
        }
        Command::Reconcile { dry_run } => {
            let report = service.call("system.reconcile", json!({ "dry_run": dry_run })).await?;
            Ok((Exit::Done, service.show(&report, |report| tables::report(report, service.width))?))
        }
        Command::Images => images::list(&service).await,
        Command::Image { command } => images::execute(&service, command).await,
        Command::Guest(command) => guest::execute(&service, command).await,
        Command::Snapshot { chat, label } => snapshots::save(&service, chat, label.as_deref()).await,
        Command::Snapshots { command: Some(Snapshots::Delete { snapshot }), .. } => {
            snapshots::delete(&service, snapshot).await
        }
        Command::Snapshots { command: None, chat, all } => snapshots::list(&service, chat.as_deref(), *all).await,
        Command::Delete { chat, snapshot, no_snapshot, purge, yes, filter, .. } => {
            let options = DeleteOptions { snapshot: (*snapshot || *no_snapshot).then_some(*snapshot), purge: *purge };
            match chat {
                Some(chat) => deletion::one(&service, chat, options).await,
                None => deletion::many(&service, filter, options, *yes).await,
            }
        }
    }
}

/// The time between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Connects to the service. Retries for at most `wait` while the service is starting.
async fn connect(socket: &Path, wait: Option<Duration>) -> Result<Client, ClientError> {
    let until = Instant::now() + wait.unwrap_or_default();
    loop {
        match Client::connect(socket).await {
            Err(ClientError::Connect { source, .. })
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
                    && Instant::now() < until => {}
            connected => return connected,
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Prints to standard output. Returns false if the reader has closed it, which is not an error.
fn print(output: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(output.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

/// Prints a message of sandboxctl itself to standard error.
fn print_notice(message: &str) {
    print_error(&format!("sandboxctl: {message}"));
}

/// Prints a line to standard error. Unlike `eprintln!`, it does not panic if standard error is closed.
fn print_error(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The connected service and the output options.
struct Service {
    client: Client,
    json: bool,
    width: Width,
}

impl Service {
    async fn call(&self, method: &str, params: Value) -> Result<Box<RawValue>, ClientError> {
        self.client.call(method, params).await
    }

    /// Returns the result as the service sent it with `--json`, else as a table.
    fn show<T: DeserializeOwned>(
        &self,
        result: &RawValue,
        table: impl FnOnce(T) -> String,
    ) -> Result<String, ClientError> {
        if self.json { Ok(format!("{}\n", result.get())) } else { Ok(table(parsed(result)?)) }
    }

    fn show_sandbox(&self, sandbox: &RawValue) -> Result<String, ClientError> {
        self.show(sandbox, |sandbox| tables::sandbox(sandbox, self.width))
    }

    async fn page(&self, after: Option<&Value>, filter: &Filter) -> Result<Box<RawValue>, ClientError> {
        self.call("sandbox.list", filter.params(after)).await
    }

    /// Returns all pages as one list.
    async fn list_all(&self, filter: &Filter) -> Result<List, ClientError> {
        let (mut sandboxes, mut undescribed) = (Vec::new(), Vec::new());
        let mut after = None;
        loop {
            let page = self.page(after.as_ref(), filter).await?;
            let List { sandboxes: some, undescribed: others, next } = parsed(&page)?;
            sandboxes.extend(some);
            undescribed.extend(others);
            match next {
                Value::Null => return Ok(List { sandboxes, undescribed, next }),
                next => after = Some(next),
            }
        }
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct List {
    sandboxes: Vec<Box<RawValue>>,
    #[serde(default)]
    undescribed: Vec<Box<RawValue>>,
    next: Value,
}

impl List {
    /// Returns the ids of all listed chats, including those that could not be described.
    fn chats(&self) -> Result<Vec<String>, ClientError> {
        #[derive(serde::Deserialize)]
        struct WithChatId {
            chat_id: String,
        }
        let all = self.sandboxes.iter().chain(&self.undescribed);
        all.map(|listed| parsed(listed).map(|WithChatId { chat_id }| chat_id)).collect()
    }
}

fn parsed<T: DeserializeOwned>(result: &RawValue) -> Result<T, ClientError> {
    Ok(serde_json::from_str(result.get())?)
}

/// The default socket of the service.
const DEFAULT_SOCKET: &str = "/run/sandboxd/sandboxd.sock";

fn shown(socket: &Path) -> String {
    socket.display().to_string()
}
