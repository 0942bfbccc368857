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

use sandboxd_protocol::empty::NoParams;
use sandboxd_protocol::event::WatchParams;
use sandboxd_protocol::method::Method;
use sandboxd_protocol::pool::PoolParams;
use sandboxd_protocol::sandbox::{
    ChatParams, CreatedSandbox, DeleteParams, HintParams, LeaseParams, ReleaseParams, RenewParams,
};
use sandboxd_protocol::system::{HealthResult, HealthStatus, ReconcileParams};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::client::{Client, ClientError};

pub use arguments::Arguments;
use arguments::{Command, Pools, Snapshots};
use columns::Width;
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
            let health = service.call(Method::SystemHealth, NoParams {}).await?;
            let well = parsed(&health).is_ok_and(|health: HealthResult| health.status == HealthStatus::Ok);
            let exit = if well { Exit::Done } else { Exit::Failed };
            Ok((exit, service.show(&health, tables::fields)?))
        }
        Command::Info => service.call_and_show(Method::SystemInfo, NoParams {}, tables::fields).await,
        Command::Doctor => doctor::examine(arguments).await,
        Command::Create(create) => {
            let created = service.call(Method::SandboxCreate, create.params()).await?;
            let shown = match create.quiet {
                true => parsed::<CreatedSandbox>(&created)?.sandbox.chat_id + "\n",
                false => service.show(&created, tables::created)?,
            };
            Ok((Exit::Done, shown))
        }
        Command::Get { chat } => service.show_sandbox(Method::SandboxGet, of_chat(chat)).await,
        Command::List { all, filter } => {
            let list = match *all || !filter.is_empty() {
                true => to_raw_value(&service.list_all(filter).await?).map_err(ClientError::from)?,
                false => service.page(None, filter).await?,
            };
            Ok((Exit::Done, service.show(&list, tables::list)?))
        }
        Command::Renew { chat, ttl } => {
            let params = RenewParams { chat_id: chat.clone(), ttl: ttl.as_secs_f64() };
            service.show_sandbox(Method::SandboxRenew, params).await
        }
        Command::Touch { chat } => service.show_sandbox(Method::SandboxTouch, of_chat(chat)).await,
        Command::Pause { chat } => service.show_sandbox(Method::SandboxPause, of_chat(chat)).await,
        Command::Resume { chat } => service.show_sandbox(Method::SandboxResume, of_chat(chat)).await,
        Command::Lease { chat, length, durable } => {
            let (duration, durable) = (length.as_secs_f64(), *durable);
            let params = LeaseParams { chat_id: chat.clone(), duration, durable: Some(durable) };
            let (exit, shown) = service.call_and_show(Method::SandboxLease, params, tables::leased).await?;
            if durable {
                return Ok((exit, shown));
            }
            print(&shown);
            following::hold_lease(&service.client, *length).await?;
            Ok((exit, String::new()))
        }
        Command::Release { chat, lease } => {
            let params = ReleaseParams { chat_id: chat.clone(), lease_id: lease.clone() };
            service.show_sandbox(Method::SandboxRelease, params).await
        }
        Command::Pools { command: None } => service.call_and_show(Method::PoolStatus, NoParams {}, tables::pools).await,
        Command::Pools { command: Some(Pools::Drain { profile }) } => {
            let pools = service.call(Method::PoolDrain, PoolParams { profile: profile.clone() }).await?;
            let exit = if tables::is_drained(&parsed(&pools)?) { Exit::Done } else { Exit::Failed };
            Ok((exit, service.show(&pools, tables::pools)?))
        }
        Command::Pools { command: Some(Pools::Fill { profile }) } => {
            let params = PoolParams { profile: profile.clone() };
            service.call_and_show(Method::PoolFill, params, tables::pools).await
        }
        Command::Hint { profile, chat, ttl } => {
            let ttl = ttl.map(|ttl| ttl.as_secs_f64());
            let params = HintParams { profile: profile.clone(), chat_id: chat.clone(), ttl };
            service.call_and_show(Method::SandboxHint, params, tables::fields).await
        }
        Command::Events { after, chat } => {
            let params = WatchParams { after: *after, chat_id: chat.clone() };
            following::events(&service.client, params, service.json).await?;
            Ok((Exit::Done, String::new()))
        }
        Command::Reconcile { dry_run } => {
            let params = ReconcileParams { dry_run: Some(*dry_run) };
            service.call_and_show(Method::SystemReconcile, params, tables::report).await
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
            let params = |chat: &str| DeleteParams {
                chat_id: chat.to_owned(),
                snapshot: (*snapshot || *no_snapshot).then_some(*snapshot),
                purge: purge.then_some(true),
            };
            match chat {
                Some(chat) => deletion::one(&service, params(chat)).await,
                None => deletion::many(&service, filter, params, *yes).await,
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
    async fn call(&self, method: Method, params: impl Serialize) -> Result<Box<RawValue>, ClientError> {
        self.client.call(method, params).await
    }

    /// Returns the result as the service sent it with `--json`, else as a table.
    fn show<T: DeserializeOwned>(
        &self,
        result: &RawValue,
        table: impl FnOnce(T, Width) -> String,
    ) -> Result<String, ClientError> {
        if self.json { Ok(format!("{}\n", result.get())) } else { Ok(table(parsed(result)?, self.width)) }
    }

    async fn call_and_show<T: DeserializeOwned>(
        &self,
        method: Method,
        params: impl Serialize,
        table: impl FnOnce(T, Width) -> String,
    ) -> Result<(Exit, String), CliError> {
        Ok((Exit::Done, self.show(&self.call(method, params).await?, table)?))
    }

    async fn show_sandbox(&self, method: Method, params: impl Serialize) -> Result<(Exit, String), CliError> {
        self.call_and_show(method, params, tables::sandbox).await
    }

    async fn page(&self, after: Option<String>, filter: &Filter) -> Result<Box<RawValue>, ClientError> {
        self.call(Method::SandboxList, filter.params(after)?).await
    }

    /// Returns all pages as one list.
    async fn list_all(&self, filter: &Filter) -> Result<List, ClientError> {
        let mut list: List = parsed(&self.page(None, filter).await?)?;
        while let Some(after) = list.next.take() {
            let List { sandboxes, undescribed, next } = parsed(&self.page(Some(after), filter).await?)?;
            list.sandboxes.extend(sandboxes);
            list.undescribed.extend(undescribed);
            list.next = next;
        }
        Ok(list)
    }
}

fn of_chat(chat: &str) -> ChatParams {
    ChatParams { chat_id: chat.to_owned() }
}

/// A list of which each entry is as the service sent it.
#[derive(Serialize, Deserialize)]
struct List {
    sandboxes: Vec<Box<RawValue>>,
    undescribed: Vec<Box<RawValue>>,
    next: Option<String>,
}

impl List {
    /// Returns the ids of all listed chats, including those that could not be described.
    fn chats(&self) -> Result<Vec<String>, ClientError> {
        #[derive(Deserialize)]
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
