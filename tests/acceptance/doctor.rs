//! Tests of the checks of the host.

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::pool::can_be_bound;

fn check<'a>(examined: &'a Value, name: &str) -> &'a Value {
    let checks = examined["checks"].as_array().expect("an array");
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name}: {examined}"))
}

#[tokio::test]
async fn doctor_reports_the_state_of_this_host() {
    let service = Daemon::start(
        "profiles.default = { network = 'none', pool = { size = 1 } }
         profiles.broken = { image = 'sandboxd-no-such-image:none' }",
    )
    .await;
    let examined = service.call("system.doctor", json!({})).await.expect("an answer");
    for name in
        ["engine", "instance", "network", "limits", "journal", "state_dir", "chats_root", "volumes", "open_files"]
    {
        assert_eq!(
            (&check(&examined, name)["status"], &check(&examined, name)["advice"]),
            (&json!("ok"), &Value::Null)
        );
    }
    let images = check(&examined, "images");
    assert_eq!(images["status"], "problem");
    assert!(images["message"].as_str().is_some_and(|text| text.contains("none (profile broken)")), "{images}");
    assert!(images["advice"].as_str().is_some_and(|text| text.contains("sandboxctl image pull")), "{images}");
    let bound = if can_be_bound() { "ok" } else { "warning" };
    assert_eq!(check(&examined, "warm_slots")["status"], bound, "{examined}");

    let shown = service.sandboxctl(&["doctor"]).await;
    assert_eq!(shown.status.code(), Some(1), "there is a problem");
    let said = String::from_utf8(shown.stdout).expect("UTF-8");
    assert!(said.contains("sandboxd-no-such-image:none (profile broken)") && said.contains(" 1 problem,"), "{said}");
}

#[tokio::test]
async fn doctor_reports_a_stopped_service() {
    let installation = Daemon::start("profiles.default.network = 'none'").await.kill().await;
    let shown = installation.sandboxctl(&["--json", "doctor"]).await;
    assert_eq!(shown.status.code(), Some(1));
    let examined: Value = serde_json::from_slice(&shown.stdout).expect("one JSON object");
    let service = check(&examined, "service");
    assert_eq!(service["status"], "problem");
    assert!(service["message"].as_str().is_some_and(|text| text.starts_with("no service listens at")), "{service}");
}
