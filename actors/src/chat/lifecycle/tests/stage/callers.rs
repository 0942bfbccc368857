//! The callers and their answers.

use super::*;

impl Stage {
    pub(in super::super) fn waiter(&mut self) -> WaiterId {
        self.waiters += 1;
        WaiterId(self.waiters - 1)
    }

    pub(in super::super) fn create(&mut self) -> WaiterId {
        self.create_with(request())
    }

    pub(in super::super) fn create_with(&mut self, request: CreateRequest) -> WaiterId {
        let (waiter, session) = (self.waiter(), SessionId::random());
        self.send(Event::Request(Request::Create { waiter, request: Box::new(request), session }));
        waiter
    }

    pub(in super::super) fn delete(&mut self) -> WaiterId {
        let waiter = self.waiter();
        self.send(Event::Request(Request::Delete { waiter, snapshot: None }));
        waiter
    }

    /// With a snapshot first.
    pub(in super::super) fn delete_with_snapshot(&mut self) -> WaiterId {
        let waiter = self.waiter();
        self.send(Event::Request(Request::Delete { waiter, snapshot: Some(true) }));
        waiter
    }

    pub(in super::super) fn snapshot(&mut self) -> WaiterId {
        let waiter = self.waiter();
        self.send(Event::Request(Request::Snapshot { waiter, label: None }));
        waiter
    }

    pub(in super::super) fn get(&mut self) -> WaiterId {
        let waiter = self.waiter();
        self.send(Event::Request(Request::Get { waiter }));
        waiter
    }

    pub(in super::super) fn renew(&mut self, ttl: Duration) -> WaiterId {
        let waiter = self.waiter();
        self.send(Event::Request(Request::Renew { waiter, ttl }));
        waiter
    }

    pub(in super::super) fn touch(&mut self) -> WaiterId {
        let waiter = self.waiter();
        self.send(Event::Request(Request::Touch { waiter }));
        waiter
    }

    pub(in super::super) fn pause(&mut self) -> WaiterId {
        let waiter = self.waiter();
        self.send(Event::Request(Request::Pause { waiter }));
        waiter
    }

    pub(in super::super) fn lease(&mut self, lease: Lease) -> WaiterId {
        let waiter = self.waiter();
        self.send(Event::Request(Request::Lease { waiter, lease }));
        waiter
    }

    pub(in super::super) fn release(&mut self, lease: LeaseId) -> WaiterId {
        let waiter = self.waiter();
        self.send(Event::Request(Request::Release { waiter, lease }));
        waiter
    }

    pub(in super::super) fn release_all_but(&mut self, lease: LeaseId) {
        let held = self.seen().expect("there is a sandbox").held_by;
        for id in held.into_iter().filter_map(|hold| hold.id).filter(|id| *id != lease) {
            self.release(id);
        }
    }

    /// Returns the answer of a get, which must come at once.
    pub(in super::super) fn seen(&mut self) -> Option<Sandbox> {
        let get = self.get();
        self.got(get).expect("get does not fail where the chat is known")
    }

    pub(in super::super) fn is_waiting(&self, waiter: WaiterId) -> bool {
        !self.answers.contains_key(&waiter)
    }

    pub(in super::super) fn reply(&mut self, waiter: WaiterId) -> Reply {
        self.answers.remove(&waiter).unwrap_or_else(|| panic!("{waiter:?} is not answered; open: {:?}", self.open))
    }

    pub(in super::super) fn create_answer(&mut self, waiter: WaiterId) -> Result<Created, SandboxError> {
        let Reply::Create(answer) = self.reply(waiter) else { panic!("{waiter:?} did not ask for a sandbox") };
        answer
    }

    pub(in super::super) fn created(&mut self, waiter: WaiterId) -> Created {
        self.create_answer(waiter).expect("the create succeeds")
    }

    pub(in super::super) fn start_failure(&mut self, waiter: WaiterId) -> StartFailure {
        match self.create_answer(waiter) {
            Err(SandboxError::StartFailed { failure, .. }) => failure,
            other => panic!("expected a failed start, got {other:?}"),
        }
    }

    pub(in super::super) fn conflict(&mut self, waiter: WaiterId) -> Vec<&'static str> {
        match self.create_answer(waiter) {
            Err(SandboxError::Conflict { fields, .. }) => fields,
            other => panic!("expected a conflict, got {other:?}"),
        }
    }

    pub(in super::super) fn got(&mut self, waiter: WaiterId) -> Result<Option<Sandbox>, SandboxError> {
        let Reply::Get(answer) = self.reply(waiter) else { panic!("{waiter:?} did not get") };
        answer
    }

    pub(in super::super) fn sandbox_answer(&mut self, waiter: WaiterId) -> Result<Sandbox, SandboxError> {
        let Reply::Sandbox(answer) = self.reply(waiter) else {
            panic!("{waiter:?} did not renew, touch, pause, lease or release")
        };
        answer
    }

    pub(in super::super) fn sandbox_after(&mut self, waiter: WaiterId) -> Sandbox {
        self.sandbox_answer(waiter).expect("the request succeeds")
    }

    pub(in super::super) fn snapshot_answer(&mut self, waiter: WaiterId) -> Result<Snapshot, SandboxError> {
        let Reply::Snapshot(answer) = self.reply(waiter) else { panic!("{waiter:?} did not ask for a snapshot") };
        answer
    }

    pub(in super::super) fn delete_answer(&mut self, waiter: WaiterId) -> Result<Deletion, SandboxError> {
        let Reply::Delete(answer) = self.reply(waiter) else { panic!("{waiter:?} did not delete") };
        answer
    }

    pub(in super::super) fn deleted_session(&mut self, waiter: WaiterId) -> SessionId {
        match self.delete_answer(waiter) {
            Ok(Deletion::Deleted { session, .. }) => session,
            other => panic!("expected a deletion, got {other:?}"),
        }
    }
}
