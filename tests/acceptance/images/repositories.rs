//! Tests of images that follow a branch of a repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::guarded_repository::Guarded;
use crate::daemon::Daemon;
use crate::engine::{eventually, test_image};
use crate::installation::Installation;

/// A bare repository on this host, with a working copy.
pub(super) struct Upstream {
    work: PathBuf,
    pub(super) bare: PathBuf,
}

impl Upstream {
    fn new(installation: &Installation) -> Self {
        Self::named(installation, "upstream")
    }

    pub(super) fn named(installation: &Installation, name: &str) -> Self {
        let (work, bare) = (installation.path(name), installation.path(&format!("{name}.git")));
        git(Path::new("/"), &["init", "--quiet", "--initial-branch=main", work.to_str().expect("UTF-8")]);
        let upstream = Self { work, bare };
        upstream.write("greeting", "hello");
        upstream.commit();
        let clone = ["clone", "--quiet", "--bare"].map(String::from);
        let paths = [&upstream.work, &upstream.bare].map(|path| path.display().to_string());
        let words: Vec<_> = clone.iter().chain(&paths).map(String::as_str).collect();
        git(Path::new("/"), &words);
        upstream
    }

    pub(super) fn write(&self, name: &str, content: &str) {
        std::fs::write(self.work.join(name), content).expect("written");
    }

    fn commit(&self) -> String {
        git(&self.work, &["add", "--all"]);
        git(&self.work, &["commit", "--quiet", "--message", "change"]);
        git(&self.work, &["rev-parse", "HEAD"])
    }

    /// Adds another repository as a submodule with this `url`.
    pub(super) fn add(&self, other: &Upstream, name: &str, url: &str) {
        git(&self.work, &["submodule", "--quiet", "add", other.bare.to_str().expect("UTF-8"), name]);
        git(&self.work, &["config", "--file", ".gitmodules", &format!("submodule.{name}.url"), url]);
        self.push();
    }

    pub(super) fn push(&self) -> String {
        let commit = self.commit();
        git(&self.work, &["push", "--quiet", self.bare.to_str().expect("UTF-8"), "main"]);
        git(&self.bare, &["update-server-info"]);
        commit
    }
}

fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=Test", "-c", "user.email=test@example.com"])
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_ALLOW_PROTOCOL", "file")
        .output()
        .expect("git is installed");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}

/// Returns an installation whose default profile uses an image of this repository.
pub(super) fn configured(url: &str, settings: &str) -> (Installation, String) {
    let mut installation = Installation::new("profiles.default.network = 'none'");
    let tag = format!("{}:latest", installation.name());
    installation.configure(&format!(
        "profiles.default.image = '{tag}'
         [repositories.app]
         url = '{url}'
         base = '{}'
         image = '{tag}'
         directory = '/srv/app'
         {settings}",
        test_image()
    ));
    (installation, tag)
}

async fn status(service: &Daemon) -> Value {
    service.call("image.list", json!({})).await.expect("a list")["repositories"][0].clone()
}

pub(super) async fn shell(service: &Daemon, script: &str) -> String {
    let chat = service.new_chat();
    service.created(&chat).await;
    let ended = service.call("sandbox.exec", json!({ "chat_id": chat.chat_id(), "command": script })).await;
    service.delete(&chat).await.expect("deleted");
    ended.expect("run")["stdout"]["text"].as_str().expect("text").to_owned()
}

#[tokio::test]
async fn an_image_keeps_up_with_its_branch() {
    let place = Installation::new("");
    let upstream = Upstream::new(&place);
    let settings = "every = '1s'
        install = ['echo installed > /installed']
        build = ['tr a-z A-Z < greeting > built']
        warm_up = ['test -e built && echo \"warm  $(cat /installed)\" > /warm']";
    let (installation, tag) = configured(&upstream.bare.display().to_string(), settings);
    let service = installation.start().await;
    let first = eventually("it is built without being asked for", || async {
        let status = status(&service).await;
        (!status["image_id"].is_null()).then_some(status)
    })
    .await;
    assert_eq!(first["commit"], git(&upstream.bare, &["rev-parse", "main"]), "{first}");
    assert_eq!((&first["stale"], &first["failure"]), (&json!(false), &Value::Null), "{first}");
    let seen = shell(&service, "cd /srv/app && cat built greeting /warm && test -d .git && echo whole").await;
    assert_eq!(seen, "HELLOhellowarm  installed\nwhole\n");

    upstream.write("greeting", "bonjour");
    let commit = upstream.push();
    let second = eventually("it follows the branch", || async {
        let status = status(&service).await;
        (status["commit"] == commit.as_str()).then_some(status)
    })
    .await;
    assert_ne!(second["image_id"], first["image_id"]);
    assert!(second["built_at"].as_str() > first["built_at"].as_str(), "{second}");
    assert_eq!(shell(&service, "cat /srv/app/built").await, "BONJOUR");
    let image = service.image(second["image_id"].as_str().expect("an id")).await.expect("listed");
    assert_eq!((&image["tags"], &image["repository"]), (&json!([tag]), &json!("app")), "{image}");

    let again = service.call("image.refresh", json!({ "repository": "app" })).await.expect("looked");
    assert_eq!((&again["changed"], &again["image_id"]), (&json!(false), &second["image_id"]), "{again}");
    let pruned = service.call("image.prune", json!({})).await.expect("pruned");
    let removed: Vec<_> = pruned["removed"].as_array().expect("an array").iter().map(|it| &it["image_id"]).collect();
    assert_eq!(removed, [&first["image_id"]], "the one that was replaced, and not the newest");

    let service = service.stop().await.start().await;
    let again = service.call("image.refresh", json!({ "repository": "app" })).await.expect("looked");
    assert_eq!((&again["changed"], &again["image_id"]), (&json!(false), &second["image_id"]), "known after a restart");
}

