//! An engine, a journal, a clock and callers around one lifecycle, which check every promise at every step.

mod engine;
mod journal;
mod promises;

use super::*;

/// The engine holds at most one container of the chat, because it has but one name.
#[derive(Debug, Clone)]
struct Container {
    id: ContainerId,
    labels: SessionLabels,
    state: ContainerState,
    /// Made by a creation that had been given up.
    straggler: bool,
}

#[derive(Debug)]
struct Launching {
    generation: Generation,
    session: SessionId,
    agent: crate::domain::ids::AgentId,
    /// Of a restart, from the beginning.
    made: Option<ContainerId>,
    restart: bool,
    cancelled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Create { other_agent: bool },
    Get,
    Delete,
    DeleteKeeping,
    Snapshot,
    Renew(Duration),
    Touch,
    Pause,
    Lease(Lease),
    Release(LeaseId),
}

pub(super) struct World {
    lifecycle: Lifecycle,
    rules: Rules,
    now: Timestamp,
    container: Option<Container>,
    containers: u32,
    launching: Option<Launching>,
    tearing_down: Option<(Generation, Option<ContainerId>)>,
    stopping: Option<(Generation, ContainerId)>,
    /// And whether it is to be paused.
    switching: Option<(Generation, ContainerId, bool)>,
    committing: Option<(Generation, Box<Sandbox>)>,
    /// Of which sandboxes there are snapshots.
    kept: Vec<SessionId>,
    looking: bool,
    checking: Vec<(Generation, ContainerId)>,
    timers: Vec<(Generation, u32)>,
    restarts: Vec<Generation>,
    /// Sessions of the creations that were given up and are still under way.
    stragglers: Vec<SessionId>,
    waiting: BTreeMap<WaiterId, Asked>,
    waiters: u64,
    leases: Vec<LeaseId>,
    /// A caller has asked for a lease at some time.
    leased: bool,
    /// Every answer that carried a generation.
    past: Vec<(Generation, Event)>,
    /// Every answer of the journal.
    past_writes: Vec<Event>,
    /// As last published.
    status: Option<Status>,
    deadline: Option<Timestamp>,
    disk: Disk,
    /// The journal has no history yet.
    journal_is_new: bool,
    /// What a caller was last told that it has.
    told: Option<Sandbox>,
}

impl World {
    pub(super) fn beginning(beginning: Beginning) -> Self {
        let Beginning { container, record, known, on_expire, restart } = beginning;
        let held = container.map(found);
        let record = record.map(|status| {
            let sandbox = held.clone().unwrap_or_else(|| found(ContainerState::Running)).sandbox(noon());
            Sandbox { status, ..sandbox }
        });
        let rules = rules_with(on_expire, restart);
        let mut world = Self {
            lifecycle: Lifecycle::absent(request().chat, name(), rules.clone()),
            rules,
            now: noon(),
            container: held.map(|Found { labels, container, .. }| Container {
                id: container.id,
                labels,
                state: container.state,
                straggler: false,
            }),
            containers: 0,
            launching: None,
            tearing_down: None,
            stopping: None,
            switching: None,
            committing: None,
            kept: Vec::new(),
            looking: false,
            checking: Vec::new(),
            timers: Vec::new(),
            restarts: Vec::new(),
            stragglers: Vec::new(),
            waiting: BTreeMap::new(),
            waiters: 0,
            leases: Vec::new(),
            leased: false,
            past: Vec::new(),
            past_writes: Vec::new(),
            status: None,
            deadline: None,
            journal_is_new: record.is_none(),
            disk: Disk::default(),
            told: None,
        };
        world.disk.record = record;
        match known {
            Known::Nothing => world.journal_is_new = false,
            Known::Unknown => world.start(false),
            Known::Listed => world.start(true),
        }
        world
    }

