//! Tests of a host that is set up as documented: an application without root calls the service, the network is large
//! enough, and sandboxes cannot reach the host's services.

use std::path::Path;

use serde_json::Value;

use super::machine::Machine;
use crate::engine::test_image;

/// The service's metrics act as a service of the host.
const METRICS: u16 = 9464;

fn config() -> String {
    format!(
        "volumes.roots = ['/srv/volumes']
         metrics.listen = '0.0.0.0:{METRICS}'
         [profiles.default]
         image = '{}'
         memory = '64MiB'
         command = ['httpd', '-f', '-p', '8080', '-h', '/www']
         readiness = {{ kind = 'http', path = '/' }}",
        test_image()
    )
}

/// Returns the shell block of a page that contains `word`.
fn documented(page: &str, word: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page);
    let text = std::fs::read_to_string(path).expect("a page");
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let found: Vec<_> = blocks.filter(|block| block.contains(word)).collect();
    assert_eq!(found.len(), 1, "{page}, {word}");
    found[0].to_owned()
}

impl Machine {
    /// Runs a command as this user, with the groups that the host's files give it.
    async fn run_as(&self, user: &str, command: &str) -> String {
        self.run(&format!("setpriv --reuid {user} --regid {user} --init-groups {command}")).await
    }

    async fn create_as(&self, user: &str, chat: &str) {
        let create = format!("sandboxctl create --chat-id {chat} --agent-id a --volume /srv/volumes/v");
        self.run_as(user, &create).await;
    }

    /// Returns whether a service of the host answers the sandbox.
    async fn reaches_host(&self, chat: &str) -> bool {
        let gateway = self.run("docker network inspect sandboxd --format '{{(index .IPAM.Config 0).Gateway}}'").await;
        let gateway = gateway.trim();
        let ask = format!("(echo GET / HTTP/1.0; echo; sleep 1) | nc -w 2 {gateway} {METRICS} 2>&1");
        let printed = self.run(&format!("sandboxctl exec {chat} -- sh -c '{ask}' || true")).await;
        let (answered, refused) = (printed.starts_with("HTTP/1"), printed.contains("onnection refused"));
        assert!(answered != refused, "{printed:?}");
        answered
    }

    async fn check(&self, name: &str) -> Value {
        let examined: Value = serde_json::from_str(&self.run("sandboxctl --json doctor").await).expect("JSON");
        let checks = examined["checks"].as_array().expect("an array");
        checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{examined}")).clone()
    }
}

#[tokio::test]
async fn an_app_that_is_not_root_calls_and_the_hosts_services_can_be_closed_to_sandboxes() {
    let machine = Machine::boot(&config()).await;
    let [one, two] = ["67e55044-10b1-426f-9247-bb680e5fe0c8", "67e55044-10b1-426f-9247-bb680e5fe0c9"];
    machine.run("useradd --system app && useradd --system other && systemctl start sandboxd").await;
    let refused = machine.output("setpriv --reuid app --regid app --init-groups sandboxctl doctor").await;
    assert!(refused.contains("usermod -aG sandboxd") && !refused.contains("aG root"), "{refused}");
    machine.run(&documented("operations.md", "usermod")).await;
    machine.create_as("app", one).await;
    let listed = machine.run_as("app", "sandboxctl list").await;
    assert!(listed.contains(one), "{listed}");
    let refused = machine.output("setpriv --reuid other --regid other --init-groups sandboxctl list 2>&1").await;
    assert!(refused.contains("ermission denied"), "{refused}");

    let subnet = machine.run("docker network inspect sandboxd --format '{{(index .IPAM.Config 0).Subnet}}'").await;
    assert!(subnet.trim().ends_with("/16"), "{subnet}");
    let addresses = machine.check("addresses").await;
    assert_eq!(addresses["status"], "ok", "{addresses}");
    assert!(addresses["message"].as_str().is_some_and(|text| text.contains("1022 of 1023")), "{addresses}");

    assert!(machine.reaches_host(one).await, "the host is reachable without the rule");
    let found = machine.check("host_services").await;
    assert!(found["message"].as_str().is_some_and(|text| text.contains("9464")), "{found}");
    assert!(found["advice"].as_str().is_some_and(|text| text.contains("(sandboxd)")), "{found}");
    machine.run(&documented("security.md", "iptables")).await;
    assert!(!machine.reaches_host(one).await, "the rule closes it");
    // The service still reaches the sandbox's port: the second sandbox is ready once its page was fetched.
    machine.create_as("app", two).await;
    assert!(!machine.reaches_host(two).await);
    let name = machine.run(&format!("sandboxctl exec {two} -- hostname")).await;
    let resolved = machine.run(&format!("sandboxctl exec {two} -- nslookup {} 127.0.0.11", name.trim())).await;
    assert!(resolved.contains("Address"), "the engine's resolver answers: {resolved}");
    back_up_and_restore(&machine, [one, two]).await;
    uninstall(&machine).await;
}

/// Restores the documented backup of a lost journal, and asserts that the sandboxes are unchanged.
async fn back_up_and_restore(machine: &Machine, chats: [&str; 2]) {
    let ends = "sandboxctl --json list | tr ',' '\n' | grep expires_at | sort";
    machine.run(&format!("sandboxctl renew {} --ttl 6h", chats[0])).await;
    machine.run(&documented("operations.md", "mkdir -p /var/backups/sandboxd")).await;
    let before = machine.run(ends).await;
    machine
        .run("systemctl stop sandboxd.socket sandboxd.service && echo lost > /var/lib/sandboxd/journal.sqlite")
        .await;
    machine.run(&documented("operations.md", "rm -f /var/lib/sandboxd/journal.sqlite*")).await;
    assert_eq!(machine.run(ends).await, before, "renewals are in no label");
    for chat in chats {
        assert_eq!(machine.run(&format!("sandboxctl exec {chat} -- echo restored")).await, "restored\n");
    }
}

/// Uninstalls the service, and asserts that neither the engine nor systemd knows it any more.
async fn uninstall(machine: &Machine) {
    machine.run(&documented("operations.md", "disable --now")).await;
    assert_eq!(machine.run("docker ps --all --quiet --filter label=sandboxd.managed").await, "");
    assert_eq!(machine.run("docker network ls --quiet --filter name=sandboxd").await, "");
    assert_eq!(machine.run("systemctl show sandboxd --value --property LoadState").await.trim(), "not-found");
    assert!(machine.path("/var/lib/sandboxd/chats").exists(), "the chats' files stay");
}
