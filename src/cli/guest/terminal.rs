//! The terminal of sandboxctl.

use std::io::{IsTerminal, Stdin};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use sandboxd_protocol::command::Terminal;

/// Raw mode of the terminal, until drop: every key goes to the sandbox.
#[derive(Debug)]
pub(super) struct RawMode {
    stdin: Stdin,
    before: Termios,
}

impl RawMode {
    /// Enters raw mode. Returns `None` if standard input is not a terminal.
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

/// Returns the size of the terminal; 24 rows and 80 columns without one.
pub(super) fn size() -> Terminal {
    let size = tcgetwinsize(std::io::stdin()).or_else(|_| tcgetwinsize(std::io::stdout()));
    match size {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => Terminal { rows: size.ws_row, columns: size.ws_col },
        _ => Terminal { rows: 24, columns: 80 },
    }
}
