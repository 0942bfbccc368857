//! The logs of the fake engine's containers, which tests print line by line.

use futures_util::StreamExt;
use futures_util::stream;

use super::FakeEngine;
use crate::domain::ids::ContainerId;
use crate::ports::clock::{Clock, SystemClock, Timestamp};
use crate::ports::engine::ContainerState;
use crate::ports::engine::logs::{EngineLogs, LogPiece, LogRange, LogStream};

#[derive(Debug, Clone)]
pub(super) struct Printed {
    at: Timestamp,
    stream: LogStream,
    pub(super) line: String,
}

impl Printed {
    pub(super) fn now(stream: LogStream, line: &str) -> Self {
        Self { at: SystemClock.now(), stream, line: line.to_owned() }
    }
}

/// Returns the index of the first line of the range.
pub(super) fn beginning(log: &[Printed], range: LogRange) -> usize {
    let too_early = log.iter().take_while(|printed| range.since.is_some_and(|since| printed.at < since)).count();
    too_early.max(log.len().saturating_sub(range.tail.unwrap_or(usize::MAX)))
}

pub(super) fn stream(engine: FakeEngine, container: ContainerId, beginning: usize, follow: bool) -> EngineLogs {
    let next = move |(engine, container, line): (FakeEngine, ContainerId, usize)| async move {
        // Subscribed before the read, so that no line printed in between is missed.
        let mut activity = engine.activity.subscribe();
        loop {
            let (printed, running) = match engine.inner().containers.get(&container) {
                Some(it) => (it.log.get(line).cloned(), it.observed.state == ContainerState::Running),
                None => (None, false),
            };
            if let Some(Printed { stream, line: text, .. }) = printed {
                let piece = LogPiece { stream, bytes: format!("{text}\n").into_bytes() };
                return Some((Ok(piece), (engine, container, line + 1)));
            }
            if !follow || !running || activity.changed().await.is_err() {
                return None;
            }
        }
    };
    stream::unfold((engine, container, beginning), next).boxed()
}
