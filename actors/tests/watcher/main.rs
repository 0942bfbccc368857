//! Engine events reach the chats, also across failures of the event stream. No test here uses a sandbox, and no
//! periodic pass runs: every change is found by an event, or by the pass after a lost stream.

mod service;

use std::collections::BTreeMap;
use std::time::Duration;

use sandboxd_actors::domain::ids::{ChatId, ContainerId};
use sandboxd_actors::domain::labels;
use sandboxd_actors::domain::sandbox::{Reason, Status};
use sandboxd_actors::journal::memory::MemoryJournal;
use sandboxd_actors::ports::engine::events::EventKind;
use sandboxd_actors::ports::engine::fake::{FakeEngine, Fault};
use sandboxd_actors::ports::engine::{ContainerState, Exit, Observed, Operation};
use sandboxd_actors::reconciler::Trigger;
use service::{MEMORY_LIMIT, Service, in_time};

const CRASH: Exit = Exit { code: 3, oom_killed: false };
const KILL: Exit = Exit { code: 137, oom_killed: false };
const OUT_OF_MEMORY: Exit = Exit { code: 137, oom_killed: true };

/// A service with a connected event stream.
async fn connected() -> Service {
    let service = Service::start(&FakeEngine::new(), &MemoryJournal::new()).await;
    service.streams(1).await;
    service
}

// ---- events ----

#[tokio::test]
async fn a_sandbox_that_dies_has_failed_with_its_exit_code_and_last_output() {
    let service = connected().await;
    let (chat, container) = service.sandbox().await;
    service.engine.end(&container, CRASH, &["up", "no such module"]);
    let failed = service.failed(chat).await;
    assert_eq!(failed.reason, Reason::Exited);
    let message = failed.message.unwrap();
    assert!(message.contains("exit code 3") && message.contains("no such module"), "{message}");
}

#[tokio::test]
async fn a_sandbox_that_ran_out_of_memory_has_failed_with_its_limit() {
    let service = connected().await;
    let (chat, container) = service.sandbox().await;
    service.engine.end(&container, OUT_OF_MEMORY, &[]);
    let failed = service.failed(chat).await;
    assert_eq!(failed.reason, Reason::OomKilled);
    assert!(failed.message.unwrap().contains(&MEMORY_LIMIT.to_string()));
}

#[tokio::test]
async fn an_engine_that_reports_an_oom_kill_late_is_inspected_twice() {
    let service = connected().await;
    let (chat, container) = service.sandbox().await;
    let inspects = service.engine.calls(Operation::Inspect);
    let (first, second) = (service.engine.hold_next(Operation::Inspect), service.engine.hold_next(Operation::Inspect));
    service.engine.end(&container, KILL, &[]);
    first.open();
    in_time(service.engine.reached(Operation::Inspect, inspects + 2)).await;
    service.engine.end(&container, OUT_OF_MEMORY, &[]);
    second.open();
    assert_eq!(service.failed(chat).await.reason, Reason::OomKilled);
}

#[tokio::test]
async fn a_sandbox_whose_container_is_removed_externally_has_vanished() {
    let service = connected().await;
    let (chat, container) = service.sandbox().await;
    service.engine.vanish(&container);
    assert_eq!(service.failed(chat).await.reason, Reason::Vanished);
}

#[tokio::test]
async fn a_sandbox_that_is_paused_has_not_failed() {
    let service = connected().await;
    let (chat, container) = service.sandbox().await;
    service.engine.report_event(&container, EventKind::Paused);
    service.engine.report_event(&container, EventKind::OutOfMemory);
    service.until_processed(&container).await;
    assert_eq!(service.status(chat).await, Some(Status::Running));
}

#[tokio::test]
async fn an_event_during_an_inspect_causes_another_inspect() {
    let service = connected().await;
    let ((chat, container), (_, witness)) = (service.sandbox().await, service.sandbox().await);
    let inspects = service.engine.calls(Operation::Inspect);
    let first = service.engine.hold_next(Operation::Inspect);
    service.engine.report_event(&container, EventKind::Paused);
    in_time(service.engine.reached(Operation::Inspect, inspects + 1)).await;
    service.engine.report_event(&container, EventKind::Died);
    service.until_processed(&witness).await;

    // The first inspect finds the container alive; the second was requested only by the event.
    let second = service.engine.hold_next(Operation::Inspect);
    first.open();
    in_time(service.engine.reached(Operation::Inspect, inspects + 3)).await;
    service.engine.end(&container, CRASH, &[]);
    second.open();
    service.failed(chat).await;
}

