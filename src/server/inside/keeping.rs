//! Commands that run on while nobody is attached: they, too, keep their sandbox from being idle.

use std::sync::Arc;
use std::time::Duration;

use sandbox_init::wire::{Event, Request};
use sandboxd_actors::chat::events::Lease;
use sandboxd_actors::ids::{ChatId, LeaseId};
use sandboxd_actors::sandbox::Status;
use sandboxd_actors::sandboxes::Sandboxes;

use crate::interiors::Entrance;
use crate::protocol::inside::CommandId;

/// How often it is looked whether a command still runs. Idle time counts from the look that finds it ended.
const LOOK: Duration = Duration::from_secs(2);

/// Long enough to outlast a look that takes its time.
const HOLD: Duration = Duration::from_secs(30);

/// Holds the sandbox open until the command has ended. To be waited for before anybody is told that it runs on: taken later,
/// the lease would let a sandbox go on that was paused since.
pub(super) async fn keep(sandboxes: Sandboxes, entrance: Arc<dyn Entrance>, chat: ChatId, command: CommandId) {
    let lease = Lease { id: LeaseId::random(), duration: HOLD, durable: false };
    if sandboxes.lease(chat, lease).await.is_err() {
        return;
    }
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK).await;
            until_awake(&sandboxes, chat).await;
            match running(&*entrance).await {
                Some(commands) if !commands.contains(&command) => break,
                Some(_) if sandboxes.lease(chat, lease).await.is_err() => break,
                None if !is_paused(&sandboxes, chat).await => break,
                _ => {}
            }
        }
        let _ = sandboxes.release(chat, lease.id).await;
    });
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
    let conversation = entrance.converse(&Request::Commands {}).await.ok()?;
    match conversation.answer().await {
        Ok(Event::Commands { commands }) => {
            let running = commands.into_iter().filter(|command| command.ending.is_none());
            Some(running.map(|command| command.id).collect())
        }
        _ => None,
    }
}
