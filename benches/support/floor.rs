//! Two minimal servers as a lower bound for the service, each in a process of its own: this program in another role.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// The first argument that makes this program a floor.
const ROLE: &str = "floor";

const START_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Answers each line with the same bytes: the cost of the socket.
    Echo,
    /// Reads each line as JSON and writes its answer as JSON: the cost of any such protocol.
    Json,
}

pub(crate) struct Floor {
    pub(crate) socket: PathBuf,
    pub(crate) process: Child,
}

impl Floor {
    /// Starts a server that answers every request with `answer`, a line that the service wrote.
    pub(crate) async fn start(kind: Kind, directory: &Path, answer: &str) -> Result<Self, Box<dyn Error>> {
        let socket = directory.join(kind.name());
        let process = Command::new(std::env::current_exe()?)
            .args([ROLE, kind.name()])
            .arg(&socket)
            .arg(answer.trim_end())
            .spawn()?;
        let floor = Self { socket, process };
        let started = Instant::now();
        while let Err(error) = UnixStream::connect(&floor.socket).await {
            if started.elapsed() > START_LIMIT {
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(floor)
    }

    /// Serves until the process is killed, if this process has the role of a floor.
    pub(crate) async fn serve_if_asked() -> io::Result<()> {
        let arguments: Vec<_> = std::env::args().skip(1).collect();
        let [ROLE, kind, socket, answer] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
            return Ok(());
        };
        let kind = if kind == Kind::Echo.name() { Kind::Echo } else { Kind::Json };
        let listener = UnixListener::bind(socket)?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(serve(kind, stream, answer.to_owned()));
        }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Echo => "echo",
            Kind::Json => "json",
        }
    }

    fn answer(self, line: &[u8], template: &Template, answers: &mut Vec<u8>) -> serde_json::Result<()> {
        match self {
            Kind::Echo => answers.extend_from_slice(template.line.as_bytes()),
            Kind::Json => {
                let request: Value = serde_json::from_slice(line)?;
                let answer = Answer { jsonrpc: "2.0", id: &request["id"], result: &template.result };
                serde_json::to_writer(&mut *answers, &answer)?;
            }
        }
        answers.push(b'\n');
        Ok(())
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    jsonrpc: &'static str,
    id: &'a Value,
    result: &'a Value,
}

struct Template {
    line: String,
    result: Value,
}

/// Answers all requests of one read with one write.
async fn serve(kind: Kind, mut stream: UnixStream, line: String) -> io::Result<()> {
    let result = serde_json::from_str::<Value>(&line)?["result"].take();
    let template = Template { line, result };
    let (mut requests, mut answers) = (Vec::with_capacity(64 << 10), Vec::new());
    while stream.read_buf(&mut requests).await? > 0 {
        let mut start = 0;
        for newline in memchr::memchr_iter(b'\n', &requests) {
            kind.answer(&requests[start..newline], &template, &mut answers)?;
            start = newline + 1;
        }
        requests.drain(..start);
        stream.write_all(&answers).await?;
        answers.clear();
    }
    Ok(())
}