#[tokio::test]
async fn a_rebuild_that_fails_keeps_the_last_image_and_says_why() {
    let place = Installation::new("");
    let upstream = Upstream::new(&place);
    let settings = "every = '1h'\nstale_after = '1s'\nbuild = ['! test -e broken || { echo it is broken; exit 3; }']";
    let (installation, _) = configured(&upstream.bare.display().to_string(), settings);
    let service = installation.start().await;
    let refresh = async || service.call("image.refresh", json!({ "repository": "app" })).await;
    let good = refresh().await.expect("built");
    upstream.write("broken", "");
    let head = upstream.push();
    let failure = refresh().await.expect_err("a step fails");
    assert_eq!(failure.data.kind.as_str(), "image_build_failed", "{failure:?}");
    let stale = eventually("it is stale", || async {
        let status = status(&service).await;
        (status["stale"] == true).then_some(status)
    })
    .await;
    assert_eq!((&stale["image_id"], &stale["commit"]), (&good["image_id"], &good["commit"]), "{stale}");
    assert_eq!(stale["head"], head, "{stale}");
    let message = stale["failure"]["message"].as_str().expect("a message");
    assert!(message.contains("Step 4/") && message.contains("non-zero code: 3"), "{message}");
    assert_eq!(shell(&service, "cat /srv/app/greeting").await, "hello", "sandboxes go on");

    std::fs::remove_file(upstream.work.join("broken")).expect("removed");
    upstream.push();
    assert_eq!(refresh().await.expect("built")["changed"], true);
    assert_eq!(status(&service).await["failure"], Value::Null);

    std::fs::rename(&upstream.bare, place.path("elsewhere.git")).expect("moved");
    let failure = refresh().await.expect_err("there is no repository");
    assert_eq!(failure.data.kind.as_str(), "repository_unavailable", "{failure:?}");
    let failure = service.call("image.refresh", json!({ "repository": "other" })).await.expect_err("not configured");
    assert_eq!(failure.data.kind.as_str(), "invalid_params", "{failure:?}");
}

#[tokio::test]
async fn credentials_open_a_repository_and_are_seen_nowhere() {
    const SECRET: &str = "s3cr3t-5ea51de0ff";
    let place = Installation::new("");
    let upstream = Upstream::new(&place);
    upstream.write("more", "more");
    upstream.push();
    let guarded = Guarded::serve(&upstream.bare, "deploy", SECRET).await;
    let file = place.path("credentials");
    std::fs::write(&file, format!("deploy:{SECRET}\n")).expect("written");
    let program = place.path("print-credentials");
    std::fs::write(&program, format!("#!/bin/sh\nexec cat '{}'\n", file.display())).expect("written");
    for source in [
        format!("credentials_file = '{}'", file.display()),
        format!("credentials_command = ['sh', '{}']", program.display()),
    ] {
        let settings = format!("every = '1h'\n{source}");
        let (mut installation, tag) = configured(&guarded.url(), &settings);
        installation.configure("log.filter = 'trace'");
        let service = installation.start().await;
        let built = service.call("image.refresh", json!({ "repository": "app" })).await.expect("built");
        let docker = service.containers().await.docker;
        let history = docker.image_history(&tag).await.expect("a history");
        let image = docker.inspect_image(&tag).await.expect("an image");
        let found = shell(&service, &format!("grep -r {} /srv/app && echo found", SECRET)).await;
        for (source, text) in [
            ("history", format!("{history:?}")),
            ("image", format!("{image:?}")),
            ("files", found),
            ("answer", built.to_string()),
            ("log", service.log()),
            ("listing", service.call("image.list", json!({})).await.expect("a list").to_string()),
        ] {
            assert!(!text.contains(SECRET), "in its {source}");
        }
        eventually("no temporary files are left", || async {
            let left = std::fs::read_dir(service.path("state/repositories")).expect("a directory");
            let names = left.map(|entry| entry.expect("an entry").file_name()).collect::<Vec<_>>();
            (names == ["app.git"]).then_some(())
        })
        .await;
    }
    assert!(guarded.was_opened() && guarded.was_asked_without(), "git was asked for it, and had it");
    assert_eq!(guarded.seen_in(), Vec::<String>::new(), "processes with it in their arguments or environment");

    std::fs::write(&file, "deploy:wrong\n").expect("written");
    let (installation, _) = configured(&guarded.url(), &format!("credentials_file = '{}'", file.display()));
    let service = installation.start().await;
    let failure = service.call("image.refresh", json!({ "repository": "app" })).await.expect_err("wrong");
    assert_eq!(failure.data.kind.as_str(), "repository_unavailable", "{failure:?}");
    assert!(!format!("{failure:?}").contains("deploy:wrong"));
}
