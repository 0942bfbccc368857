//! Tests of the journal's actor over a journal in memory.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::broadcast::error::RecvError;

use super::memory::{Fault, MemoryJournal};
use super::*;
use crate::domain::host_path::HostPath;
use crate::domain::ids::{ContainerName, SlotId};

const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn chat(n: u128) -> ChatId {
    ChatId::new(uuid::Uuid::from_u128(n))
}

pub(super) fn session(n: u128) -> SessionId {
    uuid::Uuid::from_u128(n).to_string().parse().unwrap()
}

pub(super) fn moment(seconds: i64) -> Timestamp {
    Timestamp::from_timestamp(seconds, 0).unwrap()
}

pub(super) fn claim(chat_number: u128, session_number: u128) -> Claim {
    Claim {
        slot: SlotId::random(),
        session: session(session_number),
        chat: chat(chat_number),
        container: ContainerId::new("container"),
        labels: Default::default(),
        environment: Default::default(),
        mounts: Default::default(),
    }
}

pub(super) fn sandbox(chat_number: u128, session_number: u128) -> Sandbox {
    Sandbox {
        session: session(session_number),
        chat: chat(chat_number),
        agent: "agent".parse().unwrap(),
        workspace: None,
        volume: Some(HostPath::from_canonical(Path::new("/data")).unwrap()),
        profile: "default".parse().unwrap(),
        image: "image".into(),
        snapshot: None,
        container_name: ContainerName::of(&"default".parse().unwrap(), chat(chat_number)),
        container: None,
        endpoint: None,
        status: Status::Creating,
        reason: Reason::Requested,
        message: None,
        created_at: moment(0),
        started_at: None,
        last_activity_at: moment(0),
        expires_at: moment(300),
        idle_timeout: Duration::from_secs(7200),
        held_until: None,
        held_by: Vec::new(),
        durable_leases: Vec::new(),
    }
}

pub(super) fn change(chat_number: u128) -> Change {
    Change {
        at: moment(0),
        chat: chat(chat_number),
        session: session(0),
        agent: "agent".parse().unwrap(),
        container: None,
        from: None,
        to: Some(Status::Creating),
        reason: Reason::Requested,
        message: None,
    }
}

fn save(chat: u128) -> Draft {
    Draft::Save(Box::new(sandbox(chat, 0)))
}

fn event(chat: u128) -> Draft {
    Draft::Event(Box::new(change(chat)))
}

async fn started(journal: &MemoryJournal) -> JournalHandle {
    JournalHandle::start(journal.clone(), PATIENCE, None).await.unwrap().0
}

fn numbers(events: &[LifecycleEvent]) -> Vec<u64> {
    events.iter().map(|event| event.sequence).collect()
}

#[tokio::test]
async fn a_thousand_concurrent_writes_share_a_few_commits() {
    let memory = MemoryJournal::new();
    let journal = started(&memory).await;
    let gate = memory.hold_next();
    let writes = join_all((0..1000).map(|n| journal.write(vec![save(n), event(n)])));
    gate.open();
    assert!(writes.await.iter().all(Result::is_ok));
    assert_eq!(memory.sandboxes().len(), 1000);
    assert_eq!(numbers(&memory.recorded()), (1..=1000).collect::<Vec<_>>());
    assert!(memory.commits() <= 5, "{} commits", memory.commits());
}

#[tokio::test(start_paused = true)]
async fn an_unacknowledged_event_joins_the_next_write_or_is_committed_after_a_delay() {
    let memory = MemoryJournal::new();
    let journal = JournalHandle::start_in_place(memory.clone(), PATIENCE).await.unwrap().0;
    let mut watcher = journal.subscribe();
    journal.write_later(vec![event(1)]);
    journal.write_later(vec![event(2)]);
    journal.write(vec![save(1)]).await.unwrap();
    assert_eq!((memory.commits(), numbers(&memory.recorded())), (1, vec![1, 2]));
    journal.write_later(vec![event(3)]);
    let seen = async { [watcher.recv().await, watcher.recv().await, watcher.recv().await] };
    let seen = async { seen.await.map(|event| event.unwrap().sequence) };
    assert_eq!(tokio::time::timeout(Duration::from_secs(1), seen).await, Ok([1, 2, 3]));
    assert_eq!(memory.commits(), 2);
}

#[tokio::test]
async fn writes_of_one_caller_stay_in_order_however_their_answers_are_awaited() {
    let memory = MemoryJournal::new();
    let journal = started(&memory).await;
    let saved = journal.write(vec![save(1)]);
    let removed = journal.write(vec![Draft::Remove { chat: chat(1), session: session(0) }]);
    drop(journal.write(vec![save(2)]));
    assert_eq!(removed.await, Ok(()));
    assert_eq!(saved.await, Ok(()));
    assert_eq!(journal.flush().await, Ok(()));
    assert_eq!(memory.sandboxes(), [sandbox(2, 0)]);
}

