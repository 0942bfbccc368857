//! The callers, engine, journal and clock around a lifecycle, as a test directs them.

mod callers;
mod engine;
mod time;

use super::*;

/// A chat on a stage: requests and events go in, and effects are kept until a test asks for them.
pub(super) struct Stage {
    pub(super) lifecycle: Lifecycle,
    pub(super) now: Timestamp,
    waiters: u64,
    containers: u32,
    pub(super) answers: BTreeMap<WaiterId, Reply>,
    /// Effects without an answer, oldest first.
    pub(super) open: Vec<Effect>,
    pub(super) history: Vec<Transition>,
    pub(super) disk: Disk,
    disk_is: DiskIs,
    pub(super) deadline: Option<Timestamp>,
    /// Every saved activity.
    pub(super) saved_activities: Vec<Timestamp>,
    pub(super) counted: Vec<Status>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskIs {
    Fine,
    /// No write is committed or answered.
    Stuck,
    /// Acknowledged writes fail at once.
    Full,
}

impl Stage {
    pub(super) fn absent() -> Self {
        Self::with(Lifecycle::absent(request().chat, name(), rules()), Vec::new())
    }

    pub(super) fn unknown() -> Self {
        Self::with(Lifecycle::unknown(request().chat, name(), rules()), Vec::new())
    }

    /// With a sandbox that engine and journal know.
    pub(super) fn resuming(sandbox: Sandbox) -> Self {
        Self::resuming_under(rules(), sandbox)
    }

    pub(super) fn resuming_under(rules: Rules, sandbox: Sandbox) -> Self {
        let absent = Lifecycle::absent(request().chat, name(), rules);
        let (lifecycle, effects) = absent.resuming(sandbox.clone());
        let mut stage = Self::with(lifecycle, Vec::new());
        stage.disk.record = Some(sandbox);
        stage.receive(effects);
        stage
    }

    /// With a sandbox that is known by its container only.
    pub(super) fn adopting(found: &Found) -> Self {
        Self::resuming(found.sandbox(noon()))
    }

    /// With a sandbox that was created just now.
    pub(super) fn running() -> Self {
        Self::running_under(rules())
    }

    pub(super) fn running_under(rules: Rules) -> Self {
        let mut stage = Self::with(Lifecycle::absent(request().chat, name(), rules), Vec::new());
        let create = stage.create();
        stage.launch_succeeds();
        stage.created(create);
        stage
    }

    /// With a sandbox that is being removed.
    pub(super) fn deleting() -> Self {
        let mut stage = Self::running();
        stage.delete();
        stage
    }

    /// With a sandbox whose first removal failed.
    pub(super) fn owing() -> Self {
        let mut stage = Self::deleting();
        stage.tear_down_fails();
        stage
    }

    pub(super) fn with(lifecycle: Lifecycle, effects: Vec<Effect>) -> Self {
        let mut stage = Self {
            lifecycle,
            now: noon(),
            waiters: 0,
            containers: 0,
            answers: BTreeMap::new(),
            open: Vec::new(),
            history: Vec::new(),
            disk: Disk::default(),
            disk_is: DiskIs::Fine,
            deadline: None,
            saved_activities: Vec::new(),
            counted: Vec::new(),
        };
        stage.receive(effects);
        stage
    }

    pub(super) fn send(&mut self, event: Event) {
        let effects = self.lifecycle.handle(event, self.now);
        self.receive(effects);
    }

    pub(super) fn receive(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::SaveActivity { at, .. } = &effect {
                self.saved_activities.push(*at);
            }
            let Some(effect) = self.disk.queue_write(effect) else { continue };
            match effect {
                Effect::Answer { waiter, reply } => {
                    assert!(waiter.0 < self.waiters, "{waiter:?} sent no request");
                    let before = self.answers.insert(waiter, reply);
                    assert!(before.is_none(), "{waiter:?} was answered before: {before:?}");
                }
                Effect::Publish(transition) => self.history.push(transition),
                Effect::Count(status) => self.counted.push(status),
                Effect::Arm { at } => self.deadline = Some(at),
                Effect::Disarm => self.deadline = None,
                effect => self.open.push(effect),
            }
        }
        match self.disk_is {
            DiskIs::Fine => self.write_all(),
            DiskIs::Stuck => {}
            DiskIs::Full => self.refuse_all(),
        }
    }

    // The journal.

    pub(super) fn write_all(&mut self) {
        while !self.disk.is_empty() {
            if let Some(ticket) = self.disk.take() {
                self.send(Event::Saved { ticket, result: Ok(()) });
            }
        }
    }

    pub(super) fn refuse_all(&mut self) {
        for ticket in self.disk.refuse() {
            self.send(Event::Saved { ticket, result: Err(no_room()) });
        }
    }

    /// The oldest acknowledged write times out.
    pub(super) fn write_times_out(&mut self) {
        let ticket = self.disk.time_out().expect("an acknowledged write is queued");
        self.send(Event::Saved { ticket, result: Err(NotSaved("no answer".into())) });
    }

    pub(super) fn disk_is(&mut self, disk_is: DiskIs) {
        self.disk_is = disk_is;
        self.receive(Vec::new());
    }

    /// Returns the record that the next service would read.
    pub(super) fn on_disk(&self) -> Option<&Sandbox> {
        self.disk.record.as_ref()
    }

    pub(super) fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    pub(super) fn assert_no_open_effects(&self) {
        assert!(self.open.is_empty(), "{:?}", self.open);
        assert!(self.disk_is != DiskIs::Fine || self.disk.is_empty(), "{:?}", self.disk);
    }

    /// Checks that no effect is open and no container is owned, so that the actor may stop.
    pub(super) fn assert_idle(&self) {
        self.assert_no_open_effects();
        assert!(self.lifecycle.is_idle(), "{:?}", self.lifecycle.phase());
        assert!(self.lifecycle.is_settled());
        assert_eq!(self.deadline, None, "a deadline without a sandbox");
        assert_eq!(self.on_disk(), None, "a record without a sandbox");
    }
}
