//! Many concurrent callers: the mailbox of a chat is the only ordering, and it is sufficient.

use std::time::Duration;

use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::outcome::{SandboxError, StartFailure};
use sandboxd_actors::ports::engine::Operation;
use sandboxd_actors::ports::engine::fake::{FakeEngine, Fault};
use sandboxd_actors::sandboxes::Sandboxes;
use tokio::task::JoinSet;

use crate::support::{Service, in_time, request, request_for};

/// A random number generator with the same sequence in every run.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_creates_for_one_chat_share_one_container() {
    let service = Service::start().await;
    let request = request();
    let gate = service.engine.hold_next(Operation::Create);
    let creates: Vec<_> = (0..50).map(|_| service.creating(&request)).collect();
    service.reached(Operation::Create).await;
    gate.open();
    let mut sessions = Vec::new();
    for create in creates {
        sessions.push(create.await.unwrap().unwrap().sandbox.session);
    }
    assert_eq!(sessions.len(), 50);
    sessions.dedup();
    assert_eq!(sessions.len(), 1);
    assert_eq!(service.engine.calls(Operation::Create), 1);
    service.container();
}

#[tokio::test(flavor = "multi_thread")]
async fn random_creates_and_deletes_never_meet_on_the_engine() {
    let service = Service::start().await;
    // The engine is slow, so that requests of different callers meet every phase.
    for operation in [Operation::Create, Operation::Start, Operation::Stop, Operation::Remove] {
        service.engine.fail_always(operation, Fault::Delay(Duration::from_millis(1)));
    }
    let chats: Vec<_> = (0..10).map(|n| ChatId::new(uuid::Uuid::from_u128(n))).collect();
    let mut callers = JoinSet::new();
    for caller in 0..8 {
        let (sandboxes, chats) = (service.sandboxes.clone(), chats.clone());
        callers.spawn(async move {
            let mut dice = Dice(caller);
            for _ in 0..25 {
                let chat = chats[dice.throw(10) as usize];
                if dice.throw(5) < 3 {
                    expect_created_or_deleted(&sandboxes, chat).await;
                } else {
                    sandboxes.delete(chat).await.unwrap();
                }
            }
        });
    }
    in_time(callers.join_all()).await;
    for chat in &chats {
        service.sandboxes.delete(*chat).await.unwrap();
    }
    assert_eq!(service.engine.most_at_once(), 1);
    assert_eq!(service.engine.name_clashes(), 0, "the chats keep order, not the engine");
    assert_eq!(service.engine.containers(), []);
    service.until_all_retired().await;
}

/// A create may be cancelled by a delete; no other failure is expected.
async fn expect_created_or_deleted(sandboxes: &Sandboxes, chat: ChatId) {
    match sandboxes.create(request_for(chat)).await {
        Ok(created) => assert_eq!(created.sandbox.chat, chat),
        Err(SandboxError::StartFailed { failure: StartFailure::Deleted, .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_lost_to_a_chat_that_retires() {
    let service = Service::start().await;
    let chat = request().chat;
    let mut callers = JoinSet::new();
    for caller in 0..8 {
        let sandboxes = service.sandboxes.clone();
        callers.spawn(async move {
            let mut dice = Dice(caller);
            for _ in 0..100 {
                // A delete without a sandbox lets the chat retire, with requests under way.
                match dice.throw(4) {
                    0 => expect_created_or_deleted(&sandboxes, chat).await,
                    1 => drop(sandboxes.get(chat).await.unwrap()),
                    2 => drop(sandboxes.list(None, 10).await.unwrap()),
                    _ => drop(sandboxes.delete(chat).await.unwrap()),
                }
            }
        });
    }
    in_time(callers.join_all()).await;
    service.sandboxes.delete(chat).await.unwrap();
    assert_eq!(service.engine.name_clashes(), 0);
    assert_eq!(service.engine.containers(), []);
    service.until_all_retired().await;
}

#[tokio::test]
async fn chats_without_a_sandbox_do_not_pile_up() {
    let service = Service::start().await;
    for _ in 0..20 {
        let request = request();
        service.created(&request).await;
        service.sandboxes.delete(request.chat).await.unwrap();
        service.sandboxes.delete(request.chat).await.unwrap();
        assert_eq!(service.sandbox(request.chat).await, None);
    }
    service.until_all_retired().await;
}

#[tokio::test]
async fn a_create_that_fails_leaves_no_chat_behind() {
    let service = Service::start().await;
    service.engine.fail_always(Operation::Create, Fault::unreachable());
    service.start_failure(&request()).await;
    service.until_all_retired().await;
}

#[tokio::test]
async fn the_engine_gets_no_more_calls_at_once_than_there_are_permits() {
    let service = Service::with_permits(FakeEngine::new(), 2).await;
    service.adopt().await.unwrap();
    for operation in [Operation::Create, Operation::Start, Operation::Remove] {
        service.engine.fail_always(operation, Fault::Delay(Duration::from_millis(2)));
    }
    let requests: Vec<_> = (0..10).map(|_| request()).collect();
    let creates: Vec<_> = requests.iter().map(|request| service.creating(request)).collect();
    for create in creates {
        create.await.unwrap().unwrap();
    }
    let deletes = requests.iter().map(|request| service.sandboxes.delete(request.chat));
    futures_util::future::try_join_all(deletes).await.unwrap();
    for operation in [Operation::Create, Operation::Remove] {
        assert_eq!(service.engine.most_under_way(operation), 2, "{operation}");
    }
    assert!(service.engine.most_under_way(Operation::Start) <= 2);
}
