//! One guest stream. Its request determines its role.

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

/// Chunks sent in a row. Other streams are served in between, however fast the service reads.
const MAX_CHUNKS: usize = 16;

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) channel: StreamSocket,
    pub(crate) role: Role,
}

#[derive(Debug)]
pub(crate) enum Role {
    /// The request has not arrived.
    New,
    Attached(u64),
    /// A detached command has started. The service closes the stream once it knows, or kills the command if it has
    /// given up meanwhile.
    Launched(u64),
    /// Waits for the end of the command.
    Awaiting(u64),
    Reading(Reading),
    Listing(Listing),
    Writing(Writing),
    Packing(Box<Packing>),
    Unpacking(Box<Unpacking>),
    Moving(Box<Moving>),
    /// The last frame is queued, but not sent.
    Closing,
}

impl Stream {
    pub(crate) fn new(poll: &mut Poll, socket: OwnedFd, grant: Grant) -> std::io::Result<Self> {
        Ok(Self { channel: StreamSocket::new(poll, socket, grant)?, role: Role::New })
    }

    pub(crate) fn token(&self) -> Token {
        self.channel.token()
    }

    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.role, Role::Closing) && self.channel.is_empty()
    }

    pub(crate) fn close_with(&mut self, event: &Event) {
        self.channel.send(Kind::Event, event);
        self.role = Role::Closing;
    }

    pub(crate) fn fail(&mut self, error: impl Into<std::io::Error>) {
        self.close_with(&Event::Failed { failure: failure(&error.into()) });
    }

    /// Fails with the name of the entry in the message.
    fn fail_in_tree(&mut self, error: &TreeError) {
        let failure = Failure { message: error.to_string().into(), ..failure(&error.error) };
        self.close_with(&Event::Failed { failure });
    }

    /// Returns the number of bytes to receive at once. Standard input waits here while its command does not read it.
    pub(crate) fn intake(&self) -> usize {
        match self.role {
            Role::Attached(_) => 16 << 10,
            _ => 64 << 10,
        }
    }

    /// Handles a request that concerns no command. Returns any other request.
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

    /// Handles a further frame of the request.
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

    /// Sends further frames, as far as there is room.
    pub(crate) fn produce(&mut self) {
        for _ in 0..MAX_CHUNKS {
            if self.channel.is_full() && (self.channel.flush().is_err() || self.channel.is_full()) {
                // A later flush may empty the outbox, and the stream must continue then.
                return self.channel.set_has_more(true);
            }
            let more = match &mut self.role {
                Role::Reading(reading) => reading.advance(&mut self.channel),
                Role::Listing(listing) => listing.advance(&mut self.channel),
                Role::Packing(packing) if self.channel.admit(trees::memory(packing)).is_err() => {
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
                _ => return self.channel.set_has_more(false),
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
        self.channel.set_has_more(true);
    }
}

/// Returns whether a request opens a stream of any length, which counts against the budget.
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
        _ => Err(std::io::Error::other("the first frame of a stream must be a request")),
    }
}

fn failure(error: &std::io::Error) -> Failure {
    if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) {
        let message = "the sandbox has too many open streams for its memory; end some of them, or try again later";
        return Failure { errno: Errno::NOBUFS.raw_os_error(), message: message.into() };
    }
    // A message of this program keeps the error number of its kind.
    let of_kind = if error.kind() == std::io::ErrorKind::NotADirectory { Errno::NOTDIR.raw_os_error() } else { 0 };
    Failure { errno: error.raw_os_error().unwrap_or(of_kind), message: error.to_string().into() }
}
