//! A reader of lines with bounded memory: it buffers at most one line of the maximum length.

use std::io;
use std::ops::Range;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use super::memory::{ConnectionMemory, Reservation, Retention, SLOW_CALLER_LIMIT};

/// The buffer of an idle connection.
const SMALLEST_BUFFER: usize = 8 << 10;
/// The buffer of a busy connection, so that one read returns many lines.
const USUAL_BUFFER: usize = 64 << 10;

/// How often a stalled read of a long line is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Lines<'s, R> {
    source: R,
    memory: &'s ConnectionMemory,
    /// The memory of a line that is longer than [`USUAL_BUFFER`].
    reservation: Option<Reservation>,
    max_line: usize,
    buffer: Vec<u8>,
    /// `start..end` is read and not returned yet; it has no newline before `scanned`.
    start: usize,
    scanned: usize,
    end: usize,
    /// The reader is within a line that is too long, and skips it up to its end.
    skipping: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// Without its newline.
    Whole(&'a [u8]),
    /// The beginning of a line that is too long. It is returned once; the rest of the line is skipped.
    TooLong(&'a [u8]),
}

enum Found {
    Whole(Range<usize>),
    TooLong(Range<usize>),
}

impl<'s, R: AsyncRead + Unpin> Lines<'s, R> {
    pub(super) fn new(source: R, max_line: usize, memory: &'s ConnectionMemory) -> Self {
        let buffer = vec![0; SMALLEST_BUFFER];
        Self { source, memory, reservation: None, max_line, buffer, start: 0, scanned: 0, end: 0, skipping: false }
    }

    /// Returns the next line. The rest after the last newline is a line unless it is empty.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        Ok(match self.find().await? {
            Some(Found::Whole(range)) => Some(Line::Whole(&self.buffer[range])),
            Some(Found::TooLong(range)) => Some(Line::TooLong(&self.buffer[range])),
            None => None,
        })
    }

    async fn find(&mut self) -> io::Result<Option<Found>> {
        loop {
            if let Some(offset) = memchr::memchr(b'\n', &self.buffer[self.scanned..self.end]) {
                let newline = self.scanned + offset;
                let line = self.start..newline;
                self.start = newline + 1;
                self.scanned = self.start;
                if std::mem::take(&mut self.skipping) {
                    continue;
                }
                let is_long = line.len() > self.max_line;
                return Ok(Some(if is_long { Found::TooLong(line) } else { Found::Whole(line) }));
            }
            self.scanned = self.end;
            if self.skipping {
                self.start = self.end;
            } else if self.end - self.start > self.max_line {
                let beginning = self.start..self.end;
                self.start = self.end;
                self.skipping = true;
                return Ok(Some(Found::TooLong(beginning)));
            }
            if !self.fill().await? {
                let rest = self.start..self.end;
                self.start = self.end;
                return Ok((!rest.is_empty()).then_some(Found::Whole(rest)));
            }
        }
    }

    /// Reads once. Returns false at the end of the stream.
    async fn fill(&mut self) -> io::Result<bool> {
        self.compact();
        if self.is_full() && self.buffer.len() >= USUAL_BUFFER && self.reservation.is_none() {
            let reserved = self.memory.pooled(self.max_line, Retention::Brief).await;
            self.reservation = Some(reserved.map_err(|_| io::ErrorKind::BrokenPipe)?);
        }
        self.make_room();
        let room = &mut self.buffer[self.end..];
        let wanted = room.len();
        let read = match self.reservation {
            None => self.source.read(room).await?,
            Some(_) => read_unless_blocking(&mut self.source, room, self.memory).await?,
        };
        self.end += read;
        if read == wanted && self.buffer.len() < USUAL_BUFFER {
            self.buffer.resize(USUAL_BUFFER, 0);
        }
        Ok(read > 0)
    }

    fn compact(&mut self) {
        if self.buffer.len() - self.end < self.buffer.len() / 2 && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.scanned -= self.start;
            self.start = 0;
        }
    }

    fn is_full(&self) -> bool {
        self.end == self.buffer.len()
    }

    fn make_room(&mut self) {
        if self.is_full() {
            let larger = (self.buffer.len() * 2).min(self.max_line.saturating_add(USUAL_BUFFER));
            self.buffer.resize(larger, 0);
        } else if self.end == 0 && self.buffer.len() > USUAL_BUFFER {
            self.buffer.truncate(USUAL_BUFFER);
            self.buffer.shrink_to_fit();
            self.reservation = None;
        }
    }
}

