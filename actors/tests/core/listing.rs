//! Listings go through the sandboxes in order, page by page.

use sandboxd_actors::engine::Operation;
use sandboxd_actors::sandbox::Status;

use crate::support::{Service, request};

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
