//! Tests of repositories with submodules.

use serde_json::json;

use super::guarded_repository::Guarded;
use super::repositories::{Upstream, configured, shell};
use crate::installation::Installation;

#[tokio::test]
async fn submodules_and_theirs_come_along_where_they_are_wanted() {
    let place = Installation::new("");
    let [app, lib, inner] = ["app", "lib", "inner"].map(|name| Upstream::named(&place, name));
    inner.write("greeting", "from within");
    inner.push();
    lib.add(&inner, "inner", "../inner.git");
    app.add(&lib, "lib", "../lib.git");
    let (installation, _) = configured(&app.bare.display().to_string(), "every = '1h'");
    let service = installation.start().await;
    service.call("image.refresh", json!({ "repository": "app" })).await.expect("built");
    assert_eq!(shell(&service, "ls -A /srv/app/lib").await, "", "they are not wanted");

    let mut installation = service.stop().await;
    installation.configure("repositories.app.submodules = true");
    let service = installation.start().await;
    let built = service.call("image.refresh", json!({ "repository": "app" })).await.expect("built");
    assert_eq!(built["changed"], true, "{built}");
    let seen = shell(&service, "cd /srv/app/lib && cat greeting inner/greeting").await;
    assert_eq!(seen, "hellofrom within");

    let elsewhere = Installation::new("");
    let private = Upstream::named(&elsewhere, "private");
    app.add(&private, "stolen", &private.bare.display().to_string());
    let refused = service.call("image.refresh", json!({ "repository": "app" })).await.expect_err("not beside it");
    assert_eq!(refused.data.kind.as_str(), "repository_unavailable");
    assert!(refused.message.contains("submodule stolen"), "{refused:?}");
}

#[tokio::test]
async fn a_submodule_elsewhere_is_not_shown_the_credentials() {
    const SECRET: &str = "s3cr3t-0ff5e75ea51de";
    let place = Installation::new("");
    let [app, lib] = ["app", "lib"].map(|name| Upstream::named(&place, name));
    lib.write("greeting", "from the same host");
    lib.push();
    app.add(&lib, "lib", "../lib.git");
    let guarded = Guarded::serve(&app.bare, "deploy", SECRET).await;
    let file = place.path("credentials");
    std::fs::write(&file, format!("deploy:{SECRET}\n")).expect("written");
    let settings = format!("every = '1h'\nsubmodules = true\ncredentials_file = '{}'", file.display());
    let (mut installation, _) = configured(&guarded.url(), &settings);
    installation.configure("log.filter = 'trace'");
    let service = installation.start().await;
    service.call("image.refresh", json!({ "repository": "app" })).await.expect("built");
    assert_eq!(shell(&service, "cat /srv/app/lib/greeting").await, "from the same host");

    // The other host would accept the same credentials.
    let other_host = Guarded::serve(&lib.bare, "deploy", SECRET).await;
    app.add(&lib, "elsewhere", &other_host.url());
    let refused = service.call("image.refresh", json!({ "repository": "app" })).await.expect_err("it stays closed");
    assert_eq!(refused.data.kind.as_str(), "repository_unavailable", "{refused:?}");
    assert!(other_host.was_asked_without() && !other_host.was_opened());
    assert_eq!(guarded.seen_in(), Vec::<String>::new(), "processes with it in their arguments or environment");
    assert!(!service.log().contains(SECRET));
}
