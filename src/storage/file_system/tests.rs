use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use super::*;

const SHORT: Duration = Duration::from_millis(100);

fn in_place(place: &Path, limit: Duration) -> FileSystem {
    FileSystem::with_limit(&place.join("state"), &place.join("chats"), limit).unwrap()
}

/// Returns a call that hangs until the sender is dropped.
fn hangs() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
    let (release, released) = mpsc::channel::<()>();
    (release, move || {
        let _ = released.recv();
    })
}

#[tokio::test]
async fn an_overdue_call_costs_its_caller_and_not_the_other_lane() {
    let place = tempfile::tempdir().unwrap();
    let files = in_place(place.path(), SHORT);
    let mut releases = Vec::new();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..3 * OWN_CALLS {
        let (release, call) = hangs();
        releases.push(release);
        let files = files.clone();
        calls.spawn(async move { files.own(Own::Chats, call).await });
    }
    while let Some(outcome) = calls.join_next().await {
        assert_eq!(outcome.unwrap(), Err(Unavailable::TimedOut(SHORT)));
    }
    assert!(matches!(files.own(Own::Chats, || ()).await, Err(Unavailable::Hung { .. })));
    assert_eq!(files.own(Own::State, || 7).await, Ok(7));
    releases.clear();
    while files.own(Own::Chats, || ()).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_a_call_that_counts() {
    let place = tempfile::tempdir().unwrap();
    let files = in_place(place.path(), SHORT);
    let mut releases = Vec::new();
    for _ in 0..OWN_CALLS {
        let (release, call) = hangs();
        releases.push(release);
        let gone = tokio::time::timeout(Duration::from_millis(1), files.own(Own::State, call)).await;
        assert!(gone.is_err());
    }
    while !matches!(files.own(Own::State, || ()).await, Err(Unavailable::Hung { .. })) {}
}

#[tokio::test]
async fn a_worker_that_panics_fails_its_own_call() {
    let place = tempfile::tempdir().unwrap();
    let files = in_place(place.path(), LIMIT);
    assert_eq!(files.own(Own::State, || panic!("for the test")).await, Err::<(), _>(Unavailable::Failed));
    assert_eq!(files.own(Own::State, || 7).await, Ok(7));
}

#[tokio::test]
async fn the_pool_ends_while_a_call_hangs() {
    let place = tempfile::tempdir().unwrap();
    let files = in_place(place.path(), SHORT);
    let (_release, call) = hangs();
    assert_eq!(files.own(Own::State, call).await, Err(Unavailable::TimedOut(SHORT)));
    drop(files);
}

#[tokio::test]
async fn a_walk_ends_where_the_kernel_would() {
    let place = tempfile::tempdir().unwrap();
    let top = place.path().canonicalize().unwrap();
    fs::create_dir_all(top.join("a/b/c")).unwrap();
    fs::write(top.join("a/file"), "").unwrap();
    symlink("b/../b", top.join("a/relative")).unwrap();
    symlink(top.join("a/b"), top.join("absolute")).unwrap();
    symlink("loop", top.join("loop")).unwrap();
    symlink("/proc", top.join("crossing")).unwrap();
    let files = in_place(&top, LIMIT);
    for path in [
        "a/b/c",
        "a/./b//c/",
        "a/relative/c",
        "absolute/c",
        "a/../absolute/c/../c",
        "crossing",
        "crossing/../proc",
        "/",
        "/proc/sys",
        "a/file",
        "a/file/x",
        "a/none",
        "none/deeper",
        "loop",
    ] {
        let path = top.join(path);
        let opened = files.open(&path, Links::Follow).await;
        match path.canonicalize() {
            Ok(canonical) if canonical.is_dir() => assert_eq!(opened.unwrap().path, canonical),
            _ => assert!(matches!(opened, Err(OpenError::Failed { .. })), "{path:?}: {opened:?}"),
        }
    }
    for path in ["absolute", "a/relative/c", "crossing"] {
        let refused = files.open(&top.join(path), Links::Refuse).await;
        assert!(matches!(refused, Err(OpenError::Failed { errno: Errno::LOOP, .. })), "{path}: {refused:?}");
    }
}

#[tokio::test]
async fn a_missing_path_is_named_with_its_links_resolved() {
    let place = tempfile::tempdir().unwrap();
    let top = place.path().canonicalize().unwrap();
    symlink("elsewhere/none", top.join("dangling")).unwrap();
    fs::create_dir(top.join("elsewhere")).unwrap();
    let files = in_place(&top, LIMIT);
    let missing = files.open(&top.join("dangling/x"), Links::Follow).await.unwrap_err();
    assert_eq!(missing, OpenError::Failed { path: top.join("elsewhere/none/x"), errno: Errno::NOENT });
}