#[tokio::test]
async fn a_sandbox_that_dies_before_its_acknowledgement_has_failed_afterwards() {
    let journal = MemoryJournal::new();
    let service = Service::start(&FakeEngine::new(), &journal).await;
    let (_, witness) = service.sandbox().await;
    service.sandboxes.journal().flush().await.unwrap();
    let inspects = service.engine.calls(Operation::Inspect);
    let gate = journal.hold_next();

    let request = service::request();
    let chat = request.chat;
    let create = tokio::spawn({
        let sandboxes = service.sandboxes.clone();
        async move { sandboxes.create(request).await }
    });
    // The launch inspects the container once.
    in_time(service.engine.reached(Operation::Inspect, inspects + 1)).await;
    let launched = service.engine.containers().into_iter().find(|container| container.id != witness).unwrap();
    service.engine.end(&launched.id, CRASH, &[]);
    service.until_processed(&witness).await;
    gate.open();
    create.await.unwrap().unwrap();
    service.failed(chat).await;
}

#[tokio::test]
async fn a_flood_of_events_costs_one_more_inspect_and_stalls_no_request() {
    let service = connected().await;
    let ((chat, container), (other, witness)) = (service.sandbox().await, service.sandbox().await);
    let inspects = service.engine.calls(Operation::Inspect);
    let gate = service.engine.hold_next(Operation::Inspect);
    for _ in 0..50_000 {
        service.engine.report_event(&container, EventKind::Died);
    }
    let answers = async {
        assert_eq!(service.status(other).await, Some(Status::Running));
        assert_eq!(service.status(chat).await, Some(Status::Running));
        service.sandbox().await;
    };
    tokio::time::timeout(Duration::from_secs(10), answers).await.expect("requests are answered");
    service.until_processed(&witness).await;
    gate.open();
    in_time(service.engine.reached(Operation::Inspect, inspects + 4)).await;
    service.until_processed(&witness).await;
    // One held inspect and one more, one of the create, and two of the witness.
    assert_eq!(service.engine.calls(Operation::Inspect), inspects + 5);
}

#[tokio::test]
async fn events_of_containers_that_are_not_a_sandbox_are_ignored() {
    let service = connected().await;
    let ((chat, container), (_, witness)) = (service.sandbox().await, service.sandbox().await);
    let ours = service.engine.containers().into_iter().find(|other| other.id == container).unwrap();
    let foreigners = [
        foreign(
            &ours,
            "of-a-chat-without-a-sandbox",
            (labels::CHAT_ID, &ChatId::new(uuid::Uuid::new_v4()).to_string()),
        ),
        foreign(&ours, "of-another-instance", (labels::INSTANCE, "another")),
        foreign(&ours, "of-no-chat", (labels::CHAT_ID, "none")),
        foreign(&ours, "of-this-chat-under-another-id", (labels::INSTANCE, "default")),
    ];
    let inspects = service.engine.calls(Operation::Inspect);
    let spec = service.engine.specs().remove(0);
    for foreign in foreigners {
        service.engine.place(foreign.clone(), spec.clone());
        service.engine.end(&foreign.id, CRASH, &[]);
        service.engine.vanish(&foreign.id);
    }
    service.until_processed(&witness).await;
    assert_eq!(service.engine.calls(Operation::Inspect), inspects + 1, "only the witness was inspected");
    assert_eq!(service.status(chat).await, Some(Status::Running));
}

fn foreign(ours: &Observed, id: &str, (label, value): (&str, &str)) -> Observed {
    let mut labels: BTreeMap<_, _> = ours.labels.clone();
    labels.insert(label.to_owned(), value.to_owned());
    Observed { id: ContainerId::new(id), name: id.to_owned(), labels, state: ContainerState::Running, ..ours.clone() }
}

// ---- a broken stream ----

#[tokio::test]
async fn a_missed_death_is_found_when_the_stream_is_back() {
    let service = connected().await;
    let ((died, first), (vanished, second)) = (service.sandbox().await, service.sandbox().await);
    service.engine.fail_always(Operation::Watch, Fault::unreachable());
    service.engine.break_streams();
    service.engine.end(&first, CRASH, &[]);
    service.engine.vanish(&second);
    in_time(service.engine.reached(Operation::Watch, 4)).await;
    assert_eq!(service.status(died).await, Some(Status::Running));

    service.engine.heal();
    assert_eq!(service.failed(died).await.reason, Reason::Exited);
    assert_eq!(service.failed(vanished).await.reason, Reason::Vanished);
    let (chat, container) = service.sandbox().await;
    service.engine.end(&container, CRASH, &[]);
    service.failed(chat).await;
}

