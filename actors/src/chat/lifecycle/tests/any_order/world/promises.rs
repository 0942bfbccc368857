//! The guarantees that hold in every state.

use super::*;

impl World {
    pub(in super::super) fn assert_all_answered(&self) {
        assert!(self.waiting.is_empty(), "{:?} wait in {:?}", self.waiting, self.lifecycle);
    }

    pub(in super::super) fn assert_all_removed(&self) {
        assert!(self.container.is_none(), "{:?}", self.container);
        assert!(self.lifecycle.is_idle(), "{:?}", self.lifecycle);
        assert_eq!(self.status, None);
        assert_eq!(self.disk.record, None);
        assert_eq!(self.deadline, None);
    }

    /// Checks that engine, journal and lifecycle agree after all effects have ended.
    pub(in super::super) fn assert_agreement(&self) {
        let Some(record) = &self.disk.record else {
            assert!(self.lifecycle.sandbox().is_none(), "{:?} is not on disk", self.lifecycle);
            assert!(self.container.is_none(), "{:?} was never acknowledged", self.container);
            return;
        };
        let sandbox = self.lifecycle.sandbox().unwrap_or_else(|| panic!("{record:?} is on disk and nowhere else"));
        assert_eq!((sandbox.session, sandbox.status), (record.session, record.status));
        if let Some(container) = &self.container {
            assert_eq!(container.labels.session, record.session);
        }
        let state = match sandbox.status {
            Status::Running => Some(ContainerState::Running),
            Status::Paused => Some(ContainerState::Paused),
            _ => None,
        };
        if state.is_some() {
            assert_eq!(self.container.as_ref().map(|container| container.state), state);
        }
        assert_eq!(sandbox.expires_at, record.expires_at);
        if sandbox.status != Status::Stopped {
            assert_eq!(self.lifecycle.leases.durable().latest_end(), record.held_until);
        }
        let unsaved = sandbox.last_activity_at - record.last_activity_at;
        assert!((TimeDelta::zero()..TimeDelta::seconds(5)).contains(&unsaved), "{sandbox:?} was used after {record:?}");
    }

    /// Returns whether an acknowledged sandbox is not being removed.
    pub(super) fn is_not_being_removed(&self, acknowledged: &Sandbox) -> bool {
        let removed = matches!(self.lifecycle.phase(), Phase::Deleting(_));
        !removed && self.lifecycle.sandbox().is_some_and(|sandbox| sandbox.session == acknowledged.session)
    }

    /// Checks that an acknowledged sandbox is present, with the same session and no earlier deadline.
    pub(super) fn assert_present(&self, acknowledged: &Sandbox) {
        let sandbox = self.lifecycle.sandbox().unwrap_or_else(|| panic!("{acknowledged:?} is lost"));
        assert_eq!(sandbox.session, acknowledged.session);
        assert!(
            matches!(sandbox.status, Status::Running | Status::Paused | Status::Failed | Status::Stopped),
            "{sandbox:?}"
        );
        assert!(sandbox.expires_at >= acknowledged.expires_at, "{sandbox:?} ends before {acknowledged:?}");
    }

