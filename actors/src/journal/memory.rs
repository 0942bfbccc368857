//! A journal in memory, for faults and counts that a real journal cannot show. It outlives its owner: a clone that is
//! loaded again has the contents of a file after a restart.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::{Contents, Entry, EventPage, Journal, JournalError, LifecycleEvent};
use crate::domain::ids::{ChatId, SessionId};
use crate::domain::sandbox::Sandbox;
use crate::pool::claims::Claim;

/// A journal in memory. It is cheap to clone, and all clones are the same journal.
#[derive(Debug, Clone)]
pub struct MemoryJournal {
    inner: Arc<Mutex<Inner>>,
    /// The number of commits that have begun, for tests that wait for one.
    commits: Arc<watch::Sender<usize>>,
}

#[derive(Debug, Default)]
struct Inner {
    sandboxes: BTreeMap<ChatId, Sandbox>,
    claims: BTreeMap<ChatId, Arc<Claim>>,
    claims_in_files: bool,
    events: VecDeque<LifecycleEvent>,
    last_event: u64,
    rebuilt: bool,
    keep_events: Option<usize>,
    faults: VecDeque<Fault>,
    standing_fault: Option<Fault>,
    unreadable: bool,
}

/// A fault that a test injects into a commit.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Fails without writing.
    Fail(JournalError),
    Panic,
    /// Writes after the gate is opened.
    Hold(Gate),
}

impl Fault {
    pub fn full() -> Self {
        Fault::Fail(JournalError::Full { file: "memory".into(), message: "no space left".into() })
    }

    pub fn io() -> Self {
        Fault::Fail(JournalError::Io { file: "memory".into(), message: "input/output error".into() })
    }
}

/// A gate that blocks a commit until it is opened.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn open(&self) {
        let (open, changed) = &*self.0;
        *open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }

    fn pass(&self) {
        let (open, changed) = &*self.0;
        let closed = open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_while(closed, |open| !*open));
    }
}

impl Default for MemoryJournal {
    fn default() -> Self {
        Self { inner: Arc::default(), commits: Arc::new(watch::Sender::new(0)) }
    }
}

impl MemoryJournal {
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps only the last `count` events. The default is all.
    pub fn keep_events(&self, count: usize) {
        self.inner().keep_events = Some(count);
    }

    /// Injects the fault into the next commit; further faults queue up.
    pub fn fail_next(&self, fault: Fault) {
        self.inner().faults.push_back(fault);
    }

    /// Injects the fault into every commit until [`MemoryJournal::heal`].
    pub fn fail_always(&self, fault: Fault) {
        self.inner().standing_fault = Some(fault);
    }

    /// Fails every read of a record until [`MemoryJournal::heal`].
    pub fn refuse_reads(&self) {
        self.inner().unreadable = true;
    }

    pub fn heal(&self) {
        let mut inner = self.inner();
        inner.faults.clear();
        inner.standing_fault = None;
        inner.unreadable = false;
    }

    /// Blocks the next commit at the returned gate.
    pub fn hold_next(&self) -> Gate {
        let gate = Gate::default();
        self.fail_next(Fault::Hold(gate.clone()));
        gate
    }

    pub fn sandboxes(&self) -> Vec<Sandbox> {
        self.inner().sandboxes.values().cloned().collect()
    }

    /// Behaves as a journal from before claims were entries.
    pub fn predates_claims(&self) {
        self.inner().claims_in_files = true;
    }

    pub fn claims(&self) -> Vec<Arc<Claim>> {
        self.inner().claims.values().cloned().collect()
    }

    pub fn recorded(&self) -> Vec<LifecycleEvent> {
        self.inner().events.iter().cloned().collect()
    }

    /// Returns the number of commits that have begun.
    pub fn commits(&self) -> usize {
        *self.commits.borrow()
    }

