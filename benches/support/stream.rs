//! A cheap reader of a command's streamed output, which shares the machine with the service: it parses only the
//! beginning of each line.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub(crate) struct Output {
    pub(crate) socket: PathBuf,
    pub(crate) chat: String,
}

const ANSWER: &[u8] = br#"{"jsonrpc":"2.0","id":1,"#;

impl Output {
    /// Returns the time until all output has arrived.
    pub(crate) fn read(&self, command: &[String], expected: usize) -> io::Result<Duration> {
        let params = json!({ "chat_id": self.chat, "command": command, "stream": true });
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "sandbox.exec", "params": params });
        let mut stream = UnixStream::connect(&self.socket)?;
        let mut buffer = vec![0; 1 << 20];
        // The beginning of the current line. Only an answer fits into it completely.
        let mut line = Vec::new();
        let began = Instant::now();
        stream.write_all(format!("{request}\n").as_bytes())?;
        loop {
            let length = stream.read(&mut buffer)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut rest = &buffer[..length];
            while let Some(end) = memchr::memchr(b'\n', rest) {
                keep(&mut line, &rest[..end]);
                if line.starts_with(ANSWER) {
                    let took = began.elapsed();
                    let answer: Value = serde_json::from_slice(&line)?;
                    assert_eq!(answer["result"]["stdout"]["bytes"], expected, "{answer}");
                    return Ok(took);
                }
                line.clear();
                rest = &rest[end + 1..];
            }
            keep(&mut line, rest);
        }
    }
}

/// Keeps the beginning of a line. An answer is shorter than this limit.
fn keep(line: &mut Vec<u8>, part: &[u8]) {
    line.extend_from_slice(&part[..part.len().min(4096 - line.len())]);
}
