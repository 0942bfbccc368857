//! Tests of the watchdog, which depends on real progress: notifications stop when root, reaper or journal blocks, and
//! only then.

#[path = "support/in_process.rs"]
mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use sandboxd::systemd;
use sandboxd_actors::journal::memory::Fault;
use support::{PATIENCE, Service, chat};

const LIMIT: Duration = Duration::from_millis(400);

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_root_starves_the_watchdog() {
    let _alone = recorder().alone.lock().await;
    let service = Service::start().await;
    let watchdog = Watchdog::of(&service);
    watchdog.is_fed().await;
    // Root itself counts this, for a chat without an actor.
    let blockade = recorder().block_at("sandboxd_delete_total");
    let sandboxes = service.sandboxes.clone();
    let delete = tokio::spawn(async move { sandboxes.delete(chat().parse().expect("an id")).await });
    blockade.until_blocking().await;
    watchdog.starves().await;
    let stuck = service.sandboxes.stuck(LIMIT).await;
    blockade.end();
    assert_eq!(stuck, ["root"]);
    delete.await.expect("no panic").expect("an answer");
    watchdog.is_fed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_reaper_starves_the_watchdog() {
    let _alone = recorder().alone.lock().await;
    let service = Service::start().await;
    let watchdog = Watchdog::of(&service);
    watchdog.is_fed().await;
    // The reaper sets this in every pass.
    let blockade = recorder().block_at("sandboxd_deadlines");
    blockade.until_blocking().await;
    watchdog.starves().await;
    let stuck = service.sandboxes.stuck(LIMIT).await;
    blockade.end();
    assert_eq!(stuck, ["reaper"]);
    watchdog.is_fed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_journal_starves_the_watchdog() {
    let _alone = recorder().alone.lock().await;
    let service = Service::start().await;
    let watchdog = Watchdog::of(&service);
    watchdog.is_fed().await;
    let (commits, gate) = (service.journal.commits(), service.journal.hold_next());
    let mut caller = service.connect().await;
    caller.send(service.create(1, &chat())).await;
    until(|| service.journal.commits() > commits).await;
    watchdog.starves().await;
    assert_eq!(service.sandboxes.stuck(LIMIT).await, ["journal"]);
    gate.open();
    assert_eq!(caller.answer().await["result"]["status"], "running");
    watchdog.is_fed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_does_not_starve_the_watchdog() {
    let _alone = recorder().alone.lock().await;
    let service = Service::start().await;
    let mut caller = service.connect().await;
    service.journal.fail_always(Fault::full());
    let refused = caller.ask(service.create(1, &chat())).await;
    assert_eq!(support::kind(&refused), "journal_unavailable");
    assert_eq!(service.sandboxes.stuck(PATIENCE).await, Vec::<&str>::new());
}

/// A counter of the notifications to systemd.
struct Watchdog {
    fed: Arc<AtomicU64>,
    watch: tokio::task::JoinHandle<std::convert::Infallible>,
}

impl Watchdog {
    fn of(service: &Service) -> Self {
        let fed = Arc::<AtomicU64>::default();
        let count = Arc::clone(&fed);
        let feed = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        Self { fed, watch: tokio::spawn(systemd::watch_progress(service.sandboxes.clone(), LIMIT, feed)) }
    }

    async fn is_fed(&self) {
        let before = self.fed.load(Ordering::Relaxed);
        until(|| self.fed.load(Ordering::Relaxed) > before).await;
    }

    /// Waits until the notifications have stopped for longer than any watchdog waits. One check may still have been in
    /// flight.
    async fn starves(&self) {
        let silence = async {
            loop {
                let before = self.fed.load(Ordering::Relaxed);
                tokio::time::sleep(LIMIT * 3).await;
                if self.fed.load(Ordering::Relaxed) == before {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, silence).await.expect("the watchdog is fed despite the blockade");
        assert!(!self.watch.is_finished());
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

async fn until(mut condition: impl FnMut() -> bool) {
    let asking = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("in time");
}

/// Blocks every thread that passes, until it ends.
#[derive(Debug, Clone, Default)]
struct Blockade(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    on: bool,
    held: u32,
}

impl Blockade {
    fn begin(&self) {
        self.0.0.lock().expect("no panic").on = true;
    }

    fn end(&self) {
        self.0.0.lock().expect("no panic").on = false;
        self.0.1.notify_all();
    }

    /// Waits until a thread is blocked.
    async fn until_blocking(&self) {
        until(|| self.0.0.lock().expect("no panic").held > 0).await;
    }

    /// Blocks one actor and not the other tasks of its worker thread. Blocking these would be detected as well, but
    /// would prove less.
    fn pass(&self) {
        tokio::task::block_in_place(|| {
            let mut state = self.0.0.lock().expect("no panic");
            state.held += 1;
            state = self.0.1.wait_while(state, |state| state.on).expect("no panic");
            state.held -= 1;
        });
    }
}

/// The process's metrics recorder. Actors call it during their work, so it can block them there.
struct BlockingRecorder {
    at: Mutex<Option<(&'static str, Blockade)>>,
    /// Held by the only test that may block actors.
    alone: tokio::sync::Mutex<()>,
}

fn recorder() -> &'static BlockingRecorder {
    static RECORDER: OnceLock<&'static BlockingRecorder> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let recorder: &'static BlockingRecorder =
            Box::leak(Box::new(BlockingRecorder { at: Mutex::default(), alone: tokio::sync::Mutex::default() }));
        metrics::set_global_recorder(recorder).expect("the first one");
        recorder
    })
}

impl BlockingRecorder {
    fn block_at(&self, metric: &'static str) -> Blockade {
        let blockade = Blockade::default();
        blockade.begin();
        *self.at.lock().expect("no panic") = Some((metric, blockade.clone()));
        blockade
    }

    fn pass(&self, key: &Key) {
        let at = self.at.lock().expect("no panic").clone();
        if let Some((metric, blockade)) = at
            && metric == key.name()
        {
            blockade.pass();
        }
    }
}

impl Recorder for BlockingRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.pass(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.pass(key);
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
