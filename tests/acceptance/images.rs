//! Tests of images on a real engine: pulled from a registry, built from a directory or a repository, and removed.

mod guarded_repository;
mod registry;
mod registry_credentials;
mod repositories;
mod ssh;
mod submodules;

use std::path::Path;

use futures_util::future::join_all;
use sandboxd::client::Client;
use sandboxd_protocol::error::Error;
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};

use crate::containers::Containers;
use crate::daemon::Daemon;
use crate::engine::{eventually, test_image};
use crate::installation::Installation;
use registry::Registry;

/// Returns a service that may build from the test's directories, and an unused image name.
async fn builder_setup(settings: &str) -> (Daemon, String) {
    let mut installation = Installation::new(&format!("profiles.default.network = 'none'\n{settings}"));
    let volumes = installation.path("volumes");
    installation.configure(&format!("images.context_roots = ['{}']", volumes.display()));
    let tag = format!("{}:1", installation.name());
    (installation.start().await, tag)
}

/// Returns the progress messages and the answer of a request.
async fn followed(client: &Client, method: Method, params: Value) -> (Vec<String>, Result<Value, Error>) {
    let mut stream = client.stream(method, params).await.expect("sent");
    let mut messages = Vec::new();
    while let Some(notification) = stream.next().await {
        assert_eq!(notification.method, "image.progress");
        let params: Value = serde_json::from_str(notification.params.get()).expect("JSON");
        messages.push(params["progress"]["message"].as_str().expect("a message").to_owned());
    }
    let outcome = match stream.end().await {
        Ok(answer) => Ok(answer),
        Err(sandboxd::client::ClientError::Failed(failure)) => Err(failure),
        Err(other) => panic!("{method:?}: {other}"),
    };
    (messages, outcome)
}

impl Daemon {
    async fn image(&self, id: &str) -> Option<Value> {
        let listing = self.call("image.list", json!({})).await.expect("a list");
        listing["images"].as_array().expect("an array").iter().find(|image| image["image_id"] == id).cloned()
    }
}

fn write(directory: &Path, name: &str, content: &str) {
    std::fs::write(directory.join(name), content).expect("written");
}

/// Returns the ids of all images, also of those without a name.
async fn ids(containers: &Containers) -> Vec<String> {
    let options = bollard::query_parameters::ListImagesOptionsBuilder::default().all(true).build();
    let images = containers.docker.list_images(Some(options)).await.expect("a list");
    images.into_iter().map(|image| image.id).collect()
}

#[tokio::test]
async fn a_build_reports_its_steps_and_its_image_makes_sandboxes() {
    let (service, tag) = builder_setup("").await;
    let context = service.volume("context");
    let base = test_image();
    write(&context, "Dockerfile", &format!("FROM {base}\nARG WORD\nCOPY . /c\nRUN echo $WORD > /c/word\n"));
    write(&context, ".dockerignore", "*.key\n");
    write(&context, "kept", "kept");
    write(&context, "left-out.key", "secret");
    let params = json!({ "context": context, "tag": tag, "args": { "WORD": "hello" } });
    let (messages, built) = followed(&service.connect().await, Method::ImageBuild, params).await;
    let built = built.expect("built");
    assert!(messages.iter().any(|line| line.starts_with("Step 3/") && line.contains("COPY")), "{messages:?}");
    let image = service.image(built["image_id"].as_str().expect("an id")).await.expect("it is listed");
    assert_eq!((&image["tags"], &image["origin"]), (&json!([tag]), &json!("build")), "{image}");

    let mut installation = service.stop().await;
    installation.configure(&format!("profiles.default.image = '{tag}'"));
    let service = installation.start().await;
    let chat = service.new_chat();
    service.created(&chat).await;
    let look = json!({ "chat_id": chat.chat_id(), "command": "ls /c; cat /c/word" });
    let seen = service.call("sandbox.exec", look).await.expect("run");
    assert_eq!(seen["stdout"]["text"], "Dockerfile\nkept\nword\nhello\n", "{seen}");
    let pruned = service.call("image.prune", json!({})).await.expect("pruned");
    assert!(service.image(built["image_id"].as_str().expect("an id")).await.is_some(), "in use: {pruned}");
}

#[tokio::test]
async fn a_build_that_fails_names_its_step_and_leaves_no_image() {
    let (service, tag) = builder_setup("").await;
    let context = service.volume("context");
    let unique = format!("FROM {}\nRUN echo {tag} > /made\nRUN echo wrong; exit 7\n", test_image());
    write(&context, "Dockerfile", &unique);
    let containers = service.containers().await;
    let before = ids(&containers).await;
    let params = json!({ "context": context, "tag": tag });
    let failure = service.call("image.build", params).await.expect_err("a step fails");
    assert_eq!(failure.data.kind.as_str(), "image_build_failed");
    let step = failure.data.details["step"].as_str().expect("a step");
    assert!(step.starts_with("Step 3/") && step.contains("exit 7"), "{step}");
    let tail = failure.data.details["log_tail"].as_array().expect("lines");
    assert!(tail.contains(&json!("wrong")), "{tail:?}");
    let left: Vec<_> = ids(&containers).await.into_iter().filter(|id| !before.contains(id)).collect();
    for id in left {
        // Other tests build on the same engine at the same time.
        let history = containers.docker.image_history(&id).await.unwrap_or_default();
        assert!(!history.iter().any(|layer| layer.created_by.contains(&tag)), "{id}");
    }
    let elsewhere = json!({ "context": "/etc", "tag": tag });
    let refused = service.call("image.build", elsewhere).await.expect_err("not below a root");
    assert_eq!((refused.data.kind.as_str(), &refused.data.details["field"]), ("invalid_params", &json!("context")));
}

