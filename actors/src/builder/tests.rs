use std::collections::BTreeMap;

use super::*;
use crate::builder::repository_image::Failure;
use crate::ports::clock::SystemClock;
use crate::ports::images::fake::{FakeImages, FakeSources};
use crate::sandboxes::ask;

struct Bench {
    images: FakeImages,
    sources: FakeSources,
    builder: ActorRef<Message>,
}

fn repository(every: Duration) -> Repository {
    Repository {
        name: "app".into(),
        url: "/srv/app.git".into(),
        branch: "main".into(),
        submodules: false,
        base: "base:1".into(),
        tag: "app:latest".into(),
        directory: "/app".into(),
        install: vec!["make install".into()],
        build: vec![],
        warm_up: vec![],
        every,
        stale_after: Duration::from_secs(3600),
        timeout: Duration::from_secs(10),
    }
}

impl Bench {
    async fn new(repositories: impl IntoIterator<Item = Repository>) -> Self {
        let (images, sources) = (FakeImages::new(), FakeSources::at("c1"));
        images.add("base:1", BTreeMap::new());
        let seconds = Duration::from_secs;
        let setup = BuilderSetup {
            instance: "one".parse().unwrap(),
            images: Arc::new(images.clone()),
            sources: Arc::new(sources.clone()),
            clock: Arc::new(SystemClock),
            repositories: repositories.into_iter().map(|it| (it.name.clone(), Arc::new(it))).collect(),
            profiles: BTreeMap::from([("default".to_owned(), "base:1".to_owned())]),
            limits: BuilderLimits { pull: seconds(10), build: seconds(10), ask: seconds(10), builds_at_once: 1 },
            collection: CollectionSettings {
                interval: seconds(3600),
                watermarks: Watermarks { high: 85.0, low: 75.0 },
                all: false,
            },
        };
        let (builder, _) = Actor::spawn(None, Builder, Arc::new(setup)).await.unwrap();
        Self { images, sources, builder }
    }

    async fn pull(&self, image: &str) -> Follower {
        ask(&self.builder, |follower| Message::Pull { image: image.into(), follower }).await.unwrap()
    }

    async fn refresh(&self, force: bool) -> Outcome {
        let message = |follower| Message::Refresh { repository: "app".into(), force, follower };
        ask(&self.builder, message).await.unwrap().unwrap().outcome().await
    }

    async fn list(&self) -> Listing {
        ask(&self.builder, |listing| Message::List { listing }).await.unwrap().unwrap()
    }

    async fn prune(&self, dry_run: bool) -> Pruned {
        ask(&self.builder, |pruned| Message::Prune { dry_run, pruned }).await.unwrap().unwrap()
    }
}

/// An interval that does not pass again within a test.
const RARELY: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn one_pull_serves_all_followers_and_outlives_the_first_of_them() {
    let bench = Bench::new([]).await;
    bench.images.close();
    let first = bench.pull("x:1").await;
    let (mut second, mut third) = (bench.pull("x:1").await, bench.pull("x:1").await);
    drop(first);
    bench.images.open();
    for follower in [&mut second, &mut third] {
        assert_eq!(follower.next().await.expect("progress").message, "Downloading");
        assert_eq!(follower.next().await, None);
    }
    let (second, third) = (second.outcome().await.unwrap(), third.outcome().await.unwrap());
    assert_eq!(second, third);
    assert_eq!(bench.images.pulls(), ["x:1"]);
    bench.pull("x:1").await.outcome().await.unwrap();
    assert_eq!(bench.images.pulls().len(), 2, "one that has ended is not joined");
}

#[tokio::test]
async fn a_repository_is_built_at_once_and_again_only_when_it_has_moved() {
    let bench = Bench::new([repository(RARELY)]).await;
    let first = bench.refresh(false).await.unwrap();
    assert_eq!(first.commit.as_deref(), Some("c1"));
    let again = bench.refresh(false).await.unwrap();
    assert_eq!((again.changed, &again.id), (false, &first.id));
    bench.sources.move_to(Some("c2"));
    let moved = bench.refresh(false).await.unwrap();
    assert_eq!((moved.changed, moved.commit.as_deref()), (true, Some("c2")));
    assert!(bench.refresh(true).await.unwrap().changed, "asked for in any case");
    assert_eq!(bench.images.builds().len(), 3);
}

#[tokio::test]
async fn the_schedule_notices_that_a_branch_has_moved() {
    let bench = Bench::new([repository(Duration::from_millis(1))]).await;
    bench.refresh(false).await.unwrap();
    bench.sources.move_to(Some("c2"));
    let seen = async {
        while bench.images.builds().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), seen).await.expect("it is built without being asked for");
}

#[tokio::test]
async fn a_build_that_fails_leaves_the_last_image_and_says_why() {
    let bench = Bench::new([repository(RARELY)]).await;
    let good = bench.refresh(false).await.unwrap();
    let failure = ImageError::BuildFailed {
        tag: "app:latest".into(),
        step: Some("Step 4/4 : RUN make".into()),
        reason: "exit code 2".into(),
        log_tail: vec![],
    };
    bench.images.fail(Some(failure.clone()));
    bench.sources.move_to(Some("c2"));
    assert_eq!(bench.refresh(false).await, Err(failure.clone()));
    let status = bench.list().await.repositories.remove(0);
    let (id, origin) = status.image.expect("the last one");
    assert_eq!((id, origin.source.unwrap().commit), (good.id, "c1".to_owned()));
    assert_eq!(status.state.head.as_deref(), Some("c2"));
    assert!(matches!(status.state.failure, Some(Failure { error, .. }) if error == failure));
    bench.images.fail(None);
    bench.refresh(false).await.unwrap();
    assert_eq!(bench.list().await.repositories[0].state.failure, None);
}

#[tokio::test]
async fn pruning_removes_replaced_images_and_keeps_needed_ones() {
    let bench = Bench::new([repository(RARELY)]).await;
    let old = bench.refresh(false).await.unwrap();
    let kept = bench.refresh(true).await.unwrap();
    let request = BuildRequest {
        tag: "mine:1".into(),
        directory: "/context".into(),
        dockerfile: "Dockerfile".into(),
        arguments: BTreeMap::new(),
    };
    let build = |follower| Message::Build { request: Box::new(request), follower };
    let used = ask(&bench.builder, build).await.unwrap().outcome().await.unwrap();
    bench.images.use_image(&used.id);
    let ids = |pruned: &Pruned| pruned.images.iter().map(|image| image.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&bench.prune(true).await), std::slice::from_ref(&old.id));
    assert!(bench.images.ids().contains(&old.id), "a dry run removes no image");
    assert_eq!(ids(&bench.prune(false).await), std::slice::from_ref(&old.id));
    assert!(bench.images.ids().contains(&kept.id) && bench.images.ids().contains(&used.id));
    assert!(!bench.images.ids().contains(&old.id));
}

#[tokio::test]
async fn an_unconfigured_repository_is_refused() {
    let bench = Bench::new([]).await;
    let message = |follower| Message::Refresh { repository: "app".into(), force: false, follower };
    let refused = ask(&bench.builder, message).await.unwrap().map(drop);
    assert_eq!(refused, Err(ImageError::NoSuchRepository { repository: "app".into() }));
}
