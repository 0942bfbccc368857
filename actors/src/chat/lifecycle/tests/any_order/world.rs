//! An engine, a clock and callers around one lifecycle, which check every promise at every step.

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
    agent: crate::ids::AgentId,
    made: Option<ContainerId>,
    cancelled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Create { other_agent: bool },
    Get,
    Delete,
}

pub(super) struct World {
    lifecycle: Lifecycle,
    now: Timestamp,
    container: Option<Container>,
    containers: u32,
    launching: Option<Launching>,
    tearing_down: Option<(Generation, Option<ContainerId>)>,
    looking: bool,
    checking: Vec<(Generation, ContainerId)>,
    timers: Vec<(Generation, u32)>,
    /// Sessions of the creations that were given up and are still under way.
    stragglers: Vec<SessionId>,
    waiting: BTreeMap<WaiterId, Asked>,
    waiters: u64,
    /// Every answer that carried a generation.
    past: Vec<(Generation, Event)>,
    /// As last published.
    status: Option<Status>,
}

impl World {
    pub(super) fn beginning(beginning: Beginning) -> Self {
        let absent = Lifecycle::absent(request().chat, name(), TRUST);
        let unknown = Lifecycle::unknown(request().chat, name(), TRUST);
        let (held, (lifecycle, effects)) = match beginning {
            Beginning::Absent => (None, (absent, Vec::new())),
            Beginning::Unknown(state) => (state.map(found), unknown.looking()),
            Beginning::Listed(state) => {
                let found = found(state);
                (Some(found.clone()), absent.adopting(&found, noon()))
            }
        };
        let container = held.map(|Found { labels, container, .. }| Container {
            id: container.id,
            labels,
            state: container.state,
            straggler: false,
        });
        let mut world = Self {
            lifecycle,
            now: noon(),
            container,
            containers: 0,
            launching: None,
            tearing_down: None,
            looking: false,
            checking: Vec::new(),
            timers: Vec::new(),
            stragglers: Vec::new(),
            waiting: BTreeMap::new(),
            waiters: 0,
            past: Vec::new(),
            status: None,
        };
        world.receive(effects);
        world
    }

    pub(super) fn take(&mut self, step: Step) {
        match step {
            Step::Create { other_agent } => self.ask(Asked::Create { other_agent }),
            Step::Get => self.ask(Asked::Get),
            Step::Delete => self.ask(Asked::Delete),
            Step::Wait(time) => self.now += time,
            Step::LaunchProgresses => self.progress_launch(),
            Step::LaunchEnds(end) => self.end_launch(end),
            Step::TearDownEnds(end) => self.end_tear_down(end),
            Step::LookEnds { answered } => self.end_look(answered),
            Step::CheckEnds { answered } => self.end_check(answered),
            Step::TimerRings { oldest } => self.ring(oldest),
            Step::StragglerActs => self.straggler_acts(),
            Step::StragglerEnds => self.end_straggler(),
            Step::ContainerDies => {
                if let Some(container) = self.container.as_mut().filter(|c| c.state == ContainerState::Running) {
                    container.state = ended();
                }
            }
            Step::ContainerVanishes => {
                // One that is being launched would only make the launch fail, which it does without this, too.
                self.container.take_if(|_| self.launching.is_none());
            }
            Step::OldAnswerComes { nth } => self.repeat(nth),
        }
    }

    /// The engine answers everything that is open, as it should, until nothing is.
    pub(super) fn settle(&mut self) {
        for _ in 0..1000 {
            let open = !self.stragglers.is_empty() || !self.checking.is_empty() || !self.timers.is_empty();
            if !open && self.launching.is_none() && self.tearing_down.is_none() && !self.looking {
                assert!(self.lifecycle.is_settled(), "nothing is open in {:?}", self.lifecycle.phase());
                return;
            }
            self.end_look(true);
            self.end_launch(LaunchEnd::Succeeds);
            self.end_tear_down(TearDownEnd::Succeeds);
            self.end_check(true);
            self.ring(true);
            self.end_straggler();
        }
        panic!("it never settles: {:?}", self.lifecycle);
    }

    pub(super) fn assert_everybody_is_answered(&self) {
        assert!(self.waiting.is_empty(), "{:?} wait in {:?}", self.waiting, self.lifecycle);
    }

    pub(super) fn assert_nothing_is_left(&self) {
        assert!(self.container.is_none(), "{:?}", self.container);
        assert!(self.lifecycle.is_idle(), "{:?}", self.lifecycle);
        assert_eq!(self.status, None);
    }

    fn ask(&mut self, asked: Asked) {
        let waiter = WaiterId(self.waiters);
        self.waiters += 1;
        self.waiting.insert(waiter, asked);
        self.tell(Event::Request(match asked {
            Asked::Get => Request::Get { waiter },
            Asked::Delete => Request::Delete { waiter },
            Asked::Create { other_agent } => {
                let request = Box::new(if other_agent { from_another_agent() } else { request() });
                Request::Create { waiter, request, session: SessionId::random() }
            }
        }));
    }

