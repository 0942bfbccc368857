//! Measures commands, large outputs and files in a sandbox against the same work through the engine's API.
//!
//! Both are measured in turn in one run, so that other load on the machine affects both.

#[path = "support/engine_work.rs"]
mod engine_work;
#[path = "support/service.rs"]
mod service;
#[path = "support/statistics.rs"]
mod statistics;
#[path = "support/stream.rs"]
mod stream;
#[path = "support/table.rs"]
mod table;

use std::error::Error;
use std::process::Stdio;
use std::time::Instant;

use engine_work::EngineWork;
use sandboxd_protocol::method::Method;
use serde_json::{Value, json};
use service::Service;
use statistics::{Ratio, median, quantile};
use stream::Output;
use table::{Table, whole};
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn Error>>;

const MIB: usize = 1 << 20;

/// A request line is limited to 1 MiB, so the file is sent in two parts.
const FILE: usize = MIB;

#[tokio::main]
async fn main() -> Outcome<()> {
    let service = Service::start().await?;
    let chat = Uuid::new_v4().to_string();
    let created: Value = service.client.call(Method::SandboxCreate, service.create_params(&chat)?).await?;
    let container = created["container_id"].as_str().ok_or("a running sandbox has a container")?.to_owned();
    let engine = EngineWork { docker: service.docker.clone(), container };
    let guest = Guest { service: &service, chat };
    commands(&guest, &engine).await?;
    outputs(&guest, &engine).await?;
    files(&guest, &engine).await
}

/// `SANDBOXD_BENCH=quick` only checks that the benchmark runs.
fn rounds(full: usize) -> usize {
    if std::env::var("SANDBOXD_BENCH").is_ok_and(|value| value == "quick") { 2 } else { full }
}

struct Guest<'a> {
    service: &'a Service,
    chat: String,
}

impl Guest<'_> {
    async fn call(&self, method: Method, mut params: Value) -> Outcome<Value> {
        params["chat_id"] = json!(self.chat);
        Ok(self.service.client.call(method, params).await?)
    }

    async fn exec(&self, command: Value) -> Outcome<()> {
        let ended = self.call(Method::SandboxExec, json!({ "command": command })).await?;
        if ended["exit_code"] == 0 { Ok(()) } else { Err(ended.to_string().into()) }
    }

    async fn write(&self, path: &str, content: &str) -> Outcome<()> {
        let client = &self.service.client;
        let params = json!({ "chat_id": self.chat, "path": path, "follows": true });
        let mut writing = client.stream(Method::SandboxWriteFile, params).await?;
        let started = writing.next().await.ok_or("it has not begun")?;
        let started: Value = serde_json::from_str(started.params.get())?;
        let (first, second) = content.split_at(content.len() / 2);
        for (part, end) in [(first, false), (second, true)] {
            let params = json!({ "command_id": started["command_id"], "text": part, "end": end });
            self.call(Method::SandboxInput, params).await?;
        }
        Ok(writing.end::<Value>().await.map(drop)?)
    }

    async fn read(&self, path: &str) -> Outcome<usize> {
        let read = self.call(Method::SandboxReadFile, json!({ "path": path })).await?;
        Ok(read["text"].as_str().ok_or("it is text")?.len())
    }
}

async fn milliseconds<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<(f64, T)> {
    let began = Instant::now();
    let outcome = work.await?;
    Ok((began.elapsed().as_secs_f64() * 1e3, outcome))
}

