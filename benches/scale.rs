//! Measures very many sandboxes: memory per sandbox, the reaper's ticks, a start that adopts all of them, and requests
//! and reconciliation beside them.
//!
//! The core runs with a journal on disk and an engine in memory, in a process of its own. As many idle actors run in
//! another process. Both are this program in another role. Separate processes keep their kernel memory apart.

#[path = "support/crowd.rs"]
mod crowd;
#[path = "support/figures.rs"]
mod figures;
#[path = "support/idle_actors.rs"]
mod idle_actors;
#[path = "support/memory.rs"]
mod memory;
#[path = "support/processor.rs"]
mod processor;
#[path = "support/table.rs"]
mod table;
#[path = "support/ticks.rs"]
mod ticks;

use std::error::Error;
use std::future::Future;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{SubsecRound, Utc};
use crowd::Crowd;
use figures::Figures;
use futures_util::{StreamExt, TryStreamExt, stream};
use hdrhistogram::Histogram;
use idle_actors::IdleActors;
use memory::Memory;
use processor::{Moment, Time};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sandboxd_actors::chat::events::Lease;
use sandboxd_actors::domain::outcome::Deletion;
use sandboxd_actors::ports::clock::Timestamp;
use sandboxd_actors::ports::engine::Engine;
use sandboxd_actors::ports::engine::fake::FakeEngine;
use sandboxd_actors::reaper::deadlines::Deadlines;
use sandboxd_actors::reconciler::Trigger;
use sandboxd_actors::sandboxes::Sandboxes;
use table::whole;
use ticks::Ticks;
use tokio::task::JoinHandle;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PAGE: usize = 100;

/// The number of parallel requests where there are many.
const AT_ONCE: usize = 256;

#[derive(Clone, Copy)]
struct Pace {
    sandboxes: usize,
    /// Sandboxes created while the engine has no others: the engine in memory finds a name by a linear search.
    created: usize,
    rounds: usize,
    round: Duration,
}

impl Pace {
    /// `SANDBOXD_BENCH=quick` only checks that the benchmark runs.
    fn from_environment() -> Self {
        if std::env::var("SANDBOXD_BENCH").is_ok_and(|value| value == "quick") {
            Self { sandboxes: 2_000, created: 200, rounds: 2, round: Duration::from_millis(50) }
        } else {
            Self { sandboxes: 100_000, created: 5_000, rounds: 10, round: Duration::from_millis(300) }
        }
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let pace = Pace::from_environment();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["as-floor"] => print_figures(floor(pace)),
        ["as-service", directory, born_at] => {
            print_figures(service(pace, Crowd::new(pace.sandboxes, directory.as_ref(), born_at.parse()?)?))
        }
        _ => compare(pace),
    }
}

fn print_figures(figures: impl Future<Output = Outcome<Figures>> + Send + 'static) -> Outcome<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    // On one of the runtime's workers, like all work of a request.
    let figures = runtime.block_on(runtime.spawn(figures))??;
    println!("{}", serde_json::to_string(&figures)?);
    // The exit ends all remaining work.
    std::process::exit(0)
}

fn compare(pace: Pace) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let born_at: Timestamp = Utc::now().trunc_subsecs(0);
    Crowd::new(pace.sandboxes, directory.path(), born_at)?.record()?;
    let floor = figures_of(&["as-floor"])?;
    let place = directory.path().to_str().ok_or("a directory whose name is no text")?;
    let service = figures_of(&["as-service", place, &born_at.to_rfc3339()])?;
    let count = whole(pace.sandboxes as f64);

    println!("\nWith {count} sandboxes:\n");
    service.print_against(&floor);
    Ok(())
}

/// Runs this program in another role and returns its figures.
fn figures_of(role: &[&str]) -> Outcome<Figures> {
    let child = Command::new(std::env::current_exe()?).args(role).stderr(Stdio::inherit()).output()?;
    if !child.status.success() {
        return Err(format!("{role:?}: {}", child.status).into());
    }
    Ok(serde_json::from_slice(&child.stdout)?)
}

async fn floor(pace: Pace) -> Outcome<Figures> {
    let mut figures = Figures::default();
    let (before, began) = (Memory::now()?, Moment::now()?);
    let actors = IdleActors::start(pace.sandboxes).await?;
    figures.took("idle actors started", began.elapsed()?);
    for n in 0..pace.sandboxes {
        actors.call(n).await?;
    }
    figures.memory("idle actor", Memory::now()?.each_since(before, pace.sandboxes));
    Ok(figures)
}