    /// Resolves when this number of commits have begun.
    pub async fn reached(&self, commits: usize) {
        // The sender lives in this journal, so the wait cannot fail.
        let _ = self.commits.subscribe().wait_for(|begun| *begun >= commits).await;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn readable(&self) -> Result<MutexGuard<'_, Inner>, JournalError> {
        let inner = self.inner();
        if inner.unreadable {
            return Err(JournalError::Io { file: "memory".into(), message: "input/output error".into() });
        }
        Ok(inner)
    }
}

impl Journal for MemoryJournal {
    fn load(&mut self) -> Result<Contents, JournalError> {
        let inner = self.inner();
        let sandboxes = inner.sandboxes.values().cloned().collect();
        Ok(Contents {
            sandboxes,
            claims: inner.claims.values().cloned().collect(),
            claims_in_files: inner.claims_in_files,
            last_event: inner.last_event,
            fresh: !inner.rebuilt,
        })
    }

    fn sandbox(&mut self, chat: ChatId) -> Result<Option<Sandbox>, JournalError> {
        Ok(self.readable()?.sandboxes.get(&chat).cloned())
    }

    fn sessions(&mut self) -> Result<Vec<SessionId>, JournalError> {
        Ok(self.readable()?.sandboxes.values().map(|sandbox| sandbox.session).collect())
    }

    fn commit(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        let fault = {
            let mut inner = self.inner();
            inner.faults.pop_front().or_else(|| inner.standing_fault.clone())
        };
        self.commits.send_modify(|count| *count += 1);
        match fault {
            Some(Fault::Fail(error)) => return Err(error),
            Some(Fault::Panic) => panic!("the journal in memory panics on request"),
            Some(Fault::Hold(gate)) => gate.pass(),
            None => {}
        }
        self.inner().apply(entries);
        Ok(())
    }

    fn events(&mut self, after: u64, chat: Option<ChatId>, limit: usize) -> Result<EventPage, JournalError> {
        let inner = self.inner();
        let wanted =
            |event: &&LifecycleEvent| event.sequence > after && chat.is_none_or(|chat| event.change.chat == chat);
        Ok(EventPage {
            events: inner.events.iter().filter(wanted).take(limit).cloned().collect(),
            kept_from: inner.events.front().map_or(inner.last_event + 1, |event| event.sequence),
            last: inner.last_event,
        })
    }

    fn last_events(&mut self, chat: ChatId, limit: usize) -> Result<Vec<LifecycleEvent>, JournalError> {
        let inner = self.inner();
        Ok(inner.events.iter().rev().filter(|event| event.change.chat == chat).take(limit).cloned().collect())
    }
}

impl Inner {
    fn has(&self, chat: ChatId, session: SessionId) -> bool {
        self.sandboxes.get(&chat).is_some_and(|sandbox| sandbox.session == session)
    }

    fn apply(&mut self, entries: &[Entry]) {
        for entry in entries {
            match entry {
                Entry::Save(sandbox) => {
                    if self.claims.get(&sandbox.chat).is_some_and(|claim| claim.session != sandbox.session) {
                        self.claims.remove(&sandbox.chat);
                    }
                    self.sandboxes.insert(sandbox.chat, (**sandbox).clone());
                }
                Entry::Remove { chat, session } => {
                    if self.has(*chat, *session) {
                        self.sandboxes.remove(chat);
                        self.claims.remove(chat);
                    }
                }
                Entry::Claim(claim) => {
                    if self.has(claim.chat, claim.session) {
                        self.claims.insert(claim.chat, Arc::clone(claim));
                    }
                }
                Entry::ClaimsImported => self.claims_in_files = false,
                Entry::Activity { chat, session, at } => {
                    if let Some(sandbox) = self.sandboxes.get_mut(chat).filter(|found| found.session == *session) {
                        sandbox.last_activity_at = *at;
                    }
                }
                Entry::Event(event) => {
                    self.last_event = event.sequence;
                    self.events.push_back((**event).clone());
                }
                Entry::Rebuilt => self.rebuilt = true,
                Entry::Probe => {}
            }
        }
        let surplus = self.keep_events.map_or(0, |keep| self.events.len().saturating_sub(keep));
        self.events.drain(..surplus);
    }
}
