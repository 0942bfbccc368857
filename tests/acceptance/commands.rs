//! Tests of the command lines of `sandboxd` and `sandboxctl`.

use std::process::Output;

use serde_json::{Value, json};

use crate::containers::id_of;
use crate::daemon::Daemon;
use crate::installation::Installation;

fn printed(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn check_config_is_silent_about_a_valid_file_and_shows_no_secret() {
    let installation = Installation::new("profiles.default.env = { TOKEN = 't0p-s3cret' }");
    assert_eq!(
        printed(&installation.sandboxd_output(&["check-config"]).await),
        (Some(0), String::new(), String::new())
    );
    let (code, shown, _) = printed(&installation.sandboxd_output(&["check-config", "--print"]).await);
    assert_eq!(code, Some(0));
    assert!(shown.contains(&format!("name = \"{}\"", installation.name())), "{shown}");
    assert!(shown.contains("TOKEN") && !shown.contains("s3cret"), "{shown}");
}

#[tokio::test]
async fn check_config_names_file_line_and_key_of_every_error() {
    let installation = Installation::new("").with_variable("SANDBOXD_REAPER__TICK", "soon");
    std::fs::write(installation.config_file(), "[socket]\nmode = 9\n\n[engine]\nnetwrok = 'x'\n").expect("written");
    let file = installation.config_file().display().to_string();
    for arguments in [&["check-config"][..], &[]] {
        let (code, shown, errors) = printed(&installation.sandboxd_output(arguments).await);
        assert_eq!((code, shown.as_str()), (Some(2), ""), "{errors}");
        let errors: Vec<_> = errors.lines().collect();
        for start in [
            format!("{file}:2: socket.mode: "),
            format!("{file}:5: engine.netwrok: "),
            "SANDBOXD_REAPER__TICK: ".into(),
        ] {
            assert!(errors.iter().any(|line| line.starts_with(&start)), "{start} in {errors:#?}");
        }
        assert_eq!(errors.len(), 3, "{errors:#?}");
    }
}

#[tokio::test]
async fn a_variable_goes_before_the_file() {
    let installation = Installation::new(
        "profiles.default = { network = 'no-such-network' }
         profiles.big-one = { network = 'none', memory = '48MiB' }",
    );
    let service = installation
        .with_variable("SANDBOXD_PROFILES__DEFAULT__NETWORK", "none")
        .with_variable("SANDBOXD_PROFILES__DEFAULT__ENV__GREETING", "hello = world")
        .with_variable("SANDBOXD_PROFILES__BIG_ONE__MEMORY", "32m")
        .start()
        .await;
    let containers = service.containers().await;
    let created = service.created(&service.new_chat()).await;
    let greeting = containers.shell(id_of(&created), "echo $GREETING").await;
    assert_eq!(greeting, "hello = world\n");
    let created = service.created(&service.new_chat().with("profile", "big-one")).await;
    let container = containers.inspect(id_of(&created)).await;
    assert_eq!(container.host_config.and_then(|config| config.memory), Some(32 << 20));
}

#[tokio::test]
async fn an_error_of_this_host_names_its_key() {
    for (settings, key) in [
        ("volumes.roots = ['/no/such/place']", "volumes.roots"),
        ("socket.group = 'no-such-group'", "socket.group"),
        ("socket.allow_users = ['no-such-user']", "socket.allow_users"),
        ("socket.read_only_groups = ['no-such-group']", "socket.read_only_groups"),
        ("profiles.default.mounts = { '/models' = '/no/such/place' }", "profiles.default.mounts"),
        ("metrics.listen = '192.0.2.1:1'", "metrics.listen"),
    ] {
        let installation = Installation::new(settings);
        let (code, _, errors) = printed(&installation.sandboxd_output(&[]).await);
        assert_eq!(code, Some(1), "{errors}");
        assert!(errors.lines().any(|line| line.starts_with(&format!("sandboxd: {key}: "))), "{key}: {errors}");
    }
}

#[tokio::test]
async fn sandboxctl_prints_text_and_sets_its_exit_code() {
    let service = Daemon::start("profiles.default = { port = 9000 }").await;
    let chat = service.new_chat();
    let (id, volume) = (chat.chat_id(), chat.volume().display().to_string());
    let create = ["create", "--chat-id", id, "--agent-id", "agent", "--volume", &volume, "--env", "A=1", "--ttl", "2m"];

    let (code, shown, _) = printed(&service.sandboxctl(&create).await);
    assert_eq!(code, Some(0));
    assert!(shown.contains(id) && shown.contains("created, cold") && shown.contains(":9000"), "{shown}");
    let (code, shown, _) = printed(&service.sandboxctl(&["list"]).await);
    assert_eq!((code, shown.lines().count()), (Some(0), 2), "{shown}");
    assert!(shown.contains(id) && shown.contains("running"), "{shown}");
    let (code, shown, _) = printed(&service.sandboxctl(&["get", id]).await);
    assert!(code == Some(0) && shown.contains("running (ready)"), "{shown}");
    let (code, shown, _) = printed(&service.sandboxctl(&["health"]).await);
    assert!(code == Some(0) && shown.contains("ok"), "{shown}");
    let (code, shown, _) = printed(&service.sandboxctl(&["info"]).await);
    assert!(code == Some(0) && shown.contains(service.name()), "{shown}");

    let conflicting = ["create", "--chat-id", id, "--agent-id", "another", "--volume", &volume];
    let (code, _, errors) = printed(&service.sandboxctl(&conflicting).await);
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.starts_with("sandboxctl: ") && errors.contains("[sandbox_conflict]"), "{errors}");

    let (code, shown, _) = printed(&service.sandboxctl(&["delete", id]).await);
    assert!(code == Some(0) && shown.starts_with("deleted the sandbox of chat"), "{shown}");
    assert_eq!(service.sandboxctl(&["delete", id]).await.status.code(), Some(4));
    assert_eq!(service.sandboxctl(&["get", id]).await.status.code(), Some(4));
    assert_eq!(service.sandboxctl(&["frobnicate"]).await.status.code(), Some(2));

    let installation = service.stop().await;
    let (code, _, errors) = printed(&installation.sandboxctl(&["list"]).await);
    assert_eq!(code, Some(3));
    assert!(errors.contains("is sandboxd running?"), "{errors}");
}

