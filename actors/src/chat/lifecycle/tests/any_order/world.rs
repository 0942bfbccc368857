//! An engine, a journal, a clock and callers around one lifecycle. They check every guarantee at every step.

mod engine;
mod journal;
mod promises;

use super::*;

/// The container of the chat. The engine holds at most one, because there is only one name.
#[derive(Debug, Clone)]
struct Container {
    id: ContainerId,
    labels: SessionLabels,
    state: ContainerState,
    /// Created by an abandoned create call.
    straggler: bool,
}

#[derive(Debug)]
struct Launching {
    generation: Generation,
    session: SessionId,
    agent: crate::domain::ids::AgentId,
    /// Set from the beginning for a restart.
    made: Option<ContainerId>,
    restart: bool,
    cancelled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Create { other_agent: bool },
    Get,
    Delete,
    DeleteWithSnapshot,
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
    /// With whether the container is to be paused.
    switching: Option<(Generation, ContainerId, bool)>,
    committing: Option<(Generation, Box<Sandbox>)>,
    /// Sessions that have a snapshot.
    snapshotted: Vec<SessionId>,
    discovering: bool,
    checking: Vec<(Generation, ContainerId)>,
    timers: Vec<(Generation, u32)>,
    restarts: Vec<Generation>,
    /// Sessions of the abandoned create calls that are still under way.
    stragglers: Vec<SessionId>,
    waiting: BTreeMap<WaiterId, Asked>,
    waiters: u64,
    leases: Vec<LeaseId>,
    /// A caller has asked for a lease before.
    leased: bool,
    /// Every answer with a generation.
    past: Vec<(Generation, Event)>,
    /// Every answer of the journal.
    past_writes: Vec<Event>,
    /// As last published.
    status: Option<Status>,
    deadline: Option<Timestamp>,
    disk: Disk,
    /// The journal has no history yet.
    journal_is_new: bool,
    /// The sandbox as last acknowledged to a caller.
    acknowledged: Option<Sandbox>,
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
            snapshotted: Vec::new(),
            discovering: false,
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
            acknowledged: None,
        };
        world.disk.record = record;
        match known {
            Known::Absent => world.journal_is_new = false,
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
            Step::DeleteWithSnapshot => self.ask(Asked::DeleteWithSnapshot),
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
                    self.send(Event::Due);
                }
            }
            Step::ClockSteps(seconds) => {
                let by = TimeDelta::seconds(seconds);
                self.now += by;
                self.send(Event::ClockStepped { by });
            }
            Step::FlushRequested => self.flush_unsaved(),
            Step::LaunchProgresses => self.progress_launch(),
            Step::LaunchEnds(end) => self.end_launch(end),
            Step::TearDownEnds(end) => self.end_tear_down(end),
            Step::StopEnds(end) => self.end_stop(end),
            Step::SwitchEnds(end) => self.end_switch(end),
            Step::CommitEnds(end) => self.end_commit(end),
            Step::DiscoveryEnds { answered } => self.end_discovery(answered),
            Step::CheckEnds { answered } => self.end_check(answered),
            Step::TimerRings { oldest } => self.ring(oldest),
            Step::RestartComes => self.restart(),
            Step::StragglerActs => self.straggler_acts(),
            Step::StragglerEnds => self.end_straggler(),
            Step::ContainerDies => self.container_dies(),
            Step::ContainerVanishes => self.container_vanishes(),
            Step::ContainerIsSwitched => self.container_is_switched(),
            Step::EngineEvent => self.engine_event(),
            Step::Listed { up_to_date } => self.list(up_to_date),
            Step::DiskWrites { writes } => self.write(writes),
            Step::DiskIsFull => self.refuse_writes(),
            Step::WriteTimesOut => self.time_out_a_write(),
            Step::OldAnswerComes { nth } => self.repeat(nth),
            Step::ActorCrashes => self.crash(),
            Step::ServiceIsKilled { listed } => self.kill(listed),
        }
    }

    /// Engine and journal answer all open effects successfully, until none is left.
    pub(super) fn settle(&mut self) {
        for _ in 0..1000 {
            self.write(usize::MAX);
            let ends = self.tearing_down.is_some() || self.stopping.is_some();
            let effects = self.launching.is_some() || ends || self.switching.is_some() || self.committing.is_some();
            let timers = !self.timers.is_empty() || !self.restarts.is_empty();
            let checks = self.discovering || !self.checking.is_empty();
            if !effects && !timers && !checks && self.stragglers.is_empty() {
                // Unnoticed changes are noticed now.
                self.list(true);
                if self.lifecycle.unsaved_clock_shift {
                    self.flush_unsaved();
                }
                if self.checking.is_empty() && self.disk.is_empty() {
                    assert!(self.lifecycle.is_settled(), "no effect is open in {:?}", self.lifecycle.phase());
                    return;
                }
            }
            self.end_discovery(true);
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
        self.send(Event::Request(match asked {
            Asked::Get => Request::Get { waiter },
            Asked::Delete => Request::Delete { waiter, snapshot: None },
            Asked::DeleteWithSnapshot => Request::Delete { waiter, snapshot: Some(true) },
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

    fn send(&mut self, event: Event) {
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
            Event::Request(_) | Event::Discovered(_) | Event::StragglerEnded | Event::Due => {}
            Event::EngineEvent { .. } | Event::Listed(_) | Event::ClockStepped { .. } => {}
        }
        let effects = self.lifecycle.handle(event, self.now);
        self.receive(effects);
    }

    /// Repeats an answer of an earlier generation or of the journal. It must not change the state; at most an outdated
    /// container is removed.
    fn repeat(&mut self, nth: usize) {
        let current = self.lifecycle.generation;
        let earlier = self.past.iter().filter(|(generation, _)| *generation < current).map(|(_, event)| event);
        let Some(event) = earlier.chain(&self.past_writes).nth(nth) else { return };
        if let Event::Launched { result: Err(LaunchFailure { remains: Remains::Straggler, .. }), .. } = event {
            // Each abandoned create call counts, also that of an earlier generation.
            return;
        }
        let before = format!("{:?}", self.lifecycle);
        let effects = self.lifecycle.handle(event.clone(), self.now);
        assert!(
            effects.iter().all(|effect| matches!(effect, Effect::RemoveContainer { .. })),
            "{event:?} led to {effects:?}"
        );
        assert_eq!(format!("{:?}", self.lifecycle), before, "{event:?} was applied");
    }

    fn receive(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            let Some(effect) = self.disk.queue_write(effect) else { continue };
            match effect {
                Effect::Answer { waiter, reply } => self.answered(waiter, &reply),
                Effect::Publish(transition) => self.published(&transition),
                Effect::Count(status) => self.status = Some(status),
                Effect::Arm { at } => self.deadline = Some(at),
                Effect::Disarm => self.deadline = None,
                Effect::RetryAfter { generation, attempt, .. } => self.timers.push((generation, attempt)),
                Effect::RestartAfter { generation, .. } => self.restarts.push(generation),
                // Only an answer to an outdated launch brings such a container, and no such launch is open.
                Effect::RemoveContainer { container } => panic!("{container} belonged to no launch"),
                effect => self.begin(effect),
            }
        }
        self.check_state();
    }

    /// The actor crashes. Its callers get an error, its tasks end, and its successor starts with a discovery. Writes
    /// handed to the journal are still committed.
    fn crash(&mut self) {
        self.disk.drop_tickets();
        // An abandoned create call removes its container.
        self.container.take_if(|container| container.straggler);
        self.start(false);
    }

    /// The service is killed, and unsaved state is lost.
    fn kill(&mut self, listed: bool) {
        let present = self.acknowledged.take().filter(|acknowledged| self.is_not_being_removed(acknowledged));
        self.disk.drop_writes();
        if let Some(container) = &mut self.container {
            container.straggler = false;
        }
        self.start(listed);
        if let Some(acknowledged) = present {
            if !listed {
                self.end_discovery(true);
            }
            self.assert_present(&acknowledged);
        }
    }

    /// Starts an actor with only the state of engine and journal.
    fn start(&mut self, listed: bool) {
        self.launching = None;
        self.tearing_down = None;
        self.stopping = None;
        self.switching = None;
        self.committing = None;
        self.discovering = false;
        self.checking.clear();
        self.timers.clear();
        self.restarts.clear();
        self.stragglers.clear();
        self.waiting.clear();
        self.past.clear();
        self.past_writes.clear();
        self.status = None;
        self.deadline = None;
        self.acknowledged = None;
        let (chat, rules) = (request().chat, self.rules.clone());
        let (lifecycle, effects) = match listed.then(|| self.discover()) {
            None => Lifecycle::unknown(chat, name(), rules).discovering(),
            Some(None) => (Lifecycle::absent(chat, name(), rules), Vec::new()),
            Some(Some(sandbox)) => Lifecycle::absent(chat, name(), rules).resuming(*sandbox),
        };
        self.lifecycle = lifecycle;
        self.receive(effects);
    }
}