async fn service(pace: Pace, crowd: Crowd) -> Outcome<Figures> {
    let mut figures = Figures::default();
    let ticks = Ticks::listen(nanoseconds()?).map_err(|error| error.to_string())?;
    let crowd = Arc::new(crowd);
    let empty = Memory::now()?;
    let engine = crowd.engine()?;
    let containers = Memory::now()?;

    let began = Moment::now()?;
    let sandboxes = crowd.start(&engine).await?;
    figures.took("start: journal read", began.elapsed()?);
    let report = sandboxes.reconcile(Trigger::Start, false).await?;
    assert_eq!(report.actions.len(), crowd.size, "every sandbox is adopted");
    drop(report);
    assert!(sandboxes.get(crowd.chat(0)).await?.is_some(), "it serves");
    figures.took("start: until it serves", began.elapsed()?);
    until_idle(&sandboxes).await;
    let serving = Memory::now()?;
    figures.memory("live sandbox", serving.each_since(containers, crowd.size));
    let extra = (Memory::take_most_heap() - serving.heap) / crowd.size as f64;
    figures.heap("more, while starting", extra);

    requests(&mut figures, pace, &crowd, &sandboxes).await?;
    let used = Memory::now()?;
    figures.memory("live sandbox, asked for", used.each_since(containers, crowd.size));
    for n in 0..crowd.size {
        assert!(sandboxes.get(crowd.chat(crowd.size + n)).await?.is_none(), "it has none");
    }
    figures.memory("chat that has none, asked for", Memory::now()?.each_since(used, crowd.size));

    ticks.take();
    tokio::time::sleep(pace.round * pace.rounds as u32).await;
    figures.spread("reaper's tick, none due", &ticks.take());
    deadlines(&mut figures, &crowd)?;

    Memory::take_most_heap();
    reconciliation(&mut figures, pace, &crowd, &sandboxes, &engine).await?;
    let extra = (Memory::take_most_heap() - used.heap) / crowd.size as f64;
    figures.heap("more, while reconciling", extra);
    leases(&mut figures, pace, &crowd, &sandboxes).await?;

    delete_all(&sandboxes, &crowd).await?;
    let deleted = Memory::now()?;
    figures.memory("chat whose sandbox was deleted", deleted.each_since(empty, crowd.size));

    // The engine's part of the memory is known by now.
    let engine_heap = containers.each_since(empty, crowd.size).0;
    create(&sandboxes, &crowd, pace.created).await?;
    let (heap, _) = Memory::now()?.each_since(deleted, pace.created);
    figures.heap("live sandbox, made by this run", heap - engine_heap);
    Ok(figures)
}

/// Measures requests that need no engine, in turn and in short rounds.
async fn requests(figures: &mut Figures, pace: Pace, crowd: &Arc<Crowd>, sandboxes: &Sandboxes) -> Outcome<()> {
    let idle = IdleActors::start(1000).await?;
    let (mut calls, mut gets, mut pages) = (nanoseconds()?, nanoseconds()?, nanoseconds()?);
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..pace.rounds {
        until_over(pace.round, &mut calls, || idle.call(random.random_range(0..1000))).await?;
        until_over(pace.round, &mut gets, || get(sandboxes, crowd, random.random_range(0..crowd.size))).await?;
        until_over(pace.round, &mut pages, || {
            let after = crowd.chat(random.random_range(0..crowd.size));
            sandboxes.list(Some(after), PAGE)
        })
        .await?;
    }
    idle.stop().await?;
    figures.spread("call to an idle actor", &calls);
    figures.spread("get", &gets);
    figures.spread(&format!("list, a page of {PAGE}"), &pages);
    Ok(())
}

/// Measures changes of a deadline, among all others and alone.
fn deadlines(figures: &mut Figures, crowd: &Crowd) -> Outcome<()> {
    for (name, size) in [("deadline changed", crowd.size), ("deadline changed, the only one", 1)] {
        let (mut deadlines, now) = (Deadlines::default(), Utc::now());
        (0..size).for_each(|n| deadlines.arm(crowd.chat(n), now + Duration::from_millis(n as u64)));
        let mut took = nanoseconds()?;
        let mut random = StdRng::seed_from_u64(2);
        for _ in 0..200_000 {
            let (chat, later) = (crowd.chat(random.random_range(0..size)), random.random_range(0..size as u64));
            let began = Instant::now();
            deadlines.arm(chat, now + Duration::from_millis(later));
            took.saturating_record(nanos(began.elapsed()));
        }
        figures.spread(name, &took);
    }
    Ok(())
}

