//! The engine: handles effects and ends them.

use super::*;

impl World {
    /// Begins an effect. At most one call of a kind is under way.
    pub(super) fn begin(&mut self, effect: Effect) {
        match effect {
            Effect::Discover => {
                assert!(!std::mem::replace(&mut self.discovering, true), "two discoveries at once");
            }
            Effect::Launch { generation, session, request, created_at } => {
                assert_eq!(created_at, self.now);
                let agent = request.agent;
                self.begin_launch(Launching {
                    generation,
                    session,
                    agent,
                    made: None,
                    restart: false,
                    cancelled: false,
                });
            }
            Effect::Relaunch { generation, sandbox } => {
                let Sandbox { session, agent, container, .. } = *sandbox;
                self.begin_launch(Launching {
                    generation,
                    session,
                    agent,
                    made: container,
                    restart: true,
                    cancelled: false,
                });
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
                assert!(self.committing.is_none(), "a tear-down during a commit");
                self.assert_snapshot_before_removal(container.as_ref());
                self.tearing_down = Some((generation, container));
            }
            Effect::Stop { generation, container } => {
                // A stop of an earlier sandbox may still be under way; its answer is ignored.
                self.stopping = Some((generation, container));
            }
            // A call for an earlier sandbox may still be under way, as with a stop.
            Effect::Pause { generation, container } => self.switching = Some((generation, container, true)),
            Effect::Unpause { generation, container } => self.switching = Some((generation, container, false)),
            Effect::Commit { generation, sandbox, .. } => {
                assert!(self.committing.is_none(), "two commits at once");
                assert!(self.launching.is_none() && self.tearing_down.is_none(), "a commit during a launch or removal");
                self.committing = Some((generation, sandbox));
            }
            effect => panic!("{effect:?} is no engine effect"),
        }
    }

    fn begin_launch(&mut self, launching: Launching) {
        assert!(self.launching.is_none(), "two launches at once");
        assert!(self.tearing_down.is_none(), "a launch during a tear-down");
        assert!(self.committing.is_none(), "a launch during a commit");
        self.launching = Some(launching);
    }

    fn make(&mut self, session: SessionId, agent: crate::domain::ids::AgentId, state: ContainerState, straggler: bool) {
        self.containers += 1;
        let mut labels = found(state).labels;
        (labels.session, labels.agent) = (session, agent);
        (labels.created_at, labels.expires_at) = (self.now, request().expires_at(self.now));
        let id = ContainerId::new(format!("container-{}", self.containers));
        self.container = Some(Container { id, labels, state, straggler });
    }

    pub(super) fn found(&self) -> Option<Box<Found>> {
        let container = self.container.as_ref()?;
        let mut found = found(container.state);
        found.container.id = container.id.clone();
        found.labels = container.labels.clone();
        Some(Box::new(found))
    }

    fn holds(&mut self, id: &ContainerId) -> Option<&mut Container> {
        self.container.as_mut().filter(|container| container.id == *id)
    }

    pub(super) fn progress_launch(&mut self) {
        let Some(launching) = &mut self.launching else { return };
        if let Some(made) = launching.made.clone() {
            let restart = launching.restart;
            let container = self.holds(&made);
            assert!(restart || container.is_some(), "a container being launched is there");
            if let Some(container) = container {
                container.state = ContainerState::Running;
            }
            return;
        }
        // The engine would refuse a second container of this name, but the lifecycle must never ask for one.
        let existing = self.container.take_if(|container| !container.straggler);
        assert!(existing.is_none(), "launched next to {existing:?}");
        let (session, agent) = (launching.session, launching.agent.clone());
        self.make(session, agent, ContainerState::Created, false);
        let made = self.container.as_ref().map(|container| container.id.clone());
        self.launching.as_mut().expect("it was there a moment ago").made = made;
    }

