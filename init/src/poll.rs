//! Readiness of descriptors, by `epoll`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// The id of a watched descriptor, unique in the life of this process.
pub(crate) type Token = u64;

#[derive(Debug)]
pub(crate) struct Poll {
    epoll: Rc<OwnedFd>,
    last: Token,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: Rc::new(epoll::create(CreateFlags::CLOEXEC)?), last: 0 })
    }

    pub(crate) fn watch(&mut self, fd: OwnedFd, interest: Interest) -> io::Result<Watched> {
        self.last += 1;
        // A descriptor without interest is not registered; see `set_interest`.
        if interest != Interest::NONE {
            epoll::add(&*self.epoll, &fd, EventData::new_u64(self.last), interest.flags())?;
        }
        Ok(Watched { fd, token: self.last, interest, epoll: self.epoll.clone() })
    }

    /// Waits until descriptors are ready, at most for `limit`, and collects their tokens in `ready`.
    pub(crate) fn wait(&self, limit: Option<Duration>, ready: &mut Vec<Token>) -> io::Result<()> {
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
        let limit = limit.map(|limit| limit.try_into().unwrap_or_default());
        ready.clear();
        match epoll::wait(&*self.epoll, &mut events, limit.as_ref()) {
            Ok((events, _)) => ready.extend(events.iter().map(|event| event.data.u64())),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Interest {
    pub(crate) const READ: Self = Self { read: true, write: false };
    pub(crate) const WRITE: Self = Self { read: false, write: true };
    pub(crate) const NONE: Self = Self { read: false, write: false };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.read);
        flags.set(EventFlags::OUT, self.write);
        flags
    }
}

/// A descriptor that is registered with `epoll` until it is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    fd: OwnedFd,
    token: Token,
    interest: Interest,
    epoll: Rc<OwnedFd>,
}

impl Watched {
    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// Changes the interest. `epoll` reports errors and hang-ups of every registered descriptor, so a descriptor
    /// without interest is unregistered.
    pub(crate) fn set_interest(&mut self, interest: Interest) {
        let (before, data) = (self.interest, EventData::new_u64(self.token));
        if before == interest {
            return;
        }
        self.interest = interest;
        let _ = match (before, interest) {
            (_, Interest::NONE) => epoll::delete(&*self.epoll, &self.fd),
            (Interest::NONE, _) => epoll::add(&*self.epoll, &self.fd, data, interest.flags()),
            _ => epoll::modify(&*self.epoll, &self.fd, data, interest.flags()),
        };
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Closing is not enough: a child between fork and exec still has a copy of the descriptor.
        let _ = epoll::delete(&*self.epoll, &self.fd);
    }
}
