//! The effects at the engine and their answers.

use super::*;

impl Stage {
    /// Takes the oldest open effect of a kind.
    pub(in super::super) fn take<T>(&mut self, kind: &str, pick: impl Fn(&Effect) -> Option<T>) -> T {
        let found = self.open.iter().enumerate().find_map(|(at, effect)| Some((at, pick(effect)?)));
        let (at, picked) = found.unwrap_or_else(|| panic!("no {kind} is open, but {:?}", self.open));
        self.open.remove(at);
        picked
    }

    pub(in super::super) fn launch(&mut self) -> (Generation, SessionId) {
        self.take("launch", |effect| match effect {
            Effect::Launch { generation, session, .. } => Some((*generation, *session)),
            _ => None,
        })
    }

    pub(in super::super) fn launch_succeeds(&mut self) -> ContainerId {
        let (generation, _) = self.launch();
        let started = self.started();
        let Ok(Launched::Started { container, .. }) = &started else { unreachable!() };
        let container = container.clone();
        self.send(Event::Launched { generation, result: started });
        container
    }

    pub(in super::super) fn started(&mut self) -> Result<Launched, LaunchFailure> {
        self.containers += 1;
        let container = ContainerId::new(format!("container-{}", self.containers));
        Ok(Launched::Started { container, endpoint: None, started_at: self.now, launch: Launch::Cold, claim: None })
    }

    pub(in super::super) fn launch_fails(&mut self, remains: Remains) {
        let (generation, _) = self.launch();
        let failure = LaunchFailure { failure: StartFailure::NoAddress, remains };
        self.send(Event::Launched { generation, result: Err(failure) });
    }

    pub(in super::super) fn launch_finds(&mut self, found: Found) {
        let (generation, _) = self.launch();
        self.send(Event::Launched { generation, result: Ok(Launched::Found(Box::new(found))) });
    }

    pub(in super::super) fn cancel(&mut self) -> Generation {
        self.take("cancellation", |effect| match effect {
            Effect::CancelLaunch { generation } => Some(*generation),
            _ => None,
        })
    }

    /// Takes a tear-down; returns its container, and whether it is graceful.
    pub(in super::super) fn tear_down(&mut self) -> (Generation, Option<ContainerId>, bool) {
        self.take("tear-down", |effect| match effect {
            Effect::TearDown { generation, container, graceful } => Some((*generation, container.clone(), *graceful)),
            _ => None,
        })
    }

    pub(in super::super) fn tear_down_succeeds(&mut self) -> Option<ContainerId> {
        let (generation, container, _) = self.tear_down();
        self.send(Event::TornDown { generation, result: Ok(()) });
        container
    }

    pub(in super::super) fn tear_down_fails(&mut self) {
        let (generation, ..) = self.tear_down();
        self.send(Event::TornDown { generation, result: Err(unreachable().into()) });
    }

    /// Fires the oldest timer; returns its delay.
    pub(in super::super) fn retry(&mut self) -> Duration {
        let (generation, attempt, delay) = self.take("timer", |effect| match effect {
            Effect::RetryAfter { generation, attempt, delay } => Some((*generation, *attempt, *delay)),
            _ => None,
        });
        self.send(Event::RetryDue { generation, attempt });
        delay
    }

    pub(in super::super) fn discovered(&mut self, result: Result<Option<Found>, EngineError>) {
        let now = self.now;
        self.discovered_sandbox(result.map(|found| found.map(|found| found.sandbox(now))));
    }

    /// Ends a discovery with the sandbox as engine and journal describe it; it is saved by then.
    pub(in super::super) fn discovered_sandbox(&mut self, result: Result<Option<Sandbox>, EngineError>) {
        self.take("discovery", |effect| matches!(effect, Effect::Discover).then_some(()));
        if let Ok(Some(sandbox)) = &result {
            self.disk.record = Some(sandbox.clone());
        }
        self.send(Event::Discovered(result.map(|sandbox| sandbox.map(Box::new))));
    }

    fn switch(&mut self, kind: &str, result: Result<(), EngineError>) {
        let generation = self.take(kind, |effect| match effect {
            Effect::Pause { generation, .. } if kind == "pause" => Some(*generation),
            Effect::Unpause { generation, .. } if kind == "unpause" => Some(*generation),
            _ => None,
        });
        self.send(Event::Switched { generation, result });
    }

    pub(in super::super) fn pause_succeeds(&mut self) {
        self.switch("pause", Ok(()));
    }

    pub(in super::super) fn pause_fails(&mut self) {
        self.switch("pause", Err(unreachable()));
    }

    pub(in super::super) fn unpause_succeeds(&mut self) {
        self.switch("unpause", Ok(()));
    }

    pub(in super::super) fn unpause_fails(&mut self) {
        self.switch("unpause", Err(unreachable()));
    }

    fn commit(&mut self) -> (Generation, Box<Sandbox>) {
        self.take("commit", |effect| match effect {
            Effect::Commit { generation, sandbox, .. } => Some((*generation, sandbox.clone())),
            _ => None,
        })
    }

    pub(in super::super) fn commit_succeeds(&mut self) -> Snapshot {
        let (generation, sandbox) = self.commit();
        let snapshot = snapshot_of(&sandbox, self.now);
        self.send(Event::Committed { generation, result: Ok(snapshot.clone()) });
        *snapshot
    }

    pub(in super::super) fn commit_fails(&mut self) {
        let (generation, _) = self.commit();
        self.send(Event::Committed { generation, result: Err(unreachable()) });
    }

    pub(in super::super) fn checked(&mut self, liveness: Liveness) {
        let generation = self.take("check", |effect| match effect {
            Effect::Check { generation, .. } => Some(*generation),
            _ => None,
        });
        self.send(Event::Checked { generation, liveness });
    }
}