    pub(super) fn end_launch(&mut self, end: LaunchEnd) {
        let Some(launching) = &self.launching else { return };
        let (made, cancelled) = (launching.made.is_some(), launching.cancelled);
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
                if !cancelled {
                    let found = self.found().expect("it was just put there");
                    self.save_at_once(found.sandbox(self.now));
                }
            }
            _ => {}
        }
        let Some(Launching { generation, session, made, cancelled, .. }) = self.launching.take() else { return };
        let failure = if cancelled { StartFailure::Deleted } else { StartFailure::NoAddress };
        let failed = |remains| Err(LaunchFailure { failure, remains });
        let result = match (end, made) {
            (LaunchEnd::Succeeds, Some(container)) => match self.holds(&container) {
                Some(_) => Ok(Launched::Started {
                    container,
                    endpoint: None,
                    started_at: self.now,
                    launch: Launch::Cold,
                    claim: None,
                }),
                None => {
                    let failure = EngineError::NoSuchContainer { container: container.to_string() }.into();
                    Err(LaunchFailure { failure, remains: Remains::Container(container) })
                }
            },
            (LaunchEnd::Finds { .. }, None) => Ok(Launched::Found(self.found().expect("it was just put there"))),
            (LaunchEnd::IsGivenUp, None) => {
                self.stragglers.push(session);
                failed(Remains::Straggler)
            }
            (LaunchEnd::IsLost, _) => failed(Remains::Perhaps),
            (_, Some(container)) => failed(Remains::Container(container)),
            (_, None) => failed(Remains::Nothing),
        };
        self.send(Event::Launched { generation, result });
    }

    pub(super) fn end_tear_down(&mut self, end: End) {
        let Some((generation, named)) = self.tearing_down.take() else { return };
        if end != End::Fails {
            self.container.take_if(|container| named.as_ref().is_none_or(|named| *named == container.id));
        }
        let result = if end == End::Succeeds { Ok(()) } else { Err(unreachable()) };
        self.send(Event::TornDown { generation, result: result.map_err(Into::into) });
    }

    pub(super) fn end_stop(&mut self, end: End) {
        let Some((generation, named)) = self.stopping.take() else { return };
        if end != End::Fails
            && let Some(container) = self.holds(&named)
        {
            container.state = ended();
        }
        let result = if end == End::Succeeds { Ok(()) } else { Err(unreachable()) };
        self.send(Event::Stopped { generation, result });
    }

    /// Ends a pause or resume. A container that is already in the wanted state counts as done.
    pub(super) fn end_switch(&mut self, end: End) {
        let Some((generation, named, pauses)) = self.switching.take() else { return };
        let alive = self.holds(&named).filter(|container| is_alive(container.state));
        let result = match (alive, end) {
            (Some(container), End::Succeeds | End::SucceedsWithoutAnswer) => {
                container.state = if pauses { ContainerState::Paused } else { ContainerState::Running };
                if end == End::Succeeds { Ok(()) } else { Err(unreachable()) }
            }
            _ => Err(unreachable()),
        };
        self.send(Event::Switched { generation, result });
    }

    pub(super) fn end_commit(&mut self, end: End) {
        let Some((generation, sandbox)) = self.committing.take() else { return };
        let named = sandbox.container.clone().expect("a committed sandbox has a container");
        let saved = end != End::Fails && self.holds(&named).is_some();
        if saved {
            self.snapshotted.push(sandbox.session);
        }
        let answered = saved && end == End::Succeeds;
        let result = if answered { Ok(snapshot_of(&sandbox, self.now)) } else { Err(unreachable()) };
        self.send(Event::Committed { generation, result });
    }

    pub(super) fn container_is_switched(&mut self) {
        if let Some(container) = &mut self.container {
            container.state = match container.state {
                ContainerState::Running => ContainerState::Paused,
                ContainerState::Paused => ContainerState::Running,
                other => other,
            };
        }
    }

    pub(super) fn end_discovery(&mut self, answered: bool) {
        if std::mem::take(&mut self.discovering) {
            let result = if answered { Ok(self.discover()) } else { Err(unreachable()) };
            self.send(Event::Discovered(result));
        }
    }

    pub(super) fn end_check(&mut self, answered: bool) {
        let Some((generation, id)) = self.checking.pop() else { return };
        let state = self.holds(&id).map(|container| container.state);
        let liveness = match state {
            _ if !answered => Liveness::Unknown(unreachable()),
            None => Liveness::Vanished,
            Some(ContainerState::Running) => Liveness::Alive,
            Some(ContainerState::Paused) => Liveness::Paused,
            Some(_) => Liveness::Ended(death()),
        };
        self.send(Event::Checked { generation, liveness });
    }

    pub(super) fn ring(&mut self, oldest: bool) {
        if !self.timers.is_empty() {
            let at = if oldest { 0 } else { self.timers.len() - 1 };
            let (generation, attempt) = self.timers.remove(at);
            self.send(Event::RetryDue { generation, attempt });
        }
    }

    pub(super) fn restart(&mut self) {
        if let Some(generation) = self.restarts.pop() {
            self.send(Event::RestartDue { generation });
        }
    }

    pub(super) fn straggler_acts(&mut self) {
        if self.container.is_none()
            && let Some(session) = self.stragglers.last().copied()
        {
            self.make(session, request().agent, ContainerState::Created, true);
        }
    }

    /// Ends an abandoned create call and removes its container.
    pub(super) fn end_straggler(&mut self) {
        if let Some(session) = self.stragglers.pop() {
            self.container.take_if(|container| container.straggler && container.labels.session == session);
            self.send(Event::StragglerEnded);
        }
    }

    pub(super) fn container_dies(&mut self) {
        if let Some(container) = self.container.as_mut().filter(|container| is_alive(container.state)) {
            container.state = ended();
        }
    }

    pub(super) fn container_vanishes(&mut self) {
        // The launch would only fail, and other steps cover that.
        let launching = self.launching.as_ref().is_some_and(|launching| !launching.restart);
        self.container.take_if(|_| !launching);
    }

    pub(super) fn engine_event(&mut self) {
        let known = self.lifecycle.sandbox().and_then(|sandbox| sandbox.container.clone());
        let held = self.container.as_ref().map(|container| container.id.clone());
        if let Some(container) = known.or(held) {
            self.send(Event::EngineEvent { container });
        }
    }

    pub(super) fn list(&mut self, up_to_date: bool) {
        let seen = self.found().filter(|_| up_to_date).and_then(|found| found.live_container());
        self.send(Event::Listed(seen));
    }
}

fn is_alive(state: ContainerState) -> bool {
    matches!(state, ContainerState::Running | ContainerState::Paused)
}
