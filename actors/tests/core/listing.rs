//! Listings return the sandboxes in order, page by page.

use sandboxd_actors::domain::outcome::SandboxError;
use sandboxd_actors::domain::sandbox::Status;
use sandboxd_actors::ports::engine::Operation;
use sandboxd_actors::ports::engine::fake::Fault;

use crate::support::{Service, in_time, request};

#[tokio::test]
async fn pages_show_every_sandbox_once_in_order() {
    let service = Service::start().await;
    let mut chats = Vec::new();
    for _ in 0..5 {
        let request = request();
        service.created(&request).await;
        chats.push(request.chat);
    }
    chats.sort();
    let (mut listed, mut after) = (Vec::new(), None);
    let mut sizes = Vec::new();
    loop {
        let page = service.sandboxes.list(after, 2).await.unwrap();
        sizes.push(page.sandboxes.len());
        listed.extend(page.sandboxes.iter().map(|sandbox| sandbox.chat));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((listed, sizes), (chats, vec![2, 2, 1]));
    assert_eq!(service.sandboxes.list(None, 5).await.unwrap().next, None, "a full page may be the last one");
}

#[tokio::test]
async fn a_sandbox_in_the_making_is_listed() {
    let service = Service::start().await;
    let gate = service.engine.hold_next(Operation::Create);
    let create = service.creating(&request());
    service.reached(Operation::Create).await;
    let page = service.sandboxes.list(None, 10).await.unwrap();
    assert_eq!(page.sandboxes.iter().map(|sandbox| sandbox.status).collect::<Vec<_>>(), [Status::Creating]);
    gate.open();
    create.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_chat_that_was_listed_retires_like_any_other() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    for _ in 0..3 {
        service.sandboxes.list(None, 10).await.unwrap();
    }
    service.sandboxes.delete(request.chat).await.unwrap();
    service.until_all_retired().await;
}

#[tokio::test(start_paused = true)]
async fn a_chat_that_the_engine_cannot_describe_is_named_and_not_left_out() {
    let service = Service::start().await;
    let (known, unknown) = (request(), request());
    service.created(&known).await;
    service.created(&unknown).await;

    let next = service.next_run().await;
    next.engine.fail_always(Operation::Inspect, Fault::unreachable());
    next.sandboxes.get(unknown.chat).await.expect_err("the engine does not answer");
    next.adopt().await.expect("a list succeeds");
    let page = next.sandboxes.list(None, 10).await.unwrap();
    assert_eq!(page.sandboxes.iter().map(|sandbox| sandbox.chat).collect::<Vec<_>>(), [known.chat]);
    let [undescribed] = &page.undescribed[..] else { panic!("{page:?}") };
    assert_eq!(undescribed.chat, unknown.chat);
    assert!(matches!(undescribed.error, SandboxError::Unknown { .. }), "{undescribed:?}");

    next.engine.heal();
    let complete = in_time(async {
        loop {
            let page = next.sandboxes.list(None, 10).await.unwrap();
            if page.undescribed.is_empty() {
                return page;
            }
        }
    });
    assert_eq!(complete.await.sandboxes.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_chat_whose_actor_failed_is_named_and_not_left_out() {
    let service = Service::start().await;
    let request = request();
    service.created(&request).await;
    let failed = loop {
        // The reaper reads the same clock, and may be the actor that fails.
        service.clock.panic_once();
        let page = service.sandboxes.list(None, 10).await.unwrap();
        if let Some(failed) = page.undescribed.first() {
            assert_eq!(page.sandboxes, []);
            break failed.clone();
        }
    };
    assert_eq!(failed.chat, request.chat);
    assert!(matches!(failed.error, SandboxError::Recovering { .. }), "{failed:?}");
    // The chat is listed for as long as the actor is down, not only at the moment of the failure.
    let page = service.sandboxes.list(None, 10).await.unwrap();
    assert_eq!(page.undescribed.len() + page.sandboxes.len(), 1, "{page:?}");
}
