//! The known races of sandbox managers, each forced to happen. The table of races in docs/architecture.md says why each
//! is excluded.

use std::time::Duration;

use futures_util::FutureExt;
use sandboxd_actors::domain::create_request::CreateRequest;
use sandboxd_actors::domain::ids::{ContainerId, SessionId};
use sandboxd_actors::domain::outcome::{Deletion, Outcome, SandboxError, StartFailure};
use sandboxd_actors::domain::sandbox::Status;
use sandboxd_actors::journal::memory;
use sandboxd_actors::ports::engine::fake::{FakeEngine, Fault};
use sandboxd_actors::ports::engine::{ContainerState, Exit, Operation};
use sandboxd_actors::reconciler::Trigger;
use sandboxd_actors::reconciler::plan::Action;

use crate::support::{Service, TRUST, in_time, request, request_for};

/// Longer than the grace for a container without a record.
const PAST_GRACE: Duration = Duration::from_secs(180);

impl Service {
    /// Runs a pass. Returns its actions beyond confirmations.
    async fn reconciled(&self) -> Vec<Action> {
        self.sandboxes.reconcile(Trigger::Request, false).await.expect("the engine can be listed").actions
    }

    fn deleting(&self, request: &CreateRequest) -> tokio::task::JoinHandle<Result<Deletion, SandboxError>> {
        let (sandboxes, chat) = (self.sandboxes.clone(), request.chat);
        tokio::spawn(async move { sandboxes.delete(chat).await })
    }

    /// Resolves once the sandbox with this container has expired, and with it every sandbox that was due by then.
    async fn until_reaped(&self, container: Option<&ContainerId>) {
        let gone = |engine: &FakeEngine| engine.containers().iter().all(|other| Some(&other.id) != container);
        in_time(self.engine.until(gone)).await;
    }

    fn touched_containers(&self) -> usize {
        self.engine.calls(Operation::Stop) + self.engine.calls(Operation::Remove)
    }
}

#[tokio::test]
async fn reconcile_does_not_adopt_what_is_being_torn_down() {
    let service = Service::start().await;
    let request = request();
    let session = service.created(&request).await.sandbox.session;
    let gate = service.engine.hold_next(Operation::Stop);
    let delete = service.deleting(&request);
    service.reached(Operation::Stop).await;
    assert_eq!(service.container().state, ContainerState::Running, "the state in the next listing");

    assert_eq!(service.reconciled().await, []);
    let sandbox = service.sandbox(request.chat).await.unwrap();
    assert_eq!((sandbox.status, sandbox.session), (Status::Deleting, session));
    gate.open();
    assert!(matches!(delete.await.unwrap(), Ok(Deletion::Deleted { .. })));
    assert_eq!(service.engine.containers(), []);
    service.until_all_retired().await;
}

#[tokio::test]
async fn reconcile_does_not_adopt_what_was_torn_down_since_it_was_listed() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    let lists = service.engine.calls(Operation::List);
    let gate = service.engine.hold_next_answer(Operation::List);
    let sandboxes = service.sandboxes.clone();
    let pass = tokio::spawn(async move { sandboxes.reconcile(Trigger::Request, false).await });
    in_time(service.engine.reached(Operation::List, lists + 1)).await;
    service.sandboxes.delete(request.chat).await.unwrap();
    service.until_all_retired().await;

    gate.open();
    let report = pass.await.unwrap().unwrap();
    assert_eq!((report.containers, report.actions), (1, vec![]), "the listing is old");
    assert_eq!(service.sandbox(request.chat).await, None);
    assert_eq!(service.journal.sandboxes(), []);
    assert_eq!(service.created(&request).await.outcome, Outcome::Created);
}

