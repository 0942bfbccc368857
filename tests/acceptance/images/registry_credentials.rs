//! Tests of registries that require credentials.

use base64::Engine;
use bollard::query_parameters::RemoveImageOptions;
use futures_util::future::join_all;
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};

use super::registry::Registry;
use super::{builder_setup, followed, write};

/// A secret whose encodings differ between the two base64 alphabets at every alignment.
const SECRET: &str = "s3cr3t-???~~~>>>5ea51de0ff";

/// Returns the encodings that a header may contain.
fn encoded() -> [String; 3] {
    let encode = |text: &str| base64::engine::general_purpose::STANDARD_NO_PAD.encode(text);
    [SECRET.to_owned(), encode(&format!("deploy:{SECRET}")), encode(r#"{"username":"#)]
}

#[tokio::test]
async fn credentials_open_a_registry_and_are_seen_nowhere() {
    let (service, tag) = builder_setup("log.filter = 'trace'").await;
    let registry = Registry::expecting(&service, &format!("deploy:{SECRET}")).await;
    let image = json!({ "image": registry.image() });
    let refused = service.call("image.pull", image.clone()).await.expect_err("no credentials are configured");
    assert_eq!(refused.data.kind.as_str(), "image_pull_failed");
    assert!(
        refused.message.contains(registry.host()) && refused.message.contains("none are configured"),
        "{refused:?}"
    );

    let file = service.path("credentials");
    std::fs::write(&file, format!("deploy:{SECRET}\n")).expect("written");
    let mut installation = service.stop().await;
    let (host, path) = (registry.host(), file.display());
    installation.configure(&format!("registries.local = {{ host = '{host}', credentials_file = '{path}' }}"));
    let service = installation.start().await;
    let callers = join_all((0..3).map(|_| service.connect())).await;
    let pulls = join_all(callers.iter().map(|client| followed(client, Method::ImagePull, image.clone())));
    let opening = async {
        registry.is_asked_for_a_layer().await;
        registry.open().await;
    };
    let (pulled, ()) = tokio::join!(pulls, opening);
    let ids: Vec<&Value> = pulled.iter().map(|(_, made)| &made.as_ref().expect("pulled")["image_id"]).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert!(
        pulled.iter().any(|(messages, _)| messages.iter().any(|line| line.contains("Pull complete"))),
        "{pulled:?}"
    );
    assert_eq!(registry.layers_served().await, 1, "one pull for all who wait");

    let docker = service.containers().await.docker;
    let remove_pulled =
        async || docker.remove_image(registry.image(), None::<RemoveImageOptions>, None).await.expect("removed");
    remove_pulled().await;
    let context = service.volume("context");
    write(&context, "Dockerfile", &format!("FROM {}\nLABEL a=b\n", registry.image()));
    let (built, made) =
        followed(&service.connect().await, Method::ImageBuild, json!({ "context": context, "tag": tag })).await;
    made.expect("built upon an image of the registry");
    for (source, text) in [
        ("pull", format!("{pulled:?}")),
        ("build", format!("{built:?}")),
        ("image", format!("{:?}", docker.inspect_image(&tag).await.expect("an image"))),
        ("history", format!("{:?}", docker.image_history(&tag).await.expect("a history"))),
        ("log", service.log()),
        ("listing", service.call("image.list", json!({})).await.expect("a list").to_string()),
    ] {
        assert!(encoded().iter().all(|secret| !text.contains(secret)), "in its {source}");
    }
    docker.remove_image(&tag, None::<RemoveImageOptions>, None).await.expect("removed");
    remove_pulled().await;

    std::fs::write(&file, "deploy:an-old-password\n").expect("written");
    let refused = service.call("image.pull", image.clone()).await.expect_err("no longer right");
    assert_eq!((refused.data.kind.as_str(), refused.data.retryable), ("image_pull_failed", false));
    assert_eq!(refused.data.details["registry"], registry.host());
    assert!(refused.message.contains("does not accept the credentials"), "{refused:?}");
    let shown = format!("{refused:?}{}", service.log());
    assert!(!shown.contains("an-old-password"), "the registry repeats it, the service does not");

    std::fs::remove_file(&file).expect("removed");
    let refused = service.call("image.pull", image).await.expect_err("there are none to be read");
    assert!(refused.message.contains(&file.display().to_string()), "{refused:?}");
}