#[tokio::test]
async fn the_stream_is_open_before_the_pass_for_missed_events() {
    let service = connected().await;
    let lists = service.engine.calls(Operation::List);
    service.engine.break_streams();
    in_time(service.engine.reached(Operation::List, lists + 1)).await;
    assert_eq!(service.engine.streams(), 1);
}

#[tokio::test]
async fn a_gap_that_could_not_be_closed_at_once_is_closed_later() {
    let service = connected().await;
    let (chat, container) = service.sandbox().await;
    service.engine.fail_next(Operation::List, Fault::unreachable());
    service.engine.fail_next(Operation::List, Fault::unreachable());
    service.engine.break_streams();
    service.engine.end(&container, CRASH, &[]);
    service.failed(chat).await;
}

#[tokio::test]
async fn an_engine_that_never_answers_for_the_stream_is_asked_again() {
    tokio::time::pause();
    let engine = FakeEngine::new();
    engine.fail_next(Operation::Watch, Fault::Hang);
    let service = Service::unlisted(&engine, &MemoryJournal::new()).await;
    service.streams(1).await;
    assert_eq!(engine.calls(Operation::Watch), 2);
}

#[tokio::test]
async fn a_service_that_starts_without_a_stream_gets_one_and_misses_no_event() {
    let engine = FakeEngine::new();
    engine.fail_always(Operation::Watch, Fault::unreachable());
    let service = Service::start(&engine, &MemoryJournal::new()).await;
    let (chat, container) = service.sandbox().await;
    engine.end(&container, CRASH, &[]);
    engine.heal();
    service.failed(chat).await;
}

#[tokio::test]
async fn an_event_between_the_first_listing_and_its_adoption_is_not_missed() {
    let engine = FakeEngine::new();
    let before = Service::start(&engine, &MemoryJournal::new()).await;
    let (chat, container) = before.sandbox().await;
    before.sandboxes.shut_down(Duration::from_secs(10)).await;

    // An empty journal saves the listed sandboxes before they are adopted.
    let journal = MemoryJournal::new();
    let service = Service::unlisted(&engine, &journal).await;
    service.streams(1).await;
    let gate = journal.hold_next();
    let reconcile = tokio::spawn({
        let sandboxes = service.sandboxes.clone();
        async move { sandboxes.reconcile(Trigger::Start, false).await }
    });
    in_time(journal.reached(1)).await;
    engine.end(&container, CRASH, &[]);
    service.sandboxes.count().await;
    gate.open();
    reconcile.await.unwrap().unwrap();
    service.failed(chat).await;
}

// ---- supervision ----

#[tokio::test]
async fn a_watcher_that_fails_is_started_again() {
    let service = connected().await;
    let (chat, container) = service.sandbox().await;
    service.engine.fail_next(Operation::Watch, Fault::Panic);
    service.engine.break_streams();
    service.engine.end(&container, CRASH, &[]);
    service.failed(chat).await;
    service.streams(1).await;
}

#[tokio::test]
async fn a_reconciler_that_fails_is_started_again_and_makes_up_for_it() {
    let service = connected().await;
    let (chat, container) = service.sandbox().await;
    service.engine.fail_next(Operation::List, Fault::Panic);
    service.engine.break_streams();
    service.engine.end(&container, CRASH, &[]);
    service.failed(chat).await;
    service.sandboxes.reconcile(Trigger::Request, false).await.unwrap();
}

#[tokio::test]
async fn a_reconciler_that_fails_before_its_first_pass_loses_no_record() {
    let (engine, journal) = (FakeEngine::new(), MemoryJournal::new());
    let before = Service::start(&engine, &journal).await;
    let (chat, _) = before.sandbox().await;
    before.sandboxes.shut_down(Duration::from_secs(10)).await;

    let service = Service::unlisted(&engine, &journal).await;
    engine.fail_next(Operation::List, Fault::Panic);
    service.sandboxes.reconcile(Trigger::Start, false).await.unwrap_err();
    in_time(async {
        while service.sandboxes.reconcile(Trigger::Start, false).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(service.status(chat).await, Some(Status::Running));
    assert_eq!(service.sandboxes.count().await, 1);
}

#[tokio::test]
async fn no_stream_is_open_once_the_service_has_shut_down() {
    let service = connected().await;
    service.sandboxes.shut_down(Duration::from_secs(10)).await;
    service.streams(0).await;
    let calls = service.engine.calls(Operation::Watch);
    service.engine.break_streams();
    assert_eq!(service.engine.calls(Operation::Watch), calls);
}
