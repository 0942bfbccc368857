//! Deadlines, stops and restarts.

use super::*;

impl Stage {
    /// The reaper reports a deadline.
    pub(in super::super) fn due(&mut self) {
        self.deadline = None;
        self.send(Event::Due);
    }

    /// Waits until the deadline that was set.
    pub(in super::super) fn wait_until_due(&mut self) {
        self.now = self.deadline.expect("a deadline is set");
        self.due();
    }

    pub(in super::super) fn stop(&mut self) -> (Generation, ContainerId) {
        self.take("stop", |effect| match effect {
            Effect::Stop { generation, container } => Some((*generation, container.clone())),
            _ => None,
        })
    }

    pub(in super::super) fn stop_succeeds(&mut self) -> ContainerId {
        let (generation, container) = self.stop();
        self.send(Event::Stopped { generation, result: Ok(()) });
        container
    }

    pub(in super::super) fn stop_fails(&mut self) {
        let (generation, _) = self.stop();
        self.send(Event::Stopped { generation, result: Err(unreachable()) });
    }

    /// Fires the planned restart; returns its delay.
    pub(in super::super) fn restart(&mut self) -> Duration {
        let (generation, delay) = self.take("planned restart", |effect| match effect {
            Effect::RestartAfter { generation, delay } => Some((*generation, *delay)),
            _ => None,
        });
        self.now += delay;
        self.send(Event::RestartDue { generation });
        delay
    }

    pub(in super::super) fn relaunch(&mut self) -> (Generation, Box<Sandbox>) {
        self.take("relaunch", |effect| match effect {
            Effect::Relaunch { generation, sandbox } => Some((*generation, sandbox.clone())),
            _ => None,
        })
    }

    pub(in super::super) fn relaunch_succeeds(&mut self) {
        let (generation, sandbox) = self.relaunch();
        let container = sandbox.container.clone().expect("there is a container to start again");
        let started =
            Launched::Started { container, endpoint: None, started_at: self.now, launch: Launch::Cold, claim: None };
        self.send(Event::Launched { generation, result: Ok(started) });
    }

    pub(in super::super) fn relaunch_fails(&mut self, failure: StartFailure) {
        let (generation, sandbox) = self.relaunch();
        let remains = sandbox.container.clone().map_or(Remains::Perhaps, Remains::Container);
        self.send(Event::Launched { generation, result: Err(LaunchFailure { failure, remains }) });
    }

    /// The container ends by itself, and the engine reports it.
    pub(in super::super) fn dies(&mut self) {
        self.engine_event();
        self.checked(Liveness::Ended(death()));
    }

    pub(in super::super) fn engine_event(&mut self) {
        let sandbox = self.lifecycle.sandbox().expect("there is a sandbox");
        let container = sandbox.container.clone().expect("there is a container");
        self.send(Event::EngineEvent { container });
    }
}
