//! Tests of the host directories that a caller may mount.

use std::path::Path;

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::installation::{Installation, link};
use crate::interposed_engine::real_engine;

async fn refused(service: &Daemon, volume: &str) -> String {
    let failure = service.refused(&service.new_chat().with("volume_host_path", volume)).await;
    assert_eq!(failure.data.kind.as_str(), "invalid_params", "{volume}");
    assert_eq!(failure.data.details["field"], "volume_host_path", "{volume}");
    failure.message
}

#[tokio::test]
async fn a_volume_outside_the_roots_is_refused_whichever_way_it_is_reached() {
    let service = Daemon::start("").await;
    let (roots, outside) = (service.path("volumes"), service.path("outside"));
    std::fs::create_dir(&outside).expect("a directory");
    link(&roots.join("escape"), &outside);
    link(&roots.join("dangling"), Path::new("/no/such/place"));
    let below = |path: &str| roots.join(path).display().to_string();
    for wrong in [
        "/etc".to_owned(),
        "/".to_owned(),
        "/no/such/place".to_owned(),
        outside.display().to_string(),
        below("escape"),
        below("dangling"),
        below("../outside"),
    ] {
        assert!(refused(&service, &wrong).await.contains("must lie below"), "{wrong}");
    }
    assert!(refused(&service, &below("missing")).await.contains("does not exist"));
    assert!(refused(&service, "volumes").await.contains("must be an absolute path"));
    std::fs::write(roots.join("file"), "").expect("written");
    assert!(refused(&service, &below("file")).await.contains("is not a directory"));
    assert_eq!(service.containers().await.count().await, 0);
}

#[tokio::test]
async fn directories_of_the_service_and_its_engine_are_never_volumes() {
    let engine_socket = real_engine().await;
    let engine_directory = engine_socket.parent().expect("a directory").to_owned();
    let mut installation = Installation::new("");
    let place = installation.path("");
    installation.configure(&format!("volumes.roots = ['{}', '{}']", place.display(), engine_directory.display()));
    let service = installation.start().await;
    std::fs::create_dir(place.join("chats/another")).expect("a directory");
    link(&service.path("volumes").join("state"), &place.join("state"));
    for own in ["", "state", "chats", "chats/another", "volumes/state"] {
        let own = place.join(own).display().to_string();
        assert!(refused(&service, &own).await.contains("uses itself"), "{own}");
    }
    assert!(refused(&service, &engine_directory.display().to_string()).await.contains("uses itself"));
    refused(&service, &engine_socket.display().to_string()).await;
    assert_eq!(service.containers().await.count().await, 0);
    service.created(&service.new_chat()).await;
}

#[tokio::test]
async fn a_sandbox_without_a_volume_has_the_chats_directory_alone_and_stays_so_over_restarts() {
    let service = Daemon::start("volumes.roots = []").await;
    let chat = service.new_chat().with("volume_host_path", Value::Null);
    let created = service.created(&chat).await;
    assert_eq!(created["volume_host_path"], Value::Null);
    assert_eq!(service.output_of(&chat, "ls -d /volume /chat 2>/dev/null").await, "/chat\n");

    let service = service.stop().await.start().await;
    let again = service.created(&chat).await;
    assert_eq!((&again["outcome"], &again["session_id"]), (&json!("reused"), &created["session_id"]));
    assert_eq!(again["volume_host_path"], Value::Null);

    let mut stopped = service.stop().await;
    for file in std::fs::read_dir(stopped.path("state")).expect("there").flatten() {
        if file.file_name().to_string_lossy().starts_with("journal") {
            std::fs::remove_file(file.path()).expect("removed");
        }
    }
    stopped.configure(&format!("volumes.roots = ['{}']", stopped.path("volumes").display()));
    let service = stopped.start().await;
    let named = chat.with("volume_host_path", service.volume("named").to_str());
    let failure = service.refused(&named).await;
    assert_eq!(failure.data.details["fields"], json!(["volume_host_path"]), "{failure:?}");
}

#[tokio::test]
async fn a_create_that_names_no_volume_takes_the_sandbox_that_is_there_with_its_volume() {
    let service = Daemon::start("").await;
    let chat = service.new_chat();
    let created = service.created(&chat).await;
    let again = service.created(&chat.with("volume_host_path", Value::Null)).await;
    assert_eq!((&again["outcome"], &again["session_id"]), (&json!("reused"), &created["session_id"]));
    assert_eq!(again["volume_host_path"], json!(chat.volume()));
}

#[tokio::test]
async fn without_roots_every_volume_is_refused() {
    let service = Daemon::start("volumes.roots = []").await;
    let chat = service.new_chat();
    assert!(refused(&service, &chat.volume().display().to_string()).await.contains("must lie below"));
}