    fn tell(&mut self, event: Event) {
        match &event {
            Event::Launched { generation, .. }
            | Event::Checked { generation, .. }
            | Event::TornDown { generation, .. }
            | Event::RetryDue { generation, .. } => self.past.push((*generation, event.clone())),
            Event::Request(_) | Event::Looked(_) | Event::StragglerEnded => {}
        }
        let effects = self.lifecycle.handle(event, self.now);
        self.receive(effects);
    }

    /// What an earlier generation is told now changes nothing; at most a container that it brings is discarded.
    fn repeat(&mut self, nth: usize) {
        let current = self.lifecycle.generation;
        let Some((_, event)) = self.past.iter().filter(|(generation, _)| *generation < current).nth(nth) else {
            return;
        };
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
            match effect {
                Effect::Answer { waiter, reply } => self.answered(waiter, &reply),
                Effect::Publish(transition) => self.published(&transition),
                Effect::Look => {
                    assert!(!std::mem::replace(&mut self.looking, true), "two looks at once");
                }
                Effect::Launch { generation, session, request, created_at } => {
                    assert!(self.launching.is_none(), "two launches at once");
                    assert!(self.tearing_down.is_none(), "a launch during a tear-down");
                    assert_eq!(created_at, self.now);
                    let agent = request.agent;
                    self.launching = Some(Launching { generation, session, agent, made: None, cancelled: false });
                }
                Effect::CancelLaunch { generation } => {
                    let launching = self.launching.as_mut().expect("only a launch under way is cancelled");
                    assert_eq!(launching.generation, generation);
                    assert!(!std::mem::replace(&mut launching.cancelled, true), "cancelled twice");
                }
                Effect::Check { generation, container } => self.checking.push((generation, container)),
                Effect::TearDown { generation, container, .. } => {
                    assert!(self.tearing_down.is_none(), "two tear-downs at once");
                    assert!(self.launching.is_none(), "a tear-down during a launch");
                    self.tearing_down = Some((generation, container));
                }
                Effect::RetryAfter { generation, attempt, .. } => self.timers.push((generation, attempt)),
                // Only an answer to a launch of another generation brings one, and there is none to be open.
                Effect::Discard { container } => panic!("{container} belonged to no launch"),
            }
        }
        self.check_the_state();
    }

    fn answered(&mut self, waiter: WaiterId, reply: &Reply) {
        let asked = self.waiting.remove(&waiter).unwrap_or_else(|| panic!("{waiter:?} does not wait: {reply:?}"));
        match (asked, reply) {
            (Asked::Create { other_agent }, Reply::Create(Ok(created))) => self.handed_out(other_agent, created),
            (Asked::Create { .. }, Reply::Create(Err(_)))
            | (Asked::Get, Reply::Get(_))
            | (Asked::Delete, Reply::Delete(_)) => {}
            _ => panic!("{reply:?} answers {asked:?}"),
        }
    }

    fn handed_out(&self, other_agent: bool, Created { sandbox, outcome, .. }: &Created) {
        assert_eq!(sandbox.agent == request().agent, !other_agent, "a sandbox of another agent was handed out");
        assert_eq!(sandbox.status, Status::Running);
        if *outcome == Outcome::Reused {
            // It may have died since it was last seen, and a delete may follow at once.
            assert!(matches!(self.lifecycle.phase(), Phase::Running(_) | Phase::Deleting(_)));
        } else {
            let Phase::Running(running) = self.lifecycle.phase() else { panic!("{:?}", self.lifecycle) };
            assert_eq!(running.sandbox.session, sandbox.session);
            let container = self.container.as_ref().expect("what was just started is there");
            assert_eq!(sandbox.container.as_ref(), Some(&container.id));
            assert_eq!(sandbox.session, container.labels.session);
        }
    }

    fn published(&mut self, transition: &Transition) {
        use Status::*;
        assert_eq!(transition.from, self.status, "{transition:?} does not follow");
        let step = (transition.from, transition.to);
        let drawn = matches!(
            step,
            (None, Some(_))
                | (Some(Creating), Some(Running | Deleting) | None)
                | (Some(Running), Some(Failed | Deleting))
                | (Some(Failed), Some(Deleting))
                | (Some(Deleting), None)
        );
        assert!(drawn, "{step:?} is not in the diagram");
        self.status = transition.to;
    }

    fn check_the_state(&self) {
        let status = match self.lifecycle.phase() {
            Phase::Unknown(_) | Phase::Absent => None,
            Phase::Creating(_) => Some(Status::Creating),
            Phase::Running(_) => Some(Status::Running),
            Phase::Failed(_) => Some(Status::Failed),
            Phase::Deleting(_) => Some(Status::Deleting),
        };
        assert_eq!(status, self.status, "what is and what was published differ");
        if self.lifecycle.is_settled() {
            let open = self.launching.is_some() || self.tearing_down.is_some() || self.looking;
            assert!(!open && self.stragglers.is_empty() && self.waiting.is_empty(), "{:?}", self.lifecycle);
        }
        if self.lifecycle.is_idle() {
            assert!(self.lifecycle.is_settled());
            assert!(self.container.is_none(), "{:?} is forgotten", self.container);
        }
    }

    // The engine.

    fn make(&mut self, session: SessionId, agent: crate::ids::AgentId, state: ContainerState, straggler: bool) {
        self.containers += 1;
        let mut labels = found(state).labels;
        (labels.session, labels.agent) = (session, agent);
        labels.expires_at = request().expires_at(self.now);
        let id = ContainerId::new(format!("container-{}", self.containers));
        self.container = Some(Container { id, labels, state, straggler });
    }

    fn found(&self) -> Option<Box<Found>> {
        let container = self.container.as_ref()?;
        let mut found = found(container.state);
        found.container.id = container.id.clone();
        found.labels = container.labels.clone();
        Some(Box::new(found))
    }

    fn progress_launch(&mut self) {
        let Some(launching) = &mut self.launching else { return };
        if launching.made.is_some() {
            let container = self.container.as_mut().expect("a container being launched is there");
            container.state = ContainerState::Running;
            return;
        }
        // The engine would refuse a second container of this name, but it must never come to that.
        let in_the_way = self.container.take_if(|container| !container.straggler);
        assert!(in_the_way.is_none(), "launched next to {in_the_way:?}");
        let (session, agent) = (launching.session, launching.agent.clone());
        self.make(session, agent, ContainerState::Created, false);
        let made = self.container.as_ref().map(|container| container.id.clone());
        self.launching.as_mut().expect("it was there a moment ago").made = made;
    }

    fn end_launch(&mut self, end: LaunchEnd) {
        if self.launching.is_none() {
            return;
        }
        let made = self.launching.as_ref().is_some_and(|launching| launching.made.is_some());
        match end {
            LaunchEnd::Succeeds => {
                self.progress_launch();
                if !made {
                    self.progress_launch();
                }
            }
            LaunchEnd::Finds { other_agent } if !made => {
                let agent = if other_agent { from_another_agent().agent } else { request().agent };
                self.make(SessionId::random(), agent, ContainerState::Running, false);
            }
            _ => {}
        }
        let Some(Launching { generation, session, made, cancelled, .. }) = self.launching.take() else { return };
        let failure = if cancelled { StartFailure::Deleted } else { StartFailure::NoAddress };
        let failed = |remains| Err(LaunchFailure { failure, remains });
        let result = match (end, made) {
            (LaunchEnd::Succeeds, Some(container)) => {
                Ok(Launched::Started { container, endpoint: None, started_at: self.now })
            }
            (LaunchEnd::Finds { .. }, None) => Ok(Launched::Found(self.found().expect("it was just put there"))),
            (LaunchEnd::IsGivenUp, None) => {
                self.stragglers.push(session);
                failed(Remains::Straggler)
            }
            (LaunchEnd::IsLost, _) => failed(Remains::Perhaps),
            (_, Some(container)) => failed(Remains::Container(container)),
            (_, None) => failed(Remains::Nothing),
        };
        self.tell(Event::Launched { generation, result });
    }

    fn end_tear_down(&mut self, end: TearDownEnd) {
        let Some((generation, named)) = self.tearing_down.take() else { return };
        if end != TearDownEnd::Fails {
            self.container.take_if(|container| named.as_ref().is_none_or(|named| *named == container.id));
        }
        let result = if end == TearDownEnd::Succeeds { Ok(()) } else { Err(unreachable()) };
        self.tell(Event::TornDown { generation, result });
    }

    fn end_look(&mut self, answered: bool) {
        if std::mem::take(&mut self.looking) {
            let result = if answered { Ok(self.found()) } else { Err(unreachable()) };
            self.tell(Event::Looked(result));
        }
    }

    fn end_check(&mut self, answered: bool) {
        let Some((generation, id)) = self.checking.pop() else { return };
        let state = self.container.as_ref().filter(|container| container.id == id).map(|container| container.state);
        let liveness = match state {
            _ if !answered => Liveness::Unknown(unreachable()),
            None => Liveness::Vanished,
            Some(ContainerState::Running) => Liveness::Alive,
            Some(_) => {
                Liveness::Ended(Death { exit: Some(out_of_memory()), memory_limit_bytes: None, log_tail: vec![] })
            }
        };
        self.tell(Event::Checked { generation, liveness });
    }

    fn ring(&mut self, oldest: bool) {
        if !self.timers.is_empty() {
            let at = if oldest { 0 } else { self.timers.len() - 1 };
            let (generation, attempt) = self.timers.remove(at);
            self.tell(Event::RetryDue { generation, attempt });
        }
    }

    fn straggler_acts(&mut self) {
        if self.container.is_none()
            && let Some(session) = self.stragglers.last().copied()
        {
            self.make(session, request().agent, ContainerState::Created, true);
        }
    }

    /// It is answered, and a container that it brought is removed.
    fn end_straggler(&mut self) {
        if let Some(session) = self.stragglers.pop() {
            self.container.take_if(|container| container.straggler && container.labels.session == session);
            self.tell(Event::StragglerEnded);
        }
    }
}
