//! One conversation: what was asked for decides what it goes on with.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use sandbox_init::codec::decode;
use sandbox_init::tree::{Packing, TreeError, Unpacking};
use sandbox_init::wire::{Event, Failure, Kind, Request};

use crate::budget::Grant;
use crate::files::{self, Listing, Reading, Writing};
use crate::moving::{self, Moving};
use crate::poll::{Poll, Token};
use crate::stream_socket::StreamSocket;
use crate::{trees, usage};

/// Sent on in a row, so that the others get their turn, however fast the service reads.
const TURNS: usize = 16;

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) channel: StreamSocket,
    pub(crate) role: Role,
}

#[derive(Debug)]
pub(crate) enum Role {
    /// Nothing was asked for yet.
    Fresh,
    Attached(u64),
    /// A command that runs detached has started. The service closes the conversation once it knows that, or kills the
    /// command if it has given up meanwhile.
    Launched(u64),
    /// To be told when the command has ended.
    Awaiting(u64),
    Reading(Reading),
    Listing(Listing),
    Writing(Writing),
    Packing(Box<Packing>),
    Unpacking(Box<Unpacking>),
    Moving(Box<Moving>),
    /// All was said, but not all has been sent.
    Closing,
}

impl Stream {
    pub(crate) fn new(poll: &mut Poll, socket: OwnedFd, grant: Grant) -> std::io::Result<Self> {
        Ok(Self { channel: StreamSocket::new(poll, socket, grant)?, role: Role::Fresh })
    }

