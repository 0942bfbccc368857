//! Commands that run on detached: they keep their sandbox from counting as idle, and never past its absolute end.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use sandbox_init::wire::{Event, Request};
use sandboxd_actors::chat::events::Lease;
use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::sandbox::{Holder, Status};
use sandboxd_actors::sandboxes::Sandboxes;

use crate::guest::Entrance;
use crate::guest::stream::GuestStreamError;
use crate::protocol::guest::CommandId;

/// How often the hold of a running command is renewed.
const RENEW: Duration = Duration::from_secs(10);

/// How often an older init, which cannot be asked to tell of a command's end, is asked whether it still runs.
const LOOK: Duration = Duration::from_secs(2);

/// Long enough to outlast a renewal that takes its time.
const HOLD: Duration = Duration::from_secs(30);

/// Counts the command as activity until it has ended. To be waited for before anybody is told that it runs on: taken later,
/// the hold would let a sandbox go on that was paused since.
pub(super) async fn keep(sandboxes: Sandboxes, entrance: Arc<dyn Entrance>, chat: ChatId, command: CommandId) {
    let lease = Lease::of_work(HOLD, Holder::Command { id: command });
    if sandboxes.lease(chat, lease).await.is_err() {
        return;
    }
    tokio::spawn(async move {
        tokio::select! {
            () = ended(&sandboxes, &*entrance, chat, command) => {}
            () = renew(&sandboxes, chat, lease) => {}
        }
        let _ = sandboxes.release(chat, lease.id).await;
    });
}

/// Renews the hold until the sandbox has ended.
async fn renew(sandboxes: &Sandboxes, chat: ChatId, lease: Lease) {
    loop {
        tokio::time::sleep(RENEW).await;
        until_awake(sandboxes, chat).await;
        if sandboxes.lease(chat, lease).await.is_err() {
            return;
        }
    }
}

/// Waits for the end of the command, or until init cannot be asked any more. Init tells of it by itself.
async fn ended(sandboxes: &Sandboxes, entrance: &dyn Entrance, chat: ChatId, command: CommandId) {
    let Ok(mut conversation) = entrance.open_stream(&Request::Await { id: command }).await else { return };
    match conversation.reader.next_event().await {
        Err(GuestStreamError::Failed(failure)) if failure.errno != Errno::SRCH.raw_os_error() => {}
        _ => return,
    }
    loop {
        tokio::time::sleep(LOOK).await;
        until_awake(sandboxes, chat).await;
        match running(entrance).await {
            Some(commands) if !commands.contains(&command) => return,
            None if !is_paused(sandboxes, chat).await => return,
            _ => {}
        }
    }
}

/// Does so for every command that an earlier run of the service has left running in the sandbox.
pub fn keep_all(sandboxes: Sandboxes, entrance: Arc<dyn Entrance>, chat: ChatId) {
    tokio::spawn(async move {
        until_awake(&sandboxes, chat).await;
        for command in running(&*entrance).await.unwrap_or_default() {
            keep(sandboxes.clone(), Arc::clone(&entrance), chat, command).await;
        }
    });
}

/// What stands still does not answer.
async fn until_awake(sandboxes: &Sandboxes, chat: ChatId) {
    while is_paused(sandboxes, chat).await {
        tokio::time::sleep(LOOK).await;
    }
}

async fn is_paused(sandboxes: &Sandboxes, chat: ChatId) -> bool {
    matches!(sandboxes.get(chat).await, Ok(Some(sandbox)) if sandbox.status == Status::Paused)
}

/// `None`: init does not answer. The sandbox has ended, or is about to, or was just paused.
async fn running(entrance: &dyn Entrance) -> Option<Vec<CommandId>> {
    let conversation = entrance.open_stream(&Request::Commands {}).await.ok()?;
    match conversation.answer().await {
        Ok(Event::Commands { commands }) => {
            let running = commands.into_iter().filter(|command| command.ending.is_none());
            Some(running.map(|command| command.id).collect())
        }
        _ => None,
    }
}