#[tokio::test]
async fn every_writer_of_a_failed_batch_gets_the_error_and_no_entry_applies() {
    let memory = MemoryJournal::new();
    let journal = started(&memory).await;
    let mut watcher = journal.subscribe();
    let gate = memory.hold_next();
    let first = journal.write(vec![event(1)]);
    memory.reached(1).await;
    memory.fail_next(Fault::io());
    let batch = join_all((2..5).map(|n| journal.write(vec![save(n), event(n)])));
    gate.open();
    assert_eq!(first.await, Ok(()));
    for result in batch.await {
        assert!(matches!(result, Err(JournalError::Io { .. })), "{result:?}");
    }
    assert!(memory.sandboxes().is_empty());

    journal.write(vec![event(5)]).await.unwrap();
    assert_eq!(numbers(&memory.recorded()), [1, 2], "the numbers of a failed batch are used again");
    assert_eq!(watcher.recv().await.unwrap().change.chat, chat(1));
    assert_eq!(watcher.recv().await.unwrap().change.chat, chat(5));
}

#[tokio::test]
async fn a_full_disk_fails_awaited_writes_and_loses_no_event() {
    let memory = MemoryJournal::new();
    let journal = started(&memory).await;
    memory.fail_always(Fault::full());
    journal.write_later(vec![event(1)]);
    let result = journal.write(vec![save(2), event(2)]).await;
    assert!(matches!(result, Err(JournalError::Full { .. })), "{result:?}");
    journal.write_later(vec![event(3)]);
    assert!(matches!(journal.flush().await, Err(JournalError::Full { .. })));
    assert!(matches!(journal.failure(), Some(JournalError::Full { .. })));

    memory.heal();
    assert_eq!(journal.flush().await, Ok(()));
    assert_eq!(journal.failure(), None);
    let kept: Vec<_> = memory.recorded().iter().map(|event| event.change.chat).collect();
    assert_eq!(kept, [chat(1), chat(3)]);
    assert!(memory.sandboxes().is_empty());
}

#[tokio::test]
async fn unacknowledged_writes_are_retried_after_a_full_disk() {
    let memory = MemoryJournal::new();
    let journal = started(&memory).await;
    let mut watcher = journal.subscribe();
    memory.fail_next(Fault::full());
    journal.write_later(vec![event(1)]);
    assert_eq!(watcher.recv().await.unwrap().sequence, 1);
    assert_eq!(memory.commits(), 2);
}

#[tokio::test]
async fn a_full_disk_does_not_hold_up_readers() {
    let memory = MemoryJournal::new();
    let journal = started(&memory).await;
    journal.write(vec![event(1)]).await.unwrap();
    memory.fail_always(Fault::full());
    journal.write_later(vec![event(2)]);
    assert_eq!(journal.events(0, None, 10).await.unwrap().last, 1);
}

#[tokio::test]
async fn a_panic_in_the_journal_answers_every_caller() {
    let memory = MemoryJournal::new();
    let journal = started(&memory).await;
    let gate = memory.hold_next();
    let first = journal.write(vec![save(1)]);
    memory.reached(1).await;
    memory.fail_next(Fault::Panic);
    let second = journal.write(vec![save(2)]);
    gate.open();
    memory.reached(2).await;
    let third = journal.write(vec![save(3)]);
    let page = journal.events(0, None, 1).await;
    assert_eq!(first.await, Ok(()));
    assert!(matches!(second.await, Err(JournalError::Defect { .. })));
    assert_eq!(third.await, Err(JournalError::Stopped));
    assert_eq!(page, Err(JournalError::Stopped));
    journal.ended().await;
    assert_eq!(journal.write(vec![save(4)]).await, Err(JournalError::Stopped));
    assert_eq!(memory.sandboxes(), [sandbox(1, 0)]);
}

#[tokio::test]
async fn a_journal_that_panics_while_it_loads_does_not_start() {
    struct Broken;
    impl Journal for Broken {
        fn load(&mut self) -> Result<Contents, JournalError> {
            panic!("no")
        }
        fn commit(&mut self, _: &[Entry]) -> Result<(), JournalError> {
            Ok(())
        }
        fn events(&mut self, _: u64, _: Option<ChatId>, _: usize) -> Result<EventPage, JournalError> {
            Err(JournalError::Stopped)
        }
        fn last_events(&mut self, _: ChatId, _: usize) -> Result<Vec<LifecycleEvent>, JournalError> {
            Err(JournalError::Stopped)
        }
    }
    let error = JournalHandle::start(Broken, PATIENCE, None).await.unwrap_err();
    assert_eq!(error, JournalError::Defect { message: "no".into() });
}