async fn commands(guest: &Guest<'_>, engine: &EngineWork) -> Outcome<()> {
    let info: Value = guest.service.client.call(Method::SystemInfo, json!({})).await?;
    let host = info["engine"]["host"].as_str().ok_or("no engine answers")?;
    let (mut ours, mut engines, mut typed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds(200) {
        ours.push(milliseconds(guest.exec(json!(["true"]))).await?.0);
        engines.push(milliseconds(async { Ok(engine.exec(&["true"]).await?) }).await?.0);
        typed.push(milliseconds(docker_exec(host, &engine.container)).await?.0);
    }
    let mut table = Table::new(["`true` inside", "p50 ms", "p99 ms", "p50 ÷ sandbox.exec"]);
    for (name, times) in [("sandbox.exec", &ours), ("engine's API (bollard)", &engines), ("docker exec", &typed)] {
        let ratio = Ratio::of_medians(times, &ours).to_string();
        table.row([name.into(), format!("{:.2}", median(times)), format!("{:.2}", quantile(times, 0.99)), ratio]);
    }
    println!("\n{table}");
    Ok(())
}

async fn docker_exec(host: &str, container: &str) -> Outcome<()> {
    let status = tokio::process::Command::new("docker")
        .args(["--host", host, "exec", container, "true"])
        .stdout(Stdio::null())
        .status()
        .await?;
    if status.success() { Ok(()) } else { Err(status.to_string().into()) }
}

async fn outputs(guest: &Guest<'_>, engine: &EngineWork) -> Outcome<()> {
    // Text lines, as in a log; and random bytes, as in an image, which are sent in base64.
    let line = "0123456789abcdefghijklmnopqrstuvwxyz-ABCDEFGHIJKLMNOPQRSTUVWXYZ ";
    guest.exec(json!(format!("yes '{line}' | head -c {} >/tmp/text", 100 * MIB))).await?;
    guest.exec(json!(format!("head -c {} /dev/urandom >/tmp/bytes", 100 * MIB))).await?;
    let before = guest.service.peak_memory()?;
    let mut table = Table::new(["100 MiB out", "MB/s", "slowest–fastest", "÷ engine's API"]);
    for (name, path) in [("text", "/tmp/text"), ("bytes", "/tmp/bytes")] {
        let (mut ours, mut engines) = (Vec::new(), Vec::new());
        let rate = |seconds: f64| (100 * MIB) as f64 / 1e6 / seconds;
        for _ in 0..rounds(10) {
            let output = Output { socket: guest.service.directory.path().join("socket"), chat: guest.chat.clone() };
            let command = ["cat".to_owned(), path.to_owned()];
            let took = tokio::task::spawn_blocking(move || output.read(&command, 100 * MIB)).await??;
            ours.push(rate(took.as_secs_f64()));
            let (took, length) = milliseconds(async { Ok(engine.exec(&["cat", path]).await?) }).await?;
            assert_eq!(length, 100 * MIB);
            engines.push(rate(took / 1e3));
        }
        for (who, rates) in [("sandbox.exec", &ours), ("engine's API (bollard)", &engines)] {
            let range = format!("{}–{}", whole(quantile(rates, 0.0)), whole(quantile(rates, 1.0)));
            let ratio = Ratio::of_medians(rates, &engines).to_string();
            table.row([format!("{name}, {who}"), whole(median(rates)), range, ratio]);
        }
    }
    println!("{table}");
    let after = guest.service.peak_memory()?;
    println!("memory of the service at its peak: {} MiB before, {} MiB after\n", before / 1024, after / 1024);
    Ok(())
}

async fn files(guest: &Guest<'_>, engine: &EngineWork) -> Outcome<()> {
    let content: String = "a line of a file, as files have them\n".chars().cycle().take(FILE).collect();
    let (mut ours, mut engines) = (Vec::new(), Vec::new());
    for _ in 0..rounds(100) {
        let through = async {
            guest.write("/tmp/file", &content).await?;
            guest.read("/tmp/file").await
        };
        let (took, length) = milliseconds(through).await?;
        assert_eq!(length, FILE);
        ours.push(took);
        let through = async {
            engine.write("/tmp", "archived", content.as_bytes()).await?;
            Ok(engine.read("/tmp/archived").await?)
        };
        let (took, length) = milliseconds(through).await?;
        assert!(length > FILE, "an archive has a header, too");
        engines.push(took);
    }
    let mut table = Table::new(["1 MiB written and read", "p50 ms", "p99 ms", "p50 ÷ sandbox.*_file"]);
    for (name, times) in [("sandbox.write_file, read_file", &ours), ("engine's archive API (bollard)", &engines)] {
        let ratio = Ratio::of_medians(times, &ours).to_string();
        table.row([name.into(), format!("{:.2}", median(times)), format!("{:.2}", quantile(times, 0.99)), ratio]);
    }
    println!("{table}");
    Ok(())
}
