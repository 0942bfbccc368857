//! Measures the time until a new chat's container serves the chat's own file over HTTP: this service, with its pool and
//! without, and other managers of containers.
//!
//! All use the same engine, image, program and network, in turn, so that other load on the machine affects all of them
//! alike. The service answers once its sandbox serves; the others are polled for the file. Tables go to standard
//! output, plots to `target/bench`.

#[path = "support/managers.rs"]
mod managers;
#[path = "support/plot.rs"]
mod plot;
#[path = "support/served.rs"]
mod served;
#[path = "support/service.rs"]
mod service;
#[path = "support/statistics.rs"]
mod statistics;
#[path = "support/table.rs"]
mod table;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Instant;

use managers::{Chat, DockerProgram, EngineApi, Manager, Outcome, PythonPeer, Sandboxd, Started};
use plot::{Bar, Curve};
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};
use served::until_served;
use service::Service;
use statistics::{Ratio, median, quantile};
use table::{Table, whole};
use tokio::sync::Mutex;
use uuid::Uuid;

const WARM: &str = "sandboxd, warm";
const COLD: &str = "sandboxd, cold";

/// Returns two profiles that serve the request's volume, and are ready once they do.
fn profiles(slots: u64) -> String {
    let profile = |name: &str, slots: u64| {
        let image = service::image();
        format!(
            "
            [profiles.{name}]
            image = '{image}'
            command = ['httpd', '-f', '-p', '8080', '-h', '/volume']
            readiness.kind = 'http'
            pool.size = {slots}
            "
        )
    };
    profile("cold", 0) + &profile("warm", slots)
}

/// The numbers of parallel starts.
const AT_ONCE: [usize; 5] = [1, 2, 4, 8, 16];

#[tokio::main]
async fn main() -> Outcome<()> {
    let pace = Pace::from_environment();
    let service = Service::start_with(&profiles(pace.slots)).await.map_err(|error| error.to_string())?;
    let info: Value = service.client.call(Method::SystemInfo, json!({})).await?;
    let host = info["engine"]["host"].as_str().ok_or("no engine answers")?;
    let chats = Chats(service.directory.path().join("volumes"));

    let sandboxd = |profile, launch, slots| Sandboxd { client: service.client.clone(), profile, launch, slots };
    let (warm, cold) = (sandboxd("warm", "warm", pace.slots), sandboxd("cold", "cold", 0));
    let engine = EngineApi::new(&service);
    let program = DockerProgram::new(&service, host);
    let mut managers: Vec<&dyn Manager> = vec![&warm, &cold, &engine, &program];
    let (python, mut peers) = (python(), Vec::new());
    for kind in ["docker-py", "llm-sandbox"] {
        match PythonPeer::new(kind, &python, &service, host).await {
            Ok(peer) => peers.push(peer),
            Err(error) => println!("Not measured: {kind}, {error}\n"),
        }
    }
    managers.extend(peers.iter().map(|peer| peer as &dyn Manager));

    let measured = in_turn(&managers, &chats, pace).await?;
    println!("{}", comparison(&measured));
    goals(&measured);
    save("start.svg", &bars(&measured))?;
    // Containers that the peers keep running must not disturb the next measurements.
    for peer in peers {
        peer.close().await?;
    }

    let rising = at_once(&[&warm, &cold, &engine], &chats, pace).await?;
    save("concurrency.svg", &rising)
}

#[derive(Clone, Copy)]
struct Pace {
    rounds: usize,
    /// Claims per round: a single one would be too short to measure.
    claims: usize,
    /// The largest number of parallel starts.
    slots: u64,
}

impl Pace {
    /// `SANDBOXD_BENCH=quick` only checks that the benchmark runs.
    fn from_environment() -> Self {
        if std::env::var("SANDBOXD_BENCH").is_ok_and(|value| value == "quick") {
            Self { rounds: 2, claims: 2, slots: 4 }
        } else {
            Self { rounds: 20, claims: 6, slots: 16 }
        }
    }
}

