//! Callers that are not root: who may open the socket, and who is warned that they cannot.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Output;

use serde_json::json;

use crate::installation::{Installation, output};

/// Users and groups that no host has.
const APP: u32 = 54_321;
const OTHER: u32 = 54_322;
const CALLERS: u32 = 54_300;

/// Runs `sandboxctl` as a program of this user and group.
async fn sandboxctl_as(installation: &Installation, uid: u32, gid: u32, arguments: &[&str]) -> Output {
    let mut command = installation.command(env!("CARGO_BIN_EXE_sandboxctl"));
    command.arg("--socket").arg(installation.socket()).args(arguments).uid(uid).gid(gid);
    output(command).await
}

fn said(output: &Output) -> String {
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
    let warned = said(&checked);
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
    assert!(!refused.status.success(), "{}", said(&refused));
    for text in [said(&refused), check["advice"].to_string(), warned] {
        assert!(
            text.contains("usermod -aG sandboxd") && !text.contains("-aG root") && !text.contains("-aG 0"),
            "{text}"
        );
    }

    // The file is open to all, and the lists decide.
    installation = service.stop().await;
    installation.configure("socket.mode = '0666'");
    assert_eq!(said(&installation.sandboxd_output(&["check-config"]).await), "");
    let service = installation.start().await;
    let answered = sandboxctl_as(&service, APP, APP, &["list"]).await;
    assert!(answered.status.success(), "{}", said(&answered));
    let refused = sandboxctl_as(&service, OTHER, OTHER, &["list"]).await;
    assert!(!refused.status.success() && said(&refused).contains("unauthorized"), "{}", said(&refused));

    // The file belongs to a group of callers, and nobody has to be named.
    installation = service.stop().await;
    installation.configure(&format!("socket = {{ group = '{CALLERS}', mode = '0660', allow_users = [] }}"));
    let service = installation.start().await;
    let answered = sandboxctl_as(&service, OTHER, CALLERS, &["list"]).await;
    assert!(answered.status.success(), "{}", said(&answered));
    assert!(!sandboxctl_as(&service, APP, APP, &["list"]).await.status.success());
}
