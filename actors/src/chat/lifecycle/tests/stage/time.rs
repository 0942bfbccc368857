//! Deadlines, ends and restarts.

use super::*;

impl Stage {
    /// The reaper says that a deadline has come.
    pub(in super::super) fn due(&mut self) {
        self.deadline = None;
        self.tell(Event::Due);
    }

    /// Waits until the deadline that was asked for.
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
        self.tell(Event::Stopped { generation, result: Ok(()) });
        container
    }

    pub(in super::super) fn stop_fails(&mut self) {
        let (generation, _) = self.stop();
        self.tell(Event::Stopped { generation, result: Err(unreachable()) });
    }

    /// Lets the restart come that was planned; answers after how long.
    pub(in super::super) fn restart(&mut self) -> Duration {
        let (generation, delay) = self.take("planned restart", |effect| match effect {
            Effect::RestartAfter { generation, delay } => Some((*generation, *delay)),
            _ => None,
        });
        self.now += delay;
        self.tell(Event::RestartDue { generation });
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
        let container = sandbox.container.clone().expect("there is something to start again");
        let started =
            Launched::Started { container, endpoint: None, started_at: self.now, launch: Launch::Cold, claim: None };
        self.tell(Event::Launched { generation, result: Ok(started) });
    }

    pub(in super::super) fn relaunch_fails(&mut self, failure: StartFailure) {
        let (generation, sandbox) = self.relaunch();
        let remains = sandbox.container.clone().map_or(Remains::Perhaps, Remains::Container);
        self.tell(Event::Launched { generation, result: Err(LaunchFailure { failure, remains }) });
    }

    /// The container ends by itself, and the engine tells.
    pub(in super::super) fn dies(&mut self) {
        self.engine_event();
        self.checked(Liveness::Ended(death()));
    }

    pub(in super::super) fn engine_event(&mut self) {
        let sandbox = self.lifecycle.sandbox().expect("there is a sandbox");
        let container = sandbox.container.clone().expect("there is a container");
        self.tell(Event::EngineEvent { container });
    }
}
