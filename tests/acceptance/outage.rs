//! The engine goes away under load, and comes back: meanwhile errors in time, and afterwards everything as promised, by
//! the same run of the service. A real `dockerd` is stopped, killed and frozen.

mod load;

use std::time::Duration;

use serde_json::{Value, json};

use crate::containers::{Containers, id_of};
use crate::daemon::Daemon;
use crate::engine::eventually;
use crate::installation::Installation;
use crate::private_dockerd::PrivateDockerd;
use load::{Account, Load};

/// Nothing is found by a look that is made from time to time, and nobody waits for a turn at the engine.
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

/// What a caller of an engine that is gone may wait: it is refused at once, on a busy machine somewhat later.
const AT_ONCE: Duration = Duration::from_secs(5);
/// What a caller of an engine that is silent may wait: until the creation is given up, and then its removal.
const GIVEN_UP: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_stopped_and_started_again_has_lost_nothing() {
    let Some(mut trial) = Trial::start(true).await else { return };
    trial.engine.terminate().await;
    trial.nothing_works_but_what_needs_no_engine(AT_ONCE).await;
    trial.engine.start_again().await;
    let accounts = trial.works_again().await;
    trial.reconciled_after_the_gap().await;
    trial.everything_is_as_promised(accounts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_killed_and_started_again_has_lost_nothing() {
    let Some(mut trial) = Trial::start(true).await else { return };
    trial.engine.kill().await;
    trial.nothing_works_but_what_needs_no_engine(AT_ONCE).await;
    trial.engine.start_again().await;
    let accounts = trial.works_again().await;
    trial.reconciled_after_the_gap().await;
    trial.everything_is_as_promised(accounts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_frozen_and_thaws_has_lost_nothing() {
    let Some(mut trial) = Trial::start(true).await else { return };
    let frozen = trial.engine.freeze();
    trial.nothing_works_but_what_needs_no_engine(GIVEN_UP).await;
    drop(frozen);
    let accounts = trial.works_again().await;
    trial.everything_is_as_promised(accounts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_that_end_with_a_stopped_engine_have_failed_and_can_be_replaced() {
    let Some(mut trial) = Trial::start(false).await else { return };
    trial.engine.terminate().await;
    trial.nothing_works_but_what_needs_no_engine(AT_ONCE).await;
    let accounts = trial.load.end().await;
    trial.engine.start_again().await;
    trial.reconciled_after_the_gap().await;
    trial.what_was_promised_has_failed(accounts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_that_end_with_a_killed_engine_have_failed_and_can_be_replaced() {
    let Some(mut trial) = Trial::start(false).await else { return };
    trial.engine.kill().await;
    trial.nothing_works_but_what_needs_no_engine(AT_ONCE).await;
    let accounts = trial.load.end().await;
    trial.engine.start_again().await;
    trial.reconciled_after_the_gap().await;
    trial.what_was_promised_has_failed(accounts).await;
}

/// A service under load on an engine of its own.
struct Trial {
    load: Load,
    service: Daemon,
    passes_before: usize,
    /// After the service, which removes its containers.
    engine: PrivateDockerd,
}

impl Trial {
    /// Under way: sandboxes were created, reused and deleted. Only root can have such an engine.
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

    async fn nothing_works_but_what_needs_no_engine(&mut self, limit: Duration) {
        let before = self.load.seen();
        self.load.needs_no_longer_than(limit);
        self.load
            .until("requests are refused, and answered", |seen| {
                seen.refused_creates >= before.refused_creates + 4
                    && seen.refused_deletes >= before.refused_deletes + 2
                    && seen.unaffected >= before.unaffected + 20
            })
            .await;
        // It may come back from now on, and a busy engine takes its time.
        self.load.needs_as_long_as_it_takes();
        let health = self.service.call("system.health", json!({})).await.expect("answered");
        assert_eq!((&health["status"], &health["engine"]["reachable"]), (&json!("degraded"), &json!(false)));
    }

    /// Ends the load once the engine has done all that it is asked for again.
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

    async fn everything_is_as_promised(&self, accounts: Vec<Account>) {
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
        self.only_what_is_promised_is_left(&containers, &gone).await;
        self.a_death_is_told(&containers, &promised).await;
    }

    async fn what_was_promised_has_failed(&self, accounts: Vec<Account>) {
        let containers = self.service.containers().await;
        let (promised, gone): (Vec<_>, Vec<_>) = accounts.into_iter().partition(|account| account.session.is_some());
        for account in &promised {
            let failed = eventually("its end is found", || async {
                let sandbox = self.service.get(&account.chat).await.expect("not forgotten");
                assert_eq!(Some(&sandbox["session_id"]), account.session.as_ref());
                (sandbox["status"] == "failed").then_some(sandbox)
            })
            .await;
            assert!(!containers.is_running(id_of(&failed)).await);
        }
        self.only_what_is_promised_is_left(&containers, &gone).await;
        let (deleted, replaced) = promised.split_first().expect("a sandbox");
        assert_eq!(self.service.delete(&deleted.chat).await.expect("deleted")["result"], "deleted");
        for account in replaced {
            assert_eq!(self.service.created(&account.chat).await["outcome"], "replaced");
        }
        assert_eq!(containers.count().await, replaced.len());
        self.a_death_is_told(&containers, replaced).await;
    }

    /// What is owed is done without being asked for, and what the service knows of is all there is.
    async fn only_what_is_promised_is_left(&self, containers: &Containers, gone: &[Account]) {
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

    /// Tries of a removal that is owed are up to half a minute apart by now.
    async fn eventually_gone(&self, account: &Account) {
        let gone = || async { self.service.get(&account.chat).await.err() };
        let forgotten = async {
            loop {
                match gone().await {
                    Some(failure) => return assert_eq!(failure.data.kind, "sandbox_not_found", "{failure:?}"),
                    None => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), forgotten).await.expect("what is owed is removed");
    }

    /// Nobody looks: that a container has ended can only be known from an event.
    async fn a_death_is_told(&self, containers: &Containers, promised: &[Account]) {
        let chat = &promised.first().expect("a sandbox").chat;
        let sandbox = self.service.get(chat).await.expect("promised");
        containers.kill(id_of(&sandbox)).await;
        eventually("its end is told", || async {
            let sandbox = self.service.get(chat).await.expect("it is kept");
            (sandbox["status"] == "failed").then_some(())
        })
        .await;
    }
}

/// Passes that were made, and succeeded, because events may have been missed.
fn passes_after_a_gap(service: &Daemon) -> usize {
    let is_pass = |line: &&str| line.contains("\"reconciled\"") && line.contains("\"gap\"");
    service.log().lines().filter(is_pass).count()
}
