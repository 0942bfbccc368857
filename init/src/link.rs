//! The guest link: the connection to the service. Init reconnects until it succeeds, because the service may restart.

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recvmsg, send, socket_with,
};
use sandbox_init::wire::{self, Hello, Kind, SECRET_LENGTH, SECRET_VARIABLE, SOCKET_VARIABLE, VERSION};

use crate::poll::{Interest, Poll, Token, Watched};

const MIN_DELAY: Duration = Duration::from_millis(20);
const MAX_DELAY: Duration = Duration::from_millis(500);

/// The service's socket, and the secret that identifies this init.
#[derive(Debug)]
pub(crate) struct Address {
    socket: OsString,
    secret: [u8; SECRET_LENGTH],
}

impl Address {
    /// Reads the address from the environment. Absent without the variables: then init only runs the program.
    pub(crate) fn from_environment() -> Option<Self> {
        let secret = std::env::var(SECRET_VARIABLE).ok()?;
        let mut bytes = [0; SECRET_LENGTH];
        for (byte, pair) in bytes.iter_mut().zip(secret.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self { socket: std::env::var_os(SOCKET_VARIABLE)?, secret: bytes })
    }
}

#[derive(Debug)]
pub(crate) struct Link {
    address: Address,
    state: State,
    delay: Duration,
}

#[derive(Debug)]
enum State {
    Disconnected { retry_at: Instant },
    Connected(Watched),
}

impl Link {
    pub(crate) fn new(address: Address) -> Self {
        Self { address, state: State::Disconnected { retry_at: Instant::now() }, delay: MIN_DELAY }
    }

    /// Returns when [`Link::reconnect`] tries again.
    pub(crate) fn next_attempt(&self) -> Option<Instant> {
        match self.state {
            State::Disconnected { retry_at } => Some(retry_at),
            State::Connected(_) => None,
        }
    }

    pub(crate) fn is(&self, token: Token) -> bool {
        matches!(&self.state, State::Connected(socket) if socket.token() == token)
    }

    /// Connects if the next attempt is due.
    pub(crate) fn reconnect(&mut self, poll: &mut Poll) {
        let State::Disconnected { retry_at } = self.state else { return };
        if Instant::now() < retry_at {
            return;
        }
        match self.connect(poll) {
            Ok(socket) => self.state = State::Connected(socket),
            Err(_) => self.back_off(),
        }
    }

    fn connect(&self, poll: &mut Poll) -> io::Result<Watched> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(self.address.socket.as_os_str())?)?;
        let mut hello = Vec::new();
        wire::put_message(&mut hello, Kind::Hello, &Hello { version: VERSION, secret: self.address.secret });
        // The message fits into an empty buffer.
        send(&socket, &hello, SendFlags::NOSIGNAL)?;
        poll.watch(socket, Interest::READ)
    }

    fn back_off(&mut self) {
        self.state = State::Disconnected { retry_at: Instant::now() + self.delay };
        self.delay = (self.delay * 2).min(MAX_DELAY);
    }

    /// Returns the sockets of newly opened streams.
    pub(crate) fn accept(&mut self) -> Vec<OwnedFd> {
        let mut opened = Vec::new();
        while let State::Connected(socket) = &self.state {
            match receive(socket, &mut opened) {
                Ok(true) => self.delay = MIN_DELAY,
                Err(rustix::io::Errno::AGAIN) => break,
                Ok(false) | Err(_) => self.back_off(),
            }
        }
        opened
    }
}

/// Receives the socket of one stream. `false`: the connection has ended.
fn receive(socket: &Watched, opened: &mut Vec<OwnedFd>) -> rustix::io::Result<bool> {
    const AT_ONCE: usize = 8;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // The kernel never merges two messages that carry descriptors, so one byte is one stream.
    let mut byte = [0; 1];
    let message = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for attached in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = attached {
            opened.extend(descriptors);
        }
    }
    Ok(message.bytes > 0)
}