#[tokio::test(start_paused = true)]
async fn idle_expiry_does_not_end_what_was_just_reused() {
    let service = Service::start().await;
    let idle_soon = || CreateRequest { idle_timeout: Some(TRUST * 2), ..request() };
    let (reused, unused) = (idle_soon(), idle_soon());
    let session = service.created(&reused).await.sandbox.session;
    let witness = service.created(&unused).await.sandbox;

    // The sandbox was not observed for a while, so a create inspects it. It expires meanwhile.
    service.clock.advance(TRUST + TRUST / 2);
    let looks = service.engine.calls(Operation::Inspect);
    let gate = service.engine.hold_next(Operation::Inspect);
    let create = service.creating(&reused);
    in_time(service.engine.reached(Operation::Inspect, looks + 1)).await;
    service.clock.advance(TRUST);
    service.until_reaped(witness.container.as_ref()).await;

    assert_eq!(service.sandbox(reused.chat).await.unwrap().status, Status::Running);
    gate.open();
    let created = create.await.unwrap().unwrap();
    assert_eq!((created.outcome, created.sandbox.session), (Outcome::Reused, session));
    assert_eq!(Some(service.container().id), created.sandbox.container);
}

#[tokio::test]
async fn reuse_does_not_return_what_is_reserved_for_tear_down() {
    let service = Service::start().await;
    let request = request();
    let old = service.created(&request).await.sandbox;
    let gate = service.engine.hold_next(Operation::Stop);
    service.clock.advance(request.ttl());
    service.reached(Operation::Stop).await;
    assert_eq!(service.container().state, ContainerState::Running, "a create could reuse it");

    let create = service.creating(&request);
    // The create waits behind the tear-down.
    service.until_status(request.chat, Status::Creating).await;
    assert!(!create.is_finished());
    gate.open();
    let created = create.await.unwrap().unwrap();
    assert_eq!(created.outcome, Outcome::Replaced);
    assert_ne!(created.sandbox.session, old.session);
    assert_eq!(Some(service.container().id), created.sandbox.container);
}

