//! One conversation's socket: frames in, frames out, never blocking.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, read};
use rustix::net::{SendFlags, send};
use sandbox_init::codec::{Malformed, Value};
use sandbox_init::wire::{self, HEADER, Kind, MAX_PAYLOAD};

use crate::poll::{Interest, Poll, Token, Watched};

/// More than this is not taken from whoever produces, until the service has read some.
const FULL: usize = 2 * MAX_PAYLOAD;

/// What is read at once from a command or a file.
const CHUNK: usize = 128 * 1024;

#[derive(Debug)]
pub(crate) struct Channel {
    socket: Watched,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    sent: usize,
    /// Whether more frames are welcome.
    listening: bool,
    /// There is more to send, and only others were to have their turn first.
    awaits_turn: bool,
}

/// What came of reading from a descriptor into the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filled {
    Some(usize),
    /// Nothing at the moment.
    Dry,
    End,
}

impl Channel {
    pub(crate) fn new(poll: &mut Poll, socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let socket = poll.watch(socket, Interest::READ)?;
        Ok(Self { socket, inbox: Vec::new(), outbox: Vec::new(), sent: 0, listening: true, awaits_turn: false })
    }

    pub(crate) fn token(&self) -> Token {
        self.socket.token()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.outbox.len() - self.sent >= FULL
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    pub(crate) fn send(&mut self, kind: Kind, message: &impl Value) {
        wire::put_message(&mut self.outbox, kind, message);
    }

    pub(crate) fn send_data(&mut self, kind: Kind, bytes: &[u8]) {
        for chunk in bytes.chunks(MAX_PAYLOAD) {
            wire::put_data(&mut self.outbox, kind, chunk);
        }
    }

    pub(crate) fn send_end(&mut self) {
        wire::put_data(&mut self.outbox, Kind::End, &[]);
    }

    /// Reads at most `limit` bytes from a descriptor straight into a frame.
    pub(crate) fn fill(&mut self, kind: Kind, from: impl AsFd, limit: usize) -> Result<Filled, Errno> {
        let start = self.outbox.len();
        self.outbox.extend_from_slice(&[0; HEADER]);
        let outcome = read_some(from, &mut self.outbox, limit.min(CHUNK));
        match outcome {
            Ok(Filled::Some(length)) => wire::put_header(&mut self.outbox[start..], kind, length),
            _ => self.outbox.truncate(start),
        }
        outcome
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        while self.sent < self.outbox.len() {
            match send(&self.socket, &self.outbox[self.sent..], SendFlags::NOSIGNAL) {
                Ok(length) => self.sent += length,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.outbox.len() {
            self.outbox.clear();
            self.sent = 0;
        } else if self.sent > FULL {
            let whole = self.frames().take_while(|frame| frame.end <= self.sent).last().map_or(0, |frame| frame.end);
            self.outbox.drain(..whole);
            self.sent -= whole;
        }
        self.update_interest();
        Ok(())
    }

    /// Where in the outbox, which always starts with one, each frame's payload is.
    fn frames(&self) -> impl Iterator<Item = Range<usize>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (_, length) = wire::header(*self.outbox[at..].first_chunk()?).ok()?;
            let start = at + HEADER;
            at = start + length;
            Some(start..at)
        })
    }

    /// A command's output that the service can no longer be told.
    pub(crate) fn unsent_output(&self) -> impl Iterator<Item = (Kind, Vec<u8>)> {
        self.frames().filter(|frame| frame.end > self.sent).filter_map(|frame| {
            let (kind, _) = wire::header(*self.outbox[frame.start - HEADER..].first_chunk()?).ok()?;
            matches!(kind, Kind::Stdout | Kind::Stderr).then(|| (kind, self.outbox[frame].to_vec()))
        })
    }

    pub(crate) fn listen(&mut self, listening: bool) {
        self.listening = listening;
        self.update_interest();
    }

    /// Whether to be woken as soon as there is room, though nothing waits to be sent.
    pub(crate) fn await_turn(&mut self, awaits_turn: bool) {
        self.awaits_turn = awaits_turn;
        self.update_interest();
    }

    fn update_interest(&mut self) {
        let write = self.awaits_turn || !self.outbox.is_empty();
        self.socket.set_interest(Interest { read: self.listening, write });
    }

    /// Takes in what has come. `false`: the service has closed its end.
    pub(crate) fn receive(&mut self) -> Result<bool, Errno> {
        if !self.listening || self.inbox.len() > MAX_PAYLOAD + HEADER {
            return Ok(true);
        }
        Ok(!matches!(read_some(&self.socket, &mut self.inbox, CHUNK)?, Filled::End))
    }

    /// The next whole frame of what was received.
    pub(crate) fn frame(&mut self) -> Result<Option<(Kind, Vec<u8>)>, Malformed> {
        let Some(start) = self.inbox.first_chunk::<HEADER>() else { return Ok(None) };
        let (kind, length) = wire::header(*start)?;
        if self.inbox.len() < HEADER + length {
            return Ok(None);
        }
        let payload = self.inbox[HEADER..HEADER + length].to_vec();
        self.inbox.drain(..HEADER + length);
        Ok(Some((kind, payload)))
    }
}

/// Appends to `buffer` what one read gives, at most `room` bytes. The end of a terminal is an end too.
pub(crate) fn read_some(from: impl AsFd, buffer: &mut Vec<u8>, room: usize) -> Result<Filled, Errno> {
    let before = buffer.len();
    buffer.resize(before + room, 0);
    let outcome = read(from, &mut buffer[before..]);
    buffer.truncate(before + outcome.unwrap_or(0));
    match outcome {
        Ok(0) | Err(Errno::IO) => Ok(Filled::End),
        Ok(length) => Ok(Filled::Some(length)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Filled::Dry),
        Err(error) => Err(error),
    }
}