    pub(crate) fn token(&self) -> Token {
        self.channel.token()
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.role, Role::Closing) && self.channel.is_empty()
    }

    pub(crate) fn close_with(&mut self, event: &Event) {
        self.channel.send(Kind::Event, event);
        self.role = Role::Closing;
    }

    pub(crate) fn fail(&mut self, error: impl Into<std::io::Error>) {
        self.close_with(&Event::Failed { failure: failure(&error.into()) });
    }

    /// Says at which entry it failed, too.
    fn fail_in_tree(&mut self, error: &TreeError) {
        let failure = Failure { message: error.to_string().into(), ..failure(&error.error) };
        self.close_with(&Event::Failed { failure });
    }

    /// How much to receive at once. Standard input waits here while its command does not read it.
    pub(crate) fn intake(&self) -> usize {
        match self.role {
            Role::Attached(_) => 16 << 10,
            _ => 64 << 10,
        }
    }

    /// Does what concerns no command. A request for something else is handed back.
    pub(crate) fn open(&mut self, request: Request) -> Option<Request> {
        if is_stream(&request)
            && let Err(error) = self.channel.admit(0)
        {
            self.fail(error);
            return None;
        }
        let answer = match request {
            Request::Read { path, offset, length } => Reading::open(&path, offset, length).map(|(facts, reading)| {
                self.channel.send(Kind::Event, &Event::Facts { facts });
                self.role = Role::Reading(reading);
                None
            }),
            Request::ReadDirectory { path } => Listing::open(&path).map(|listing| {
                self.role = Role::Listing(listing);
                None
            }),
            Request::Write { path, mode, parents } => Writing::open(&path, mode, parents).map(|writing| {
                self.role = Role::Writing(writing);
                None
            }),
            Request::ReadTree { path } => trees::packing(&path).map(|packing| {
                self.role = Role::Packing(Box::new(packing));
                None
            }),
            Request::WriteTree { path, parents } => trees::unpacking(&path, parents).map(|unpacking| {
                self.role = Role::Unpacking(Box::new(unpacking));
                None
            }),
            Request::Facts { path } => files::facts(&path).map(|facts| Some(Event::Facts { facts })),
            Request::MakeDirectory { path, mode, parents } => done(files::make_directory(&path, mode, parents)),
            Request::Remove { path, recursive } => done(files::remove(&path, recursive)),
            Request::Move { from, to } => moving::begin(&from, &to).map(|copy| match copy {
                None => Some(Event::Done {}),
                Some(copy) => {
                    self.role = Role::Moving(Box::new(copy));
                    None
                }
            }),
            Request::MakeLink { path, target } => done(files::make_link(&path, &target)),
            Request::Usage {} => Ok(Some(Event::Usage { usage: usage::usage() })),
            other => return Some(other),
        };
        match answer {
            Ok(Some(event)) => self.close_with(&event),
            Ok(None) => {}
            Err(error) => self.fail(error),
        }
        None
    }

    /// Takes a frame that goes on with what was opened.
    pub(crate) fn take(&mut self, kind: Kind, payload: &[u8]) {
        match &mut self.role {
            Role::Writing(writing) => {
                let outcome = match kind {
                    Kind::Data => writing.append(payload).map(|()| None),
                    Kind::End => writing.finish().map(|()| Some(Event::Done {})),
                    _ => Ok(None),
                };
                match outcome {
                    Ok(None) => {}
                    Ok(Some(event)) => self.close_with(&event),
                    Err(error) => self.fail(error),
                }
            }
            Role::Unpacking(unpacking) => {
                let outcome = match kind {
                    Kind::Data => unpacking.take(payload).map(|()| None),
                    Kind::End => unpacking.finish().map(Some),
                    _ => Ok(None),
                };
                match outcome {
                    Ok(None) => {}
                    Ok(Some(totals)) => self.close_with(&trees::event(totals)),
                    Err(error) => self.fail_in_tree(&error),
                }
            }
            _ => {}
        }
    }

    /// Sends on what was opened, as far as there is room.
    pub(crate) fn produce(&mut self) {
        for _ in 0..TURNS {
            if self.channel.is_full() && (self.channel.flush().is_err() || self.channel.is_full()) {
                // A later flush may send all of it, and this must go on all the same.
                return self.channel.await_turn(true);
            }
            let more = match &mut self.role {
                Role::Reading(reading) => reading.advance(&mut self.channel),
                Role::Listing(listing) => listing.advance(&mut self.channel),
                Role::Packing(packing) if self.channel.admit(trees::held(packing)).is_err() => {
                    self.fail(Errno::NOBUFS);
                    continue;
                }
                Role::Packing(packing) => match trees::advance(packing, &mut self.channel) {
                    Ok(None) => Ok(true),
                    Ok(Some(totals)) => {
                        self.close_with(&trees::event(totals));
                        continue;
                    }
                    Err(error) => {
                        self.fail_in_tree(&error);
                        continue;
                    }
                },
                Role::Moving(moving) => match moving.advance() {
                    Ok(true) => Ok(true),
                    Ok(false) => {
                        self.close_with(&Event::Done {});
                        continue;
                    }
                    Err(error) => Err(error),
                },
                _ => return self.channel.await_turn(false),
            };
            match more {
                Ok(true) => {}
                Ok(false) => {
                    self.channel.send_end();
                    self.role = Role::Closing;
                }
                Err(error) => self.fail(error),
            }
        }
        self.channel.await_turn(true);
    }
}

/// Whether a request opens a stream of any length, which counts against the budget.
fn is_stream(request: &Request) -> bool {
    use Request::*;
    matches!(request, Read { .. } | ReadDirectory { .. } | Write { .. } | ReadTree { .. } | WriteTree { .. })
}

fn done(outcome: std::io::Result<()>) -> std::io::Result<Option<Event>> {
    outcome.map(|()| Some(Event::Done {}))
}

pub(crate) fn request(kind: Kind, payload: &[u8]) -> std::io::Result<Request> {
    match kind {
        Kind::Request => decode(payload).map_err(std::io::Error::other),
        _ => Err(std::io::Error::other("a stream starts with a request")),
    }
}

fn failure(error: &std::io::Error) -> Failure {
    if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) {
        let message = "the sandbox has too many open streams for its memory; end some of them, or try again later";
        return Failure { errno: Errno::NOBUFS.raw_os_error(), message: message.into() };
    }
    // What is said in words of our own has the system's number all the same.
    let of_kind = if error.kind() == std::io::ErrorKind::NotADirectory { Errno::NOTDIR.raw_os_error() } else { 0 };
    Failure { errno: error.raw_os_error().unwrap_or(of_kind), message: error.to_string().into() }
}