/// The directory of the chats' files.
struct Chats(PathBuf);

impl Chats {
    fn new_chat(&self) -> Outcome<Chat> {
        let id = Uuid::new_v4().to_string();
        let directory = self.0.join(&id);
        std::fs::create_dir(&directory)?;
        std::fs::write(directory.join("index.html"), &id)?;
        Ok(Chat { id, directory })
    }
}

/// The measurements of one manager, in milliseconds.
struct Measured {
    name: String,
    ours: bool,
    /// From the request to the answer.
    created: Vec<f64>,
    /// From the request to the served file.
    served: Vec<f64>,
    ended: Vec<f64>,
    /// The median of each round.
    rounds: Vec<f64>,
}

/// Makes one start. Returns the milliseconds to the answer and to the served file.
async fn start(manager: &dyn Manager, chat: &Chat) -> Outcome<(Started, f64, f64)> {
    let began = Instant::now();
    let milliseconds = || began.elapsed().as_secs_f64() * 1e3;
    let started = manager.start(chat).await.map_err(|error| format!("{}: {error}", manager.name()))?;
    let created = milliseconds();
    until_served(started.ip, &chat.id).await?;
    Ok((started, created, milliseconds()))
}

/// Measures every manager once per round, each round beginning with another.
async fn in_turn(managers: &[&dyn Manager], chats: &Chats, pace: Pace) -> Outcome<Vec<Measured>> {
    let mut measured: Vec<_> = managers.iter().map(|manager| Measured::of(manager.name())).collect();
    for round in 0..pace.rounds {
        for turn in 0..managers.len() {
            let index = (round + turn) % managers.len();
            let (manager, of_manager) = (managers[index], &mut measured[index]);
            // A pool that is being filled would disturb the next measurement.
            for manager in managers {
                manager.prepare().await?;
            }
            let mut running = Vec::new();
            for _ in 0..if of_manager.name == WARM { pace.claims } else { 1 } {
                let (started, created, served) = start(manager, &chats.new_chat()?).await?;
                of_manager.created.push(created);
                of_manager.served.push(served);
                running.push(started.handle);
            }
            of_manager.rounds.push(median(&of_manager.served[of_manager.served.len() - running.len()..]));
            for handle in running {
                let began = Instant::now();
                manager.end(&handle).await?;
                of_manager.ended.push(began.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    Ok(measured)
}

impl Measured {
    fn of(name: &str) -> Self {
        let name = match name {
            "warm" => WARM,
            "cold" => COLD,
            other => other,
        };
        let ours = [WARM, COLD].contains(&name);
        let none = Vec::new;
        Self { name: name.to_owned(), ours, created: none(), served: none(), ended: none(), rounds: none() }
    }
}

fn comparison(measured: &[Measured]) -> Table {
    let columns =
        ["a new chat", "starts", "answered p50 ms", "p99", "file served p50 ms", "p99", "÷ warm", "ended p50 ms"];
    let mut table = Table::new(columns);
    for of_manager in measured {
        table.row([
            of_manager.name.clone(),
            of_manager.served.len().to_string(),
            milliseconds(median(&of_manager.created)),
            milliseconds(quantile(&of_manager.created, 0.99)),
            milliseconds(median(&of_manager.served)),
            milliseconds(quantile(&of_manager.served, 0.99)),
            Ratio::of_medians(&of_manager.rounds, &measured[0].rounds).to_string(),
            milliseconds(median(&of_manager.ended)),
        ]);
    }
    table
}

/// Prints the goals and the results.
fn goals(measured: &[Measured]) {
    let (warm, cold) = (&measured[0], &measured[1]);
    let answered = median(&warm.created);
    let others = || measured.iter().filter(|of_manager| !of_manager.ours);
    let Some(fastest) = others().min_by(|a, b| median(&a.served).total_cmp(&median(&b.served))) else { return };
    // The managers that start a container on request, as a cold create does.
    let starting = others().filter(|of_manager| !of_manager.name.contains("pool"));
    let Some(floor) = starting.min_by(|a, b| median(&a.served).total_cmp(&median(&b.served))) else { return };
    let verdict = |met: bool| if met { "met" } else { "missed" };
    let times = Ratio::of_medians(&fastest.rounds, &warm.rounds);
    let against = Ratio::of_medians(&cold.rounds, &floor.rounds);
    println!("- warm create answered within 6 ms at p50: {} ms, {}", milliseconds(answered), verdict(answered <= 6.0));
    println!(
        "- warm 50 times as fast as the fastest other ({}): {times}, {}",
        fastest.name,
        verdict(times.value >= 50.0)
    );
    println!(
        "- cold no slower than the fastest other ({}): {against}, {}\n",
        floor.name,
        verdict(against.value <= 1.0)
    );
}

fn bars(measured: &[Measured]) -> String {
    let bar = |of_manager: &Measured| Bar {
        name: of_manager.name.clone(),
        p50: median(&of_manager.served),
        p99: quantile(&of_manager.served, 0.99),
        ours: of_manager.ours,
    };
    let title = "A new chat, until its file is served over HTTP: p50, line to p99";
    plot::bars(title, &measured.iter().map(bar).collect::<Vec<_>>())
}

/// Measures increasing numbers of parallel starts. Prints a table and returns the plot.
async fn at_once(managers: &[&dyn Manager], chats: &Chats, pace: Pace) -> Outcome<String> {
    let mut table = Table::new(["starts at once", "file served p50 ms", "p99", "starts/s"]);
    let mut curves = Vec::new();
    let callers = &AT_ONCE[..AT_ONCE.partition_point(|&callers| callers as u64 <= pace.slots)];
    for manager in managers {
        let name = Measured::of(manager.name()).name;
        let mut values = Vec::new();
        for &callers in callers {
            for manager in managers {
                manager.prepare().await?;
            }
            let began = Instant::now();
            let (served, running) = crowd(*manager, chats, pace.slots, callers).await?;
            let rate = served.len() as f64 / began.elapsed().as_secs_f64();
            for handle in running {
                manager.end(&handle).await?;
            }
            values.push(median(&served));
            table.row([
                format!("{callers}, {name}"),
                milliseconds(median(&served)),
                milliseconds(quantile(&served, 0.99)),
                format!("{rate:.1}"),
            ]);
        }
        curves.push(Curve { name, values });
    }
    println!("{table}");
    let title = "Starts at the same time: p50 until the file is served";
    Ok(plot::curves(title, &callers.iter().map(usize::to_string).collect::<Vec<_>>(), "starts at once", &curves))
}

/// Makes `starts` starts by this many callers.
async fn crowd(manager: &dyn Manager, chats: &Chats, starts: u64, callers: usize) -> Outcome<(Vec<f64>, Vec<String>)> {
    let waiting = (0..starts).map(|_| chats.new_chat()).collect::<Outcome<VecDeque<_>>>()?;
    let waiting = Mutex::new(waiting);
    let caller = || async {
        let mut done = Vec::new();
        loop {
            let next = waiting.lock().await.pop_front();
            let Some(chat) = next else { return Outcome::Ok(done) };
            let (started, _, served) = start(manager, &chat).await?;
            done.push((served, started.handle));
        }
    };
    let done = futures_util::future::try_join_all((0..callers).map(|_| caller())).await?;
    Ok(done.into_iter().flatten().unzip())
}

fn milliseconds(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { whole(value) }
}

/// Returns the Python interpreter for which `scripts/bench` has installed the peers' packages.
fn python() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench/peers/bin/python")
}

fn save(name: &str, svg: &str) -> Outcome<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    std::fs::create_dir_all(&directory)?;
    Ok(std::fs::write(directory.join(name), svg)?)
}
