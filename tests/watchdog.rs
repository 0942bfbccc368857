//! The watchdog is fed by real progress: it starves as soon as root, reaper or journal stands still, and only then.

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
async fn a_root_that_stands_still_starves_the_watchdog() {
    let _alone = measures().alone.lock().await;
    let service = Service::start().await;
    let watchdog = Watchdog::of(&service);
    watchdog.is_fed().await;
    // Counted by root itself, for a chat that has no actor.
    let standstill = measures().stop_at("sandboxd_delete_total");
    let sandboxes = service.sandboxes.clone();
    let delete = tokio::spawn(async move { sandboxes.delete(chat().parse().expect("an id")).await });
    standstill.has_begun().await;
    watchdog.starves().await;
    assert_eq!(service.sandboxes.stuck(LIMIT).await, ["root", "reaper"], "nothing gets past root");
    standstill.end();
    delete.await.expect("no panic").expect("an answer");
    watchdog.is_fed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reaper_that_stands_still_starves_the_watchdog() {
    let _alone = measures().alone.lock().await;
    let service = Service::start().await;
    let watchdog = Watchdog::of(&service);
    watchdog.is_fed().await;
    // Set by the reaper in each of its passes.
    let standstill = measures().stop_at("sandboxd_deadlines");
    standstill.has_begun().await;
    watchdog.starves().await;
    assert_eq!(service.sandboxes.stuck(LIMIT).await, ["reaper"]);
    standstill.end();
    watchdog.is_fed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_stands_still_starves_the_watchdog() {
    let _alone = measures().alone.lock().await;
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
async fn a_full_disk_is_no_standstill() {
    let _alone = measures().alone.lock().await;
    let service = Service::start().await;
    let mut caller = service.connect().await;
    service.journal.fail_always(Fault::full());
    let refused = caller.ask(service.create(1, &chat())).await;
    assert_eq!(support::kind(&refused), "journal_unavailable");
    assert_eq!(service.sandboxes.stuck(PATIENCE).await, Vec::<&str>::new());
}

/// What systemd would be told.
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

    /// One look may have been under way. After that, it is not fed for longer than any watchdog would wait.
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
        tokio::time::timeout(PATIENCE, silence).await.expect("the watchdog is fed in spite of the standstill");
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

/// Holds up whoever comes by, until it ends.
#[derive(Debug, Clone, Default)]
struct Standstill(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    on: bool,
    held: u32,
}

impl Standstill {
    fn begin(&self) {
        self.0.0.lock().expect("no panic").on = true;
    }

    fn end(&self) {
        self.0.0.lock().expect("no panic").on = false;
        self.0.1.notify_all();
    }

    /// Somebody is held up.
    async fn has_begun(&self) {
        until(|| self.0.0.lock().expect("no panic").held > 0).await;
    }

    /// Holds up an actor and not what happens to share its worker: that would be seen, too, but would prove less.
    fn pass(&self) {
        tokio::task::block_in_place(|| {
            let mut state = self.0.0.lock().expect("no panic");
            state.held += 1;
            state = self.0.1.wait_while(state, |state| state.on).expect("no panic");
            state.held -= 1;
        });
    }
}

/// The process has one recorder of metrics. Actors call it in the middle of their work, so that is where one can be
/// held up.
struct Measures {
    at: Mutex<Option<(&'static str, Standstill)>>,
    /// Whoever holds others up does so alone.
    alone: tokio::sync::Mutex<()>,
}

fn measures() -> &'static Measures {
    static MEASURES: OnceLock<&'static Measures> = OnceLock::new();
    MEASURES.get_or_init(|| {
        let measures: &'static Measures =
            Box::leak(Box::new(Measures { at: Mutex::default(), alone: tokio::sync::Mutex::default() }));
        metrics::set_global_recorder(measures).expect("the first one");
        measures
    })
}

impl Measures {
    fn stop_at(&self, metric: &'static str) -> Standstill {
        let standstill = Standstill::default();
        standstill.begin();
        *self.at.lock().expect("no panic") = Some((metric, standstill.clone()));
        standstill
    }

    fn pass(&self, key: &Key) {
        let at = self.at.lock().expect("no panic").clone();
        if let Some((metric, standstill)) = at
            && metric == key.name()
        {
            standstill.pass();
        }
    }
}

impl Recorder for Measures {
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
