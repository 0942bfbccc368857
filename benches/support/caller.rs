//! A cheap caller, which shares the machine with the service: it repeats one request, writes many at a time, and parses
//! only the beginning of each answer.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

pub(crate) struct Caller<'a> {
    stream: UnixStream,
    request: &'a str,
    buffer: Vec<u8>,
    /// The number of bytes in the buffer that are not yet a whole answer.
    unfinished: usize,
}

/// The id of every request, so that all good answers begin the same.
pub(crate) const ID: u32 = 1;
const GOOD: &[u8] = br#"{"jsonrpc":"2.0","id":1,"result":{"#;

impl<'a> Caller<'a> {
    /// Connects. `request` is a line with its newline.
    pub(crate) fn connect(socket: &Path, request: &'a str) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        Ok(Self { stream, request, buffer: vec![0; 256 << 10], unfinished: 0 })
    }

    /// Sends one request at a time for `duration`, and records the nanoseconds from request to answer.
    pub(crate) fn one_at_a_time(&mut self, duration: Duration, took: &mut Histogram<u64>) -> io::Result<()> {
        let end = Instant::now() + duration;
        loop {
            let asked = Instant::now();
            if asked >= end {
                return Ok(());
            }
            self.stream.write_all(self.request.as_bytes())?;
            while self.answers()? == 0 {}
            took.saturating_record(u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Keeps `window` requests in flight for `duration`, and returns the number of answers.
    pub(crate) fn pipelined(&mut self, duration: Duration, window: usize) -> io::Result<u64> {
        let requests = self.request.repeat(window);
        let end = Instant::now() + duration;
        self.stream.write_all(requests.as_bytes())?;
        let (mut answered, mut under_way) = (0, window);
        while under_way > 0 {
            let answers = self.answers()?;
            answered += answers as u64;
            under_way -= answers;
            if Instant::now() < end {
                self.stream.write_all(&requests.as_bytes()[..answers * self.request.len()])?;
                under_way += answers;
            }
        }
        Ok(answered)
    }

    /// Reads once and returns the number of complete answers. An error answer ends the benchmark.
    fn answers(&mut self) -> io::Result<usize> {
        let read = self.stream.read(&mut self.buffer[self.unfinished..])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (mut answers, mut start, filled) = (0, 0, self.unfinished + read);
        for newline in memchr::memchr_iter(b'\n', &self.buffer[..filled]) {
            let answer = &self.buffer[start..newline];
            if !answer.starts_with(GOOD) {
                return Err(io::Error::other(String::from_utf8_lossy(answer)));
            }
            answers += 1;
            start = newline + 1;
        }
        self.buffer.copy_within(start..filled, 0);
        self.unfinished = filled - start;
        Ok(answers)
    }
}
