//! The output of a container: its last lines, or a stream of it.

use std::collections::VecDeque;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::query_parameters::LogsOptionsBuilder;
use futures_util::{StreamExt, TryStreamExt};
use sandboxd_actors::domain::ids::ContainerId;
use sandboxd_actors::ports::clock::Timestamp;
use sandboxd_actors::ports::engine::logs::{EngineLogs, LogPiece, LogRange, LogStream};
use sandboxd_actors::ports::engine::{EngineError, Operation};

use super::errors;

/// Longer lines are cut, because these lines are part of responses and log messages.
const LINE_LIMIT: usize = 4096;

pub(super) async fn tail(docker: &Docker, container: &ContainerId, lines: usize) -> Result<Vec<String>, EngineError> {
    let options = LogsOptionsBuilder::default().stdout(true).stderr(true).tail(&lines.to_string()).build();
    let mut output = docker.logs(container.as_str(), Some(options));
    let mut tail = Tail::new(lines);
    let failed = |error| errors::container_error(Operation::LogTail, container, error);
    while let Some(piece) = output.try_next().await.map_err(failed)? {
        let stream = usize::from(matches!(piece, LogOutput::StdErr { .. }));
        tail.push(stream, &piece.into_bytes());
    }
    Ok(tail.finish())
}

/// Opens the output stream. The client sends its request when the stream is polled, and a silent container may never
/// send output, so an inspection first checks that the container exists.
pub(super) async fn open(docker: &Docker, container: &ContainerId, range: LogRange) -> Result<EngineLogs, EngineError> {
    let failed = |container: ContainerId| move |error| errors::container_error(Operation::Logs, &container, error);
    docker.inspect_container(container.as_str(), None).await.map_err(failed(container.clone()))?;
    let seconds = |since: Timestamp| i32::try_from(since.timestamp().max(0)).unwrap_or(i32::MAX);
    let options = LogsOptionsBuilder::default()
        .stdout(true)
        .stderr(true)
        .follow(range.follow)
        .tail(&range.tail.map_or("all".to_owned(), |lines| lines.to_string()))
        .since(range.since.map_or(0, seconds))
        .build();
    let piece = |output: LogOutput| LogPiece {
        stream: match output {
            LogOutput::StdErr { .. } => LogStream::Stderr,
            _ => LogStream::Stdout,
        },
        bytes: output.into_bytes().to_vec(),
    };
    Ok(docker.logs(container.as_str(), Some(options)).map_ok(piece).map_err(failed(container.clone())).boxed())
}

/// Assembles lines from pieces of two streams: the engine splits long lines and may interleave the streams.
struct Tail {
    limit: usize,
    lines: VecDeque<String>,
    partial: [Option<Vec<u8>>; 2],
}

impl Tail {
    fn new(limit: usize) -> Self {
        Self { limit, lines: VecDeque::new(), partial: [None, None] }
    }

    fn push(&mut self, stream: usize, piece: &[u8]) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            let line = self.partial[stream].get_or_insert_default();
            // One byte more than the limit marks the line as too long.
            let room = (LINE_LIMIT + 1).saturating_sub(line.len());
            line.extend_from_slice(&text[..text.len().min(room)]);
            if text.len() < part.len() {
                self.end(stream);
            }
        }
    }

    fn end(&mut self, stream: usize) {
        let Some(mut line) = self.partial[stream].take() else { return };
        let too_long = line.len() > LINE_LIMIT;
        line.truncate(LINE_LIMIT);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches('\r');
        self.lines.push_back(if too_long { format!("{text}…") } else { text.to_owned() });
        if self.lines.len() > self.limit {
            self.lines.pop_front();
        }
    }

    fn finish(mut self) -> Vec<String> {
        self.end(0);
        self.end(1);
        self.lines.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(limit: usize, pieces: &[(usize, &[u8])]) -> Vec<String> {
        let mut tail = Tail::new(limit);
        for (stream, piece) in pieces {
            tail.push(*stream, piece);
        }
        tail.finish()
    }

    #[test]
    fn pieces_become_lines_in_the_order_in_which_they_end() {
        assert_eq!(lines(9, &[(0, b"a"), (1, b"x\n"), (0, b"b\nc\n\n"), (1, b"y")]), ["x", "ab", "c", "", "y"]);
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        assert_eq!(lines(2, &[(0, b"a\nb\nc\n")]), ["b", "c"]);
        assert_eq!(lines(0, &[(0, b"a\nb")]), Vec::<String>::new());
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let shown = lines(9, &[(0, &[b'x'; 5000]), (0, &[b'y'; 5000]), (0, b"\nnext\n")]);
        assert_eq!(shown[0], format!("{}…", "x".repeat(LINE_LIMIT)));
        assert_eq!(shown[1], "next");
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        assert_eq!(lines(9, &[(0, b"a\xff\r\n")]), ["a\u{fffd}"]);
    }
}