    pub(super) fn take(&mut self, step: Step) {
        match step {
            Step::Create { other_agent } => self.ask(Asked::Create { other_agent }),
            Step::Get => self.ask(Asked::Get),
            Step::Delete => self.ask(Asked::Delete),
            Step::DeleteKeeping => self.ask(Asked::DeleteKeeping),
            Step::Snapshot => self.ask(Asked::Snapshot),
            Step::Renew(ttl) => self.ask(Asked::Renew(ttl)),
            Step::Touch => self.ask(Asked::Touch),
            Step::Pause => self.ask(Asked::Pause),
            Step::Lease { duration, durable } => {
                let lease = Lease::of_caller(duration, durable);
                self.leases.push(lease.id);
                self.leased = true;
                self.ask(Asked::Lease(lease));
            }
            Step::Work(duration) => {
                let lease = Lease::of_work(duration, Holder::Command { id: 1 });
                self.leases.push(lease.id);
                self.ask(Asked::Lease(lease));
            }
            Step::Release { nth } => {
                let lease = self.leases.iter().rev().nth(nth).copied();
                self.ask(Asked::Release(lease.unwrap_or_else(LeaseId::random)));
            }
            Step::Wait(time) => self.now += time,
            Step::Due { early } => {
                if self.deadline.take_if(|at| early || *at <= self.now).is_some() || early {
                    self.tell(Event::Due);
                }
            }
            Step::ClockSteps(seconds) => {
                let by = TimeDelta::seconds(seconds);
                self.now += by;
                self.tell(Event::ClockStepped { by });
            }
            Step::AskedToWriteDown => self.flush_unsaved(),
            Step::LaunchProgresses => self.progress_launch(),
            Step::LaunchEnds(end) => self.end_launch(end),
            Step::TearDownEnds(end) => self.end_tear_down(end),
            Step::StopEnds(end) => self.end_stop(end),
            Step::SwitchEnds(end) => self.end_switch(end),
            Step::CommitEnds(end) => self.end_commit(end),
            Step::LookEnds { answered } => self.end_look(answered),
            Step::CheckEnds { answered } => self.end_check(answered),
            Step::TimerRings { oldest } => self.ring(oldest),
            Step::RestartComes => self.restart(),
            Step::StragglerActs => self.straggler_acts(),
            Step::StragglerEnds => self.end_straggler(),
            Step::ContainerDies => self.container_dies(),
            Step::ContainerVanishes => self.container_vanishes(),
            Step::ContainerIsSwitched => self.container_is_switched(),
            Step::Stirs => self.stir(),
            Step::Listed { up_to_date } => self.list(up_to_date),
            Step::DiskWrites { writes } => self.write(writes),
            Step::DiskIsFull => self.refuse_writes(),
            Step::WriteTimesOut => self.time_out_a_write(),
            Step::OldAnswerComes { nth } => self.repeat(nth),
            Step::ActorCrashes => self.crash(),
            Step::ServiceIsKilled { listed } => self.kill(listed),
        }
    }

    /// Engine and journal answer everything that is open, as they should, until nothing is.
    pub(super) fn settle(&mut self) {
        for _ in 0..1000 {
            self.write(usize::MAX);
            let ends = self.tearing_down.is_some() || self.stopping.is_some();
            let effects = self.launching.is_some() || ends || self.switching.is_some() || self.committing.is_some();
            let timers = !self.timers.is_empty() || !self.restarts.is_empty();
            let looks = self.looking || !self.checking.is_empty();
            if !effects && !timers && !looks && self.stragglers.is_empty() {
                // What went unnoticed so far is noticed now.
                self.list(true);
                if self.lifecycle.unwritten {
                    self.flush_unsaved();
                }
                if self.checking.is_empty() && self.disk.is_empty() {
                    assert!(self.lifecycle.is_settled(), "nothing is open in {:?}", self.lifecycle.phase());
                    return;
                }
            }
            self.end_look(true);
            self.end_launch(LaunchEnd::Succeeds);
            self.end_tear_down(End::Succeeds);
            self.end_stop(End::Succeeds);
            self.end_switch(End::Succeeds);
            self.end_commit(End::Succeeds);
            self.end_check(true);
            self.ring(true);
            self.restart();
            self.end_straggler();
        }
        panic!("it never settles: {:?}", self.lifecycle);
    }

    fn ask(&mut self, asked: Asked) {
        let waiter = WaiterId(self.waiters);
        self.waiters += 1;
        self.waiting.insert(waiter, asked);
        self.tell(Event::Request(match asked {
            Asked::Get => Request::Get { waiter },
            Asked::Delete => Request::Delete { waiter, snapshot: None },
            Asked::DeleteKeeping => Request::Delete { waiter, snapshot: Some(true) },
            Asked::Snapshot => Request::Snapshot { waiter, label: None },
            Asked::Create { other_agent } => {
                let request = Box::new(if other_agent { from_another_agent() } else { request() });
                Request::Create { waiter, request, session: SessionId::random() }
            }
            Asked::Renew(ttl) => Request::Renew { waiter, ttl },
            Asked::Touch => Request::Touch { waiter },
            Asked::Pause => Request::Pause { waiter },
            Asked::Lease(lease) => Request::Lease { waiter, lease },
            Asked::Release(lease) => Request::Release { waiter, lease },
        }));
    }