    pub(super) fn answered(&mut self, waiter: WaiterId, reply: &Reply) {
        let asked = self.waiting.remove(&waiter).unwrap_or_else(|| panic!("{waiter:?} does not wait: {reply:?}"));
        match (asked, reply) {
            (Asked::Snapshot, Reply::Snapshot(Ok(snapshot))) => {
                assert!(self.snapshotted.contains(&snapshot.origin.session));
            }
            (Asked::DeleteWithSnapshot, Reply::Delete(Ok(Deletion::Deleted { session, snapshot: Some(_), .. }))) => {
                assert!(self.snapshotted.contains(session), "it is removed without a snapshot");
            }
            (Asked::Create { other_agent }, Reply::Create(Ok(created))) => self.handed_out(other_agent, created),
            (Asked::Get, Reply::Get(Ok(Some(sandbox)))) if sandbox.status == Status::Running => {
                self.check_acknowledged(sandbox);
            }
            (Asked::Touch, Reply::Sandbox(Ok(sandbox))) => {
                assert_eq!(sandbox.status, Status::Running, "a paused sandbox is not used");
                self.check_acknowledged(sandbox);
            }
            (Asked::Pause, Reply::Sandbox(Ok(sandbox))) => {
                assert_eq!(sandbox.status, Status::Paused);
                self.check_acknowledged(sandbox);
            }
            (Asked::Renew(_) | Asked::Lease(_), Reply::Sandbox(Ok(sandbox))) => self.check_acknowledged(sandbox),
            (Asked::Release(_), Reply::Sandbox(_)) => {}
            (Asked::Create { .. }, Reply::Create(Err(_)))
            | (Asked::Get, Reply::Get(_))
            | (Asked::Delete | Asked::DeleteWithSnapshot, Reply::Delete(_))
            | (Asked::Snapshot, Reply::Snapshot(_))
            | (Asked::Renew(_) | Asked::Touch | Asked::Pause | Asked::Lease(_), Reply::Sandbox(Err(_))) => {}
            _ => panic!("{reply:?} answers {asked:?}"),
        }
    }

    /// Checks that an acknowledged sandbox and its deadline are on disk.
    fn check_acknowledged(&mut self, sandbox: &Sandbox) {
        assert!(matches!(sandbox.status, Status::Running | Status::Paused), "{sandbox:?}");
        let record = self.disk.record.as_ref().expect("an acknowledged sandbox is on disk");
        assert_eq!(record.session, sandbox.session);
        assert!(record.expires_at >= sandbox.expires_at, "{record:?} ends before {sandbox:?}");
        self.acknowledged = Some(sandbox.clone());
    }

    fn handed_out(&mut self, other_agent: bool, Created { sandbox, outcome, .. }: &Created) {
        assert_eq!(sandbox.agent == request().agent, !other_agent, "a sandbox of another agent was handed out");
        assert_eq!(sandbox.status, Status::Running);
        self.check_acknowledged(sandbox);
        if *outcome == Outcome::Reused {
            // The container may have died since it was last seen, and a delete may follow at once.
            assert!(matches!(self.lifecycle.phase(), Phase::Running(_) | Phase::Deleting(_)));
        } else {
            let Phase::Running(running) = self.lifecycle.phase() else { panic!("{:?}", self.lifecycle) };
            assert_eq!(running.sandbox.session, sandbox.session);
            // The container may have died while it was being saved.
            if let Some(container) = &self.container {
                assert_eq!(sandbox.container.as_ref(), Some(&container.id));
                assert_eq!(sandbox.session, container.labels.session);
            }
        }
    }

    pub(super) fn published(&mut self, transition: &Transition) {
        use Status::*;
        assert_eq!(transition.from, self.status, "{transition:?} does not follow");
        let step = (transition.from, transition.to);
        if matches!(transition.sandbox.reason, Reason::Snapshotted | Reason::SnapshotFailed) {
            return assert_eq!(transition.from, transition.to, "a snapshot changes no status");
        }
        let drawn = matches!(
            step,
            (None, Some(_))
                | (Some(Creating), Some(Running | Deleting | Failed) | None)
                | (Some(Running), Some(Paused | Failed | Stopped | Deleting))
                | (Some(Paused), Some(Running | Failed | Stopped | Deleting))
                | (Some(Failed), Some(Creating | Stopped | Deleting))
                | (Some(Stopped), Some(Deleting))
                | (Some(Deleting), None)
        );
        assert!(drawn, "{step:?} is not in the diagram");
        self.status = transition.to;
    }

