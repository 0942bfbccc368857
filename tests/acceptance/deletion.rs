//! Tests of deletion: graceful or forced, once, and complete.

use serde_json::{Value, json};

use crate::containers::id_of;
use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::gate::GATED;

#[tokio::test]
async fn delete_removes_and_says_so_once() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let chat = service.new_chat();
    let never = service.delete(&chat).await.expect("answered");
    let not_found = json!({
        "chat_id": chat.chat_id(), "result": "not_found", "session_id": null, "container_id": null, "snapshot_id": null,
        "purged": false,
    });
    assert_eq!(never, not_found);
    let created = service.created(&chat).await;
    let deleted = service.delete(&chat).await.expect("deleted");
    let (session, container) = (&created["session_id"], &created["container_id"]);
    let expected = json!({
        "chat_id": chat.chat_id(), "result": "deleted", "session_id": session, "container_id": container,
        "snapshot_id": null, "purged": false,
    });
    assert_eq!(deleted, expected);
    assert_eq!(service.containers().await.count().await, 0);
    assert_eq!(service.delete(&chat).await.expect("answered"), never);
    assert_eq!(service.list().await, Vec::<Value>::new());
    assert!(service.path("chats").join(chat.chat_id()).is_dir(), "the chat's files stay");
}

#[tokio::test]
async fn a_container_that_is_already_gone_counts_as_deleted() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    service.containers().await.remove(id_of(&created)).await;
    let deleted = service.delete(&chat).await.expect("deleted");
    assert_eq!(deleted["result"], "deleted");
    assert_eq!(deleted["session_id"], created["session_id"]);
    assert_eq!(service.delete(&chat).await.expect("answered")["result"], "not_found");
}

#[tokio::test]
async fn delete_during_create_cancels_it_and_leaves_no_container() {
    let service = Daemon::start(GATED).await;
    let containers = service.containers().await;
    let chat = service.new_chat();
    let creating = service.creating(&chat).await;
    let container = containers.only().await;
    assert_eq!(service.get(&chat).await.expect("answered meanwhile")["status"], "creating");
    let deleted = service.delete(&chat).await.expect("deleted");
    assert_eq!((&deleted["result"], &deleted["container_id"]), (&json!("deleted"), &json!(container)));
    let failure = creating.await.expect("no panic").expect_err("cancelled");
    assert_eq!(failure.data.kind.as_str(), "sandbox_start_failed");
    assert_eq!(failure.data.details["cause"], "deleted");
    assert_eq!(containers.count().await, 0);
}

#[tokio::test]
async fn a_sandbox_that_ignores_its_end_or_gets_no_time_for_it_is_removed_by_force() {
    for graceful in ["300ms", "0s"] {
        let service = Daemon::start(&format!(
            "teardown = {{ graceful = '{graceful}', remove = '20s', total = '30s' }}
             [profiles.default]
             network = 'none'
             command = ['sh', '-c', 'trap : TERM; while :; do sleep 0.1; done']"
        ))
        .await;
        let chat = service.new_chat();
        service.created(&chat).await;
        assert_eq!(service.delete(&chat).await.expect("deleted")["result"], "deleted");
        assert_eq!(service.containers().await.count().await, 0);
        let asked_to_end = service.log().contains("was not stopped gracefully");
        assert_eq!(asked_to_end, graceful != "0s", "{graceful}");
    }
}

#[tokio::test]
async fn a_delete_with_a_purge_removes_the_chats_directory_and_the_next_sandbox_finds_a_new_one() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let chat = service.new_chat();
    let directory = service.path("chats").join(chat.chat_id());
    service.created(&chat).await;
    let deep = "mkdir -p /chat/a/b/c && echo secret > /chat/a/b/c/file && ln -s /etc /chat/a/link && ls /chat";
    assert_eq!(service.output_of(&chat, deep).await, "a\n");
    let purge = json!({ "chat_id": chat.chat_id(), "purge": true });
    let purged = service.call("sandbox.delete", purge.clone()).await.expect("deleted");
    assert_eq!((&purged["result"], &purged["purged"]), (&json!("deleted"), &json!(true)), "{purged}");
    assert!(!directory.exists());
    assert_eq!(std::fs::read_dir(service.path("chats")).expect("there").count(), 0, "it is removed completely");

    let again = service.call("sandbox.delete", purge).await.expect("answered");
    assert_eq!((&again["result"], &again["purged"]), (&json!("not_found"), &json!(false)), "{again}");
    service.created(&chat).await;
    assert_eq!(service.output_of(&chat, "ls -A /chat").await, "");
    service.delete(&chat).await.expect("deleted");
    assert!(directory.is_dir());
    let shown = service.sandboxctl(&["delete", chat.chat_id(), "--purge"]).await;
    assert!(shown.status.success(), "{shown:?}");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("removed the directory"), "{shown:?}");
    assert!(!directory.exists());
}

#[tokio::test]
async fn directories_of_chats_without_a_sandbox_are_removed_after_their_retention_and_no_others() {
    let service = Daemon::start("chats.retention = '2s'\nprofiles.default.network = 'none'").await;
    let (kept, gone) = (service.new_chat(), service.new_chat());
    let directory = |chat: &CreateParams| service.path("chats").join(chat.chat_id());
    service.created(&kept).await;
    service.created(&gone).await;
    let foreign = service.path("chats").join("lost+found");
    std::fs::create_dir(&foreign).expect("a directory");
    assert_eq!(service.output_of(&gone, "mkdir -p /chat/a/b && touch /chat/a/b/c").await, "");
    service.delete(&gone).await.expect("deleted");
    assert!(directory(&gone).is_dir());
    eventually("it is removed", || async { (!directory(&gone).exists()).then_some(()) }).await;
    assert!(directory(&kept).is_dir() && foreign.is_dir());
    assert_eq!(service.output_of(&kept, "echo there > /chat/file; cat /chat/file").await, "there\n");
    eventually("it is logged", || async { service.log().contains("chat directory removed").then_some(()) }).await;
    service.created(&gone).await;
    assert!(directory(&gone).is_dir());
}

#[tokio::test]
async fn a_sandbox_has_time_to_end_by_itself() {
    let service = Daemon::start(
        "teardown = { graceful = '20s', total = '60s' }
         [profiles.default]
         network = 'none'
         command = ['sh', '-c', 'trap \"echo bye > /chat/last-words; exit\" TERM; echo > /chat/up; while :; do sleep 0.05; done']",
    )
    .await;
    let chat = service.new_chat();
    service.created(&chat).await;
    let directory = service.path("chats").join(chat.chat_id());
    eventually("it is up", || async { directory.join("up").exists().then_some(()) }).await;
    service.delete(&chat).await.expect("deleted");
    assert_eq!(std::fs::read_to_string(directory.join("last-words")).expect("written"), "bye\n");
}
