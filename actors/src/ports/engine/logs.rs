//! Logs: the output of a container's first process and of all processes that share its output streams.

use futures_util::stream::BoxStream;

use super::EngineError;
use crate::ports::clock::Timestamp;

/// A stream of log pieces. It ends after its first error.
pub type EngineLogs = BoxStream<'static, Result<LogPiece, EngineError>>;

/// The part of a log to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogRange {
    /// The number of last lines; all, if absent.
    pub tail: Option<usize>,
    /// The time of the oldest line. An engine that counts in whole seconds gets the time rounded down.
    pub since: Option<Timestamp>,
    /// Follows the log until the container ends.
    pub follow: bool,
}

/// A piece of a log, not necessarily of whole lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPiece {
    pub stream: LogStream,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    Stdout,
    Stderr,
}
