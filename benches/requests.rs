//! Measures requests that need no engine: `sandbox.get`, and `sandbox.create` for a chat with a sandbox.
//!
//! The subject is the shipped program in its own process, with one live sandbox on the real engine. It is compared with
//! two minimal servers that answer the same bytes: see [`floor`]. The subjects are measured in turn, in short rounds,
//! so that other load on the machine affects all of them alike.

#[path = "support/caller.rs"]
mod caller;
#[path = "support/floor.rs"]
mod floor;
#[path = "support/service.rs"]
mod service;
#[path = "support/statistics.rs"]
mod statistics;
#[path = "support/table.rs"]
mod table;

use std::error::Error;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use caller::Caller;
use floor::Floor;
use hdrhistogram::Histogram;
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};
use service::Service;
use statistics::{Ratio, median};
use table::{Table, whole};

const CHAT: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";

/// Connections, and requests in flight on each.
const PIPELINES: [(usize, usize); 3] = [(1, 16), (1, 64), (8, 64)];

/// The index of the subject that the others are compared with: JSON echo.
const FLOOR: usize = 1;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    Floor::serve_if_asked().await?;

    let service = Service::start().await?;
    let params = service.create_params(CHAT)?;
    let before: Value = service.client.call(Method::SandboxCreate, &params).await?;

    let get = request("sandbox.get", &json!({ "chat_id": CHAT }));
    let reuse = request("sandbox.create", &params);
    let socket = service.directory.path().join("socket");
    let answer = answer_to(&socket, &reuse)?;
    let directory = tempfile::tempdir()?;
    let echo = Floor::start(floor::Kind::Echo, directory.path(), &answer).await?;
    let json = Floor::start(floor::Kind::Json, directory.path(), &answer).await?;
    let subjects = [
        Subject::new("echo", &echo.socket, &echo.process, &reuse),
        Subject::new("JSON echo", &json.socket, &json.process, &reuse),
        Subject::new("get", &socket, &service.process, &get),
        Subject::new("create, reused", &socket, &service.process, &reuse),
    ];

    let pace = Pace::from_environment();
    println!("\n{}", one_at_a_time(&subjects, pace)?);
    println!("{}", pipelined(&subjects, pace)?);

    let after: Value = service.client.call(Method::SandboxCreate, &params).await?;
    assert_eq!(before["session_id"], after["session_id"], "it was the same sandbox all the time");
    service.client.call::<Value>(Method::SandboxDelete, json!({ "chat_id": CHAT })).await?;
    Ok(())
}

#[derive(Clone, Copy)]
struct Pace {
    rounds: usize,
    round: Duration,
}

impl Pace {
    /// `SANDBOXD_BENCH=quick` only checks that the benchmark runs.
    fn from_environment() -> Self {
        if std::env::var("SANDBOXD_BENCH").is_ok_and(|value| value == "quick") {
            Self { rounds: 3, round: Duration::from_millis(50) }
        } else {
            Self { rounds: 15, round: Duration::from_millis(400) }
        }
    }
}

struct Subject<'a> {
    name: &'static str,
    socket: &'a Path,
    process: u32,
    request: &'a str,
}

impl<'a> Subject<'a> {
    fn new(name: &'static str, socket: &'a Path, process: &Child, request: &'a str) -> Self {
        Self { name, socket, process: process.id(), request }
    }
}

/// The measurements of one subject, by round.
struct Measured {
    /// Microseconds, one request at a time.
    median_took: Vec<f64>,
    took: Histogram<u64>,
    rates: Vec<f64>,
    answered: u64,
    processor_time: Duration,
}