#[tokio::test]
async fn a_lost_store_does_not_evict_live_sandboxes() {
    let before = Service::start().await;
    let request = request();
    let session = before.created(&request).await.sandbox.session;
    before.sandboxes.shut_down(Duration::from_secs(1)).await;

    let service = Service::unlisted(before.engine.clone()).await;
    assert_eq!(service.journal.sandboxes(), []);
    service.clock.advance(PAST_GRACE);
    assert_eq!(service.adopt().await, Ok((1, 0)));
    assert_eq!(service.reconciled().await, []);
    let sandbox = service.sandbox(request.chat).await.unwrap();
    assert_eq!((sandbox.status, sandbox.session), (Status::Running, session));

    // A journal lost while serving evicts no sandbox either.
    service.journal.fail_always(memory::Fault::io());
    service.journal.refuse_reads();
    assert_eq!(service.reconciled().await, []);
    let reused = service.created(&request).await;
    assert_eq!((reused.outcome, reused.sandbox.session), (Outcome::Reused, session));
    assert_eq!(service.touched_containers(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_answer_a_chat_is_not_read_as_not_owned() {
    let before = Service::start().await;
    let request = request();
    let session = before.created(&request).await.sandbox.session;
    before.sandboxes.shut_down(Duration::from_secs(1)).await;

    let service = before.next_run().await;
    service.journal.refuse_reads();
    let unknown = |error: &SandboxError| assert!(matches!(error, SandboxError::Unknown { .. }), "{error}");
    unknown(&service.sandboxes.get(request.chat).await.unwrap_err());
    unknown(&service.sandboxes.create(request.clone()).await.unwrap_err());
    unknown(&service.sandboxes.delete(request.chat).await.unwrap_err());
    assert_eq!(service.touched_containers(), 0);

    service.journal.heal();
    let reused = service.created(&request).await;
    assert_eq!((reused.outcome, reused.sandbox.session), (Outcome::Reused, session));
}

#[tokio::test]
async fn a_store_that_cannot_answer_the_reconciler_is_not_read_as_not_owned() {
    let service = Service::start().await;
    // The sandbox has a record that this run has not read.
    let other_run = service.next_run().await;
    other_run.adopt().await.unwrap();
    let request = request();
    let session = other_run.created(&request).await.sandbox.session;
    service.clock.advance(PAST_GRACE);

    service.journal.refuse_reads();
    service.sandboxes.reconcile(Trigger::Request, false).await.unwrap_err();
    assert_eq!(service.sandbox(request.chat).await, None, "no decision was made");
    assert_eq!(service.touched_containers(), 0);

    service.journal.heal();
    assert_eq!(service.reconciled().await.len(), 1);
    let sandbox = service.sandbox(request.chat).await.unwrap();
    assert_eq!((sandbox.status, sandbox.session), (Status::Running, session));
    assert_eq!(service.touched_containers(), 0);
}

#[tokio::test(start_paused = true)]
async fn tear_down_keeps_its_mark_for_a_stop_that_outlives_every_time_out() {
    let service = Service::start().await;
    let request = request();
    let session = service.created(&request).await.sandbox.session;
    for operation in [Operation::Stop, Operation::Remove] {
        service.engine.fail_always(operation, Fault::Hang);
    }
    let owed = service.sandboxes.delete(request.chat).await;
    assert!(matches!(owed, Err(SandboxError::DeleteOwed { .. })), "{owed:?}");
    for _ in 0..3 {
        is_marked(&service, &request, session).await;
        service.clock.advance(request.ttl());
    }
    service.sandboxes.shut_down(Duration::from_secs(1)).await;

    let next = service.next_run().await;
    next.adopt().await.unwrap();
    is_marked(&next, &request, session).await;
    next.engine.heal();
    next.until_empty().await;
    next.until_all_retired().await;
    assert_eq!(next.journal.sandboxes(), []);
}

/// Asserts that the sandbox is neither adopted nor reused nor replaced, and that the next run will know.
async fn is_marked(service: &Service, request: &CreateRequest, session: SessionId) {
    assert_eq!(service.reconciled().await, []);
    let failure = service.start_failure(request).await;
    assert!(matches!(failure, StartFailure::PredecessorRemains(_)), "{failure}");
    let sandbox = service.sandbox(request.chat).await.unwrap();
    assert_eq!((sandbox.status, sandbox.session), (Status::Deleting, session));
    let recorded: Vec<_> = service.journal.sandboxes().iter().map(|record| (record.status, record.session)).collect();
    assert_eq!(recorded, [(Status::Deleting, session)]);
    service.container();
}

#[tokio::test]
async fn registration_clears_stale_entries() {
    let service = Service::start().await;
    let request = request();
    let old = service.created(&request).await.sandbox;
    let witness = service.created(&self::request()).await.sandbox;
    service.engine.vanish(old.container.as_ref().unwrap());
    service.until_status(request.chat, Status::Failed).await;

    let until_expiry = request.ttl() - Duration::from_secs(1);
    service.clock.advance(until_expiry);
    let created = service.created(&request).await;
    assert_eq!(created.outcome, Outcome::Replaced);
    let recorded = |service: &Service| {
        let records = service.journal.sandboxes();
        records.iter().filter(|record| record.chat == request.chat).map(|record| record.session).collect::<Vec<_>>()
    };
    assert_eq!(recorded(&service), [created.sandbox.session]);
    let listed = service.sandboxes.list(None, 10).await.unwrap().sandboxes;
    assert_eq!(listed.iter().filter(|sandbox| sandbox.session == old.session).count(), 0);

    // The deadline of the old sandbox does not end the new one.
    service.clock.advance(Duration::from_secs(2));
    service.until_reaped(witness.container.as_ref()).await;
    assert_eq!(service.sandbox(request.chat).await.unwrap().status, Status::Running);
    assert_eq!(recorded(&service), [created.sandbox.session]);
}

#[tokio::test]
async fn a_second_instance_never_stops_the_first_ones_containers() {
    let first = Service::start().await;
    let request = request();
    let sandbox = first.created(&request).await.sandbox;
    let theirs = sandbox.container.clone().unwrap();

    // The second instance has no record, gets requests for the same chat, and ends its sandbox in every way.
    let second = first.another_instance().await;
    second.clock.advance(PAST_GRACE);
    assert_eq!(second.reconciled().await, []);
    assert_eq!(second.sandbox(request.chat).await, None);
    assert_eq!(second.sandboxes.delete(request.chat).await, Ok(Deletion::NotFound));
    let created = second.created(&request_for(request.chat)).await;
    assert_eq!(created.outcome, Outcome::Created);
    second.sandboxes.delete(request.chat).await.unwrap();
    let expired = second.created(&request_for(request.chat)).await.sandbox;
    second.clock.advance(request.ttl());
    second.until_reaped(expired.container.as_ref()).await;
    second.until_all_retired().await;
    assert_eq!(second.reconciled().await, []);

    assert_eq!(first.container().id, theirs);
    assert_eq!(first.container().state, ContainerState::Running);
    assert_eq!(first.created(&request).await.sandbox.session, sandbox.session);
}

#[tokio::test]
async fn a_check_of_an_old_generation_does_not_end_the_container_that_was_created_since() {
    let service = Service::start().await;
    let request = request();
    let old = service.created(&request).await.sandbox;
    in_time(service.engine.until(|engine| engine.streams() == 1)).await;
    let looks = service.engine.calls(Operation::Inspect);
    let gate = service.engine.hold_next_answer(Operation::Inspect);
    service.engine.end(&old.container.unwrap(), Exit { code: 1, oom_killed: false }, &[]);
    in_time(service.engine.reached(Operation::Inspect, looks + 1)).await;

    // The same actor creates the next container, because the check replies to this actor.
    let stop = service.engine.hold_next(Operation::Stop);
    let delete = service.deleting(&request);
    service.reached(Operation::Stop).await;
    let create = service.creating(&request);
    service.until_status(request.chat, Status::Creating).await;
    stop.open();
    delete.await.unwrap().unwrap();
    let created = create.await.unwrap().unwrap();

    gate.open();
    // The check reads the last output of the old container, and then replies.
    in_time(service.engine.reached(Operation::LogTail, 1)).await;
    let sandbox = service.sandbox(request.chat).await.unwrap();
    assert_eq!((sandbox.status, sandbox.session), (Status::Running, created.sandbox.session));
    assert_eq!(Some(service.container().id), created.sandbox.container);
    assert_eq!(service.container().state, ContainerState::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_renewal_that_won_the_mailbox_beats_the_expiry() {
    let service = Service::start().await;
    let renewed = request();
    let before = service.created(&renewed).await.sandbox;
    // The witness is due later, so once it has expired, the other deadline has passed, too.
    service.clock.advance(Duration::from_secs(1));
    let witness = request();
    service.created(&witness).await;
    service.sandboxes.journal().flush().await.unwrap();

    // The renewal is in time, but on disk only after the deadline.
    service.clock.advance(renewed.ttl() - Duration::from_secs(2));
    let gate = service.journal.hold_next();
    let mut renewal = Box::pin(service.sandboxes.renew(renewed.chat, renewed.ttl()));
    let answered = (&mut renewal).now_or_never();
    // This request follows the renewal in the mailbox, so its answer shows that the renewal was handled.
    let before_deadline = service.sandbox(renewed.chat).await;
    service.clock.advance(Duration::from_secs(3));
    service.until_status(witness.chat, Status::Deleting).await;
    let after_deadline = service.sandbox(renewed.chat).await;
    // Opened before the assertions, because a runtime does not end while a commit is held.
    gate.open();

    assert_eq!(answered, None);
    assert_eq!(before_deadline.unwrap().expires_at, before.expires_at, "not promised yet");
    assert_eq!(after_deadline.unwrap().status, Status::Running);
    let after = in_time(renewal).await.unwrap();
    assert_eq!((after.status, after.session), (Status::Running, before.session));
    assert!(after.expires_at > before.expires_at);
    service.until_served(1).await;
    assert_eq!(Some(service.container().id), before.container);
}
