//! The commands that an engine runs for us. Another process of the service does not know them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sandbox_init::codec::Bytes;
use sandbox_init::wire::{CommandFacts, Ending};
use sandboxd_actors::domain::ids::SessionId;

use super::processes::MemoryGroup;

/// Those that ended while nobody listened are remembered, the last ones of all sandboxes.
const REMEMBERED: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Commands(Mutex<BTreeMap<u64, Known>>);

#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) session: SessionId,
    /// As the engine names it.
    pub(super) execution: String,
    pub(super) arguments: Vec<Bytes>,
    pub(super) process: i32,
    pub(super) started: Instant,
    pub(super) attached: bool,
    pub(super) killed: bool,
    /// As it was before the command began.
    pub(super) memory: Option<MemoryGroup>,
    pub(super) ending: Option<Ending>,
}

impl Commands {
    pub(super) fn add(&self, id: u64, known: Known) {
        let mut commands = self.state();
        commands.insert(id, known);
        let ended: Vec<u64> = commands.iter().filter(|(_, known)| known.ending.is_some()).map(|(id, _)| *id).collect();
        for id in &ended[..ended.len().saturating_sub(REMEMBERED)] {
            commands.remove(id);
        }
    }

    pub(super) fn change(&self, id: u64, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.state().get_mut(&id) {
            change(known);
        }
    }

    pub(super) fn forget(&self, id: u64) {
        self.state().remove(&id);
    }

    pub(super) fn get(&self, session: SessionId, id: u64) -> Option<Known> {
        self.state().get(&id).filter(|known| known.session == session).cloned()
    }

    pub(super) fn of(&self, session: SessionId) -> Vec<CommandFacts> {
        let facts = |(&id, known): (&u64, &Known)| CommandFacts {
            id,
            arguments: known.arguments.clone(),
            process: known.process,
            age: known.started.elapsed().as_micros() as u64,
            attached: known.attached,
            ending: known.ending.clone(),
        };
        self.state().iter().filter(|(_, known)| known.session == session).map(facts).collect()
    }

    fn state(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        // No panic can leave the map half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
