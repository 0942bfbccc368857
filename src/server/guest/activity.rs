//! Leases of detached commands: a running command counts as activity of its sandbox, up to the absolute deadline.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use sandbox_init::wire::{Event, Request};
use sandboxd_actors::chat::events::Lease;
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::sandbox::{Holder, Status};
use sandboxd_actors::sandboxes::Sandboxes;

use crate::guest::Guest;
use crate::guest::stream::GuestStreamError;
use crate::protocol::guest::CommandId;

/// How often the lease of a running command is renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// How often an older init, which does not know [`Request::Await`], is asked for its running commands.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Long enough for a slow renewal.
const LEASE_DURATION: Duration = Duration::from_secs(30);

/// Leases the sandbox until the command ends. To be awaited before the caller gets its answer: a later lease would resume
/// a sandbox that was paused meanwhile.
pub(super) async fn follow_detached_command(
    sandboxes: Sandboxes,
    guest: Arc<dyn Guest>,
    chat: ChatId,
    command: CommandId,
) {
    let lease = Lease::of_work(LEASE_DURATION, Holder::Command { id: command });
    if sandboxes.lease(chat, lease).await.is_err() {
        return;
    }
    tokio::spawn(async move {
        tokio::select! {
            () = wait_for_end(&sandboxes, &*guest, chat, command) => {}
            () = renew(&sandboxes, chat, lease) => {}
        }
        let _ = sandboxes.release(chat, lease.id).await;
    });
}

/// Renews the lease until the sandbox has ended.
async fn renew(sandboxes: &Sandboxes, chat: ChatId, lease: Lease) {
    loop {
        tokio::time::sleep(RENEW_INTERVAL).await;
        wait_while_paused(sandboxes, chat).await;
        if sandboxes.lease(chat, lease).await.is_err() {
            return;
        }
    }
}

/// Waits until the command ends or init does not reply any more. Init reports the end.
async fn wait_for_end(sandboxes: &Sandboxes, guest: &dyn Guest, chat: ChatId, command: CommandId) {
    let Ok(mut stream) = guest.open_stream(&Request::Await { id: command }).await else { return };
    match stream.reader.next_event().await {
        Err(GuestStreamError::Failed(failure)) if failure.errno != Errno::SRCH.raw_os_error() => {}
        _ => return,
    }
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        wait_while_paused(sandboxes, chat).await;
        match running_commands(guest).await {
            Some(commands) if !commands.contains(&command) => return,
            None if !is_paused(sandboxes, chat).await => return,
            _ => {}
        }
    }
}

/// Leases the sandbox for every command in it that runs since an earlier run of the service.
pub fn follow_detached_commands(sandboxes: Sandboxes, guest: Arc<dyn Guest>, chat: ChatId) {
    tokio::spawn(async move {
        wait_while_paused(&sandboxes, chat).await;
        for command in running_commands(&*guest).await.unwrap_or_default() {
            follow_detached_command(sandboxes.clone(), Arc::clone(&guest), chat, command).await;
        }
    });
}

/// Waits until the sandbox is not paused. A paused guest cannot reply.
async fn wait_while_paused(sandboxes: &Sandboxes, chat: ChatId) {
    while is_paused(sandboxes, chat).await {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn is_paused(sandboxes: &Sandboxes, chat: ChatId) -> bool {
    matches!(sandboxes.get(chat).await, Ok(Some(sandbox)) if sandbox.status == Status::Paused)
}

/// Returns the running commands, or `None` if init does not reply: the sandbox has ended, is about to end, or was just
/// paused.
async fn running_commands(guest: &dyn Guest) -> Option<Vec<CommandId>> {
    let stream = guest.open_stream(&Request::Commands {}).await.ok()?;
    match stream.answer().await {
        Ok(Event::Commands { commands }) => {
            let running_commands = commands.into_iter().filter(|command| command.ending.is_none());
            Some(running_commands.map(|command| command.id).collect())
        }
        _ => None,
    }
}
