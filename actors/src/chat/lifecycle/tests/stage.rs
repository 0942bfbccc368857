//! Everybody around a lifecycle: callers, engine, journal and clock, each doing what a test says.

mod callers;
mod engine;
mod time;

use super::*;

/// A chat on a stage: requests and events go in, and what comes out is kept until a test asks for it.
pub(super) struct Stage {
    pub(super) lifecycle: Lifecycle,
    pub(super) now: Timestamp,
    waiters: u64,
    containers: u32,
    pub(super) answers: BTreeMap<WaiterId, Reply>,
    /// What was asked of the world and is not answered yet, oldest first.
    pub(super) open: Vec<Effect>,
    pub(super) history: Vec<Transition>,
    pub(super) disk: Disk,
    disk_is: DiskIs,
    pub(super) deadline: Option<Timestamp>,
    /// Every activity that was to be written down.
    pub(super) noted: Vec<Timestamp>,
    pub(super) counted: Vec<Status>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskIs {
    Fine,
    /// Nothing gets there, and nobody is told.
    Stuck,
    /// Whoever waits is told at once.
    Full,
}

impl Stage {
    pub(super) fn absent() -> Self {
        Self::with(Lifecycle::absent(request().chat, name(), rules()), Vec::new())
    }

    pub(super) fn unknown() -> Self {
        Self::with(Lifecycle::unknown(request().chat, name(), rules()), Vec::new())
    }

    /// With a sandbox that engine and journal know of.
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
            noted: Vec::new(),
            counted: Vec::new(),
        };
        stage.receive(effects);
        stage
    }

    pub(super) fn tell(&mut self, event: Event) {
        let effects = self.lifecycle.handle(event, self.now);
        self.receive(effects);
    }

    pub(super) fn receive(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::SaveActivity { at, .. } = &effect {
                self.noted.push(*at);
            }
            let Some(effect) = self.disk.hand_over(effect) else { continue };
            match effect {
                Effect::Answer { waiter, reply } => {
                    assert!(waiter.0 < self.waiters, "{waiter:?} never asked anything");
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
                self.tell(Event::Saved { ticket, result: Ok(()) });
            }
        }
    }

    pub(super) fn refuse_all(&mut self) {
        for ticket in self.disk.refuse() {
            self.tell(Event::Saved { ticket, result: Err(no_room()) });
        }
    }

    /// A write that nobody wanted to wait for any longer.
    pub(super) fn write_times_out(&mut self) {
        let ticket = self.disk.time_out().expect("somebody waits for a write");
        self.tell(Event::Saved { ticket, result: Err(NotSaved("no answer".into())) });
    }

    pub(super) fn disk_is(&mut self, disk_is: DiskIs) {
        self.disk_is = disk_is;
        self.receive(Vec::new());
    }

    /// What the next service would read.
    pub(super) fn on_disk(&self) -> Option<&Sandbox> {
        self.disk.record.as_ref()
    }

    pub(super) fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    pub(super) fn assert_nothing_is_open(&self) {
        assert!(self.open.is_empty(), "{:?}", self.open);
        assert!(self.disk_is != DiskIs::Fine || self.disk.is_empty(), "{:?}", self.disk);
    }

    /// Nothing is open and nothing is owned: the actor may retire.
    pub(super) fn assert_idle(&self) {
        self.assert_nothing_is_open();
        assert!(self.lifecycle.is_idle(), "{:?}", self.lifecycle.phase());
        assert!(self.lifecycle.is_settled());
        assert_eq!(self.deadline, None, "a deadline without a sandbox");
        assert_eq!(self.on_disk(), None, "a record without a sandbox");
    }
}
