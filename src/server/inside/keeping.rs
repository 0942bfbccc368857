//! Commands that run on while nobody is attached: they, too, keep their sandbox from being idle.

use std::sync::Arc;
use std::time::Duration;

use sandbox_init::wire::{Event, Request};
use sandboxd_actors::chat::events::Lease;
use sandboxd_actors::ids::{ChatId, LeaseId};
use sandboxd_actors::sandbox::Status;
use sandboxd_actors::sandboxes::Sandboxes;

use crate::interiors::Interior;
use crate::protocol::inside::CommandId;

/// How often it is looked whether a command still runs. Idle time counts from the look that finds it ended.
const LOOK: Duration = Duration::from_secs(2);

/// Long enough to outlast a look that takes its time.
const HOLD: Duration = Duration::from_secs(30);

/// Holds the sandbox open until the command has ended.
pub(super) fn keep(sandboxes: Sandboxes, interior: Arc<Interior>, chat: ChatId, command: CommandId) {
    tokio::spawn(async move {
        let lease = Lease { id: LeaseId::random(), duration: HOLD, durable: false };
        while running(&interior).await.contains(&command) && sandboxes.lease(chat, lease).await.is_ok() {
            tokio::time::sleep(LOOK).await;
        }
        let _ = sandboxes.release(chat, lease.id).await;
    });
}

/// Does so for every command that an earlier run of the service has left running in the sandbox.
pub fn keep_all(sandboxes: Sandboxes, interior: Arc<Interior>, chat: ChatId) {
    tokio::spawn(async move {
        // What stands still does not answer.
        while matches!(sandboxes.get(chat).await, Ok(Some(sandbox)) if sandbox.status == Status::Paused) {
            tokio::time::sleep(LOOK).await;
        }
        for command in running(&interior).await {
            keep(sandboxes.clone(), Arc::clone(&interior), chat, command);
        }
    });
}

/// None, if init does not answer: then the sandbox has ended, or is about to.
async fn running(interior: &Interior) -> Vec<CommandId> {
    let Ok(conversation) = interior.converse(&Request::Commands {}).await else { return Vec::new() };
    match conversation.answer().await {
        Ok(Event::Commands { commands }) => {
            commands.into_iter().filter(|command| command.ending.is_none()).map(|command| command.id).collect()
        }
        _ => Vec::new(),
    }
}
