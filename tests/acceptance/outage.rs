//! Tests of an engine outage under load. During it, errors are in time; after it, the same run of the service has kept
//! its promises. A real `dockerd` is stopped, killed and frozen.

mod load;

use std::time::Duration;

use serde_json::{Value, json};

use crate::containers::{Containers, id_of};
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::installation::Installation;
use crate::private_dockerd::PrivateDockerd;
use load::{Account, Load};

/// Disables periodic reconciliation, and lets no caller wait for a permit of the engine queue.
const SETTINGS: &str = "
    profiles.default.network = 'none'
    reconciler.interval = '1h'
    engine.max_operations = 32
    teardown = { graceful = 0, remove = '3s', total = '5s' }
    [engine.timeouts]
    connect = '2s'
    create = '5s'
    start = '5s'
    inspect = '3s'
    list = '5s'
    logs = '2s'
";

/// The longest wait while the engine is down: the service refuses at once, on a busy machine somewhat later.
const AT_ONCE: Duration = Duration::from_secs(5);
/// The longest wait while the engine is frozen: the time limits of the create and of its removal.
const GIVEN_UP: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_engine_that_starts_again_loses_no_sandbox() {
    let Some(mut trial) = Trial::start(true).await else { return };
    trial.engine.terminate().await;
    trial.only_requests_without_the_engine_succeed(AT_ONCE).await;
    trial.engine.start_again().await;
    let accounts = trial.works_again().await;
    trial.reconciled_after_the_gap().await;
    trial.promised_sandboxes_run(accounts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_that_starts_again_loses_no_sandbox() {
    let Some(mut trial) = Trial::start(true).await else { return };
    trial.engine.kill().await;
    trial.only_requests_without_the_engine_succeed(AT_ONCE).await;
    trial.engine.start_again().await;
    let accounts = trial.works_again().await;
    trial.reconciled_after_the_gap().await;
    trial.promised_sandboxes_run(accounts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_engine_that_thaws_loses_no_sandbox() {
    let Some(mut trial) = Trial::start(true).await else { return };
    let frozen = trial.engine.freeze();
    trial.only_requests_without_the_engine_succeed(GIVEN_UP).await;
    drop(frozen);
    let accounts = trial.works_again().await;
    trial.promised_sandboxes_run(accounts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_that_end_with_a_stopped_engine_have_failed_and_can_be_replaced() {
    let Some(mut trial) = Trial::start(false).await else { return };
    trial.engine.terminate().await;
    trial.only_requests_without_the_engine_succeed(AT_ONCE).await;
    let accounts = trial.load.end().await;
    trial.engine.start_again().await;
    trial.reconciled_after_the_gap().await;
    trial.promised_sandboxes_have_failed(accounts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_that_end_with_a_killed_engine_have_failed_and_can_be_replaced() {
    let Some(mut trial) = Trial::start(false).await else { return };
    trial.engine.kill().await;
    trial.only_requests_without_the_engine_succeed(AT_ONCE).await;
    let accounts = trial.load.end().await;
    trial.engine.start_again().await;
    trial.reconciled_after_the_gap().await;
    trial.promised_sandboxes_have_failed(accounts).await;
}

/// A service under load on an engine of its own.
struct Trial {
    load: Load,
    service: Daemon,
    passes_before: usize,
    /// Dropped after the service, which removes its containers.
    engine: PrivateDockerd,
}

impl Trial {
    /// Returns once sandboxes were created, reused and deleted. Returns `None` unless the test runs as root, which such
    /// an engine needs.
    async fn start(live_restore: bool) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("an engine can be taken away only by root");
            return None;
        }
        let engine = PrivateDockerd::start(live_restore).await;
        let service = Installation::on(&engine.host(), SETTINGS).start().await;
        let mut load = Load::start(&service, &engine, live_restore).await;
        load.until("there is load", |seen| seen.created >= 8 && seen.reused >= 8 && seen.deleted >= 2).await;
        let passes_before = passes_after_a_gap(&service);
        Some(Self { load, service, passes_before, engine })
    }

    async fn only_requests_without_the_engine_succeed(&mut self, limit: Duration) {
        let before = self.load.seen();
        self.load.set_limit(limit);
        self.load
            .until("requests are refused, and answered", |seen| {
                seen.refused_creates >= before.refused_creates + 4
                    && seen.refused_deletes >= before.refused_deletes + 2
                    && seen.unaffected >= before.unaffected + 20
            })
            .await;
        // The engine may come back from now on, and a busy engine is slow.
        self.load.remove_limit();
        let health = self.service.call("system.health", json!({})).await.expect("answered");
        assert_eq!((&health["status"], &health["engine"]["reachable"]), (&json!("degraded"), &json!(false)));
    }

    /// Ends the load once creates and deletes succeed again.
    async fn works_again(&mut self) -> Vec<Account> {
        let before = self.load.seen();
        self.load
            .until("it works again", |seen| seen.created >= before.created + 3 && seen.deleted >= before.deleted + 2)
            .await;
        self.load.end().await
    }

    async fn reconciled_after_the_gap(&self) {
        eventually("the engine was reconciled", || async {
            (passes_after_a_gap(&self.service) > self.passes_before).then_some(())
        })
        .await;
    }

    async fn promised_sandboxes_run(&self, accounts: Vec<Account>) {
        let containers = self.service.containers().await;
        let (promised, gone): (Vec<_>, Vec<_>) = accounts.into_iter().partition(|account| account.session.is_some());
        for account in &promised {
            let sandbox = self.service.get(&account.chat).await.expect("promised");
            assert_eq!(
                (Some(&sandbox["session_id"]), &sandbox["status"]),
                (account.session.as_ref(), &json!("running"))
            );
            assert!(containers.is_running(id_of(&sandbox)).await, "{sandbox}");
            let reused = self.service.created(&account.chat).await;
            assert_eq!((&reused["outcome"], &reused["session_id"]), (&json!("reused"), &sandbox["session_id"]));
        }
        self.only_promised_containers_are_left(&containers, &gone).await;
        self.a_death_is_reported(&containers, &promised).await;
    }

    async fn promised_sandboxes_have_failed(&self, accounts: Vec<Account>) {
        let containers = self.service.containers().await;
        let (promised, gone): (Vec<_>, Vec<_>) = accounts.into_iter().partition(|account| account.session.is_some());
        for account in &promised {
            let failed = eventually("its end is found", || async {
                let sandbox = self.service.get(&account.chat).await.expect("it is known");
                assert_eq!(Some(&sandbox["session_id"]), account.session.as_ref());
                (sandbox["status"] == "failed").then_some(sandbox)
            })
            .await;
            assert!(!containers.is_running(id_of(&failed)).await);
        }
        self.only_promised_containers_are_left(&containers, &gone).await;
        let (deleted, replaced) = promised.split_first().expect("a sandbox");
        assert_eq!(self.service.delete(&deleted.chat).await.expect("deleted")["result"], "deleted");
        for account in replaced {
            assert_eq!(self.service.created(&account.chat).await["outcome"], "replaced");
        }
        assert_eq!(containers.count().await, replaced.len());
        self.a_death_is_reported(&containers, replaced).await;
    }

    /// Asserts that owed removals were done without a request, and that the engine has only the containers that the
    /// service lists.
    async fn only_promised_containers_are_left(&self, containers: &Containers, gone: &[Account]) {
        for account in gone {
            self.eventually_gone(account).await;
        }
        let mut known: Vec<_> =
            self.service.list().await.iter().map(|sandbox| sandbox["container_id"].clone()).collect();
        let mut present = containers.all().await.into_iter().map(|container| json!(container.id)).collect::<Vec<_>>();
        known.sort_by_key(Value::to_string);
        present.sort_by_key(Value::to_string);
        assert_eq!(known, present);
    }

    /// Waits for an owed removal. Its retries may be half a minute apart by now.
    async fn eventually_gone(&self, account: &Account) {
        let gone = || async { self.service.get(&account.chat).await.err() };
        let removal = async {
            loop {
                match gone().await {
                    Some(failure) => return assert_eq!(failure.data.kind.as_str(), "sandbox_not_found", "{failure:?}"),
                    None => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), removal).await.expect("the owed removal is done");
    }

    /// Asserts that an engine event reports the death of a container: no other check runs.
    async fn a_death_is_reported(&self, containers: &Containers, promised: &[Account]) {
        let chat = &promised.first().expect("a sandbox").chat;
        let sandbox = self.service.get(chat).await.expect("promised");
        containers.kill(id_of(&sandbox)).await;
        eventually("its exit is reported", || async {
            let sandbox = self.service.get(chat).await.expect("it is kept");
            (sandbox["status"] == "failed").then_some(())
        })
        .await;
    }
}

/// Counts the successful reconciliations after a gap in the engine's events.
fn passes_after_a_gap(service: &Daemon) -> usize {
    let is_pass = |line: &&str| line.contains("\"reconciled\"") && line.contains("\"gap\"");
    service.log().lines().filter(is_pass).count()
}