    /// Checks that an expired sandbox is removed only after its snapshot, where the profile asks for one.
    pub(super) fn assert_snapshot_before_removal(&self, named: Option<&ContainerId>) {
        let Phase::Deleting(deleting) = self.lifecycle.phase() else { return };
        let sandbox = &deleting.sandbox;
        let ended = self.lifecycle.on_expire() == OnExpire::Snapshot
            && matches!(sandbox.reason, Reason::Expired | Reason::Idle)
            && deleting.successor.is_none();
        let there = self.container.as_ref().is_some_and(|container| Some(&container.id) == named);
        if ended && there {
            assert!(self.snapshotted.contains(&sandbox.session), "{sandbox:?} is lost");
        }
    }

    pub(super) fn check_state(&self) {
        let phase = self.lifecycle.phase();
        let status = match phase {
            Phase::Unknown(_) | Phase::Absent => None,
            Phase::Creating(_) => Some(Status::Creating),
            Phase::Running(running) => Some(running.sandbox.status),
            Phase::Stopped(_) => Some(Status::Stopped),
            Phase::Failed(_) => Some(Status::Failed),
            Phase::Deleting(_) => Some(Status::Deleting),
        };
        assert_eq!(status, self.status, "the phase and the published status differ");
        self.check_absolute_end();
        self.check_deadline();
        if self.lifecycle.is_settled() {
            let open = self.launching.is_some() || self.tearing_down.is_some() || self.discovering;
            assert!(!open && self.stragglers.is_empty() && self.waiting.is_empty(), "{:?}", self.lifecycle);
        }
        if self.lifecycle.is_idle() {
            assert!(self.lifecycle.is_settled());
            assert!(self.container.is_none(), "{:?} has no owner", self.container);
        }
    }

    /// Checks that only leases hold a sandbox past its absolute deadline, and only within their maximum.
    fn check_absolute_end(&self) {
        let Some(sandbox) = self.lifecycle.sandbox() else { return };
        let latest = if self.leased { sandbox.expires_at + self.rules.max_lease } else { sandbox.expires_at };
        assert!(sandbox.absolute_end() <= latest, "{sandbox:?} is held past its end");
    }

    /// Checks that a running, stopped or failed sandbox has a deadline no later than its expiry, and that no other
    /// phase has a deadline.
    fn check_deadline(&self) {
        if self.lifecycle.is_committing() {
            // The end of the commit sets the deadline again.
            return;
        }
        let put_off = self.lifecycle.failed_snapshots.retry_at;
        let end = match self.lifecycle.phase() {
            // The end of the stop under way decides.
            Phase::Running(running) if running.stopping.is_some_and(|stopping| stopping.is_under_way()) => return,
            Phase::Running(running) if running.stopping.is_some() => Timestamp::MAX_UTC,
            // An expired sandbox with a snapshot to take waits for the pause under way, whose end sets the deadline
            // again.
            Phase::Running(running)
                if running.switching.is_some()
                    && self.lifecycle.snapshots_at_expiry()
                    && self.now >= running.sandbox.absolute_end() =>
            {
                return;
            }
            // A sandbox to be paused stays until the pause succeeds, or until its absolute deadline.
            Phase::Running(running) if running.switching.is_some() || running.retry_pause_at.is_some() => {
                running.sandbox.absolute_end()
            }
            Phase::Running(running) => running.sandbox.end().0,
            Phase::Failed(failed) => failed.sandbox.end().0,
            Phase::Stopped(_) => Timestamp::MAX_UTC,
            Phase::Unknown(_) | Phase::Absent | Phase::Creating(_) | Phase::Deleting(_) => {
                return assert_eq!(self.deadline, None, "a deadline without a sandbox: {:?}", self.lifecycle);
            }
        };
        let deadline = self.deadline.unwrap_or_else(|| panic!("no deadline in {:?}", self.lifecycle));
        let end = put_off.map_or(end, |again| again.max(end));
        assert!(deadline <= end, "the deadline {deadline} is after {end}: {:?}", self.lifecycle);
    }
}