/// Measures reconciliations without differences, and requests during them.
async fn reconciliation(
    figures: &mut Figures,
    pace: Pace,
    crowd: &Arc<Crowd>,
    sandboxes: &Sandboxes,
    engine: &FakeEngine,
) -> Outcome<()> {
    let (mut alone, mut beside_listing, mut beside) = (nanoseconds()?, nanoseconds()?, nanoseconds()?);
    let (mut passes, mut listings) = (Vec::new(), Vec::new());
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..pace.rounds {
        let began = Moment::now()?;
        assert_eq!(engine.list(&"default".parse()?).await?.len(), crowd.size);
        listings.push(began.elapsed()?);
        let began = Moment::now()?;
        sandboxes.reconcile(Trigger::Request, false).await?;
        passes.push(began.elapsed()?);
        until_over(pace.round, &mut alone, || get(sandboxes, crowd, random.random_range(0..crowd.size))).await?;
        let listing = tokio::spawn({
            let (engine, instance) = (engine.clone(), "default".parse()?);
            async move { engine.list(&instance).await }
        });
        until_done(&listing, &mut beside_listing, || get(sandboxes, crowd, random.random_range(0..crowd.size))).await?;
        drop(listing.await??);
        let pass = tokio::spawn({
            let sandboxes = sandboxes.clone();
            async move { sandboxes.reconcile(Trigger::Request, false).await }
        });
        until_done(&pass, &mut beside, || get(sandboxes, crowd, random.random_range(0..crowd.size))).await?;
        assert!(pass.await??.actions.is_empty(), "there are no differences");
    }
    figures.took("engine's listing alone", median(&mut listings));
    figures.took("reconciliation, no change", median(&mut passes));
    figures.spread("get, before a reconciliation", &alone);
    // A reconciliation begins with a listing, which the engine in memory does without a pause.
    figures.spread("get, during a listing alone", &beside_listing);
    figures.spread("get, during a reconciliation", &beside);
    Ok(())
}

/// Measures leases, from the request to the answer. The reaper is notified after the answer.
async fn leases(figures: &mut Figures, pace: Pace, crowd: &Arc<Crowd>, sandboxes: &Sandboxes) -> Outcome<()> {
    let mut took = nanoseconds()?;
    let mut random = StdRng::seed_from_u64(4);
    until_over(pace.round, &mut took, || {
        let chat = crowd.chat(random.random_range(0..crowd.size));
        let lease = Lease::of_caller(Duration::from_secs(60), false);
        sandboxes.lease(chat, lease)
    })
    .await?;
    figures.spread("lease", &took);
    Ok(())
}

async fn delete_all(sandboxes: &Sandboxes, crowd: &Crowd) -> Outcome<()> {
    let delete = async |n| match sandboxes.delete(crowd.chat(n)).await? {
        Deletion::Deleted { .. } => Outcome::Ok(()),
        other => Err(format!("{other:?}").into()),
    };
    stream::iter(0..crowd.size).map(delete).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    while sandboxes.count().await > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until_idle(sandboxes).await;
    Ok(())
}

async fn create(sandboxes: &Sandboxes, crowd: &Crowd, count: usize) -> Outcome<()> {
    let create = async |n| {
        sandboxes.create(crowd.request(n)?).await?;
        Outcome::Ok(())
    };
    stream::iter(0..count).map(create).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    until_idle(sandboxes).await;
    Ok(())
}

/// Waits until mailboxes and journal are empty.
async fn until_idle(sandboxes: &Sandboxes) {
    assert!(sandboxes.stuck(Duration::from_secs(60)).await.is_empty());
}

async fn get(sandboxes: &Sandboxes, crowd: &Crowd, n: usize) -> Outcome<()> {
    sandboxes.get(crowd.chat(n)).await?.ok_or("it has a sandbox")?;
    Ok(())
}

async fn until_over<T, E: Into<Box<dyn Error + Send + Sync>>, F: Future<Output = Result<T, E>>>(
    duration: Duration,
    took: &mut Histogram<u64>,
    mut ask: impl FnMut() -> F,
) -> Outcome<()> {
    let end = Instant::now() + duration;
    loop {
        let asked = Instant::now();
        if asked >= end {
            return Ok(());
        }
        ask().await.map_err(Into::into)?;
        took.saturating_record(nanos(asked.elapsed()));
    }
}

async fn until_done<T, F: Future<Output = Outcome<()>>>(
    done: &JoinHandle<T>,
    took: &mut Histogram<u64>,
    mut ask: impl FnMut() -> F,
) -> Outcome<()> {
    while !done.is_finished() {
        let asked = Instant::now();
        ask().await?;
        took.saturating_record(nanos(asked.elapsed()));
    }
    Ok(())
}

/// Returns an empty histogram up to one minute, with three digits.
fn nanoseconds() -> Outcome<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time with the median processor use, which other load on the machine hardly affects.
fn median(times: &mut [Time]) -> Time {
    times.sort_unstable_by_key(|time| time.used);
    times[times.len() / 2]
}
