//! One conversation's socket: frames in, frames out, never blocking.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{SendFlags, send};
use sandbox_init::codec::{Malformed, Value};
use sandbox_init::wire::{self, HEADER, Kind, MAX_PAYLOAD};

use crate::budget::Grant;
use crate::poll::{Interest, Poll, Token, Watched};

/// What an inbox may keep of its memory once it is empty.
const USUAL_INBOX: usize = 1024;

#[derive(Debug)]
pub(crate) struct StreamSocket {
    socket: Watched,
    inbox: Vec<u8>,
    /// So much of a frame of data is still to come.
    rest_of_data: usize,
    outbox: Vec<u8>,
    sent: usize,
    grant: Grant,
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

impl StreamSocket {
    pub(crate) fn new(poll: &mut Poll, socket: OwnedFd, grant: Grant) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        set_socket_send_buffer_size(&socket, grant.size())?;
        let socket = poll.watch(socket, Interest::READ)?;
        let (inbox, outbox, rest_of_data, sent) = (Vec::new(), Vec::new(), 0, 0);
        Ok(Self { socket, inbox, rest_of_data, outbox, sent, grant, listening: true, awaits_turn: false })
    }

    pub(crate) fn token(&self) -> Token {
        self.socket.token()
    }

    /// Whether the last frame is still here: a file or a command is read no faster than the service reads.
    pub(crate) fn is_full(&self) -> bool {
        !self.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    /// How much to send at once.
    pub(crate) fn chunk(&self) -> usize {
        self.grant.size()
    }

    /// Whether the pipe of a command that is read fast may become larger by so much.
    pub(crate) fn widen_pipe(&mut self, bytes: usize) -> bool {
        self.grant.widen_pipe(bytes)
    }

    /// Counts a stream, with what it holds beside its buffers. An error: there are too many streams already.
    pub(crate) fn admit(&mut self, extra: usize) -> io::Result<()> {
        if self.grant.admit(extra) { Ok(()) } else { Err(Errno::NOBUFS.into()) }
    }

    /// Whether the service has closed its end, even if not all that it sent was read.
    pub(crate) fn is_abandoned(&self) -> bool {
        let mut looks = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut looks, Some(&now)).is_ok()
            && looks[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
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
        let outcome = read_some(from, &mut self.outbox, limit.min(self.grant.size()));
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
                Ok(length) => {
                    self.sent += length;
                    if self.grant.sent(length) {
                        let _ = set_socket_send_buffer_size(&self.socket, self.grant.size());
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.outbox.len() {
            self.outbox.clear();
            self.sent = 0;
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

    /// Takes in what has come, at most `room` bytes. `false`: the service has closed its end.
    pub(crate) fn receive(&mut self, room: usize) -> Result<bool, Errno> {
        if !self.listening || self.inbox.len() > MAX_PAYLOAD + HEADER {
            return Ok(true);
        }
        Ok(!matches!(read_some(&self.socket, &mut self.inbox, room)?, Filled::End))
    }

    /// The next frame of what was received. Data is handed on in parts, as it comes.
    pub(crate) fn frame(&mut self) -> Result<Option<(Kind, Vec<u8>)>, Malformed> {
        if self.rest_of_data == 0 {
            let Some(start) = self.inbox.first_chunk::<HEADER>() else { return Ok(None) };
            let (kind, length) = wire::header(*start)?;
            let is_whole = self.inbox.len() >= HEADER + length;
            if kind != Kind::Data && !is_whole {
                return Ok(None);
            }
            self.take_in(HEADER);
            if is_whole {
                return Ok(Some((kind, self.take_in(length))));
            }
            self.rest_of_data = length;
        }
        if self.inbox.is_empty() {
            return Ok(None);
        }
        let length = self.rest_of_data.min(self.inbox.len());
        self.rest_of_data -= length;
        Ok(Some((Kind::Data, self.take_in(length))))
    }

    fn take_in(&mut self, length: usize) -> Vec<u8> {
        let taken = self.inbox.drain(..length).collect();
        if self.inbox.is_empty() && self.inbox.capacity() > USUAL_INBOX {
            self.inbox = Vec::new();
        }
        taken
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
