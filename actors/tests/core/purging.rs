//! A chat's directory is removed on request or after its retention time, and never under a sandbox.

use std::time::Duration;

use sandboxd_actors::domain::ids::ChatId;
use sandboxd_actors::domain::outcome::{NotPurged, Outcome, SandboxError};
use sandboxd_actors::domain::sandbox::Status;
use sandboxd_actors::ports::clock::{Clock, Timestamp};
use sandboxd_actors::ports::engine::Operation;
use sandboxd_actors::ports::engine::fake::FakeEngine;

use crate::support::{Done, Service, request};

#[tokio::test]
async fn a_purge_removes_the_directory_of_a_chat_without_a_sandbox_and_the_chat_retires() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    service.sandboxes.delete(request.chat).await.unwrap();
    assert_eq!(service.sandboxes.purge(request.chat).await, Ok(true));
    assert_eq!(service.directories.done(), [Done::Prepared(request.chat), Done::Removed(request.chat)]);
    service.until_all_retired().await;
}

#[tokio::test]
async fn a_purge_of_a_chat_that_has_or_gets_a_sandbox_is_refused() {
    let service = Service::start().await;
    let request = request();
    let in_use = SandboxError::NotPurged { chat: request.chat, why: NotPurged::InUse };
    let gate = service.engine.hold_next(Operation::Create);
    let create = service.creating(&request);
    service.reached(Operation::Create).await;
    assert_eq!(service.sandboxes.purge(request.chat).await, Err(in_use.clone()));
    gate.open();
    create.await.unwrap().unwrap();
    assert_eq!(service.sandboxes.purge(request.chat).await, Err(in_use));
    assert_eq!(service.directories.done(), [Done::Prepared(request.chat)]);
}

#[tokio::test]
async fn a_create_that_comes_during_a_purge_begins_after_it() {
    let service = Service::start().await;
    let request = request();
    service.directories.hang();
    let sandboxes = service.sandboxes.clone();
    let purge = tokio::spawn(async move { sandboxes.purge(request.chat).await });
    // The chat's mailbox orders both requests.
    tokio::task::yield_now().await;
    let create = service.creating(&crate::support::request_for(request.chat));
    while service.sandbox(request.chat).await.is_none_or(|sandbox| sandbox.status != Status::Creating) {
        tokio::task::yield_now().await;
    }
    service.directories.heal();
    assert_eq!(purge.await.unwrap(), Ok(true));
    assert_eq!(create.await.unwrap().unwrap().outcome, Outcome::Created);
    assert_eq!(service.directories.done(), [Done::Removed(request.chat), Done::Prepared(request.chat)]);
}

#[tokio::test]
async fn a_purge_that_fails_says_why_and_can_be_repeated() {
    let service = Service::start().await;
    let chat = request().chat;
    service.directories.fail();
    let error = service.sandboxes.purge(chat).await.unwrap_err();
    assert!(matches!(error, SandboxError::NotPurged { why: NotPurged::Directory(_), .. }), "{error}");
    service.directories.heal();
    assert_eq!(service.sandboxes.purge(chat).await, Ok(true));
}

const KEEP: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn of_directories_only_those_go_whose_chat_has_had_no_sandbox_for_long_enough() {
    let service = Service::start().await;
    service.adopt().await.expect("an engine without faults can be listed");
    let [alive, ended, recent, old, stuck] = [(); 5].map(|()| request());
    let long_ago = service.clock.now() - 2 * KEEP;
    for chat in [alive.chat, ended.chat, old.chat, stuck.chat] {
        service.directories.place(chat, long_ago);
    }
    service.directories.place(recent.chat, service.clock.now());
    service.directories.fail_removal(stuck.chat);
    service.created(&alive).await;
    service.created(&ended).await;
    service.sandboxes.delete(ended.chat).await.unwrap();

    assert_eq!(service.sandboxes.prune_chat_directories(KEEP).await, Ok(1));
    let existing = || service.directories.existing().keys().copied().collect::<Vec<ChatId>>();
    let mut left = vec![alive.chat, ended.chat, recent.chat, stuck.chat];
    left.sort();
    assert_eq!(existing(), left, "a sandbox that ended lately counts, whenever its directory was changed");
    assert_eq!(service.directories.existing()[&alive.chat], Timestamp::MAX_UTC, "one in use is marked");

    service.clock.advance(2 * KEEP);
    assert_eq!(service.sandboxes.prune_chat_directories(KEEP).await, Ok(2));
    let mut left = vec![alive.chat, stuck.chat];
    left.sort();
    assert_eq!(existing(), left);
}

#[tokio::test]
async fn before_the_engine_was_listed_no_directory_is_removed() {
    let service = Service::unlisted(FakeEngine::new()).await;
    let chat = request().chat;
    service.directories.place(chat, service.clock.now() - 2 * KEEP);
    assert_eq!(service.sandboxes.prune_chat_directories(KEEP).await, Ok(0));
    assert_eq!(service.directories.existing().len(), 1);
}