    fn tell(&mut self, event: Event) {
        match &event {
            Event::Launched { generation, .. }
            | Event::Checked { generation, .. }
            | Event::TornDown { generation, .. }
            | Event::Stopped { generation, .. }
            | Event::Switched { generation, .. }
            | Event::Committed { generation, .. }
            | Event::RestartDue { generation }
            | Event::RetryDue { generation, .. } => self.past.push((*generation, event.clone())),
            Event::Saved { .. } => self.past_writes.push(event.clone()),
            Event::Request(_) | Event::Looked(_) | Event::StragglerEnded | Event::Due => {}
            Event::EngineEvent { .. } | Event::Seen(_) | Event::ClockStepped { .. } => {}
        }
        let effects = self.lifecycle.handle(event, self.now);
        self.receive(effects);
    }

    /// What an earlier generation is told now, or a writer is told twice, changes nothing; at most a container that it
    /// brings is discarded.
    fn repeat(&mut self, nth: usize) {
        let current = self.lifecycle.generation;
        let earlier = self.past.iter().filter(|(generation, _)| *generation < current).map(|(_, event)| event);
        let Some(event) = earlier.chain(&self.past_writes).nth(nth) else { return };
        if let Event::Launched { result: Err(LaunchFailure { remains: Remains::Straggler, .. }), .. } = event {
            // One more creation that was given up is one more to wait for, whoever it belonged to.
            return;
        }
        let before = format!("{:?}", self.lifecycle);
        let effects = self.lifecycle.handle(event.clone(), self.now);
        assert!(effects.iter().all(|effect| matches!(effect, Effect::Discard { .. })), "{event:?} led to {effects:?}");
        assert_eq!(format!("{:?}", self.lifecycle), before, "{event:?} was applied");
    }

    fn receive(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            let Some(effect) = self.disk.hand_over(effect) else { continue };
            match effect {
                Effect::Answer { waiter, reply } => self.answered(waiter, &reply),
                Effect::Publish(transition) => self.published(&transition),
                Effect::Count(status) => self.status = Some(status),
                Effect::Arm { at } => self.deadline = Some(at),
                Effect::Disarm => self.deadline = None,
                Effect::RetryAfter { generation, attempt, .. } => self.timers.push((generation, attempt)),
                Effect::RestartAfter { generation, .. } => self.restarts.push(generation),
                // Only an answer to a launch of another generation brings one, and there is none to be open.
                Effect::Discard { container } => panic!("{container} belonged to no launch"),
                effect => self.begin(effect),
            }
        }
        self.check_the_state();
    }

    /// An actor ends in the middle of everything. Its callers are told to come again, its tasks end with it, and its
    /// successor looks for itself. What it has handed to the journal still gets there.
    fn crash(&mut self) {
        self.disk.abandon();
        // A creation that nobody waits for any more removes what it brings.
        self.container.take_if(|container| container.straggler);
        self.start(false);
    }

    /// The service ends in the middle of everything, and what is not on disk is lost.
    fn kill(&mut self, listed: bool) {
        let kept = self.told.take().filter(|told| self.is_kept(told));
        self.disk.lose();
        if let Some(container) = &mut self.container {
            container.straggler = false;
        }
        self.start(listed);
        if let Some(told) = kept {
            if !listed {
                self.end_look(true);
            }
            self.assert_still_there(&told);
        }
    }

    /// Starts an actor with nothing but what engine and journal hold.
    fn start(&mut self, listed: bool) {
        self.launching = None;
        self.tearing_down = None;
        self.stopping = None;
        self.switching = None;
        self.committing = None;
        self.looking = false;
        self.checking.clear();
        self.timers.clear();
        self.restarts.clear();
        self.stragglers.clear();
        self.waiting.clear();
        self.past.clear();
        self.past_writes.clear();
        self.status = None;
        self.deadline = None;
        self.told = None;
        let (chat, rules) = (request().chat, self.rules.clone());
        let (lifecycle, effects) = match listed.then(|| self.look_up()) {
            None => Lifecycle::unknown(chat, name(), rules).looking(),
            Some(None) => (Lifecycle::absent(chat, name(), rules), Vec::new()),
            Some(Some(sandbox)) => Lifecycle::absent(chat, name(), rules).resuming(*sandbox),
        };
        self.lifecycle = lifecycle;
        self.receive(effects);
    }
}