/// Reads, but fails for a caller that does not complete a long line while others wait for its memory.
async fn read_unless_blocking(
    source: &mut (impl AsyncRead + Unpin),
    room: &mut [u8],
    memory: &ConnectionMemory,
) -> io::Result<usize> {
    let begun = Instant::now();
    let mut reading = std::pin::pin!(source.read(room));
    loop {
        match tokio::time::timeout(POLL_INTERVAL, &mut reading).await {
            Ok(read) => return read,
            Err(_) if begun.elapsed() >= SLOW_CALLER_LIMIT && memory.blocks_others() => {
                tracing::warn!("closing a connection with an incomplete line: other connections wait for its memory");
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Limits;
    use crate::server::memory::Memory;
    use proptest::prelude::*;

    fn memory() -> ConnectionMemory {
        Memory::new(&Limits::default()).for_connection()
    }

    /// Returns the lines of a stream that delivers the chunks in separate reads.
    async fn lines_of(chunks: Vec<Vec<u8>>, max_line: usize) -> Vec<Option<Vec<u8>>> {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let writing = async move {
            for chunk in chunks {
                tokio::io::AsyncWriteExt::write_all(&mut far, &chunk).await.expect("the reader reads");
                tokio::task::yield_now().await;
            }
        };
        let reading = async {
            let memory = memory();
            let mut lines = Lines::new(near, max_line, &memory);
            let mut seen = Vec::new();
            while let Some(line) = lines.next().await.expect("readable") {
                seen.push(match line {
                    Line::Whole(line) => Some(line.to_vec()),
                    Line::TooLong(beginning) => {
                        assert!(beginning.len() > max_line);
                        None
                    }
                });
            }
            assert!(lines.buffer.len() <= max_line + USUAL_BUFFER, "{}", lines.buffer.len());
            seen
        };
        tokio::join!(writing, reading).1
    }

    #[tokio::test]
    async fn a_line_too_long_is_reported_once_and_the_next_one_is_whole() {
        let long = vec![b'x'; 10 << 20];
        let seen = lines_of(vec![b"a\n".to_vec(), long, b"\nb\nc".to_vec()], 1 << 10).await;
        assert_eq!(seen, [Some(b"a".to_vec()), None, Some(b"b".to_vec()), Some(b"c".to_vec())]);
    }

    #[tokio::test]
    async fn a_line_too_long_without_end_is_the_last() {
        assert_eq!(lines_of(vec![vec![b'x'; 100_000]], 1 << 10).await, [None]);
    }

    #[tokio::test]
    async fn the_buffer_shrinks_after_a_long_line() {
        let (near, mut far) = tokio::io::duplex(4 << 20);
        let mut long = vec![b'x'; 1 << 20];
        long.push(b'\n');
        tokio::io::AsyncWriteExt::write_all(&mut far, &long).await.expect("there is room");
        let memory = memory();
        let mut lines = Lines::new(near, 1 << 20, &memory);
        assert!(matches!(lines.next().await, Ok(Some(Line::Whole(line))) if line.len() == 1 << 20));
        tokio::io::AsyncWriteExt::write_all(&mut far, b"short\n").await.expect("there is room");
        assert!(matches!(lines.next().await, Ok(Some(Line::Whole(b"short")))));
        assert_eq!(lines.buffer.capacity(), USUAL_BUFFER);
        assert!(lines.reservation.is_none());
    }

    proptest! {
        #[test]
        fn however_the_bytes_arrive_the_lines_are_the_same(
            bytes in proptest::collection::vec(prop_oneof![1 => Just(b'\n'), 6 => Just(b'x')], 0..400),
            cuts in proptest::collection::vec(1usize..40, 0..40),
            max_line in 1usize..20,
        ) {
            let mut chunks = Vec::new();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (chunk, tail) = rest.split_at(cut.min(rest.len()));
                chunks.push(chunk.to_vec());
                rest = tail;
            }
            chunks.push(rest.to_vec());

            let mut expected: Vec<_> = bytes.split(|byte| *byte == b'\n').collect();
            if expected.last().is_some_and(|last| last.is_empty()) {
                expected.pop();
            }
            let expected: Vec<_> =
                expected.into_iter().map(|line| (line.len() <= max_line).then(|| line.to_vec())).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            prop_assert_eq!(runtime.block_on(lines_of(chunks, max_line)), expected);
        }
    }
}