#[tokio::test]
async fn waiting_for_a_disk_that_hangs_has_a_limit() {
    let memory = MemoryJournal::new();
    let limit = Duration::from_millis(20);
    let (journal, _) = JournalHandle::start(memory.clone(), limit, None).await.unwrap();
    let gate = memory.hold_next();
    assert_eq!(journal.write(vec![save(1)]).await, Err(JournalError::TimedOut { limit }));
    assert_eq!(journal.events(0, None, 1).await, Err(JournalError::TimedOut { limit }));
    gate.open();
    let _ = journal.stop().await;
    journal.ended().await;
    assert_eq!(memory.sandboxes(), [sandbox(1, 0)], "a write that timed out is still committed");
}

#[tokio::test]
async fn the_queue_is_bounded_and_empties_again() {
    let memory = MemoryJournal::new();
    let journal = started(&memory).await;
    let gate = memory.hold_next();
    let mut taken = 0u64;
    let refused = loop {
        let write = journal.write(vec![event(1); 1000]);
        match futures_util::FutureExt::now_or_never(write) {
            Some(result) => break result.unwrap_err(),
            None => taken += 1000,
        }
    };
    assert!(matches!(refused, JournalError::Overloaded { .. }), "{refused}");
    gate.open();
    journal.flush().await.unwrap();
    assert_eq!(journal.events(0, None, 1).await.unwrap().last, taken);
    assert_eq!(journal.write(vec![event(1); 20_000]).await, Ok(()), "larger than the queue, but alone");
}

#[tokio::test]
async fn events_reach_watchers_in_order_and_before_their_writer_is_answered() {
    let memory = MemoryJournal::new();
    let journal = started(&memory).await;
    let mut watcher = journal.subscribe();
    join_all((0..100).map(|n| journal.write(vec![event(n)]))).await;
    for n in 0..100 {
        let event = watcher.try_recv().unwrap();
        assert_eq!((event.sequence, event.change.chat), (n as u64 + 1, chat(n)));
    }
}

#[tokio::test]
async fn a_watcher_that_lags_gets_an_error_and_reads_the_rest_from_the_journal() {
    let memory = MemoryJournal::new();
    let journal = started(&memory).await;
    let mut watcher = journal.subscribe();
    journal.write(vec![event(1); 5000]).await.unwrap();
    assert!(matches!(watcher.recv().await, Err(RecvError::Lagged(_))));
    let (mut cursor, mut seen) = (0, Vec::new());
    loop {
        let page = journal.events(cursor, None, usize::MAX).await.unwrap();
        assert!(!page.has_gap(cursor));
        let Some(last) = page.events.last() else { break };
        cursor = last.sequence;
        seen.extend(numbers(&page.events));
    }
    assert_eq!(seen, (1..=5000).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_flush_waits_for_earlier_writes_and_makes_no_commit() {
    let memory = MemoryJournal::new();
    let journal = started(&memory).await;
    assert_eq!(journal.flush().await, Ok(()));
    assert_eq!(memory.commits(), 0);
    let gate = memory.hold_next();
    journal.write_later(vec![save(1)]);
    let mut flush = Box::pin(journal.flush());
    memory.reached(1).await;
    assert!(futures_util::poll!(&mut flush).is_pending());
    gate.open();
    assert_eq!(flush.await, Ok(()));
    assert_eq!(memory.sandboxes(), [sandbox(1, 0)]);
}

#[tokio::test]
async fn a_stop_flushes_the_queue_and_the_next_run_continues_the_numbers() {
    let memory = MemoryJournal::new();
    let (journal, before) = JournalHandle::start(memory.clone(), PATIENCE, None).await.unwrap();
    assert_eq!((before.last_event, before.fresh), (0, true));
    journal.write_later(vec![save(1), event(1), Draft::Rebuilt]);
    journal.stop().await.unwrap();
    assert_eq!(journal.write(vec![event(2)]).await, Err(JournalError::Stopped));

    let (journal, after) = JournalHandle::start(memory.clone(), PATIENCE, None).await.unwrap();
    assert_eq!(
        after,
        Contents {
            sandboxes: vec![sandbox(1, 0)],
            claims: vec![],
            claims_in_files: false,
            last_event: 1,
            fresh: false,
        }
    );
    journal.write(vec![event(3)]).await.unwrap();
    assert_eq!(numbers(&memory.recorded()), [1, 2]);
}

#[test]
fn a_gap_is_a_cursor_before_the_first_stored_event_or_after_the_last() {
    let page = EventPage { events: vec![], kept_from: 11, last: 20 };
    let gaps: Vec<_> = [0, 1, 9, 10, 15, 20, 21, u64::MAX].map(|cursor| page.has_gap(cursor)).into();
    assert_eq!(gaps, [false, true, true, false, false, false, true, true]);
}