#[tokio::test]
async fn pruning_removes_unneeded_images_and_a_dry_run_lists_them() {
    let (service, tag) = builder_setup("").await;
    let context = service.volume("context");
    let build = async |content: &str| {
        write(&context, "Dockerfile", &format!("FROM {}\nCOPY file /\n", test_image()));
        write(&context, "file", content);
        let params = json!({ "context": context, "tag": tag });
        service.call("image.build", params).await.expect("built")["image_id"].as_str().expect("an id").to_owned()
    };
    let (old, new) = (build("older").await, build("new").await);
    let removed = async |dry_run: bool| {
        let pruned = service.call("image.prune", json!({ "dry_run": dry_run })).await.expect("pruned");
        let layers = pruned["bytes"].as_u64().zip(pruned["build_cache_bytes"].as_u64()).map(|(all, cache)| all - cache);
        assert_eq!(
            layers,
            Some("older".len() as u64 + "new".len() as u64),
            "without the layers shared with the base: {pruned}"
        );
        let removed = pruned["removed"].as_array().expect("an array").clone();
        removed.iter().map(|image| image["image_id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(removed(true).await, [old.clone(), new.clone()]);
    assert!(service.image(&old).await.is_some() && service.image(&new).await.is_some(), "a dry run removes no image");
    assert_eq!(removed(false).await, [old.clone(), new.clone()]);
    assert!(service.image(&old).await.is_none() && service.image(&new).await.is_none());
    let base = service.containers().await.docker.inspect_image(&test_image()).await;
    assert!(base.is_ok(), "foreign images and profiles' images stay");
}

#[tokio::test]
async fn replaced_images_are_removed_automatically() {
    let (service, tag) = builder_setup("images.gc.interval = '100ms'\nimages.gc.high_watermark = 100").await;
    let context = service.volume("context");
    let mut built = Vec::new();
    for content in ["one", "two"] {
        write(&context, "Dockerfile", &format!("FROM {}\nCOPY file /\n", test_image()));
        write(&context, "file", content);
        let made = service.call("image.build", json!({ "context": context, "tag": tag })).await.expect("built");
        built.push(made["image_id"].as_str().expect("an id").to_owned());
    }
    eventually("the first is gone", || async { service.image(&built[0]).await.is_none().then_some(()) }).await;
    assert!(service.image(&built[1]).await.is_some(), "the disk has enough space");
}

#[tokio::test]
async fn unneeded_images_are_removed_from_a_full_disk() {
    let settings = "images.gc = { interval = '100ms', high_watermark = 0, low_watermark = 0 }";
    let (service, tag) = builder_setup(settings).await;
    let context = service.volume("context");
    write(&context, "Dockerfile", &format!("FROM {}\nLABEL a=b\n", test_image()));
    let made = service.call("image.build", json!({ "context": context, "tag": tag })).await.expect("built");
    let id = made["image_id"].as_str().expect("an id");
    eventually("it is gone", || async { service.image(id).await.is_none().then_some(()) }).await;
    let base = service.containers().await.docker.inspect_image(&test_image()).await;
    assert!(base.is_ok(), "a profile's image stays");
}

#[tokio::test]
async fn one_pull_serves_all_callers_and_outlives_the_first() {
    let (service, _) = builder_setup("").await;
    let registry = Registry::start(&service).await;
    let params = json!({ "image": registry.image() });
    let first = service.connect().await;
    let stream = first.stream(Method::ImagePull, params.clone()).await.expect("sent");
    registry.is_asked_for_a_layer().await;
    let callers = join_all((0..4).map(|_| service.connect())).await;
    let others = callers.iter().map(|client| followed(client, Method::ImagePull, params.clone()));
    let others = join_all(others);
    let opening = async {
        drop((stream, first));
        // A late caller finds the image, and its pull requests no layer.
        registry.open().await;
    };
    let (pulled, ()) = tokio::join!(others, opening);
    let ids: Vec<_> = pulled.iter().map(|(_, outcome)| outcome.as_ref().expect("pulled")["image_id"].clone()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert!(
        pulled.iter().any(|(messages, _)| messages.iter().any(|line| line.contains("Pull complete"))),
        "{pulled:?}"
    );
    assert_eq!(registry.layers_served().await, 1);

    let missing = registry.image().replace(":v1", ":v2");
    let failure = service.call("image.pull", json!({ "image": missing })).await.expect_err("there is none");
    assert_eq!((failure.data.kind.as_str(), &failure.data.details["image"]), ("image_pull_failed", &json!(missing)));
}

#[tokio::test]
async fn the_client_shows_images_and_builds_them() {
    let (service, tag) = builder_setup("").await;
    let context = service.volume("context");
    write(&context, "Dockerfile", &format!("FROM {}\nRUN true\n", test_image()));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let path = context.to_str().expect("UTF-8");
    let built = service.sandboxctl(&["image", "build", path, "--tag", &tag]).await;
    assert!(built.status.success(), "{}", text(&built.stderr));
    assert!(text(&built.stderr).contains("Step 2/"), "{}", text(&built.stderr));
    assert!(text(&built.stdout).starts_with(&tag), "{}", text(&built.stdout));
    let listed = service.sandboxctl(&["images"]).await;
    assert!(text(&listed.stdout).lines().any(|line| line.starts_with(&tag) && line.contains("build")));
    let pruned = service.sandboxctl(&["image", "prune"]).await;
    assert!(text(&pruned.stdout).contains(&tag), "{}", text(&pruned.stdout));
    write(&context, "Dockerfile", &format!("FROM {}\nRUN echo so it is; false\n", test_image()));
    let failed = service.sandboxctl(&["image", "build", path, "--tag", &tag]).await;
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("image_build_failed") && text(&failed.stderr).contains("so it is"));
}