#[tokio::test]
async fn sandboxctl_prints_json_for_programs() {
    let service = Daemon::start("profiles.default.network = 'none'").await;
    let chat = service.new_chat();
    let (id, volume) = (chat.chat_id(), chat.volume().display().to_string());
    let json_of = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{error}: {text}"));

    let create = ["--json", "create", "--chat-id", id, "--agent-id", "agent", "--volume", &volume];
    let (code, shown, _) = printed(&service.sandboxctl(&create).await);
    let created = json_of(&shown);
    assert_eq!((code, &created["outcome"], &created["endpoint"]), (Some(0), &json!("created"), &Value::Null));
    let (_, shown, _) = printed(&service.sandboxctl(&["get", id, "--json"]).await);
    assert_eq!(json_of(&shown)["session_id"], created["session_id"]);
    let (_, shown, _) = printed(&service.sandboxctl(&["--json", "list", "--all"]).await);
    assert_eq!(json_of(&shown)["sandboxes"][0]["chat_id"], id);
    let (_, shown, _) = printed(&service.sandboxctl(&["--json", "health"]).await);
    assert_eq!((&json_of(&shown)["status"], &json_of(&shown)["sandboxes"]), (&json!("ok"), &json!(1)));

    let (code, shown, errors) = printed(&service.sandboxctl(&["--json", "create", "--chat-id", "nobody"]).await);
    assert_eq!((code, shown.as_str()), (Some(1), ""));
    assert_eq!(json_of(&errors)["data"]["details"]["field"], "chat_id");
    let (_, shown, _) = printed(&service.sandboxctl(&["--json", "delete", id]).await);
    assert_eq!(json_of(&shown)["container_id"], created["container_id"]);
}

#[tokio::test]
async fn sandboxctl_takes_the_socket_from_its_environment_and_reports_a_degraded_service() {
    let mut installation = Installation::new("engine.timeouts.connect = '300ms'");
    let nowhere = installation.path("no-engine.sock");
    installation.configure(&format!("engine.host = 'unix://{}'", nowhere.display()));
    let service = installation.start().await;
    let mut command = service.command(env!("CARGO_BIN_EXE_sandboxctl"));
    command.env("SANDBOXD_SOCKET", service.socket()).args(["--json", "health"]);
    let (code, shown, _) = printed(&crate::installation::output(command).await);
    assert_eq!(code, Some(1));
    assert!(shown.contains(r#""status":"degraded""#), "{shown}");
}
