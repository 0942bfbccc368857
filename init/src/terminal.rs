//! Terminals of commands.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use sandbox_init::wire::Size;

/// Gives the command a new terminal, and returns the master side.
pub(crate) fn attach(command: &mut Command, size: &Size) -> io::Result<OwnedFd> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let slave = open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    resize(&master, size)?;
    command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
    start_session(command);
    Ok(master)
}

pub(crate) fn resize(master: impl AsFd, size: &Size) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(master, size)?)
}

#[allow(unsafe_code)]
fn start_session(command: &mut Command) {
    let become_leader = || {
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        Ok(())
    };
    // SAFETY: between fork and exec only these two system calls are made: no allocation, no lock.
    unsafe { command.pre_exec(become_leader) };
}
