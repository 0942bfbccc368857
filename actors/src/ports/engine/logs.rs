//! What a container's first process, and all that shares its outputs, has printed.

use futures_util::stream::BoxStream;

use super::EngineError;
use crate::ports::clock::Timestamp;

/// Ends after its first error.
pub type EngineLogs = BoxStream<'static, Result<LogPiece, EngineError>>;

/// Which part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogRange {
    /// As many of the last lines; all, if absent.
    pub tail: Option<usize>,
    /// Not what was printed before this. Engines may count in whole seconds, and are then told an earlier one.
    pub since: Option<Timestamp>,
    /// Goes on with what is printed from then on, until the container ends.
    pub follow: bool,
}

/// Some bytes, not necessarily whole lines.
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
