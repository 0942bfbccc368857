//! The socket of one guest stream: frames in, frames out, without blocking.

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

/// The memory that an empty inbox may keep.
const USUAL_INBOX: usize = 1024;

#[derive(Debug)]
pub(crate) struct StreamSocket {
    socket: Watched,
    inbox: Vec<u8>,
    /// The bytes of a data frame that have not arrived.
    rest_of_data: usize,
    outbox: Vec<u8>,
    sent: usize,
    grant: Grant,
    /// Whether further frames are read.
    reading: bool,
    /// More data is ready to send; the stream has only yielded to others.
    has_more: bool,
}

/// The result of one read from a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filled {
    Some(usize),
    /// No data is available now.
    WouldBlock,
    End,
}

impl StreamSocket {
    pub(crate) fn new(poll: &mut Poll, socket: OwnedFd, grant: Grant) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        set_socket_send_buffer_size(&socket, grant.size())?;
        let socket = poll.watch(socket, Interest::READ)?;
        let (inbox, outbox, rest_of_data, sent) = (Vec::new(), Vec::new(), 0, 0);
        Ok(Self { socket, inbox, rest_of_data, outbox, sent, grant, reading: true, has_more: false })
    }

    pub(crate) fn token(&self) -> Token {
        self.socket.token()
    }

    /// Returns whether unsent data remains. A file or a command is read no faster than the service reads.
    pub(crate) fn is_full(&self) -> bool {
        !self.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Returns the number of bytes to send at once.
    pub(crate) fn chunk(&self) -> usize {
        self.grant.size()
    }

    /// Returns whether the pipe of a command may grow by this many bytes.
    pub(crate) fn widen_pipe(&mut self, bytes: usize) -> bool {
        self.grant.widen_pipe(bytes)
    }

    /// Counts the stream, and `extra` bytes that it holds beside its buffers. Fails if there are too many streams.
    pub(crate) fn admit(&mut self, extra: usize) -> io::Result<()> {
        if self.grant.admit(extra) { Ok(()) } else { Err(Errno::NOBUFS.into()) }
    }

    /// Returns whether the service has closed its end, even if unread data remains.
    pub(crate) fn is_abandoned(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&now)).is_ok()
            && polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
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

    /// Sends as much as the socket accepts.
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

    /// Returns the range of each frame's payload in the outbox, which always starts with a frame.
    fn frames(&self) -> impl Iterator<Item = Range<usize>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (_, length) = wire::header(*self.outbox[at..].first_chunk()?).ok()?;
            let start = at + HEADER;
            at = start + length;
            Some(start..at)
        })
    }

    /// Returns the output of a command that was not sent.
    pub(crate) fn unsent_output(&self) -> impl Iterator<Item = (Kind, Vec<u8>)> {
        self.frames().filter(|frame| frame.end > self.sent).filter_map(|frame| {
            let (kind, _) = wire::header(*self.outbox[frame.start - HEADER..].first_chunk()?).ok()?;
            matches!(kind, Kind::Stdout | Kind::Stderr).then(|| (kind, self.outbox[frame].to_vec()))
        })
    }

    pub(crate) fn set_reading(&mut self, reading: bool) {
        self.reading = reading;
        self.update_interest();
    }

    /// Sets whether to wake up when the socket is writable, even with an empty outbox.
    pub(crate) fn set_has_more(&mut self, has_more: bool) {
        self.has_more = has_more;
        self.update_interest();
    }

    fn update_interest(&mut self) {
        let write = self.has_more || !self.outbox.is_empty();
        self.socket.set_interest(Interest { read: self.reading, write });
    }

    /// Receives at most `room` bytes. `false`: the service has closed its end.
    pub(crate) fn receive(&mut self, room: usize) -> Result<bool, Errno> {
        if !self.reading || self.inbox.len() > MAX_PAYLOAD + HEADER {
            return Ok(true);
        }
        Ok(!matches!(read_some(&self.socket, &mut self.inbox, room)?, Filled::End))
    }

    /// Returns the next received frame. Data is returned in parts, as it arrives.
    pub(crate) fn frame(&mut self) -> Result<Option<(Kind, Vec<u8>)>, Malformed> {
        if self.rest_of_data == 0 {
            let Some(start) = self.inbox.first_chunk::<HEADER>() else { return Ok(None) };
            let (kind, length) = wire::header(*start)?;
            let is_whole = self.inbox.len() >= HEADER + length;
            if kind != Kind::Data && !is_whole {
                return Ok(None);
            }
            self.take_inbox(HEADER);
            if is_whole {
                return Ok(Some((kind, self.take_inbox(length))));
            }
            self.rest_of_data = length;
        }
        if self.inbox.is_empty() {
            return Ok(None);
        }
        let length = self.rest_of_data.min(self.inbox.len());
        self.rest_of_data -= length;
        Ok(Some((Kind::Data, self.take_inbox(length))))
    }

    fn take_inbox(&mut self, length: usize) -> Vec<u8> {
        let taken = self.inbox.drain(..length).collect();
        if self.inbox.is_empty() && self.inbox.capacity() > USUAL_INBOX {
            self.inbox = Vec::new();
        }
        taken
    }
}

/// Appends the result of one read, at most `room` bytes, to `buffer`. `EIO` is the end of a terminal.
pub(crate) fn read_some(from: impl AsFd, buffer: &mut Vec<u8>, room: usize) -> Result<Filled, Errno> {
    let before = buffer.len();
    buffer.resize(before + room, 0);
    let outcome = read(from, &mut buffer[before..]);
    buffer.truncate(before + outcome.unwrap_or(0));
    match outcome {
        Ok(0) | Err(Errno::IO) => Ok(Filled::End),
        Ok(length) => Ok(Filled::Some(length)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Filled::WouldBlock),
        Err(error) => Err(error),
    }
}
