//! The signals of this process, as a descriptor to poll.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::process::Signal;
use signal_hook::consts;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

const FORWARDED: [i32; 7] = [
    consts::SIGHUP,
    consts::SIGINT,
    consts::SIGQUIT,
    consts::SIGTERM,
    consts::SIGUSR1,
    consts::SIGUSR2,
    consts::SIGWINCH,
];

#[derive(Debug)]
pub(crate) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

pub(crate) enum Arrived {
    ChildEnded,
    ForProgram(Signal),
}

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let all = FORWARDED.into_iter().chain([consts::SIGCHLD]);
        Ok(Self { delivery: SignalDelivery::with_pipe(read, write, SignalOnly, all)? })
    }

    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.delivery.get_read().as_fd().try_clone_to_owned()
    }

    pub(crate) fn arrived(&mut self) -> Vec<Arrived> {
        let arrived = |number| match Signal::from_named_raw(number)? {
            Signal::CHILD => Some(Arrived::ChildEnded),
            signal => Some(Arrived::ForProgram(signal)),
        };
        self.delivery.pending().filter_map(arrived).collect()
    }
}
