//! Tests of volumes on a file system that never answers: only their own callers are affected.

use std::time::Duration;

use sandboxd::client::{Client, ClientError};
use sandboxd_protocol::method::Method;
use serde_json::Value;

use crate::create_params::CreateParams;
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::hanging_mount::HangingMount;

const CONNECTIONS: usize = 6;
const CREATES: usize = 50;

/// Far above the time limit of one call, far below the sum of all.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a chat whose volume is a directory of this name below `hanging`.
fn chat_below(service: &Daemon, name: &str) -> CreateParams {
    let volume = service.path("volumes/hanging").join(name);
    std::fs::create_dir_all(&volume).expect("a directory");
    service.new_chat().with("volume_host_path", volume.to_str().expect("UTF-8"))
}

fn is_unavailable(outcome: Result<Value, ClientError>) {
    let Err(ClientError::Failed(failure)) = outcome else { panic!("no failure: {outcome:?}") };
    assert_eq!(failure.data.kind.as_str(), "path_unavailable", "{failure:?}");
    assert!(failure.data.retryable, "{failure:?}");
    assert_eq!(failure.data.details["field"], "volume_host_path", "{failure:?}");
}

#[tokio::test]
async fn creates_on_a_hanging_file_system_stop_no_other_chat() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let old = service.new_chat();
    service.created(&old).await;
    let total = CONNECTIONS * CREATES;
    let hung: Vec<CreateParams> = (0..total).map(|number| chat_below(&service, &number.to_string())).collect();
    let mount = HangingMount::over(&service.path("volumes/hanging"));

    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(service.connect().await);
    }
    let creating = clients.iter().zip(hung.chunks(CREATES)).flat_map(|(client, chats)| {
        chats.iter().map(move |chat| async move { client.call::<Value>(Method::SandboxCreate, chat).await })
    });
    let creating = tokio::time::timeout(PATIENCE, futures_util::future::join_all(creating));
    let others = async {
        for _ in 0..3 {
            let other = service.new_chat();
            service.created(&other).await;
            assert_eq!(service.printed(&other, "echo it works").await, "it works\n");
            assert_eq!(service.printed(&old, "echo it works").await, "it works\n");
            service.get(&old).await.expect("it is there");
            service.delete(&other).await.expect("deleted");
        }
        service.call("system.doctor", serde_json::json!({})).await.expect("an answer");
    };
    let (outcomes, others) = tokio::join!(creating, tokio::time::timeout(PATIENCE, others));
    others.expect("other chats go on");
    outcomes.expect("each caller is answered").into_iter().for_each(is_unavailable);

    // The service knows that the mount hangs, so the next caller does not wait for the time limit.
    is_unavailable(clients[0].call::<Value>(Method::SandboxCreate, &hung[0]).await);
    drop(mount);
    eventually("the same path works again", || async { service.create(&hung[0]).await.ok() }).await;

    let mount = HangingMount::over(&service.path("volumes/hanging"));
    let waits = service.creating(&hung[1]).await;
    let containers = service.containers().await;
    let _installation = service.stop().await;
    // The mount must end before the test's directory is removed.
    drop(mount);
    assert!(waits.await.is_ok());
    assert_eq!(containers.count().await, 2);
}
