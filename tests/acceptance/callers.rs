//! Tests of callers that are not root: access to the socket, and the warning about callers without it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Output;

use serde_json::json;

use crate::installation::{Installation, output};

/// Users and groups that no host has.
const APP: u32 = 54_321;
const OTHER: u32 = 54_322;
const CALLERS: u32 = 54_300;

/// Runs `sandboxctl` as this user and group.
async fn sandboxctl_as(installation: &Installation, uid: u32, gid: u32, arguments: &[&str]) -> Output {
    let mut command = installation.command(env!("CARGO_BIN_EXE_sandboxctl"));
    command.arg("--socket").arg(installation.socket()).args(arguments).uid(uid).gid(gid);
    output(command).await
}

fn combined_output(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

#[tokio::test]
async fn a_caller_that_is_named_also_needs_a_way_to_the_socket() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut installation = Installation::new(&format!(
        "profiles.default.network = 'none'
         socket = {{ group = '0', allow_users = ['{APP}'] }}"
    ));
    std::fs::set_permissions(installation.path(""), PermissionsExt::from_mode(0o711)).expect("its mode");
    let checked = installation.sandboxd_output(&["check-config"]).await;
    let warned = combined_output(&checked);
    assert!(checked.status.success(), "{warned}");
    assert!(warned.starts_with(&format!("warning: socket.allow_users: {APP} cannot open the socket")), "{warned}");

    let service = installation.start().await;
    let checks = service.call("system.doctor", json!({})).await.expect("an answer")["checks"].clone();
    let check = checks.as_array().expect("an array").iter().find(|check| check["name"] == "callers");
    let check = check.expect("a check");
    assert_eq!(check["status"], "warning", "{check}");
    assert!(check["message"].as_str().is_some_and(|text| text.contains(&APP.to_string())), "{check}");
    assert!(service.log().contains(&format!("socket.allow_users: {APP} cannot open the socket")));
    let refused = sandboxctl_as(&service, APP, APP, &["doctor"]).await;
    assert!(!refused.status.success(), "{}", combined_output(&refused));
    for text in [combined_output(&refused), check["advice"].to_string(), warned] {
        assert!(
            text.contains("usermod -aG sandboxd") && !text.contains("-aG root") && !text.contains("-aG 0"),
            "{text}"
        );
    }

    // The socket file is open to all users, and the configured lists decide.
    installation = service.stop().await;
    installation.configure("socket.mode = '0666'");
    assert_eq!(combined_output(&installation.sandboxd_output(&["check-config"]).await), "");
    let service = installation.start().await;
    let answered = sandboxctl_as(&service, APP, APP, &["list"]).await;
    assert!(answered.status.success(), "{}", combined_output(&answered));
    let refused = sandboxctl_as(&service, OTHER, OTHER, &["list"]).await;
    assert!(
        !refused.status.success() && combined_output(&refused).contains("unauthorized"),
        "{}",
        combined_output(&refused)
    );

    // The socket file belongs to a group of callers, and the lists are empty.
    installation = service.stop().await;
    installation.configure(&format!("socket = {{ group = '{CALLERS}', mode = '0660', allow_users = [] }}"));
    let service = installation.start().await;
    let answered = sandboxctl_as(&service, OTHER, CALLERS, &["list"]).await;
    assert!(answered.status.success(), "{}", combined_output(&answered));
    assert!(!sandboxctl_as(&service, APP, APP, &["list"]).await.status.success());
}
