//! The service is killed before and after everything it does to the world, started again, and must have kept its word:
//! what was acknowledged is there, with its session and its deadlines, what was not is gone or there once, nothing is
//! left over, and nothing of anybody else's was touched.
//!
//! A use case is first recorded and then killed at every passage of the recording, so that no boundary is forgotten,
//! also none that is added later. Which writes share a commit varies a little, and so does how often the engine is
//! looked at, so a passage may be missed now and then; what a use case is made of may not.

mod cell;
mod use_case;

use std::collections::BTreeSet;

use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::installation::Installation;
use crate::pool::can_be_bound;
use cell::{End, run};
use use_case::UseCase;

/// Of all use cases together: more at once only make the engine slower.
static TURNS: Semaphore = Semaphore::const_new(4);

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_is_killed_is_there_as_promised_or_not_at_all() {
    killed_everywhere(UseCase::Create, &["directories.prepare", "engine.create", "engine.start", "journal.commit"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_killed_leaves_a_free_slot_a_sandbox_or_nothing() {
    if !can_be_bound() {
        return;
    }
    let effects = ["slots.take", "engine.image_id", "slots.bind", "slots.remember", "journal.commit"];
    killed_everywhere(UseCase::Claim, &effects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_that_is_killed_leaves_one_sandbox_or_none() {
    let effects = ["engine.stop", "engine.remove", "engine.create", "engine.start", "journal.commit"];
    killed_everywhere(UseCase::Replace, &effects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_is_killed_counts_if_it_was_answered() {
    killed_everywhere(UseCase::Renew, &["journal.commit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_is_killed_loses_nothing_and_is_seen_if_the_engine_has_done_it() {
    killed_everywhere(UseCase::Pause, &["engine.pause", "journal.commit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_that_is_killed_has_not_begun_or_is_finished_by_the_next_service() {
    killed_everywhere(UseCase::Delete, &["engine.stop", "engine.remove", "journal.commit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_that_is_killed_is_finished_by_the_next_service() {
    killed_everywhere(UseCase::Expire, &["engine.stop", "engine.remove", "journal.commit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_that_keeps_the_container_is_finished_by_the_next_service_too() {
    killed_everywhere(UseCase::Rest, &["engine.stop", "journal.commit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_killed_loses_nothing_and_is_there_if_it_was_answered() {
    killed_everywhere(UseCase::Snapshot, &["engine.commit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_with_a_snapshot_that_is_killed_leaves_the_sandbox_or_the_snapshot() {
    let effects = ["engine.commit", "engine.stop", "engine.remove", "journal.commit"];
    killed_everywhere(UseCase::DeleteKeeping, &effects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_with_a_snapshot_that_is_killed_leaves_the_sandbox_or_the_snapshot() {
    let effects = ["engine.commit", "engine.stop", "engine.remove", "journal.commit"];
    killed_everywhere(UseCase::ExpireKeeping, &effects).await;
}

#[tokio::test]
async fn a_boundary_that_does_not_exist_is_refused() {
    let installation = Installation::new("").with_variable("SANDBOXD_CRASH_AT", "after engine.explode");
    let refused = installation.sandboxd_output(&[]).await;
    assert_eq!(refused.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert!(complaint.contains("no boundary \"after engine.explode\""), "{complaint}");
}

/// `effects` are what the use case is made of; it may do more.
async fn killed_everywhere(use_case: UseCase, effects: &[&str]) {
    let others = Installation::new("");
    let others = others.containers().await.create_foreign(&format!("sandboxd-{}", others.name())).await;
    let expected: Vec<_> =
        effects.iter().flat_map(|effect| [format!("before {effect}"), format!("after {effect}")]).collect();
    let missing_from = |passages: &[String]| -> Vec<_> {
        expected.iter().filter(|boundary| !boundaries(passages).contains(boundary.as_str())).cloned().collect()
    };

    let recorded = run(use_case, End::Recorded).await.passed;
    assert_eq!(missing_from(&recorded), Vec::<String>::new(), "not in {recorded:#?}");
    let ends: Vec<_> = recorded.into_iter().map(End::At).chain([End::Answered]).collect();
    let moments = ends.len();
    // Each as a task of its own, so that one that fails does not keep the others from being looked at.
    let cells = ends.into_iter().map(|end| async move {
        let _turn = TURNS.acquire().await.expect("never closed");
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

/// The passages' names, without how often.
fn boundaries(passages: &[String]) -> BTreeSet<&str> {
    passages.iter().map(|passage| passage.split('#').next().unwrap_or(passage)).collect()
}
