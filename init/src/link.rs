//! The connection to the service: made again and again until it holds, for the service may restart.

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

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Where the service listens, and how it knows us.
#[derive(Debug)]
pub(crate) struct Address {
    socket: OsString,
    secret: [u8; SECRET_LENGTH],
}

impl Address {
    /// Absent where nobody said: then there is only the program to care for.
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
    pause: Duration,
}

#[derive(Debug)]
enum State {
    Broken { again: Instant },
    Open(Watched),
}

impl Link {
    pub(crate) fn new(address: Address) -> Self {
        Self { address, state: State::Broken { again: Instant::now() }, pause: FIRST_PAUSE }
    }

    /// When [`Link::mend`] has something to do.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        match self.state {
            State::Broken { again } => Some(again),
            State::Open(_) => None,
        }
    }

    pub(crate) fn is(&self, token: Token) -> bool {
        matches!(&self.state, State::Open(socket) if socket.token() == token)
    }

    /// Connects, if it is time to.
    pub(crate) fn mend(&mut self, poll: &mut Poll) {
        let State::Broken { again } = self.state else { return };
        if Instant::now() < again {
            return;
        }
        match self.connect(poll) {
            Ok(socket) => self.state = State::Open(socket),
            Err(_) => self.back_off(),
        }
    }

    fn connect(&self, poll: &mut Poll) -> io::Result<Watched> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(self.address.socket.as_os_str())?)?;
        let mut hello = Vec::new();
        wire::put_message(&mut hello, Kind::Hello, &Hello { version: VERSION, secret: self.address.secret });
        // It fits into an empty buffer.
        send(&socket, &hello, SendFlags::NOSIGNAL)?;
        poll.watch(socket, Interest::READ)
    }

    fn back_off(&mut self) {
        self.state = State::Broken { again: Instant::now() + self.pause };
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// The conversations that were opened since.
    pub(crate) fn opened(&mut self) -> Vec<OwnedFd> {
        let mut opened = Vec::new();
        while let State::Open(socket) = &self.state {
            match receive(socket, &mut opened) {
                Ok(true) => self.pause = FIRST_PAUSE,
                Err(rustix::io::Errno::AGAIN) => break,
                Ok(false) | Err(_) => self.back_off(),
            }
        }
        opened
    }
}

/// Whether anything came; the end of the connection if not.
fn receive(socket: &Watched, opened: &mut Vec<OwnedFd>) -> rustix::io::Result<bool> {
    const AT_ONCE: usize = 8;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // The kernel never joins two messages that carry descriptors, so one byte is one conversation.
    let mut byte = [0; 1];
    let message = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for attached in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = attached {
            opened.extend(descriptors);
        }
    }
    Ok(message.bytes > 0)
}
