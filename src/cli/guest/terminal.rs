//! The terminal that sandboxctl itself runs in.

use std::io::{IsTerminal, Stdin};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Every key is the sandbox's, until this is dropped.
#[derive(Debug)]
pub(super) struct RawMode {
    stdin: Stdin,
    before: Termios,
}

impl RawMode {
    /// `None`: standard input is not a terminal.
    pub(super) fn enter() -> Option<Self> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let before = tcgetattr(&stdin).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw).ok()?;
        Some(Self { stdin, before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.stdin, OptionalActions::Now, &self.before);
    }
}

/// Rows and columns; those of old where there is no terminal.
pub(super) fn size() -> (u16, u16) {
    let size = tcgetwinsize(std::io::stdin()).or_else(|_| tcgetwinsize(std::io::stdout()));
    match size {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row, size.ws_col),
        _ => (24, 80),
    }
}
