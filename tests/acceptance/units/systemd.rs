//! Tests of the units under a real systemd: start, use, restart, kill, stop.

use std::time::Duration;

use sandboxd::client::Client;
use serde_json::{Value, json};

use super::machine::Machine;
use crate::daemon::call;
use crate::engine::{eventually, test_image};
use crate::pool::can_be_bound;

const SOCKET: &str = "/run/sandboxd/sandboxd.sock";
const CHAT: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";

fn config() -> String {
    format!(
        "volumes.roots = ['/srv/volumes']
         [profiles.default]
         image = '{}'
         memory = '64MiB'
         command = ['sleep', 'infinity']
         restart = 'on-failure'
         pool = {{ size = 1 }}",
        test_image()
    )
}

impl Machine {
    /// Calls the service on a connection that waits during a restart.
    async fn ask(&self, method: &str, params: Value) -> Value {
        let client = Client::connect(self.path(SOCKET)).await.expect("a socket that is always there");
        let answer = tokio::time::timeout(Duration::from_secs(60), call(&client, method, &params)).await;
        answer.expect("an answer in time").unwrap_or_else(|failure| panic!("{method}: {failure:?}"))
    }

    async fn output_of(&self, command: &str) -> String {
        let ended = self.ask("sandbox.exec", json!({ "chat_id": CHAT, "command": command })).await;
        assert_eq!(ended["exit_code"], 0, "{ended}");
        ended["stdout"]["text"].as_str().expect("text").to_owned()
    }

    async fn property(&self, name: &str) -> String {
        self.run(&format!("systemctl show sandboxd --value --property {name}")).await.trim().to_owned()
    }

    async fn until_free(&self) {
        eventually("a slot is ready", || async {
            let pool = self.ask("pool.status", json!({})).await["pools"][0].clone();
            assert_eq!(pool["unavailable"], Value::Null, "{pool}");
            (pool["free"] == 1).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn under_its_unit_the_service_binds_slots_and_keeps_its_promises() {
    if !can_be_bound() {
        return;
    }
    let machine = Machine::boot(&config()).await;
    machine.run("systemctl start sandboxd").await;
    machine.until_free().await;
    let pid = machine.property("MainPID").await;
    let refused = machine.output(&format!("nsenter --target {pid} --mount touch /srv/volumes/v/x 2>&1")).await;
    assert!(refused.contains("Read-only file system"), "the service itself may not write there: {refused}");

    let params = json!({ "chat_id": CHAT, "agent_id": "agent", "volume_host_path": "/srv/volumes/v" });
    let created = machine.ask("sandbox.create", params.clone()).await;
    assert_eq!(created["launch"], "warm", "{created}");
    machine.output_of("echo kept > /volume/out; echo own > /chat/out").await;
    let written = |path: &str| std::fs::read_to_string(machine.path(path)).expect("written");
    assert_eq!(written("/srv/volumes/v/out"), "kept\n");
    assert_eq!(written(&format!("/var/lib/sandboxd/chats/{CHAT}/out")), "own\n");
    let checks = machine.ask("system.doctor", json!({})).await["checks"].clone();
    let problems = checks.as_array().expect("an array").iter().filter(|check| check["status"] == "problem");
    assert_eq!(problems.collect::<Vec<_>>(), Vec::<&Value>::new());

    machine.run("systemctl restart sandboxd").await;
    assert_eq!(machine.output_of("cat /volume/out").await, "kept\n");
    machine.run("systemctl kill --signal KILL sandboxd").await;
    assert_eq!(machine.output_of("cat /volume/out").await, "kept\n");
    assert_eq!(machine.property("NRestarts").await, "1");

    // A sandbox that died is started and bound again.
    machine.run(&format!("docker kill sandboxd-default-{CHAT}")).await;
    eventually("it runs again", || async {
        let exec = json!({ "chat_id": CHAT, "command": "cat /volume/out" });
        let client = Client::connect(machine.path(SOCKET)).await.expect("a socket");
        call(&client, "sandbox.exec", exec).await.ok().filter(|ended| ended["stdout"]["text"] == "kept\n")
    })
    .await;

    machine.run("systemctl stop sandboxd").await;
    assert_eq!(
        (machine.property("Result").await.as_str(), machine.property("ExecMainStatus").await.as_str()),
        ("success", "0")
    );
    assert!(machine.run("docker ps").await.contains(CHAT), "sandboxes stay");
    let reused = machine.ask("sandbox.create", params).await;
    assert_eq!((&reused["outcome"], &reused["session_id"]), (&json!("reused"), &created["session_id"]), "{reused}");
    assert_eq!(machine.property("ActiveState").await, "active", "a caller has started it");
    machine.ask("sandbox.delete", json!({ "chat_id": CHAT })).await;

    // An invalid configuration is reported once.
    std::fs::write(machine.path("/etc/sandboxd/sandboxd.toml"), "no_such_key = 1").expect("written");
    let failed = machine.output("systemctl restart sandboxd || echo failed").await;
    assert_eq!((failed.trim(), machine.property("NRestarts").await.as_str()), ("failed", "0"));
    assert!(machine.run("journalctl --unit sandboxd").await.contains("no_such_key"));
}
