//! The journal: commits writes, and is read by the next actor.

use super::*;
use crate::reconciler::plan::{Action, PlanInput, plan};

impl World {
    pub(super) fn write(&mut self, writes: usize) {
        for _ in 0..writes {
            if self.disk.is_empty() {
                return;
            }
            if let Some(ticket) = self.disk.take() {
                self.send(Event::Saved { ticket, result: Ok(()) });
            }
        }
    }

    pub(super) fn flush_unsaved(&mut self) {
        let unsaved = self.lifecycle.flush();
        self.receive(unsaved.into_iter().collect());
    }

    pub(super) fn refuse_writes(&mut self) {
        for ticket in self.disk.refuse() {
            self.send(Event::Saved { ticket, result: Err(no_room()) });
        }
    }

    pub(super) fn time_out_a_write(&mut self) {
        if let Some(ticket) = self.disk.time_out() {
            self.send(Event::Saved { ticket, result: Err(NotSaved("no answer".into())) });
        }
    }

    /// Returns the chat's sandbox as engine and journal describe it. An adopted sandbox is saved.
    pub(super) fn discover(&mut self) -> Option<Box<Sandbox>> {
        self.write(usize::MAX);
        let situation = PlanInput {
            listed: self.found().map(|found| *found).into_iter().collect(),
            unrecognised: Vec::new(),
            records: self.disk.record.iter().cloned().collect(),
            adopted: Default::default(),
            journal_is_new: self.journal_is_new,
            now: self.now,
            underway_since: None,
        };
        self.journal_is_new = false;
        let sandbox = match plan(&situation).pop()? {
            Action::Adopt { sandbox, .. } => sandbox,
            other => panic!("{other:?} does not follow from {situation:?}"),
        };
        if situation.records.is_empty() && sandbox.status != Status::Deleting {
            self.save_at_once((*sandbox).clone());
        }
        Some(sandbox)
    }

    /// Commits an acknowledged write of another actor, after all earlier writes.
    pub(super) fn save_at_once(&mut self, sandbox: Sandbox) {
        self.write(usize::MAX);
        self.disk.record = Some(sandbox);
    }
}