fn one_at_a_time(subjects: &[Subject<'_>], pace: Pace) -> Outcome<Table> {
    let measured = in_turn(subjects, pace, |subject, measured| {
        let mut took = nanoseconds()?;
        Caller::connect(subject.socket, subject.request)?.one_at_a_time(pace.round, &mut took)?;
        measured.median_took.push(took.value_at_quantile(0.5) as f64 / 1e3);
        measured.took.add(&took)?;
        Ok(took.len())
    })?;
    let mut table = Table::new(["one at a time", "p50 µs", "p99 µs", "p99.9 µs", "p50 ÷ JSON echo", "CPU µs"]);
    for (subject, of_subject) in subjects.iter().zip(&measured) {
        let micros = |quantile| whole(of_subject.took.value_at_quantile(quantile) as f64 / 1e3);
        table.row([
            subject.name.to_owned(),
            micros(0.5),
            micros(0.99),
            micros(0.999),
            Ratio::of_medians(&of_subject.median_took, &measured[FLOOR].median_took).to_string(),
            of_subject.processor_time_against(&measured[FLOOR]),
        ]);
    }
    Ok(table)
}

fn pipelined(subjects: &[Subject<'_>], pace: Pace) -> Outcome<Table> {
    let columns = ["connections × under way", "requests/s", "slowest–fastest round", "÷ JSON echo", "CPU µs"];
    let mut table = Table::new(columns);
    for (connections, window) in PIPELINES {
        let measured = in_turn(subjects, pace, |subject, _| {
            let call = || Caller::connect(subject.socket, subject.request)?.pipelined(pace.round, window);
            std::thread::scope(|scope| {
                let callers: Vec<_> = (0..connections).map(|_| scope.spawn(call)).collect();
                Ok(callers.into_iter().map(|caller| caller.join().expect("no panic")).sum::<Result<u64, _>>()?)
            })
        })?;
        for (subject, of_subject) in subjects.iter().zip(&measured) {
            let fastest = of_subject.rates.iter().copied().fold(0.0, f64::max);
            let slowest = of_subject.rates.iter().copied().fold(f64::INFINITY, f64::min);
            table.row([
                format!("{connections} × {window}, {}", subject.name),
                whole(median(&of_subject.rates)),
                format!("{}–{}", whole(slowest), whole(fastest)),
                Ratio::of_medians(&of_subject.rates, &measured[FLOOR].rates).to_string(),
                of_subject.processor_time_against(&measured[FLOOR]),
            ]);
        }
    }
    Ok(table)
}

/// Measures every subject once per round, each round beginning with another. `measure` returns the number of answered
/// requests.
fn in_turn(
    subjects: &[Subject<'_>],
    pace: Pace,
    measure: impl Fn(&Subject<'_>, &mut Measured) -> Outcome<u64>,
) -> Outcome<Vec<Measured>> {
    let mut measured = subjects.iter().map(|_| Measured::new()).collect::<Outcome<Vec<_>>>()?;
    for round in 0..pace.rounds {
        for turn in 0..subjects.len() {
            let index = (round + turn) % subjects.len();
            let (subject, of_subject) = (&subjects[index], &mut measured[index]);
            let (began, processor_time) = (Instant::now(), processor_time(subject.process)?);
            let answered = measure(subject, of_subject)?;
            of_subject.rates.push(answered as f64 / began.elapsed().as_secs_f64());
            of_subject.processor_time += self::processor_time(subject.process)?.saturating_sub(processor_time);
            of_subject.answered += answered;
        }
    }
    Ok(measured)
}

impl Measured {
    fn new() -> Outcome<Self> {
        Ok(Self {
            median_took: Vec::new(),
            took: nanoseconds()?,
            rates: Vec::new(),
            answered: 0,
            processor_time: Duration::ZERO,
        })
    }

    /// Returns the server's processor time per request, and its ratio to the floor's. Other load on the machine hardly
    /// affects processor time.
    fn processor_time_against(&self, floor: &Measured) -> String {
        let micros = |measured: &Measured| measured.processor_time.as_secs_f64() * 1e6 / measured.answered as f64;
        format!("{:.1} ({:.1}×)", micros(self), micros(self) / micros(floor))
    }
}

/// Returns an empty histogram up to one minute, with three digits.
fn nanoseconds() -> Outcome<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

/// Returns the processor time that a process has used so far.
fn processor_time(process: u32) -> Outcome<Duration> {
    /// The kernel's unit in this file, on all relevant architectures.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The second field, the program's name in parentheses, may contain any characters.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u32 = fields[11].parse::<u32>()? + fields[12].parse::<u32>()?;
    Ok(TICK * ticks)
}

fn request(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": caller::ID, "method": method, "params": params }).to_string() + "\n"
}

fn answer_to(socket: &Path, request: &str) -> Outcome<String> {
    use std::io::{BufRead, BufReader, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(socket)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer)
}
