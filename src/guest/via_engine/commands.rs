//! The commands that an engine runs for this process of the service. The next process does not know them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sandbox_init::codec::Bytes;
use sandbox_init::wire::{CommandFacts, Ending};
use sandboxd_actors::domain::ids::SessionId;

use super::processes::MemoryGroup;

/// The most ended commands that are kept, over all sandboxes. The last ones are kept.
const MAX_ENDED: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Commands(Mutex<BTreeMap<u64, CommandState>>);

#[derive(Debug, Clone)]
pub(super) struct CommandState {
    pub(super) session: SessionId,
    /// The engine's id of the execution.
    pub(super) execution: String,
    pub(super) arguments: Vec<Bytes>,
    pub(super) process: i32,
    pub(super) started: Instant,
    pub(super) attached: bool,
    pub(super) killed: bool,
    /// Measured before the command began.
    pub(super) memory: Option<MemoryGroup>,
    pub(super) ending: Option<Ending>,
}

impl Commands {
    pub(super) fn add(&self, id: u64, known: CommandState) {
        let mut commands = self.state();
        commands.insert(id, known);
        let ended: Vec<u64> = commands.iter().filter(|(_, known)| known.ending.is_some()).map(|(id, _)| *id).collect();
        for id in &ended[..ended.len().saturating_sub(MAX_ENDED)] {
            commands.remove(id);
        }
    }

    pub(super) fn change(&self, id: u64, change: impl FnOnce(&mut CommandState)) {
        if let Some(known) = self.state().get_mut(&id) {
            change(known);
        }
    }

    pub(super) fn remove(&self, id: u64) {
        self.state().remove(&id);
    }

    pub(super) fn get(&self, session: SessionId, id: u64) -> Option<CommandState> {
        self.state().get(&id).filter(|known| known.session == session).cloned()
    }

    pub(super) fn of(&self, session: SessionId) -> Vec<CommandFacts> {
        let facts = |(&id, known): (&u64, &CommandState)| CommandFacts {
            id,
            arguments: known.arguments.clone(),
            process: known.process,
            age: known.started.elapsed().as_micros() as u64,
            attached: known.attached,
            ending: known.ending.clone(),
        };
        self.state().iter().filter(|(_, known)| known.session == session).map(facts).collect()
    }

    fn state(&self) -> MutexGuard<'_, BTreeMap<u64, CommandState>> {
        // No panic can leave the map inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
