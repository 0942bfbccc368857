//! Tests that kill the service before and after each of its effects, and start it again. Acknowledged sandboxes exist
//! with their sessions and deadlines. Unacknowledged ones are gone or exist once. No resource is left over, and foreign
//! containers are untouched.
//!
//! A use case is first recorded, and then killed at every recorded crash point. So each crash point is covered, also
//! one that is added later. The writes that share a commit and the number of engine calls vary a little, so a run may
//! miss a crash point; it must not miss one of the use case's own effects.

mod cell;
mod use_case;

use std::collections::BTreeSet;

use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::installation::Installation;
use crate::pool::can_be_bound;
use cell::{End, run};
use use_case::UseCase;

/// Limits the parallel runs of all use cases: more would only slow the engine down.
static PARALLEL_RUNS: Semaphore = Semaphore::const_new(4);

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_is_killed_is_there_as_promised_or_not_at_all() {
    kill_at_every_crash_point(
        UseCase::Create,
        &["directories.prepare", "engine.create", "engine.start", "journal.commit"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_killed_leaves_at_most_a_free_slot_or_a_sandbox() {
    if !can_be_bound() {
        return;
    }
    let effects = ["slots.take", "engine.image_id", "slots.bind", "slots.remember", "journal.commit"];
    kill_at_every_crash_point(UseCase::Claim, &effects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_that_is_killed_leaves_one_sandbox_or_none() {
    let effects = ["engine.stop", "engine.remove", "engine.create", "engine.start", "journal.commit"];
    kill_at_every_crash_point(UseCase::Replace, &effects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_is_killed_counts_if_it_was_answered() {
    kill_at_every_crash_point(UseCase::Renew, &["journal.commit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_is_killed_loses_no_sandbox_and_shows_the_engines_state() {
    kill_at_every_crash_point(UseCase::Pause, &["engine.pause", "journal.commit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_that_is_killed_has_not_begun_or_is_finished_by_the_next_service() {
    kill_at_every_crash_point(UseCase::Delete, &["engine.stop", "engine.remove", "journal.commit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_that_is_killed_is_finished_by_the_next_service() {
    kill_at_every_crash_point(UseCase::Expire, &["engine.stop", "engine.remove", "journal.commit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_that_keeps_the_container_is_finished_by_the_next_service_too() {
    kill_at_every_crash_point(UseCase::ExpireStopping, &["engine.stop", "journal.commit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_killed_loses_no_sandbox_and_exists_if_it_was_answered() {
    kill_at_every_crash_point(UseCase::Snapshot, &["engine.commit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_with_a_snapshot_that_is_killed_leaves_the_sandbox_or_the_snapshot() {
    let effects = ["engine.commit", "engine.stop", "engine.remove", "journal.commit"];
    kill_at_every_crash_point(UseCase::DeleteWithSnapshot, &effects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_with_a_snapshot_that_is_killed_leaves_the_sandbox_or_the_snapshot() {
    let effects = ["engine.commit", "engine.stop", "engine.remove", "journal.commit"];
    kill_at_every_crash_point(UseCase::ExpireWithSnapshot, &effects).await;
}

#[tokio::test]
async fn a_crash_point_that_does_not_exist_is_refused() {
    let installation = Installation::new("").with_variable("SANDBOXD_CRASH_AT", "after engine.explode");
    let refused = installation.sandboxd_output(&[]).await;
    assert_eq!(refused.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(errors.contains("no boundary \"after engine.explode\""), "{errors}");
}

/// `effects` are the required effects of the use case; it may have more.
async fn kill_at_every_crash_point(use_case: UseCase, effects: &[&str]) {
    let others = Installation::new("");
    let others = others.containers().await.create_foreign(&format!("sandboxd-{}", others.name())).await;
    let expected: Vec<_> =
        effects.iter().flat_map(|effect| [format!("before {effect}"), format!("after {effect}")]).collect();
    let missing_from = |crash_points: &[String]| -> Vec<_> {
        expected.iter().filter(|crash_point| !names(crash_points).contains(crash_point.as_str())).cloned().collect()
    };

    let recorded = run(use_case, End::Recorded).await.crash_points;
    assert_eq!(missing_from(&recorded), Vec::<String>::new(), "not in {recorded:#?}");
    let ends: Vec<_> = recorded.into_iter().map(End::At).chain([End::Answered]).collect();
    let moments = ends.len();
    // Each run is a task of its own, so that a failure does not end the others.
    let cells = ends.into_iter().map(|end| async move {
        let _permit = PARALLEL_RUNS.acquire().await.expect("never closed");
        let name = end.to_string();
        (name, tokio::spawn(run(use_case, end)).await)
    });
    let (mut failed, mut reached) = (Vec::new(), Vec::new());
    for (name, report) in join_all(cells).await {
        match report {
            Err(_) => failed.push(name),
            Ok(report) if report.killed => reached.push(name),
            Ok(_) => {}
        }
    }
    assert!(failed.is_empty(), "{use_case:?}, killed: {failed:#?}");
    assert_eq!(missing_from(&reached), Vec::<String>::new(), "killed only at {reached:#?}");
    println!("{use_case:?}: killed at {} of {moments} moments", reached.len());
    assert!(others.is_running().await);
}

/// Returns the crash points' names without their counters.
fn names(crash_points: &[String]) -> BTreeSet<&str> {
    crash_points.iter().map(|crash_point| crash_point.split('#').next().unwrap_or(crash_point)).collect()
}
